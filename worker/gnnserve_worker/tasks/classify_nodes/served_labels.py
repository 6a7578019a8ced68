"""Classes as labels in service: a node has one, or where nodes may have several, any number of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from gnnserve_api import decoding
from gnnserve_api.files.graph_schema import Classes
from gnnserve_api.files.profile import Metric, Profile, VariantProfile
from gnnserve_api.http.live_accuracy import MOST_LABELS, LabelProblem, LabelsRequest
from gnnserve_worker.asking.body_form import BodyForm
from gnnserve_worker.asking.question import ErrorCode, RequestError, check_node_count, shown_value
from gnnserve_worker.asking.served_graph import ServedGraph
from gnnserve_worker.tasks.served_labels import (
    MEAN_OVER_NODES,
    NO_VALUES,
    NOTHING_HELD_OUT,
    GivenLabel,
    HeldOutNodes,
    KeptAnswer,
)

_FORM = BodyForm(
    {"": ("nodes", "labels", "times"), "nodes[]": ("type", "id")},
    frozenset({"nodes[]"}),
    {
        "nodes": "give a list of node ids",
        "nodes[].type": "give the name of a type",
        "nodes[].id": "give an id within the type",
        "labels": "give a list with a label for each node, as predictions answer them",
        "labels[]": "give a label as predictions answer it",
        "labels[][]": "give the labels of a node as predictions answer them",
        "times": "give a list with a time for each node, or leave it out",
        "times[]": "write it as RFC 3339 has it, with a zone: 2026-11-23T05:00:00Z",
    },
    lambda revision: revision.task.live_labels.example(),
)
_DECODER: msgspec.json.Decoder[Any] = decoding.decoder(LabelsRequest)


@dataclass(frozen=True, slots=True)
class ClassLabels:
    """`SourceLabels` and `LiveLabels`."""

    graph: ServedGraph
    classes: Classes
    multi_label: bool
    decisive_scores: Callable[[str, np.ndarray], np.ndarray]
    """Scores of a variant as labels are decided by them."""
    held_out: HeldOutNodes = NOTHING_HELD_OUT
    """Nodes that accuracy in service is compared by where the profile's metric is no mean over nodes; else none."""
    decoder: msgspec.json.Decoder[Any] = _DECODER
    form: BodyForm = _FORM
    item: str = "node"
    ids_per_item: int = 1

    def example(self) -> str:
        node, label = self.graph.naming.shown(0, 1)[0], self.classes[0]
        shown = shown_value([label] if self.multi_label else label)
        return f'{{"nodes": [{shown_value(node)}], "labels": [{shown}]}}'

    def items(self, request: Any) -> Sequence[Sequence[Any]]:
        check_node_count(len(request.nodes), MOST_LABELS, otherwise="")
        return [(node,) for node in request.nodes]

    def refused(self, items: np.ndarray, labels: Sequence[GivenLabel]) -> Mapping[int, tuple[LabelProblem, str]]:
        """A list is no label where nodes have one each, and the other way round."""
        classes: frozenset[int | str] = frozenset(self.classes)
        return {
            place: (LabelProblem.UNKNOWN_LABEL, self._say_unknown(label))
            for place, label in enumerate(labels)
            if isinstance(label, tuple) is not self.multi_label
            or not (classes.issuperset(label) if isinstance(label, tuple) else label in classes)
        }

    def are_known(self, items: np.ndarray, labels: Sequence[GivenLabel]) -> np.ndarray:
        """No answer knows what becomes of a node."""
        return np.zeros(len(items), bool)

    def truths(self, labels: Sequence[GivenLabel]) -> np.ndarray:
        """int64 [labels], or uint8 [labels, classes] where nodes may have several."""
        columns: dict[Any, int] = {label: column for column, label in enumerate(self.classes)}
        if not self.multi_label:
            return np.array([columns[label] for label in labels], np.int64)
        flags = np.zeros((len(labels), len(columns)), np.uint8)
        for row, label in zip(flags, labels, strict=True):
            assert isinstance(label, tuple)  # noqa: S101
            row[[columns[each] for each in label]] = 1
        return flags

    def asked(self, items: np.ndarray) -> tuple[np.ndarray, None]:
        return items[:, 0], None

    def measure(self) -> ClassMeasure:
        return ClassMeasure(self)

    def of_node(self, node: int) -> Any:
        labels = self.graph.labels
        if labels is None or node >= len(labels):
            return None
        known = labels[node]
        if self.multi_label:
            return [self.classes[column] for column in np.flatnonzero(known).tolist()]
        return None if known < 0 else self.classes[int(known)]

    def wearing(self, labels: Sequence[Any]) -> np.ndarray:
        known = self.graph.labels
        if known is None:
            problem = "the labels of this graph are not kept"
            raise RequestError(ErrorCode.INVALID_VALUE, "filter.labels", problem, "leave it out")
        places = {label: place for place, label in enumerate(self.classes)}
        for i, label in enumerate(labels):
            if label not in places:
                raise RequestError(
                    ErrorCode.UNKNOWN_LABEL, f"filter.labels[{i}]",
                    f"{shown_value(label)} is none of the graph's classes", "GET /v1/variants lists them",
                )  # fmt: skip
        wanted = np.array([places[label] for label in labels], np.int64)
        if known.ndim == 2:
            return np.asarray(known[:, wanted].any(axis=1)) if len(wanted) else np.zeros(len(known), bool)
        return np.isin(known, wanted)

    def _say_unknown(self, label: GivenLabel) -> str:
        if self.multi_label and not isinstance(label, tuple):
            return f"{shown_value(label)} is no list, and nodes of this graph have lists of labels"
        if isinstance(label, tuple) and not self.multi_label:
            return f"{shown_value(label)} is a list, and nodes of this graph have one label each"
        return f"{shown_value(label)} is none of the graph's classes; GET /v1/variants lists them"


