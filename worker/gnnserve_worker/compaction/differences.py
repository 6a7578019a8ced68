"""Differences between two graphs, as batches of changes: nodes that left, nodes that came, features, edges.

Both are graphs of one source with changes of its log in them. The log between them may be cut, so what differs is found
by comparing, type by type and relation by relation: nodes by their ids, features by rows, and lists by blocks of nodes,
so that little is in memory at a time. A node of a type without features that is in both graphs keeps the embedding that
the older model has of it; one that came since begins as any new node does.

Edges with payload between the same two nodes stand in an order, and a removal takes the first of them. So where these
differ in anything, all of them leave and come anew, in the order that they are to have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from gnnserve_api.errors import RepositoryError
from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_worker.compaction.kept_nodes import KeptNodes
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.living_graph import LivingGraph, Names
from gnnserve_worker.graph.living_lists import LivingLists
from gnnserve_worker.graph.living_payload import LivingPayload, payload_of_edges
from gnnserve_worker.graph.names_by_id import ids_at
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.store import Features, Graph, GraphData, NodeType
from gnnserve_worker.inference.living import LivingRevision

MOST_EDGES = 1 << 17
"""Edges of one batch."""
_BLOCK_BYTES = 16 * 1024 * 1024
"""Features that are compared, or brought by one batch, at a time."""
_BLOCK_ENTRIES = 1 << 22
"""Entries of lists that are compared at a time, where no single list is longer."""
_NO_ROWS = np.zeros(0, np.int64)


def bring(
    living: LivingRevision, stored_ids: Sequence[NodeIds | None], features: Sequence[Features | None], width: int,
    target: GraphData, apply: Callable[[ChangeBatch], None],
) -> KeptNodes:  # fmt: skip
    """Make the living revision's graph the target, by batches that `apply` applies to it. `stored_ids`, `features` (as
    in the source): of each type of the graph before. `width`: columns of a row of features."""
    graph, places, types = living.graph, living.graph.places, target.types
    everyone = [ids_at(kind.ids, np.arange(kind.nodes)) for kind in types]
    for kind, (own, after, ids) in enumerate(zip(graph.ids_of, types, everyone, strict=True)):
        writer = BatchWriter(graph.names, kind, width)
        for batch in node_changes(writer, stored_ids[kind], own.count, features[kind], after, own.find(ids)):
            apply(batch)
    positions = [own.find(ids) for own, ids in zip(graph.ids_of, everyone, strict=True)]
    for place, relation in enumerate(target.relations):
        if relation.reverse_of is not None:
            continue  # it goes with the one that it is the reverse of
        source, reader = int(places.sources[place]), int(places.targets[place])
        senders, readers = (places.first_nodes[kind] + positions[kind] for kind in (source, reader))
        lists = places.list_by(place, readers)
        payloads = payloads_of(graph, place, relation.payload)
        edges = EdgeWriter(graph, place, (types[source].ids, types[reader].ids), width, relation.payload)
        for difference in edge_differences(
            graph.lists, lists, names_of(senders), relation.lists, types[source].nodes, places.rules[place], payloads
        ):
            apply(edges.write(difference))
    return KeptNodes(positions, np.diff(places.first_nodes).tolist(), graph.stored)


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """Writes batches that change nodes of one type."""

    names: Names
    kind: int
    """Place of the type."""
    width: int
    """Columns of a row of features, of the widest type."""

    def write(
        self, counts: ChangeCounts, ids: NodeIds | None, nodes: np.ndarray, rows: np.ndarray | None = None
    ) -> ChangeBatch:
        """`nodes`: positions (int64) by these ids. `rows`: features, of the type's own columns."""
        features = np.zeros((counts.rows, self.width), np.float32)
        if rows is not None:
            features[:, : rows.shape[1]] = rows
        return ChangeBatch(counts, self.names.write_nodes(self.kind, ids, nodes), features)


