"""Classes as labels in service: a node has one, or where nodes may have several, any number of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnserve_api.classes import Classes
from gnnserve_worker.asking.question import ErrorCode, RequestError, shown_value
from gnnserve_worker.asking.served_graph import ServedGraph
from gnnserve_worker.tasks.served_labels import NOTHING_HELD_OUT, GivenLabel, HeldOut


@dataclass(frozen=True, slots=True)
class ClassLabels:
    graph: ServedGraph
    classes: Classes
    multi_label: bool
    decisive_scores: Callable[[str, np.ndarray], np.ndarray]
    """Scores of a variant as labels are decided by them."""
    held_out: HeldOut = NOTHING_HELD_OUT

    def check_taken(self) -> None:
        """Every node may get a label."""

    def example(self) -> str:
        node, label = self.graph.naming.shown(0, 1)[0], self.classes[0]
        shown = shown_value([label] if self.multi_label else label)
        return f'{{"nodes": [{shown_value(node)}], "labels": [{shown}]}}'

    def truths(self, labels: Sequence[GivenLabel]) -> tuple[np.ndarray, np.ndarray]:
        """A list is no label where nodes have one each, and the other way round."""
        columns: dict[int | str, int] = {label: column for column, label in enumerate(self.classes)}
        known = np.zeros(len(labels), bool)
        if not self.multi_label:
            truths = np.full(len(labels), -1, np.int64)
            for i, label in enumerate(labels):
                if not isinstance(label, tuple) and label in columns:
                    truths[i], known[i] = columns[label], True
            return truths, known
        flags = np.zeros((len(labels), len(columns)), np.uint8)
        for i, label in enumerate(labels):
            if isinstance(label, tuple) and all(each in columns for each in label):
                flags[i, [columns[each] for each in label]] = 1
                known[i] = True
        return flags, known

    def say_unknown(self, label: GivenLabel) -> str:
        if self.multi_label and not isinstance(label, tuple):
            return f"{shown_value(label)} is no list, and nodes of this graph have lists of labels"
        if isinstance(label, tuple) and not self.multi_label:
            return f"{shown_value(label)} is a list, and nodes of this graph have one label each"
        return f"{shown_value(label)} is none of the graph's classes; GET /v1/variants lists them"

    def decide(self, variant: str, scores: np.ndarray) -> np.ndarray:
        decisive = self.decisive_scores(variant, scores)
        decided: np.ndarray = (decisive > 0).astype(np.uint8) if self.multi_label else decisive.argmax(axis=1)
        return decided

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
