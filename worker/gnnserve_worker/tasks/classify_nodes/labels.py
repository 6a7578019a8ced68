"""Classification of nodes, as generation sees it: labels that are learnt, and variants that are judged by them.

*Thresholds* are chosen for each class on validation nodes: where the F1 of the class is highest. A network learns
probabilities, and F1 of a class that few nodes have is often highest well below one half. Each variant has thresholds
of its own. They stay where few nodes could mislead: a class with too few positive validation nodes keeps 0, and no
threshold leaves the scores of 1 and 99 %.

*Temperatures* tell how sure scores are: fitted on validation nodes, the first stage of a cascade tells it by one.
Networks are too sure of themselves, or not enough. One number corrects that (On calibration of modern neural networks,
section 4.2): scores divided by a temperature give the labels the highest likelihood.

*Misfits* are given weights that do not fit the labels, which expected scores cannot tell, since they have the model's
order of classes. A model that was trained with another order of classes computes right scores whose labels are wrong.
Held against the validation nodes, it fits them once its output columns are permuted: the best permutation is an
assignment on the confusion matrix. It is found on half of the nodes and measured on the other half, so that chance
finds none.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_api.files.given_weights import LabelMisfit
from gnnserve_api.files.graph_schema import Classes, GraphSchema
from gnnserve_api.files.profile import Metric, VariantProfile
from gnnserve_api.files.repository import TaskSection, VariantManifest
from gnnserve_api.files.training import Majority, Source
from gnnserve_api.intervals import share_interval
from gnnserve_api.spec.scoring import MetricChoice, Thresholds
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import ComparedWith
from gnnserve_api.spec.variants import Variants
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import GraphData, Splits
from gnnserve_worker.progress import ProgressListener
from gnnserve_worker.tasks.classify_nodes.metrics import evaluate, majority_of, metric_of, right_labels
from gnnserve_worker.tasks.deciding import BY_CLASS, Decides, class_confidences
from gnnserve_worker.tasks.generated import (
    Confidences,
    Course,
    DecoderTensors,
    EmbeddingCourse,
    ImportedGraph,
    Judgement,
    OutputsOf,
    SplitJudgements,
    TeacherOutputs,
    Visible,
)

# --- how sure scores are


_TEMPERATURES = (0.05, 20.0)
"""Lowest and highest; reached only where all nodes, or as good as none, are answered right."""
_HALVINGS = 50


def fit_temperature(scores: np.ndarray, labels: np.ndarray) -> float:
    """The temperature at which the labels (int64 [nodes]) are likeliest; scores float32 [nodes, classes]."""
    scores = scores.astype(np.float64)
    true = scores[np.arange(len(labels)), labels].mean()

    def slope(inverse: float) -> float:
        """Derivative of the mean negative log-likelihood by the inverse temperature: it rises with that, everywhere."""
        powers = np.exp(inverse * (scores - scores.max(axis=1, keepdims=True)))
        expected = (powers * scores).sum(axis=1) / powers.sum(axis=1)
        return float(expected.mean() - true)

    low, high = (1 / temperature for temperature in reversed(_TEMPERATURES))
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return float(1 / math.sqrt(low * high))


# --- from which score on a node has a class


MIN_POSITIVES = 20
"""Validation nodes that must have a class, and as many that must not, for it to get another threshold than 0."""
LARGEST = math.log(99)
"""A score of 99 %; the smallest threshold is its negative, 1 %."""


def check_thresholds(choice: Thresholds, *, multi_label: bool, classes: int) -> None:
    """Raises InputError where a graph has no use for them."""
    if choice is Thresholds.PER_CLASS and not multi_label and classes > 2:
        raise InputError(
            "spec.variants.thresholds",
            f"is PerClass, and each node of this graph has one of {classes} classes: the highest score decides",
            "use Fixed; PerClass is for nodes of several classes, or for two classes",
        )


def fit_thresholds(scores: np.ndarray, labels: np.ndarray) -> tuple[float, ...]:
    """`scores` float32 [nodes, classes] and `labels`, as of a `scores.Measure`: of several classes per node, or of two
    that exclude each other. Of these the first one's threshold is 0: their difference decides."""
    if labels.ndim == 2:
        return tuple(_best_threshold(scores[:, column], labels[:, column] != 0) for column in range(labels.shape[1]))
    second = labels == 1
    lead = scores[:, 1] - scores[:, 0]
    if 2 * np.count_nonzero(second) <= len(second):
        return 0.0, _best_threshold(lead, second)
    return 0.0, 0.0 - _best_threshold(-lead, ~second)