@dataclass(frozen=True, slots=True)
class EdgeWriter:
    """Writes batches that change edges of one relation."""

    graph: LivingGraph
    relation: int
    """Place of the relation."""
    ids: tuple[NodeIds | None, NodeIds | None]
    """Ids of its source's type and of its target's, in the graph after."""
    width: int
    """Columns of a row of features of nodes, of the widest type."""
    payload: EdgePayload | None
    """Payload of its edges in the graph after; None: they have none."""

    def write(self, difference: EdgeDifference) -> ChangeBatch:
        come, go, rows = difference
        counts, names = ChangeCounts(edges=len(come), removed_edges=len(go)), self.graph.names
        ids = names.write_edges(self.relation, self.ids, np.concatenate((come, go)))
        batch = ChangeBatch(counts, ids, np.zeros((0, self.width), np.float32))
        if self.payload is None or not len(come):
            return batch
        columns, have_times = payload_of_edges(self.graph.payloads)
        features = np.zeros((len(come), columns), np.float32)
        features[:, : len(self.payload.columns)] = self.payload.features[rows]
        times = np.zeros(len(come) if have_times else 0, np.int64)
        if self.payload.time_column:
            times[:] = self.payload.times[rows]
        return msgspec.structs.replace(batch, edge_features=features, edge_times=times)


def node_changes(
    writer: BatchWriter, ids: NodeIds | None, nodes: int, before: Features | None, after: NodeType, places: np.ndarray
) -> Iterator[ChangeBatch]:
    """Batches that take nodes of a type away, bring new ones and set features, to be applied in order. `ids`, `before`:
    ids and features (as in the source) of the `nodes` that the graph before has. `places`: the position there of each
    node of `after`, int64; -1: it is new."""
    for gone in parts_of(gone_of(nodes, places), MOST_EDGES):
        yield writer.write(ChangeCounts(removed_nodes=len(gone)), ids, gone)
    if before is None or after.features is None:
        for new in parts_of(np.flatnonzero(places < 0), MOST_EDGES):
            yield writer.write(ChangeCounts(new_nodes=len(new)), after.ids, new)
        return
    for new, rows in new_rows(after.features, places):
        yield writer.write(ChangeCounts(new_nodes=len(new)), after.ids, new, rows)
    for other, rows in other_rows(before, after.features, places):
        yield writer.write(ChangeCounts(overrides=len(other)), after.ids, other, rows)


def gone_of(nodes: int, places: np.ndarray) -> np.ndarray:
    """Which of so many nodes are at none of these places: int64, ascending."""
    stays = np.zeros(nodes, np.bool_)
    stays[places[places >= 0]] = True
    return np.flatnonzero(~stays)


class RowsOfNodes(NamedTuple):
    nodes: np.ndarray
    """Positions in the graph after, int64."""
    features: np.ndarray
    """float32 [nodes, columns]"""


def new_rows(after: Features, places: np.ndarray) -> Iterator[RowsOfNodes]:
    """Features of the nodes that are new, some at a time."""
    for new in parts_of(np.flatnonzero(places < 0), _rows_at_once(after)):
        yield RowsOfNodes(new, _rows(after, new))


def other_rows(before: Features, after: Features, places: np.ndarray) -> Iterator[RowsOfNodes]:
    """Rows of the nodes that have others now."""
    for known in parts_of(np.flatnonzero(places >= 0), _rows_at_once(after)):
        found = _rows(after, known)
        is_other = (found != _rows(before, places[known])).any(axis=1)
        if is_other.any():
            yield RowsOfNodes(known[is_other], found[is_other])


def names_of(places: np.ndarray) -> np.ndarray:
    """By place, which of the nodes at these (int64) has it: int64."""
    names = np.zeros(int(places.max(initial=-1)) + 1, np.int64)
    names[places] = np.arange(len(places))
    return names


class EdgeDifference(NamedTuple):
    come: np.ndarray
    """Edges that are new: (source, target), int64 [edges, 2], positions in the graph after."""
    go: np.ndarray
    """Edges that are no more."""
    rows: np.ndarray
    """Rows of payload of the new edges, in the graph after: int64; [0]: they have none."""