@dataclass(frozen=True, slots=True)
class ClassMeasure:
    """A `Measure`: a node's value is 1 where its label is told and 0 where another is; where nodes may have several,
    the F1 of its own."""

    labels: ClassLabels
    metric: Metric = MEAN_OVER_NODES
    compares_by_nodes: bool = False

    @property
    def nodes(self) -> np.ndarray:
        return self.labels.held_out.nodes

    def promise(self, profile: Profile, variant: VariantProfile) -> tuple[float, int] | None:
        """The profile's accuracy on nodes that took no part in training, if there are any, nor in when it ended."""
        if profile.metric != MEAN_OVER_NODES:
            return None
        if variant.test_accuracy is not None and profile.test_nodes:
            return variant.test_accuracy, profile.test_nodes
        return variant.validation_accuracy, profile.validation_nodes

    def note(self, variant: str, start: int, scores: np.ndarray) -> np.ndarray:
        truths = self.labels.held_out.truths[start : start + len(scores)]
        return self.values(variant, scores, None, truths)

    def values(self, variant: str, scores: np.ndarray, form: Any, truths: np.ndarray) -> np.ndarray:
        return values_of(self.labels.decisive_scores(variant, scores), truths)

    def promised(self, truths: np.ndarray) -> np.ndarray:
        return np.ones(len(truths), bool)

    def keep(self, variant: str, nodes: np.ndarray, scores: np.ndarray, form: Any, most: int) -> KeptAnswer:
        """Nodes, and what was decided of them."""
        decisive = self.labels.decisive_scores(variant, scores[:most])
        decided = (decisive > 0).astype(np.uint8) if self.labels.multi_label else decisive.argmax(axis=1)
        return KeptAnswer(variant, nodes[:most].copy(), decided)

    def agreement(self, kept: KeptAnswer, variant: str, scores: np.ndarray) -> np.ndarray:
        return values_of(self.labels.decisive_scores(variant, scores), kept.answered) if len(scores) else NO_VALUES


def values_of(scores: np.ndarray, truths: np.ndarray) -> np.ndarray:
    """How right scores (float32 [nodes, classes], those that decide) are, float64 [nodes]. `truths`: int64 [nodes], or
    uint8 [nodes, classes] where a node may have several labels."""
    if truths.ndim == 1:
        right: np.ndarray = (scores.argmax(axis=1) == truths).astype(np.float64)
        return right
    predicted, true = scores > 0, truths != 0
    hits = np.count_nonzero(predicted & true, axis=1)
    total = np.count_nonzero(predicted, axis=1) + np.count_nonzero(true, axis=1)
    shares: np.ndarray = np.where(total > 0, 2 * hits / np.maximum(total, 1), 1.0)
    return shares