def _best_threshold(scores: np.ndarray, true: np.ndarray) -> float:
    """The threshold nearest to 0 among those with the highest F1; 0 where too few nodes can tell."""
    positives = int(np.count_nonzero(true))
    if min(positives, len(true) - positives) < MIN_POSITIVES:
        return 0.0
    order = np.argsort(-scores, kind="stable")
    falling = scores[order].astype(np.float64)
    # Cutting behind a node says that it and all before it have the class.
    f1 = 2 * np.cumsum(true[order]) / (np.arange(1, len(true) + 1) + positives)
    cuts = np.flatnonzero(falling[:-1] > falling[1:])
    thresholds = (falling[cuts] + falling[cuts + 1]) / 2
    within = np.abs(thresholds) <= LARGEST
    cuts, thresholds = cuts[within], thresholds[within]
    above = int(np.count_nonzero(falling > 0))
    at_zero = f1[above - 1] if above else 0.0
    if not len(cuts) or f1[cuts].max() <= at_zero:
        return 0.0
    best = thresholds[f1[cuts] == f1[cuts].max()]
    return float(np.float32(best[np.abs(best).argmin()]))


# --- whether given weights fit labels


def label_misfits(
    spec: GNNServiceSpec, profiles: Iterable[VariantProfile], answers: Mapping[str, np.ndarray], labels: np.ndarray,
    classes: Classes, majority: Majority,
) -> Iterator[LabelMisfit]:  # fmt: skip
    """Variants of given weights that do not fit. `answers`: output columns by variant, of the validation nodes; absent
    where nodes may have several classes. `labels`: of these nodes."""
    for profile in profiles:
        if not _is_given(spec, profile.name):
            continue
        columns, permuted = (), 0.0
        if (found := answers.get(profile.name)) is not None:
            columns, permuted = _better_order(found, labels, classes, majority)
        if columns or not majority.is_beaten_by(profile.validation_accuracy):
            yield LabelMisfit(profile.name, profile.validation_accuracy, majority, columns, permuted)


def _is_given(spec: GNNServiceSpec, name: str) -> bool:
    if spec.model.is_given:
        return True
    given: Collection[str] = spec.variants.given_names()
    return any(name == one or name.startswith(f"{one}-") for one in given)


def _better_order(answers: np.ndarray, labels: np.ndarray, classes: Classes, majority: Majority) -> tuple[Any, float]:
    """Classes in the order of the columns, and the accuracy with them; empty where none is clearly better."""
    known = labels >= 0
    answers, labels = answers[known], labels[known]
    # By chance: validation nodes may be listed in an order that goes with their labels.
    halves = np.random.default_rng(0).permutation(len(labels)) % 2 == 0
    if halves.all():
        return (), 0.0
    by_half = _assigned(answers[halves], labels[halves], len(classes))
    rest = labels[~halves]
    permuted = float((by_half[answers[~halves]] == rest).mean())
    served = float((answers[~halves] == rest).mean())
    least = max(majority.score, share_interval(served, len(rest)).high)
    if share_interval(permuted, len(rest)).low <= least:
        return (), 0.0
    return tuple(classes[place] for place in _assigned(answers, labels, len(classes))), permuted


