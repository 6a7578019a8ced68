"""Which embeddings of an index changes of the graph have made old, and those that were computed anew since.

A change reaches the nodes that it touches, and over the hops of the network their readers, and the readers of those.
All of it is found and computed a little at a time, when the caller has time (`serving/index_renewal.py`); until then it
is counted as pending. The event loop's thread alone uses it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import msgspec
import numpy as np

from gnnserve_api.embeddings import IndexManifest, IndexState
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.nearest.recent import RecentVectors
from gnnserve_worker.nearest.revision_index import OpenIndex, RevisionIndex
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.tasks.embedding import embedded_task

_PIECE = 1 << 12
"""Nodes that are looked at at a time, and readers of such: a few tenths of a millisecond. All readers of one node are
looked at together."""
_MOST_PARTS = 256
"""Parts of what changes have touched that are taken together."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Nodes whose output of so many layers is another one; of 0, the row that their readers aggregate."""

    layers: int
    nodes: np.ndarray


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a change reaches embeddings."""

    hops: int
    """Layers that aggregate neighbours, of those that an embedding is made by."""
    over_degrees: bool
    """Whether a neighbour's weight depends on how many neighbours it has."""


class IndexFollower:
    def __init__(self, replica: LivingRevision, index: RevisionIndex, reach: Reach) -> None:
        self.index = index
        self.touched = replica.touched
        self.is_gone = replica.graph.is_gone
        """Nodes that have left, bool [positions]."""
        self._replica = replica
        self._reach = reach
        self._made: IndexManifest | None = None
        self._recent: RecentVectors | None = None
        self._is_reached = np.zeros(len(replica.graph.ids.is_gone), bool)
        """Nodes that changes have reached, bool [positions]: pending again where another index takes over. Where nodes
        are of several types, those of the one that is classified, which come first."""
        self._pieces: deque[_Piece] = deque()
        """What is to be looked at next."""
        self._waits = [np.zeros(len(replica.graph.is_gone), bool) for _ in range(reach.hops + 1)]
        """Whether a node is in one of the pieces, by their number of layers."""
        self._taken_offset = replica.base_offset
        """The offset up to which changes were taken."""
        self.known_offset = replica.base_offset
        """The offset up to which it is known which nodes changes reach."""

    def recent(self, opened: OpenIndex) -> RecentVectors:
        """What was computed beside this index, and what is pending of it, as far as changes are known."""
        made = opened.manifest
        if self._recent is not None and self._made == made:
            return self._recent
        anew = RecentVectors(made.nodes, len(self._is_reached), made.columns)
        anew.touch(np.flatnonzero(self._is_reached))
        # A request that came before a newer index was opened goes on with the older one: nothing is kept beside that.
        newest = self.index.opened
        if newest is not None and newest.manifest == made:
            self._made, self._recent = made, anew
        return anew

    def find_more(self, opened: OpenIndex) -> bool:
        """Find some of the nodes that changes have reached. False: all of them are known. It takes a fraction of a
        millisecond."""
        recent = self.recent(opened)
        if not self._pieces and not self._take_parts():
            self.known_offset = self._taken_offset
            return False
        if not self._pieces:  # what was taken touches no node that is not known; there may be more
            self.known_offset = self._taken_offset
            return True
        piece = self._pieces.popleft()
        of = len(piece.nodes)
        if piece.layers < self._reach.hops:
            readers = self._replica.readers_now(piece.nodes, _PIECE)
            if readers is None:  # changes are being applied just now
                self._pieces.appendleft(piece)
                return True
            of = readers.of
            if of < len(piece.nodes):
                self._pieces.appendleft(_Piece(piece.layers, piece.nodes[of:]))
            self._hold(piece.layers + 1, readers.nodes)
        found = piece.nodes[:of]
        self._waits[piece.layers][found] = False
        found = found[found < len(self._is_reached)]
        self._is_reached[found] = True
        recent.touch(found)
        if not self._pieces:
            self.known_offset = self._taken_offset
        return True

    def state(self, opened: OpenIndex) -> IndexState:
        """As answers tell it."""
        recent = self.recent(opened)
        return msgspec.structs.replace(
            opened.state,
            offset=opened.manifest.offset or 0,
            followed_offset=self.known_offset,
            renewed=recent.count,
            pending=recent.pending,
        )

    def _take_parts(self) -> bool:
        """Take what changes have touched next; False: nothing."""
        listed: list[np.ndarray] = []
        renewed: list[np.ndarray] = []
        for _ in range(_MOST_PARTS):
            if (part := self.touched.take()) is None:
                break
            self._taken_offset = part.offset
            listed.append(part.listed)
            renewed.append(part.renewed)
            if len(part.listed) + len(part.renewed) > _PIECE:
                break
        if not listed:
            return False
        self._hold(0, np.concatenate(renewed))
        # Where a neighbour's weight depends on its degree, its readers aggregate another row.
        self._hold(0 if self._reach.over_degrees else min(1, self._reach.hops), np.concatenate(listed))
        return True

    def _hold(self, layers: int, nodes: np.ndarray) -> None:
        """Look at these nodes (int64) later, but for those that wait already."""
        waits = self._waits[layers]
        nodes = nodes[~waits[nodes]]
        waits[nodes] = True
        for start in range(0, len(nodes), _PIECE):
            self._pieces.append(_Piece(layers, nodes[start : start + _PIECE]))


def reach_of(loaded: LoadedRevision) -> Reach:
    """That of the revision's deepest variant: to compute an embedding anew that is the same does no harm."""
    layers, weighs = 0, False
    manifest = loaded.manifest
    for variant in () if manifest is None else manifest.variants:
        stored = 0 if variant.stored is None else variant.stored.layer
        layers = max(layers, stored + variant.network.layers)
        weighs |= loaded.variants[variant.name].network.weighs_neighbours
    hidden = 0 if manifest is None else len(embedded_task(manifest).layers(range(layers)))
    return Reach(hidden, weighs)
