"""What makes one graph into another, as batches of changes: nodes that left, nodes that came, features, edges.

Both are graphs of one source with changes of its log in them. The log between them may be cut, so what differs is found
by comparing: nodes by their ids, features by rows, and lists by blocks of nodes, so that little is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gnnserve_api.edges import Direction, EdgeRules
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts, ChangeIds
from gnnserve_worker.graph.ids import NodeIds, texts_of
from gnnserve_worker.graph.living_lists import LivingLists
from gnnserve_worker.graph.store import Features, GraphData

_MOST_EDGES = 1 << 17
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
    nodes, width = features.shape
    stays = np.zeros(nodes, np.bool_)
    stays[places[places >= 0]] = True
    rows = max(1, _BLOCK_BYTES // (4 * width))
    for gone in _parts(np.flatnonzero(~stays), _MOST_EDGES):
        yield _batch(ChangeCounts(removed_nodes=len(gone)), ids_at(ids, gone), width)
    for new in _parts(np.flatnonzero(places < 0), rows):
        yield _batch(ChangeCounts(new_nodes=len(new)), ids_at(after.ids, new), width, _rows(after.features, new))
    for known in _parts(np.flatnonzero(places >= 0), rows):
        found = _rows(after.features, known)
        is_other = (found != _rows(features, places[known])).any(axis=1)
        if is_other.any():
            other = known[is_other]
            yield _batch(ChangeCounts(overrides=len(other)), ids_at(after.ids, other), width, found[is_other])


def edge_changes(lists: LivingLists, after: GraphData, places: np.ndarray) -> Iterator[ChangeBatch]:
    """Batches that bring and remove edges, each to be applied before the next is asked for. `lists`: those of the graph
    that changes, which has the nodes of `after` and no others. `places`: their positions there, int64."""
    graph, rules = after.graph, after.edge_rules
    place_after = np.zeros(int(places.max(initial=-1)) + 1, np.int64)
    place_after[places] = np.arange(len(places))
    ends = np.cumsum(np.diff(graph.indptr) + lists.lengths(places))
    start = 0
    while start < graph.nodes:
        read = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, read + _BLOCK_ENTRIES, side="right")))
        begins, stops = graph.indptr[start:end], graph.indptr[start + 1 : end + 1]
        wanted = _keys(begins, stops, graph.indices, start, graph.nodes, None)
        begins, stops = lists.bounds[places[start:end]].T
        found = _keys(begins, stops, lists.indices, start, graph.nodes, place_after)
        added, removed = (
            _as_edges(keys, graph.nodes, rules) for keys in (_beyond(wanted, found), _beyond(found, wanted))
        )
        for at in range(0, max(len(added), len(removed)), _MOST_EDGES):
            come, go = added[at : at + _MOST_EDGES], removed[at : at + _MOST_EDGES]
            ids = ids_at(after.ids, np.concatenate((come, go)).ravel())
            yield _batch(ChangeCounts(edges=len(come), removed_edges=len(go)), ids, after.features.shape[1])
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


def _parts(nodes: np.ndarray, most: int) -> Iterator[np.ndarray]:
    for start in range(0, len(nodes), most):
        yield nodes[start : start + most]


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
