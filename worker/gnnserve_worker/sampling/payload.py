"""Payload of the edges of a sample: features and times, gathered by where the sampled entries stand.

A sample names positions where it is asked to (`NeighbourSample.positions`). What is gathered is apart by relation,
since each has columns of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnnserve_worker.graph.living_payload import LivingPayload
from gnnserve_worker.graph.overlay import OverlayPayload
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.kernels.layout import unpack_layout
from gnnserve_worker.sampling.batch_view import BatchView
from gnnserve_worker.sampling.neighbours import NeighbourSample, SampledPayload


def gather_payload(
    graph: Graph,
    payloads: Sequence[EdgePayload | LivingPayload | None],
    sample: NeighbourSample,
    view: BatchView | None = None,
) -> tuple[SampledPayload | None, ...]:
    """Gather the payload of a sample's edges by each relation; None: the relation has none.

    `payloads`: of each relation of the graph. `sample`: with positions. `view`: in which it was drawn.
    """
    if sample.positions is None:
        raise ValueError("the sample names no positions: draw it with names_positions")
    brought = None if view is None else view.payload
    relations, readers = _relations_and_lists(graph, sample)
    stored = len(graph.indices)
    is_stored = sample.positions < stored
    rows = np.full(len(relations), -1, np.int64)
    is_brought = ~is_stored
    if len(graph.payload_rows):
        rows[is_stored] = graph.payload_rows[sample.positions[is_stored]]
    if brought is not None:
        rows[~is_stored] = brought.rows[sample.positions[~is_stored] - stored]
        again = _brought_again(graph, brought, readers, sample.positions, is_stored)
        is_brought |= again >= 0
        rows[again >= 0] = again[again >= 0]
    gathered = list[SampledPayload | None]()
    for relation, payload in enumerate(payloads):
        if payload is None:
            gathered.append(None)
            continue
        edges = np.flatnonzero(relations == relation)
        gathered.append(_gather(payload, brought, edges, rows[edges], is_brought[edges]))
    return tuple(gathered)


def _gather(
    payload: EdgePayload | LivingPayload, brought: OverlayPayload | None, edges: np.ndarray, rows: np.ndarray,
    is_brought: np.ndarray,
) -> SampledPayload:  # fmt: skip
    columns, has_times = len(payload.columns), bool(payload.time_column)
    if len(rows) and rows.min() < 0:
        raise ValueError(f"edge {edges[rows.argmin()]} of the sample has no payload, though its relation has")
    features = np.empty((len(edges), columns), np.float32)
    times = np.empty(len(edges) if has_times else 0, np.int64)
    parts = [(~is_brought, payload.features, payload.times)]
    if brought is not None:
        parts.append((is_brought, brought.edges.features[:, :columns], brought.edges.times))
    for part, own_features, own_times in parts:
        features[part] = own_features[rows[part]]
        if has_times:
            times[part] = own_times[rows[part]]
    return SampledPayload(edges, features, times)


def _relations_and_lists(graph: Graph, sample: NeighbourSample) -> tuple[np.ndarray, np.ndarray]:
    """The relation by which each neighbour of a sample was drawn, and the number of the overlay's list that it is of;
    below 0: its reader is no overlay node. int64."""
    types, stride, _, _, _, relation_of, _ = unpack_layout(graph.layout)
    rows = np.diff(sample.type_ends, prepend=0)
    kinds = np.repeat(np.arange(len(rows)) % types, rows)
    lists = np.repeat(np.arange(len(sample.segments) - 1), np.diff(sample.segments))
    row, slot = lists // stride, lists % stride
    overlay_nodes = sample.nodes[row].astype(np.int64) - graph.nodes
    return relation_of[kinds[row] * stride + slot], np.where(overlay_nodes < 0, -1, overlay_nodes + slot)


def _brought_again(
    graph: Graph, brought: OverlayPayload, lists: np.ndarray, positions: np.ndarray, is_stored: np.ndarray
) -> np.ndarray:
    """The row of each edge that the graph has and the request brings again; -1: it is no such one. int64."""
    found = np.full(len(lists), -1, np.int64)
    if len(brought.replaced):
        candidates = np.flatnonzero(is_stored & (lists >= 0))
        keys = brought.replaced[:, 0] * graph.nodes + brought.replaced[:, 1]
        order = np.argsort(keys)
        wanted = lists[candidates] * graph.nodes + graph.indices[positions[candidates]]
        places = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
        is_found = keys[order][places] == wanted
        found[candidates[is_found]] = brought.replaced[order[places[is_found]], 2]
    return found
