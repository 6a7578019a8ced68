"""Labels of nodes in service, as a task has them: what clients may say of nodes later, what variants are judged by, and
what answers tell of stored nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

GivenLabel = int | str | tuple[int | str, ...]
"""The label of a node as a client gives it; where nodes have several, all of them."""
MEAN_OVER_NODES = "accuracy"
"""The metric of a profile that is a mean over nodes, so that a stream of labelled nodes can be compared with it."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Nodes that took no part in training, with their labels."""

    nodes: np.ndarray
    """int64, positions in the graph."""
    truths: np.ndarray
    """int64 [nodes], classes; or uint8 [nodes, classes] where nodes may have several."""


NOTHING_HELD_OUT = HeldOut(np.zeros(0, np.int64), np.zeros(0, np.int64))


class NodeLabels(Protocol):
    @property
    def held_out(self) -> HeldOut:
        """Nodes that accuracy in service is compared by where the profile's metric is no mean over nodes; else none."""

    def check_taken(self) -> None:
        """Raises RequestError where the service takes no labels."""

    def example(self) -> str:
        """A body of labels in JSON that the graph permits."""

    def truths(self, labels: Sequence[GivenLabel]) -> tuple[np.ndarray, np.ndarray]:
        """Labels as scores have them, and which of them are some (bool [labels]). Classes are int64 [labels], or uint8
        [labels, classes] where nodes may have several."""

    def say_unknown(self, label: GivenLabel) -> str:
        """Sentence about a label that is none."""

    def decide(self, variant: str, scores: np.ndarray) -> np.ndarray:
        """The labels that scores (float32 [nodes, columns]) mean, in the form of `truths`."""

    def of_node(self, node: int) -> Any:
        """The label of a node, by its number, as the graph's source has it; None: it has none, or came later."""

    def wearing(self, labels: Sequence[Any]) -> np.ndarray:
        """Whether the source gives each node one of these labels, bool [nodes as they were published]. Raises
        RequestError, which names the place under `filter.labels`."""
