"""What makes one graph into another, as batches of changes: nodes that left, nodes that came, features, edges.

Both are graphs of one source with changes of its log in them. The log between them may be cut, so what differs is found
by comparing, type by type and relation by relation: nodes by their ids, features by rows, and lists by blocks of nodes,
so that little is in memory at a time. A node of a type without features that is in both graphs keeps the embedding that
the older model has of it; one that came since begins as any new node does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gnnserve_api.edges import Direction, EdgeRules
from gnnserve_worker.compaction.kept_nodes import KeptNodes
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.living_graph import Names
from gnnserve_worker.graph.living_lists import LivingLists
from gnnserve_worker.graph.names_by_id import ids_at
from gnnserve_worker.graph.store import Features, Graph, GraphData, NodeType
from gnnserve_worker.inference.living import LivingRevision

MOST_EDGES = 1 << 17
"""Edges of one batch."""
_BLOCK_BYTES = 16 * 1024 * 1024
"""Features that are compared, or brought by one batch, at a time."""
_BLOCK_ENTRIES = 1 << 22
"""Entries of lists that are compared at a time, where no single list is longer."""


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
        for come, go in edge_differences(
            graph.lists, lists, names_of(senders), relation.lists, types[source].nodes, places.rules[place]
        ):
            counts = ChangeCounts(edges=len(come), removed_edges=len(go))
            ids = graph.names.write_edges(place, (types[source].ids, types[reader].ids), np.concatenate((come, go)))
            apply(graph.names.write(counts, ids, np.zeros((0, width), np.float32)))
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
        return self.names.write(counts, self.names.write_nodes(self.kind, ids, nodes), features)


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


class Rows(NamedTuple):
    nodes: np.ndarray
    """Positions in the graph after, int64."""
    features: np.ndarray
    """float32 [nodes, columns]"""


def new_rows(after: Features, places: np.ndarray) -> Iterator[Rows]:
    """Features of the nodes that are new, some at a time."""
    for new in parts_of(np.flatnonzero(places < 0), _rows_at_once(after)):
        yield Rows(new, _rows(after, new))


def other_rows(before: Features, after: Features, places: np.ndarray) -> Iterator[Rows]:
    """Those of the nodes that have others now."""
    for known in parts_of(np.flatnonzero(places >= 0), _rows_at_once(after)):
        found = _rows(after, known)
        is_other = (found != _rows(before, places[known])).any(axis=1)
        if is_other.any():
            yield Rows(known[is_other], found[is_other])


def names_of(places: np.ndarray) -> np.ndarray:
    """By place, which of the nodes at these (int64) has it: int64."""
    names = np.zeros(int(places.max(initial=-1)) + 1, np.int64)
    names[places] = np.arange(len(places))
    return names


class EdgeDifference(NamedTuple):
    come: np.ndarray
    """Edges that are new: (source, target), int64 [edges, 2], positions in the graph after."""
    go: np.ndarray
    """Those that are no more."""


def edge_differences(
    lists: LivingLists, own: np.ndarray, names: np.ndarray, graph: Graph, senders: int, rules: EdgeRules
) -> Iterator[EdgeDifference]:
    """What makes some lists into those of `graph`, a part to be applied before the next is asked for. `own`: the list
    that belongs to each of the graph's, int64. `names`: what the nodes that they name are called in the graph, of which
    there are so many `senders`."""
    ends = np.cumsum(np.diff(graph.indptr) + lists.lengths(own))
    start = 0
    while start < graph.nodes:
        read = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, read + _BLOCK_ENTRIES, side="right")))
        begins, stops = graph.indptr[start:end], graph.indptr[start + 1 : end + 1]
        wanted = _keys(begins, stops, graph.indices, start, senders, None)
        begins, stops = lists.bounds[own[start:end]].T
        found = _keys(begins, stops, lists.indices, start, senders, names)
        added, removed = (_as_edges(keys, senders, rules) for keys in (_beyond(wanted, found), _beyond(found, wanted)))
        for at in range(0, max(len(added), len(removed)), MOST_EDGES):
            yield EdgeDifference(added[at : at + MOST_EDGES], removed[at : at + MOST_EDGES])
        start = end


def parts_of(nodes: np.ndarray, most: int) -> Iterator[np.ndarray]:
    for start in range(0, len(nodes), most):
        yield nodes[start : start + most]


def _rows_at_once(features: Features) -> int:
    return max(1, _BLOCK_BYTES // max(1, 4 * int(features.shape[1])))


def _rows(features: Features, nodes: np.ndarray) -> np.ndarray:
    rows = features[nodes]
    return np.asarray(rows if isinstance(rows, np.ndarray) else rows.toarray(), np.float32)


def _keys(
    begins: np.ndarray, ends: np.ndarray, indices: np.ndarray, first: int, nodes: int, names: np.ndarray | None
) -> np.ndarray:
    """reader · `nodes` + sender of each entry of some lists, int64, ascending. `first`: the reader of the first list.
    `names`: what senders are called; None: what they are in `indices`."""
    lengths = ends - begins
    entries = np.repeat(begins - np.cumsum(lengths) + lengths, lengths) + np.arange(int(lengths.sum()))
    senders = indices[entries].astype(np.int64)
    readers = np.repeat(np.arange(first, first + len(begins)), lengths)
    return np.sort(readers * nodes + (senders if names is None else names[senders]))


def _beyond(keys: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Keys that are not among `others`, or that are there more often: as often more. Both ascending."""
    # The how-manieth of its kind each one is.
    rank = np.arange(len(keys)) - np.searchsorted(keys, keys, side="left")
    there = np.searchsorted(others, keys, side="right") - np.searchsorted(others, keys, side="left")
    return keys[rank >= there]


def _as_edges(keys: np.ndarray, count: int, rules: EdgeRules) -> np.ndarray:
    """Entries as edges of the source: (source, target), int64 [edges, 2]."""
    readers, senders = np.divmod(keys, count)
    if rules.direction is Direction.UNDIRECTED:
        # The entry the other way round differs too.
        once = readers <= senders
        readers, senders = readers[once], senders[once]
    edges = (readers, senders) if rules.direction is Direction.REVERSED else (senders, readers)
    return np.stack(edges, axis=1)
