"""Labels of nodes that are learnt, and variants that are judged by them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from gnnserve_api.classes import Classes
from gnnserve_api.errors import InputError
from gnnserve_api.given_weights import LabelMisfit
from gnnserve_api.graph_schema import GraphSchema
from gnnserve_api.profile import Metric, VariantProfile
from gnnserve_api.repository import TaskSection, VariantManifest
from gnnserve_api.spec.scoring import MetricChoice, Thresholds
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import Variants
from gnnserve_api.training import Majority
from gnnserve_worker.graph.store import GraphData, Splits
from gnnserve_worker.tasks.classify_nodes.label_fit import label_misfits
from gnnserve_worker.tasks.classify_nodes.metrics import evaluate, majority_of, metric_of, right_labels
from gnnserve_worker.tasks.classify_nodes.temperature import fit_temperature
from gnnserve_worker.tasks.classify_nodes.thresholds import check_thresholds, fit_thresholds
from gnnserve_worker.tasks.course import Course, EmbeddingCourse, Visible
from gnnserve_worker.tasks.generated import Imported, Judgement, OutputsOf, Verdict


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """Labels that are learnt: the `LearningProblem` over any graph, and the `Judge` of it."""

    labels: np.ndarray
    """int64 [nodes], or uint8 [nodes, classes] where a node may have several classes, as in `GraphData`."""
    classes: Classes
    splits: Splits
    choice: MetricChoice = MetricChoice.AUTO
    """Metric by which the best epoch is chosen and variants are judged."""
    thresholds: Thresholds = Thresholds.FIXED
    compares_shortly: bool = True
    keeps_outputs: bool = False

    @property
    def multi_label(self) -> bool:
        return self.labels.ndim == 2

    @property
    def metric(self) -> Metric:
        return metric_of(self.multi_label, self.choice)

    @property
    def items(self) -> int:
        return len(self.splits.train)

    @property
    def majority(self) -> Majority:
        return majority_of(self.labels, len(self.classes), self.splits, self.metric)

    @property
    def expected(self) -> np.ndarray:
        """Labels of the validation nodes."""
        expected: np.ndarray = self.labels[self.splits.validation]
        return expected

    def answered_types(self, graph: GraphSchema) -> tuple[int, ...]:
        """The first type, whose nodes have labels."""
        return (0,)

    def check(self, variants: Variants) -> None:
        metric_of(self.multi_label, variants.metric)
        if variants.cascades and self.multi_label:
            raise InputError(
                "spec.variants.cascades",
                "needs one confidence for each answer, and nodes of this graph may have several classes",
                "leave it out; it is for nodes of one class each",
            )
        check_thresholds(variants.thresholds, multi_label=self.multi_label, classes=len(self.classes))

    def course(self, visible: Visible, seed: int, decoder: Mapping[str, np.ndarray] | None = None) -> Course:
        # Imported here: torch takes seconds.
        from gnnserve_worker.tasks.classify_nodes.learning import Truth, label_course  # noqa: PLC0415

        return label_course(Truth(self.labels, self.splits, self.metric), visible)

    def distilled(self, visible: Visible, nodes: np.ndarray, taught: np.ndarray) -> Iterator[Course]:
        from gnnserve_worker.tasks.classify_nodes.learning import Truth, distilled_courses  # noqa: PLC0415

        return distilled_courses(Truth(self.labels, self.splits, self.metric), visible, nodes, taught)

    def embedding_course(self) -> EmbeddingCourse:
        raise ValueError("embeddings are made for links")

    def judge(self, decoder: Mapping[str, np.ndarray]) -> LabelJudge:
        return LabelJudge(self)


@dataclass(frozen=True, slots=True)
class LabelJudge:
    """Judges variants by labels of validation and test nodes."""

    problem: NodeLabels

    @property
    def metric(self) -> Metric:
        return self.problem.metric

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        return {}

    @property
    def graph(self) -> None:
        """Labels are no part of the graph, so that nothing has to be hidden."""

    def judge(self, outputs_of: OutputsOf) -> Verdict:
        splits = self.problem.splits
        scores, expected, metric = outputs_of(splits.validation), self.problem.expected, self.metric
        validation = Judgement(
            evaluate(scores, expected, metric),
            right=right_labels(scores, expected, metric),
            answers=None if self.problem.multi_label else scores.argmax(axis=1),
        )
        if not len(splits.test):
            return Verdict(validation, None)
        test = evaluate(outputs_of(splits.test), self.problem.labels[splits.test], metric)
        return Verdict(validation, Judgement(test))

    def calibrate(self, variant: VariantManifest, outputs_of: OutputsOf) -> VariantManifest:
        """The variant with the thresholds that suit its scores, where each class has its own."""
        if self.problem.thresholds is not Thresholds.PER_CLASS:
            return variant
        thresholds = fit_thresholds(outputs_of(self.problem.splits.validation), self.problem.expected)
        return msgspec.structs.replace(variant, thresholds=thresholds)

    def temperature(self, outputs: np.ndarray) -> float:
        return fit_temperature(outputs, self.problem.expected)

    def misfits(
        self, spec: GNNServiceSpec, profiles: Iterable[VariantProfile], answers: Mapping[str, np.ndarray]
    ) -> Sequence[LabelMisfit]:
        problem = self.problem
        return [*label_misfits(spec, profiles, answers, problem.expected, problem.classes, problem.majority)]

    def sections(self, weights: str | None) -> Mapping[str, TaskSection]:
        """Empty: a manifest names the classes with its graph."""
        return {}


def pose_labels(graph: GraphData, variants: Variants) -> Imported:
    labels = NodeLabels(graph.labels, graph.classes, graph.splits, variants.metric, variants.thresholds)
    return Imported(graph, labels, graph.findings)
