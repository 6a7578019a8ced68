"""Which embeddings of a revision's indexes changes of the graph have made old, and those that were computed anew since.

A change reaches the nodes that it touches, and over the hops of the network their readers, and the readers of those,
whichever index has them.
All of it is found and computed a little at a time, when the caller has time (`serving/idle/index_renewal.py`); until
then it is counted as pending. The event loop's thread alone uses it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from gnnserve_api.files.embeddings import IndexManifest, IndexState
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
class ChangeReach:
    """How far a change reaches embeddings."""

    hops: int
    """Layers that aggregate neighbours, of those that an embedding is made by."""
    over_degrees: bool
    """Whether a neighbour's weight depends on how many neighbours it has."""


class FollowedIndex:
    """Rows that are computed beside one index. Positions count from the first node of its part."""

    def __init__(self, index: RevisionIndex, is_gone: np.ndarray) -> None:
        """`is_gone`: nodes of the graph that have left, bool [nodes], as it is at any time."""
        self.index = index
        self.is_gone = is_gone[index.part.start : index.part.end]
        """Nodes that have left, bool [positions]."""
        self._made: IndexManifest | None = None
        self._recent: RecentVectors | None = None
        self._is_reached = np.zeros(len(self.is_gone), bool)
        """Nodes that changes have reached, bool [positions]: pending again where another index takes over."""

    def recent(self, opened: OpenIndex) -> RecentVectors:
        """What was computed beside this index, and what is pending of it, as far as changes are known."""
        made = opened.manifest
        if self._recent is not None and self._made == made:
            return self._recent
        anew = RecentVectors(made.nodes, len(self._is_reached), made.columns, rows=self.index.comparison.rows)
        anew.touch(np.flatnonzero(self._is_reached))
        # A request that came before a newer index was opened goes on with the older one: nothing is kept beside that.
        newest = self.index.opened
        if newest is not None and newest.manifest == made:
            self._made, self._recent = made, anew
        return anew

    def note_reached(self, nodes: np.ndarray) -> None:
        """Note that changes have reached these nodes of the graph (int64), of which some may be of other parts."""
        part, opened = self.index.part, self.index.opened
        own = nodes[(nodes >= part.start) & (nodes < part.end)] - part.start
        self._is_reached[own] = True
        if opened is not None:
            self.recent(opened).touch(own)


class IndexFollower:
    def __init__(self, replica: LivingRevision, indexes: Sequence[RevisionIndex], reach: ChangeReach) -> None:
        """`indexes`: of the revision, at least one."""
        self.touched = replica.touched
        self.followed = tuple(FollowedIndex(index, replica.graph.is_gone) for index in indexes)
        self._replica = replica
        self._reach = reach
        self._pieces: deque[_Piece] = deque()
        """What is to be looked at next."""
        self._waits = [np.zeros(len(replica.graph.is_gone), bool) for _ in range(reach.hops + 1)]
        """Whether a node is in one of the pieces, by their number of layers."""
        self._taken_offset = replica.base_offset
        """The offset up to which changes were taken."""
        self.known_offset = replica.base_offset
        """The offset up to which it is known which nodes changes reach."""

    def beside(self, index: RevisionIndex) -> FollowedIndex:
        """What is computed beside an index of the revision."""
        return next(one for one in self.followed if one.index is index)

    def find_more(self) -> bool:
        """Find some of the nodes that changes have reached. False: all of them are known. It takes a fraction of a
        millisecond."""
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
        for one in self.followed:
            one.note_reached(found)
        if not self._pieces:
            self.known_offset = self._taken_offset
        return True

    def state(self, index: RevisionIndex, opened: OpenIndex) -> IndexState:
        """As answers tell it. `opened`: the one that was searched."""
        recent = self.beside(index).recent(opened)
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


def reach_of(loaded: LoadedRevision) -> ChangeReach:
    """That of the revision's deepest variant: to compute an embedding anew that is the same does no harm."""
    hops, weighs = 0, False
    manifest = loaded.manifest
    assert manifest is not None  # noqa: S101  (a published one has it)
    for variant in manifest.variants:
        stored = 0 if variant.stored is None else variant.stored.layer
        layers = range(stored + variant.network.layers)
        # A program may give rows behind any of its layers.
        of_embedding = layers if variant.network.reads_features else embedded_task(manifest).layers(layers)
        hops = max(hops, len(of_embedding))
        weighs |= loaded.variants[variant.name].network.weighs_neighbours
    return ChangeReach(hops, weighs)