class Payloads(NamedTuple):
    """Payload of the edges of a relation in both graphs."""

    before: LivingPayload
    after: EdgePayload

    def are_other(self, rows: np.ndarray, rows_after: np.ndarray) -> np.ndarray:
        """Which of these rows (int64) have other payload than those of the graph after, bool."""
        before, after = self
        other = (before.features[rows] != after.features[rows_after]).any(axis=1)
        if after.time_column:
            other |= before.times[rows] != after.times[rows_after]
        return np.asarray(other)


def payloads_of(graph: LivingGraph, relation: int, after: EdgePayload | None) -> Payloads | None:
    """None: edges of the relation (its place) have no payload. RepositoryError: they have other columns."""
    before = graph.payloads[relation] if graph.payloads else None
    if before is None and after is None:
        return None
    columns = [None if one is None else (one.columns, one.time_column) for one in (before, after)]
    if before is None or after is None or columns[0] != columns[1]:
        key = graph.stored.relations[relation].key or "the graph"
        raise RepositoryError(
            f"edges of {key}", "have other features or times than those of the graph that the revision was made of",
            "leave spec.revision out, so that the newest revision answers",
        )  # fmt: skip
    return Payloads(before, after)


def edge_differences(
    lists: LivingLists, own: np.ndarray, names: np.ndarray, graph: Graph, senders: int, rules: EdgeRules,
    payloads: Payloads | None = None,
) -> Iterator[EdgeDifference]:  # fmt: skip
    """What makes some lists into those of `graph`, a part to be applied before the next is asked for. `own`: the list
    that belongs to each of the graph's, int64. `names`: what the nodes that they name are called in the graph, of which
    there are so many `senders`. `payloads`: of the edges; None: they have none."""
    ends = np.cumsum(np.diff(graph.indptr) + lists.lengths(own))
    start = 0
    while start < graph.nodes:
        read = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, read + _BLOCK_ENTRIES, side="right")))
        begins, stops = graph.indptr[start:end], graph.indptr[start + 1 : end + 1]
        wanted = _Entries.of(begins, stops, graph, start, senders, None)
        begins, stops = lists.bounds[own[start:end]].T
        found = _Entries.of(begins, stops, lists.graph, start, senders, names)
        if payloads is None:
            yield from _plain_differences(wanted.keys, found.keys, senders, rules)
        else:
            yield from _differences_with_payload(wanted, found, senders, rules, payloads)
        start = end


def _plain_differences(
    wanted: np.ndarray, found: np.ndarray, senders: int, rules: EdgeRules
) -> Iterator[EdgeDifference]:
    beyond = (_beyond(wanted, found), _beyond(found, wanted))
    added, removed = (_as_edges(keys[_once(keys, senders, rules)], senders, rules) for keys in beyond)
    for at in range(0, max(len(added), len(removed)), MOST_EDGES):
        yield EdgeDifference(added[at : at + MOST_EDGES], removed[at : at + MOST_EDGES], _NO_ROWS)


def _differences_with_payload(
    wanted: _Entries, found: _Entries, senders: int, rules: EdgeRules, payloads: Payloads
) -> Iterator[EdgeDifference]:
    """Removals, and behind them what comes: a batch adds edges before it removes some."""
    others = _other_keys(wanted, found, payloads)
    added, removed = (one.of_keys(others).once(senders, rules) for one in (wanted, found))
    none = np.zeros((0, 2), np.int64)
    for part in parts_of(_as_edges(removed.keys, senders, rules), MOST_EDGES):
        yield EdgeDifference(none, part, _NO_ROWS)
    come = _as_edges(added.keys, senders, rules)
    for part, rows in zip(parts_of(come, MOST_EDGES), parts_of(added.rows, MOST_EDGES), strict=True):
        yield EdgeDifference(part, none, rows)


