"""Neighbour lists of edges that have payload, made the plain way: by sorting all entries at once."""

from __future__ import annotations

import numpy as np

from gnnserve_api.files.edges import Duplicates, EdgeRules
from gnnserve_worker.graph.living_lists import entries_of_edges
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.store import Graph


def lists_with_payload(
    sources: np.ndarray, targets: np.ndarray, readers: int, rules: EdgeRules, payload: EdgePayload
) -> Graph:
    """Ascending lists of so many nodes that read, with `payload_rows`, by the rules of the relation.

    `sources`, `targets`: positions of the ends of each edge, whose row has the edge's own number. Of equal edges that
    are merged the last one listed counts, where edges go both ways whichever end is listed first; those that are kept
    stand in the order of time, then as they are listed.
    """
    merges = rules.duplicates is Duplicates.MERGE
    entries, rows = entries_of_edges(np.stack((sources, targets), axis=1).astype(np.int64, copy=False), rules)
    readings, senders = entries[:, 0], entries[:, 1]
    times = payload.times[rows] if payload.time_column and not merges else np.zeros(len(rows), np.int64)
    order = np.lexsort((rows, times, senders, readings))
    senders, readings, rows = senders[order], readings[order], rows[order]
    if merges:
        is_last = np.ones(len(rows), bool)
        is_last[:-1] = (senders[1:] != senders[:-1]) | (readings[1:] != readings[:-1])
        senders, readings, rows = senders[is_last], readings[is_last], rows[is_last]
    indptr = np.concatenate(([0], np.cumsum(np.bincount(readings, minlength=readers)))).astype(np.int64)
    return Graph(indptr, senders.astype(np.int32), payload_rows=rows.astype(np.int32))
