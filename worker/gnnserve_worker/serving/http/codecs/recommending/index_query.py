"""Index query of a recommendation, once the embedding of its node is computed, and what it finds."""

from __future__ import annotations

import msgspec
import numpy as np

from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.models.pair_queries import PairQueries
from gnnserve_worker.nearest.recent import merged
from gnnserve_worker.nearest.revision_index import OpenIndex, RevisionIndex
from gnnserve_worker.nearest.search import SearchHits
from gnnserve_worker.tasks.recommending import FoldedNode

_MORE = 4
"""How many times as many nodes are asked for where too many of those found turn out to be known."""


class IndexQuery(msgspec.Struct, frozen=True):
    index: OpenIndex
    held: RevisionIndex
    """Where its searches are counted."""
    count: int
    excluded: np.ndarray
    """Positions that are not recommended, int64."""
    allowed: np.ndarray | None
    """bool [positions of the graph]; None: all nodes."""
    unread_by: int | None = None
    """A node: those that read it are known, and not recommended. None: its neighbours read it, and are `excluded`."""
    folded: FoldedNode | None = None
    """What the embedding is made of, where the nodes that are computed are those that its node is joined to. None: it
    is the computed node's own."""


def find(query: PairQueries, sought: IndexQuery, revision: ServedRevision) -> SearchHits:
    """The nearest nodes, by their positions in the graph. `query`: one that does not point nowhere."""
    reader, neighbours_of = sought.unread_by, revision.graph.neighbours_of
    if reader is None:
        return _nearest(query, sought.count, sought, revision)
    asked = sought.count
    while True:
        found = _nearest(query, asked, sought, revision)
        kept = np.array([reader not in neighbours_of(node) for node in found.positions.tolist()], bool)
        if len(found.positions) < asked or np.count_nonzero(kept) >= sought.count:
            return SearchHits(found.positions[kept][: sought.count], found.products[kept][: sought.count])
        asked *= _MORE


def _nearest(query: PairQueries, count: int, sought: IndexQuery, revision: ServedRevision) -> SearchHits:
    """What the index has, and what was computed beside it, without nodes that have left."""
    part, allowed, excluded = sought.held.part, sought.allowed, sought.excluded
    follower = revision.changes.index_follower
    beside = None if follower is None else follower.beside(sought.held)
    recent = None if beside is None else beside.recent(sought.index)
    of_index = None if allowed is None else allowed[part.start : part.indexed_end]
    # Those of the index alone: there is room for many more nodes than there are.
    if (gone := revision.changes.gone.among(part.start, part.indexed_end)) is not None:
        of_index = ~gone if of_index is None else of_index & ~gone
    if recent is not None and recent.count:
        left = recent.left_to_index[: part.nodes]
        of_index = left if of_index is None else of_index & left
    within = excluded[(excluded >= part.start) & (excluded < part.end)] - part.start
    of_part = within[within < part.nodes]
    found = sought.index.search.search(query, count, of_part, of_index)
    if beside is not None and recent is not None and recent.count:
        of_recent = None if allowed is None else allowed[part.start : part.end]
        found = merged(found, recent.search(query, count, within, of_recent, beside.is_gone), count)
    return SearchHits(found.positions + part.start, found.products)
