"""The nodes that a batch of changes names, or several that are applied as one, and what becomes of lists by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from gnnserve_worker.graph.change_batch import ChangeBatch
from gnnserve_worker.graph.change_ids import ChangeIds
from gnnserve_worker.graph.change_run import EdgeRecords
from gnnserve_worker.graph.living_lists import ADDED, MERGED, REMOVED

_NO_ENTRIES = np.zeros((0, 2), np.int64)
_DENSE = 4
"""A mark for each number that may be among some takes less time than to sort these, where they are more than one in so
many."""


def _no_nodes() -> np.ndarray:
    return _NO_ENTRIES[:, 0]


@dataclass(frozen=True, slots=True)
class FoundNodes:
    """Positions of a batch's nodes, int64; new ones have those that they would get."""

    new: np.ndarray
    overridden: np.ndarray
    labelled: np.ndarray
    edges: np.ndarray
    """[edges, 2]"""
    removed_edges: np.ndarray
    """[removed edges, 2]"""
    removed: np.ndarray
    relations: np.ndarray = field(default_factory=_no_nodes)
    """Place of the relation of each edge; empty: all are of the first one."""
    removed_relations: np.ndarray = field(default_factory=_no_nodes)
    """The same of removed edges."""
    new_ids: tuple[ChangeIds, ...] = ()
    """Ids by type that begin with those of its new nodes, without its name."""
    edge_records: EdgeRecords | None = None
    """Which batch each edge is of, where several are applied as one. Then edges come and leave batch after batch, and
    all else of them takes effect in the order of one."""
    edge_features: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """As of `ChangeBatch`."""
    edge_times: np.ndarray = field(default_factory=_no_nodes)

    @property
    def records(self) -> int:
        """Batches that are applied as one."""
        return 1 if self.edge_records is None else self.edge_records.count

    @property
    def records_of_edges(self) -> np.ndarray:
        """Which of the batches each edge is of, those that come and then those that leave: int64 [edges]."""
        order = self.edge_records
        if order is None:
            return np.zeros(len(self.edges) + len(self.removed_edges), np.int64)
        return np.concatenate((order.added, order.removed))


@dataclass(frozen=True, slots=True)
class FoundRun:
    """Batches that are right, one after the other, as one."""

    batch: ChangeBatch
    """With a row of features for each new node of `found`, and then for each overridden one."""
    found: FoundNodes


@dataclass(frozen=True, slots=True)
class Effect:
    added: np.ndarray
    """Entries that lists gained: (list, sender), int64 [entries, 2]."""
    removed: np.ndarray
    """Entries that lists lost, after that."""
    unchanged: np.ndarray
    """Edges that were there, or were not, of each of the batches that were applied as one: int64 [batches]."""
    replaced: np.ndarray = field(default_factory=lambda: _NO_ENTRIES)
    """Entries that stay, of edges that have other payload."""

    @property
    def lists(self) -> np.ndarray:
        """Lists that are others now: int64, ascending, distinct."""
        return distinct((self.added[:, 0], self.removed[:, 0], self.replaced[:, 0]))


@dataclass(frozen=True, slots=True)
class EntryChanges:
    """Entries that come to lists and leave them, in this order."""

    entries: np.ndarray
    """(list, sender), int64 [entries, 2]"""
    kinds: np.ndarray
    """What happens to each, as of `LivingLists.change`: int8 [entries]."""
    edges: np.ndarray
    """Which edge each is of, as of `FoundNodes.records_of_edges`: int64 [entries]."""
    counts: np.ndarray
    """Whether its edge changes something where it does: bool [entries]."""
    relations: np.ndarray
    """Place of the relation that each is by, int64 [entries]."""

    @staticmethod
    def alike(
        entries: np.ndarray, kind: int, edges: np.ndarray, relation: int = 0, *, count: bool = True
    ) -> EntryChanges:
        kinds = np.full(len(entries), kind, np.int8)
        of = np.full(len(entries), relation, np.int64)
        return EntryChanges(entries, kinds, edges, np.full(len(entries), count), of)

    @staticmethod
    def joined(parts: Sequence[EntryChanges], found: FoundNodes) -> EntryChanges:
        """The parts, which stand in the order of a batch; entries of several batches come batch after batch."""
        if not parts:
            return EntryChanges.alike(_NO_ENTRIES, REMOVED, _no_nodes())
        names = ("entries", "kinds", "edges", "counts", "relations")
        joined = [np.concatenate([getattr(part, name) for part in parts]) for name in names]
        if found.edge_records is not None:
            order = np.argsort(found.records_of_edges[joined[2]], kind="stable")
            joined = [values[order] for values in joined]
        return EntryChanges(*joined)

    def unchanged(self, changed: np.ndarray, found: FoundNodes) -> np.ndarray:
        """How many edges of each batch no entry changed anything of: int64 [batches]. `changed`: bool [entries]."""
        records = found.records_of_edges
        has_changed = np.zeros(len(records), np.bool_)
        has_changed[self.edges[changed & self.counts]] = True
        return np.bincount(records[~has_changed], minlength=found.records)


def edge_changes(found: FoundNodes) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Edges that come and then those that leave, their numbers as of `FoundNodes.records_of_edges`, and whether they
    come."""
    first = 0
    for edges, adds in ((found.edges, True), (found.removed_edges, False)):
        if len(edges):
            yield edges, np.arange(first, first + len(edges)), adds
        first += len(edges)


def kind_of_change(*, adds: bool, is_merged: bool) -> int:
    """What happens to entries of edges that come or leave. `is_merged`: an edge that is there does not come again."""
    if not adds:
        return REMOVED
    return MERGED if is_merged else ADDED


def distinct(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Nodes of all of these (int64), ascending, each once."""
    nodes = np.concatenate((_NO_ENTRIES[:, 0], *parts))
    count = int(nodes.max(initial=-1)) + 1
    if len(nodes) * _DENSE > count:
        is_there = np.zeros(count, np.bool_)
        is_there[nodes] = True
        return np.flatnonzero(is_there)
    # numpy's `unique` hashes before it sorts, which takes three times as long for so many different ones.
    nodes.sort()
    is_first = np.ones(len(nodes), np.bool_)
    np.not_equal(nodes[1:], nodes[:-1], out=is_first[1:])
    return np.asarray(nodes[is_first])