def _other_keys(wanted: _Entries, found: _Entries, payloads: Payloads) -> np.ndarray:
    """Keys whose entries in both graphs are not as many, or differ in the payload of one of them: int64, ascending."""
    place = np.searchsorted(found.keys, wanted.keys, side="left") + _ranks(wanted.keys)
    is_other = place >= np.searchsorted(found.keys, wanted.keys, side="right")
    there = np.flatnonzero(~is_other)
    is_other[there] = payloads.are_other(found.rows[place[there]], wanted.rows[there])
    return np.unique(np.concatenate((wanted.keys[is_other], _beyond(found.keys, wanted.keys))))


def parts_of(nodes: np.ndarray, most: int) -> Iterator[np.ndarray]:
    for start in range(0, len(nodes), most):
        yield nodes[start : start + most]


def _rows_at_once(features: Features) -> int:
    return max(1, _BLOCK_BYTES // max(1, 4 * int(features.shape[1])))


def _rows(features: Features, nodes: np.ndarray) -> np.ndarray:
    rows = features[nodes]
    return np.asarray(rows if isinstance(rows, np.ndarray) else rows.toarray(), np.float32)


class _Entries(NamedTuple):
    """Entries of some lists, ascending by key; those of one key stand as in their list."""

    keys: np.ndarray
    """reader · senders + sender, int64"""
    rows: np.ndarray
    """Row of payload of each entry, int64; [0]: they have none."""

    @staticmethod
    def of(
        begins: np.ndarray, ends: np.ndarray, graph: Graph, first: int, senders: int, names: np.ndarray | None
    ) -> _Entries:
        """`begins`, `ends`: of lists in the graph's arrays. `first`: the reader of the first list. `names`: what
        senders, of whom there are so many, are called; None: what they are in the arrays."""
        lengths = ends - begins
        entries = np.repeat(begins - np.cumsum(lengths) + lengths, lengths) + np.arange(int(lengths.sum()))
        own = graph.indices[entries].astype(np.int64)
        readers = np.repeat(np.arange(first, first + len(begins)), lengths)
        keys = readers * senders + (own if names is None else names[own])
        if not len(graph.payload_rows):
            return _Entries(np.sort(keys), _NO_ROWS)
        order = np.argsort(keys, kind="stable")
        return _Entries(keys[order], graph.payload_rows[entries[order]].astype(np.int64))

    def of_keys(self, keys: np.ndarray) -> _Entries:
        """Entries with any of these keys (int64, ascending, distinct)."""
        return self._where(np.isin(self.keys, keys))

    def once(self, senders: int, rules: EdgeRules) -> _Entries:
        """One of the two entries of each edge that goes both ways."""
        return self._where(_once(self.keys, senders, rules))

    def _where(self, kept: np.ndarray | slice) -> _Entries:
        return _Entries(self.keys[kept], self.rows[kept])


def _beyond(keys: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Keys that are not among `others`, or that are there more often: as often more. Both ascending."""
    there = np.searchsorted(others, keys, side="right") - np.searchsorted(others, keys, side="left")
    return keys[_ranks(keys) >= there]


def _ranks(keys: np.ndarray) -> np.ndarray:
    """How many of the same key stand before each of these, which are ascending: int64."""
    return np.arange(len(keys)) - np.searchsorted(keys, keys, side="left")


def _once(keys: np.ndarray, senders: int, rules: EdgeRules) -> np.ndarray | slice:
    """Which entries to take so that each edge is there once: where edges go both ways, the entry the other way round
    differs too."""
    if rules.direction is not Direction.UNDIRECTED:
        return slice(None)
    return np.asarray(keys // senders <= keys % senders)


def _as_edges(keys: np.ndarray, count: int, rules: EdgeRules) -> np.ndarray:
    """Entries as edges of the source: (source, target), int64 [edges, 2]."""
    readers, senders = np.divmod(keys, count)
    edges = (readers, senders) if rules.direction is Direction.REVERSED else (senders, readers)
    return np.stack(edges, axis=1)
