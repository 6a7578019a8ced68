"""Rows of a file to batches of changes, so that applying the batches in order is applying the rows in order.

A server applies a batch in an order of its own: new nodes, features, labels, new edges, removed edges, removed nodes. A
batch therefore ends before a row that would have to come after one that the server applies later. Batches depend on the
file and on their size alone: a second run makes the same ones, which the server recognises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gnnserve_api.errors import InputError
from gnnserve_api.http.changes import ChangesRequest, NewNode, NodeLabel
from gnnserve_api.http.protocol import NodeFeatures
from gnnserve_cli.changes.rows import ChangeKind, ChangeRow, Label

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_PLACE = re.compile(r"(nodes|overrides|labels|edges|edgeFeatures|edgeTimes|removedEdges|removedNodes)\[(\d+)\]")
_FIELDS = {
    "nodes": ChangeKind.ADD_NODE,
    "overrides": ChangeKind.SET_FEATURES,
    "labels": ChangeKind.SET_LABEL,
    "edges": ChangeKind.ADD_EDGE,
    "edgeFeatures": ChangeKind.ADD_EDGE,
    "edgeTimes": ChangeKind.ADD_EDGE,
    "removedEdges": ChangeKind.REMOVE_EDGE,
    "removedNodes": ChangeKind.REMOVE_NODE,
}
"""Fields of a batch in JSON."""


@dataclass(frozen=True, slots=True)
class RowBatch:
    changes: tuple[ChangeRow, ...]

    def of_kind(self, kind: ChangeKind) -> list[ChangeRow]:
        return [change for change in self.changes if change.kind is kind]

    def at(self, place: str | None) -> ChangeRow | None:
        """The row of a place in JSON, such as `edges[3][0]`; None: it names none."""
        found = _PLACE.match(place or "")
        if found is None:
            return None
        of_kind, index = self.of_kind(_FIELDS[found[1]]), int(found[2])
        return of_kind[index] if index < len(of_kind) else None


@dataclass(slots=True)
class _TouchedItems:
    """Items that the changes of a batch touch, as far as the order among them matters."""

    new: set[Any] = field(default_factory=set)
    overridden: set[Any] = field(default_factory=set)
    labelled: set[Any] = field(default_factory=set)
    removed: set[Any] = field(default_factory=set)
    removed_edges: set[frozenset[Any]] = field(default_factory=set)

    def must_precede(self, change: ChangeRow) -> bool:
        """Whether the batch has to be applied before the change."""
        node = change.id
        match change.kind:
            case ChangeKind.ADD_NODE | ChangeKind.REMOVE_NODE:
                return node in self.new or node in self.removed
            case ChangeKind.SET_FEATURES:
                return node in self.new or node in self.overridden or node in self.removed
            case ChangeKind.SET_LABEL:
                return node in self.new or node in self.labelled or node in self.removed
        ends = frozenset((change.source, change.target))
        if not self.removed.isdisjoint(ends):
            return True
        return change.kind is ChangeKind.ADD_EDGE and ends in self.removed_edges

    def add(self, change: ChangeRow) -> None:
        match change.kind:
            case ChangeKind.ADD_NODE:
                self.new.add(change.id)
            case ChangeKind.SET_FEATURES:
                self.overridden.add(change.id)
            case ChangeKind.SET_LABEL:
                self.labelled.add(change.id)
            case ChangeKind.REMOVE_EDGE:
                self.removed_edges.add(frozenset((change.source, change.target)))
            case ChangeKind.REMOVE_NODE:
                self.removed.add(change.id)
            case ChangeKind.ADD_EDGE:
                pass  # what may come later is applied later as well


def batches_of(changes: Iterable[ChangeRow], size: int) -> Iterator[RowBatch]:
    """Batches of at most `size` changes, in order."""
    taken: list[ChangeRow] = []
    touched = _TouchedItems()
    for change in changes:
        if len(taken) == size or touched.must_precede(change):
            yield RowBatch(tuple(taken))
            taken, touched = [], _TouchedItems()
        taken.append(change)
        touched.add(change)
    if taken:
        yield RowBatch(tuple(taken))


@dataclass(frozen=True, slots=True)
class TextKinds:
    """Types of the texts of a CSV file: node ids and labels may be integers, as far as their digits allow it."""

    are_ids_integers: bool = True
    are_labels_integers: bool = True


def request_of(batch: RowBatch, kinds: TextKinds) -> ChangesRequest[Any]:
    """Raises InputError where a text is no integer, and has to be one."""

    def node(change: ChangeRow, given: int | str | None) -> int | str:
        return _parsed(given, kinds.are_ids_integers, f"row {change.number:,}", "node id")

    def label(change: ChangeRow) -> Label | None:
        if change.label is None or isinstance(change.label, list):
            return change.label
        return _parsed(change.label, kinds.are_labels_integers, f"row {change.number:,}", "label")

    def edges(kind: ChangeKind) -> tuple[Any, ...]:
        """Pairs, or with the relation between the ends."""
        return tuple(
            (node(row, row.source), *(() if row.relation is None else (row.relation,)), node(row, row.target))
            for row in batch.of_kind(kind)
        )

    added = batch.of_kind(ChangeKind.ADD_EDGE)
    features, times = (tuple(row.edge_features for row in added), tuple(row.edge_time for row in added))
    return ChangesRequest(
        nodes=tuple(NewNode(node(row, row.id), row.features, label(row)) for row in batch.of_kind(ChangeKind.ADD_NODE)),
        overrides=tuple(
            NodeFeatures(node(row, row.id), row.features) for row in batch.of_kind(ChangeKind.SET_FEATURES)
        ),
        labels=tuple(NodeLabel(node(row, row.id), label(row)) for row in batch.of_kind(ChangeKind.SET_LABEL)),
        edges=edges(ChangeKind.ADD_EDGE),
        edge_features=() if all(row is None for row in features) else features,
        edge_times=() if all(time is None for time in times) else times,
        removed_edges=edges(ChangeKind.REMOVE_EDGE),
        removed_nodes=tuple(node(row, row.id) for row in batch.of_kind(ChangeKind.REMOVE_NODE)),
    )


def may_be_integers(batch: RowBatch) -> TextKinds:
    """The texts of the batch that are all of digits."""

    def are_integers(texts: Callable[[ChangeRow], tuple[Any, ...]]) -> bool:
        return all(
            _INTEGER.fullmatch(text) is not None
            for change in batch.changes
            for text in texts(change)
            if isinstance(text, str)
        )

    return TextKinds(
        are_integers(lambda change: (change.id, change.source, change.target)),
        are_integers(lambda change: (change.label,)),
    )


def _parsed(given: int | str | None, is_integer: bool, where: str, what: str) -> int | str:
    assert given is not None  # noqa: S101  (rows were checked)
    if isinstance(given, int) or not is_integer:
        return given
    if not _INTEGER.fullmatch(given):
        raise InputError(where, f"{given!r} is no integer, as the graph's {what}s are", f"correct the {what}")
    return int(given)
