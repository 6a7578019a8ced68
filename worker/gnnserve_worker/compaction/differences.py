"""What makes one graph into another, as batches of changes: nodes that left, nodes that came, features, edges.

Both are graphs of one source with changes of its log in them. The log between them may be cut, so what differs is found
by comparing: nodes by their ids, features by rows, and lists by blocks of nodes, so that little is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gnnserve_api.edges import Direction, EdgeRules
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts, ChangeIds
from gnnserve_worker.graph.ids import NodeIds, texts_of
from gnnserve_worker.graph.living_lists import LivingLists
from gnnserve_worker.graph.store import Features, Graph, GraphData

MOST_EDGES = 1 << 17
"""Edges of one batch."""
_BLOCK_BYTES = 16 * 1024 * 1024
"""Features that are compared, or brought by one batch, at a time."""
_BLOCK_ENTRIES = 1 << 22
"""Entries of lists that are compared at a time, where no single list is longer."""


def node_changes(
    ids: NodeIds | None, features: Features, after: GraphData, places: np.ndarray
) -> Iterator[ChangeBatch]:  # fmt: skip
    """Batches that take nodes away, bring new ones and set features, to be applied in order. `ids` and `features` (as
    in the source): of the graph before. `places`: the position there of each node of `after`, int64; -1: it is new."""
    width = features.shape[1]
    for gone in parts_of(gone_of(features.shape[0], places), MOST_EDGES):
        yield _batch(ChangeCounts(removed_nodes=len(gone)), ids_at(ids, gone), width)
    for new, rows in new_rows(after.features, places):
        yield _batch(ChangeCounts(new_nodes=len(new)), ids_at(after.ids, new), width, rows)
    for other, rows in other_rows(features, after.features, places):
        yield _batch(ChangeCounts(overrides=len(other)), ids_at(after.ids, other), width, rows)


def edge_changes(lists: LivingLists, after: GraphData, places: np.ndarray) -> Iterator[ChangeBatch]:
    """Batches that bring and remove edges, each to be applied before the next is asked for. `lists`: those of the graph
    that changes, which has the nodes of `after` and no others. `places`: their positions there, int64."""
    for come, go in edge_differences(lists, places, names_of(places), after.graph, len(places), after.edge_rules):
        ids = ids_at(after.ids, np.concatenate((come, go)).ravel())
        yield _batch(ChangeCounts(edges=len(come), removed_edges=len(go)), ids, after.features.shape[1])


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


def ids_at(ids: NodeIds | None, nodes: np.ndarray) -> ChangeIds:
    """Ids of nodes at these positions (int64), in their order."""
    if ids is None:
        return ChangeIds(nodes)
    if not len(ids.offsets):
        return ChangeIds(np.asarray(ids.values[nodes]))
    return ChangeIds(None, *texts_of(ids.values, ids.offsets, nodes))


def _batch(counts: ChangeCounts, ids: ChangeIds, width: int, features: np.ndarray | None = None) -> ChangeBatch:
    return ChangeBatch(counts, ids, np.zeros((0, width), np.float32) if features is None else features)


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