def _assigned(answers: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """int64 [classes]: the class of each output column with which most labels are right."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415  (takes a tenth of a second)

    confusion = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(confusion, (answers, labels), 1)
    # Of orders that are equally good, the one that moves fewer columns.
    weights = confusion * (classes + 1) + np.eye(classes, dtype=np.int64)
    return np.asarray(linear_sum_assignment(weights, maximize=True)[1])


# --- labels that are learnt


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

    def whole(self, graph: GraphData) -> GraphData:
        """The graph as it is: labels are held out, which it does not aggregate."""
        return graph

    learnt_graph = whole

    @property
    def least_score(self) -> float:
        """That of always giving the most frequent class."""
        return self.majority.score

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

    def one_row_courses(self, visible: Visible, taught: TeacherOutputs) -> Iterator[Course]:
        from gnnserve_worker.tasks.classify_nodes.learning import Truth, one_row_courses  # noqa: PLC0415

        return one_row_courses(Truth(self.labels, self.splits, self.metric), visible, taught.nodes, taught.outputs)

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

    def judge(self, outputs_of: OutputsOf) -> SplitJudgements:
        splits = self.problem.splits
        scores, expected, metric = outputs_of(splits.validation), self.problem.expected, self.metric
        validation = Judgement(
            evaluate(scores, expected, metric),
            right=right_labels(scores, expected, metric),
            answers=None if self.problem.multi_label else scores.argmax(axis=1),
        )
        if not len(splits.test):
            return SplitJudgements(validation, None)
        test = evaluate(outputs_of(splits.test), self.problem.labels[splits.test], metric)
        return SplitJudgements(validation, Judgement(test))

    def calibrate(self, variant: VariantManifest, outputs_of: OutputsOf) -> VariantManifest:
        """The variant with the thresholds that suit its scores, where each class has its own."""
        if self.problem.thresholds is not Thresholds.PER_CLASS:
            return variant
        thresholds = fit_thresholds(outputs_of(self.problem.splits.validation), self.problem.expected)
        return msgspec.structs.replace(variant, thresholds=thresholds)

    def confidences(self, first: VariantManifest, outputs_of: OutputsOf) -> Confidences:
        outputs = outputs_of(self.problem.splits.validation)
        temperature = fit_temperature(outputs, self.problem.expected)
        return Confidences(temperature, class_confidences(outputs, temperature))

    def decides(self, variants: Mapping[str, VariantManifest], cascades: Sequence[CascadeManifest]) -> Decides:
        return BY_CLASS

    def over(self, cascade: CascadeManifest, decides: Decides) -> LabelJudge:
        """Itself: scores of a cascade are those of its stages."""
        return self

    def misfits(
        self, spec: GNNServiceSpec, profiles: Iterable[VariantProfile], answers: Mapping[str, np.ndarray]
    ) -> Sequence[LabelMisfit]:
        problem = self.problem
        return [*label_misfits(spec, profiles, answers, problem.expected, problem.classes, problem.majority)]

    def sections(self, weights: str | None) -> Mapping[str, TaskSection]:
        """Empty: a manifest names the classes with its graph."""
        return {}


# --- what a spec asks for


@dataclass(frozen=True, slots=True)
class NodeGenerationTask:
    """The `GenerationTask` of a spec that asks for classes."""

    spec: GNNServiceSpec
    needs_master: bool = False
    why_not_modelled: str = ""

    @property
    def compared_with(self) -> ComparedWith:
        raise ValueError("embeddings are made for links")

    def one_row_sources(self, hops: int) -> tuple[Source, ...]:
        return "labels", "scores", "both"

    def graph_digest(self, source: str) -> str:
        return source

    def earlier_digest(self, source: str) -> str | None:
        return None

    def settled(self, spec: GNNServiceSpec) -> GNNServiceSpec:
        return spec

    def check_given(self, columns: int, graph: GraphData) -> None:
        if columns != len(graph.classes):
            raise InputError(
                "spec.model.program.scores.columns", f"is {columns}, and nodes have {len(graph.classes)} classes",
                "label nodes as the model was trained, or export it with an output for each class",
            )  # fmt: skip

    def given_decoder(self, weights: DecoderTensors) -> None:
        """None: outputs are scores of classes. The spec permits weights for links alone; those of a program's folder
        are left unread."""

    def load(self, downloads: Path, progress: ProgressListener) -> GraphData:
        return load_source(self.spec.graph.source, downloads, progress)

    def says_unlabelled(self) -> tuple[str, str]:
        return "labels", "no type has any: nothing can be classified, and links may be scored (spec.task.links)"

    def import_graph(self, downloads: Path, progress: ProgressListener) -> ImportedGraph:
        return self.pose(self.load(downloads, progress))

    def pose(self, graph: GraphData) -> ImportedGraph:
        variants = self.spec.variants
        labels = NodeLabels(graph.labels, graph.classes, graph.splits, variants.metric, variants.thresholds)
        return ImportedGraph(graph, labels, graph.findings)

    def pose_version(self, version: GraphData, downloads: Path, progress: ProgressListener) -> ImportedGraph:
        return self.pose(version)
