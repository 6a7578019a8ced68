"""What is explained: a node, the nodes that it reads, and the same node without one of them.

A graph of one type and one of several differ in how nodes are named, in how many lists a node has and in how an edge is
left out; each has a file beside this one, and `explain.py` knows neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType

from gnnserve_api.explain import ReadRelation
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.served import ServedRevision

Lists = Sequence[np.ndarray]
"""Positions of nodes that a node reads, int64, ascending: one array for each of `Subject.lists`."""
Without = Callable[[Lists], tuple[Overlay, np.ndarray]]
"""The node as a new one of an overlay that reads these nodes, and the seed."""


@dataclass(frozen=True, slots=True)
class ReadList:
    """Nodes that a node reads by one relation; of one type all of its neighbours."""

    neighbours: np.ndarray
    """Their positions, int64, ascending; over several types their numbers."""
    relation: ReadRelation | None
    """None: nodes have one type."""

    @property
    def name(self) -> str | UnsetType:
        return UNSET if self.relation is None else self.relation.name


@dataclass(frozen=True, slots=True)
class Subject:
    """A node of the graph."""

    node: int
    """Its position; over several types its number."""
    lists: tuple[ReadList, ...]
    degree: int
    shown: Callable[[int], Any]
    """The id of a node, as answers write it; None: it has left."""
    without: Without | str
    """Asks about the node with other lists. A text: why it cannot be asked."""


def label_of(position: int, revision: ServedRevision) -> Any:
    """The label of a node by the graph's source; None: it has none, or came later."""
    if revision.graph.labels is None or revision.task.links is not None or position >= len(revision.graph.labels):
        return None
    known = revision.graph.labels[position]
    if revision.task.multi_label:
        return [revision.task.classes[column] for column in np.flatnonzero(known).tolist()]
    return None if known < 0 else revision.task.classes[int(known)]
