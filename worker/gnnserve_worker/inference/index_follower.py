"""Which embeddings of an index changes of the graph have made old, and those that were computed anew since.

A change reaches the nodes that it touches, and over the hops of the network their readers, and the readers of those.
All of it is found and computed a little at a time, when the caller has time (`serving/index_renewal.py`); until then it
is counted as pending. The event loop's thread alone uses it.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from gnnserve_api.embeddings import IndexManifest, IndexState
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.nearest.recent import RecentVectors
from gnnserve_worker.nearest.revision_index import OpenIndex, RevisionIndex
from gnnserve_worker.repository.loaded import LoadedRevision

_MOST_READERS = 1 << 14
"""Readers that are looked up at a time, in about 0.1 ms; those of one node all the same."""


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
        self._replica = replica
        self._reach = reach
        self._made: IndexManifest | None = None
        self._recent: RecentVectors | None = None
        self._is_reached = np.zeros(len(replica.graph.ids.is_gone), bool)
        """Nodes that changes have reached, bool [positions]: pending again where another index takes over."""
        self._frontiers: list[list[np.ndarray]] = [[] for _ in range(reach.hops)]
        """By the number of layers: nodes whose output of so many layers is another one, and whose readers are still to
        be found."""
        self._taken_offset = replica.base_offset
        self.known_offset = replica.base_offset
        """The offset up to which it is known which nodes changes reach."""

    def recent(self, opened: OpenIndex) -> RecentVectors:
        """What was computed beside this index, and what is pending of it."""
        made = opened.manifest
        if self._recent is None or self._made != made:
            self._made, self._recent = made, RecentVectors(made.nodes, len(self._is_reached), made.columns)
            self._recent.touch(np.flatnonzero(self._is_reached))
        while (part := self.touched.take()) is not None:
            self._taken_offset = part.offset
            sources = np.union1d(part.renewed, part.listed) if self._reach.over_degrees else part.renewed
            self._hold(0, sources)
            self._hold(1, np.union1d(part.renewed, part.listed))
            self._note(part.renewed)
            self._note(part.listed)
        if not any(self._frontiers):
            self.known_offset = self._taken_offset
        return self._recent

    def find_more(self, opened: OpenIndex) -> bool:
        """Find some of the nodes that changes have reached. False: all of them are known. It takes a fraction of a
        millisecond."""
        self.recent(opened)
        for layers, frontier in enumerate(self._frontiers):
            if not frontier:
                continue
            nodes = np.unique(np.concatenate(frontier))
            readers = self._replica.readers_now(nodes, _MOST_READERS)
            if readers is None:  # changes are being applied just now
                return True
            frontier[:] = [nodes[readers.of :]] if readers.of < len(nodes) else []
            self._note(readers.nodes)
            self._hold(layers + 1, readers.nodes)
            return True
        self.known_offset = self._taken_offset
        return False

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

    def _hold(self, layers: int, nodes: np.ndarray) -> None:
        """Readers of these nodes are to be found, where that many layers are not the last."""
        if layers < len(self._frontiers) and len(nodes):
            self._frontiers[layers].append(nodes)

    def _note(self, nodes: np.ndarray) -> None:
        self._is_reached[nodes] = True
        assert self._recent is not None  # noqa: S101  (`recent` has made it)
        self._recent.touch(nodes)


def reach_of(loaded: LoadedRevision) -> Reach:
    """That of the revision's deepest variant: to compute an embedding anew that is the same does no harm."""
    layers, weighs = 0, False
    manifest = loaded.manifest
    for variant in () if manifest is None else manifest.variants:
        stored = 0 if variant.stored is None else variant.stored.layer
        layers = max(layers, stored + variant.network.layers)
        weighs |= loaded.variants[variant.name].network.weighs_neighbours
    # Where links are scored, an embedding is what the last layer gives.
    hidden = layers if loaded.decoder is not None else layers - 1
    return Reach(max(0, hidden), weighs)
