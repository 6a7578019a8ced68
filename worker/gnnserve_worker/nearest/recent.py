"""Embeddings that were computed since an index was made, of nodes that changes of the graph have reached.

They are few, and are compared one by one beside the index, which its own vectors of these nodes are left out of. Which
nodes changes reach, and when there is time to compute, is for others to say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from gnnserve_worker.growth import GrowingArray
from gnnserve_worker.models.pair_queries import PairQueries
from gnnserve_worker.nearest.search import SearchHits, best_of, unit

MOST_RECENT_BYTES = 4 * 1024 * 1024
"""Vectors that are compared beside the index: within half a millisecond on one core (8,192 nodes with 128 columns)."""
_MOST_CHANGED_SHARE = 0.5
"""Share of them that nodes of the index may take: new nodes are in no index, and are found here or not at all."""
_AS_INDEXED, _WAITING, _COMPUTED_NOW, _GIVEN_UP = range(4)
"""What is to be done about a node: nothing, it waits, it is being computed, or it is left as it is until a change
reaches it again."""


class RecentVectors:
    """One thread at a time may use it."""

    def __init__(
        self,
        indexed: int,
        positions: int,
        columns: int,
        most_bytes: int = MOST_RECENT_BYTES,
        rows: Callable[[np.ndarray], np.ndarray] = unit,
    ) -> None:
        """`indexed`: nodes of the index, at positions below that. `positions`: that nodes may ever have; the index's
        first node has position 0. `columns`: of a row of the index. `rows`: as of `Comparison`."""
        self._rows = rows
        self._indexed = indexed
        self._most = max(2, most_bytes // (4 * columns))
        self._most_changed = int(self._most * _MOST_CHANGED_SHARE)
        self._state = np.full(positions, _AS_INDEXED, np.uint8)
        self._new: deque[int] = deque()
        self._again: deque[int] = deque()
        self._changed: deque[int] = deque()
        """Nodes that wait, first come first served: new ones, then those that have a vector here, then the others."""
        self._vectors = GrowingArray((columns,), np.float32, self._most)
        self._positions = GrowingArray((), np.int64, self._most)
        self._places: dict[int, int] = {}
        """Place among the vectors, by position."""
        self._changed_places = 0
        """Vectors of nodes of the index."""
        self.left_to_index = np.ones(positions, bool)
        """Whether only the index has a vector of the node, bool [positions]."""
        self.pending = 0
        """Nodes that changes have reached, and whose embedding is not computed anew."""

    @property
    def count(self) -> int:
        """Vectors that there are."""
        return len(self._places)

    def touch(self, nodes: np.ndarray) -> None:
        """Note nodes whose embeddings are others now, int64; some may repeat."""
        nodes = np.unique(nodes[self._state[nodes] != _WAITING])
        self.pending += int(np.count_nonzero(self._state[nodes] == _AS_INDEXED))
        self._state[nodes] = _WAITING
        is_left, is_new = self.left_to_index[nodes], nodes >= self._indexed
        self._again.extend(nodes[~is_left].tolist())
        self._new.extend(nodes[is_left & is_new].tolist())
        self._changed.extend(nodes[is_left & ~is_new].tolist())

    def take(self, count: int, is_gone: np.ndarray) -> np.ndarray:
        """The next nodes to compute, int64 [up to count]. `is_gone`: bool [positions], nodes that have left, which are
        forgotten. Nodes that there is no room for go on waiting."""
        taken: list[int] = []
        places, changed = self._most - self.count, self._most_changed - self._changed_places
        while len(taken) < count:
            if self._new and places > 0:
                queue, uses, of_index = self._new, 1, 0
            elif self._again:
                queue, uses, of_index = self._again, 0, 0
            elif self._changed and places > 0 and changed > 0:
                queue, uses, of_index = self._changed, 1, 1
            else:
                break
            node = queue.popleft()
            if is_gone[node]:
                self._forget(node)
                continue
            self._state[node] = _COMPUTED_NOW
            taken.append(node)
            places, changed = places - uses, changed - of_index
        return np.array(taken, np.int64)

    def put(self, nodes: np.ndarray, vectors: np.ndarray) -> None:
        """Take the embeddings of nodes that were taken: float32 [nodes, columns of an embedding]."""
        rows = self._rows(vectors)
        for row, node in enumerate(nodes.tolist()):
            if self._state[node] == _COMPUTED_NOW:
                self._state[node] = _AS_INDEXED
                self.pending -= 1
            self._place(node, rows[row])

    def give_up(self, nodes: np.ndarray) -> None:
        """Leave nodes that were taken as they are: computing them failed."""
        self._state[nodes[self._state[nodes] == _COMPUTED_NOW]] = _GIVEN_UP

    def search(
        self,
        query: PairQueries,
        count: int,
        excluded: np.ndarray,
        allowed: np.ndarray | None,
        is_gone: np.ndarray | None = None,
    ) -> SearchHits:
        """As `NearestIndex.search`, among these vectors. `is_gone`: nodes that have left, bool [positions]."""
        positions = self._positions.items
        products = query.score(self._vectors.items)[0]
        kept = ~np.isin(positions, excluded)
        if allowed is not None:
            kept &= allowed[positions]
        if is_gone is not None:
            kept &= ~is_gone[positions]
        return best_of(positions[kept], products[kept], count)

    def _place(self, node: int, vector: np.ndarray) -> None:
        place = self._places.get(node)
        if place is None:
            place = self._places[node] = len(self._places)
            self._positions.extend(np.array([node]))
            self._vectors.extend(vector[np.newaxis])
            self._changed_places += node < self._indexed
            self.left_to_index[node] = False
        self._vectors.items[place] = vector

    def _forget(self, node: int) -> None:
        """A node that has left."""
        self._state[node] = _AS_INDEXED
        self.pending -= 1
        place = self._places.pop(node, None)
        if place is None:
            return
        last = len(self._places)
        if place < last:  # the last vector moves into the gap
            positions, vectors = self._positions.items, self._vectors.items
            moved = int(positions[last])
            positions[place], vectors[place] = moved, vectors[last]
            self._places[moved] = place
        self._positions.drop_last()
        self._vectors.drop_last()
        self._changed_places -= node < self._indexed


def merged(first: SearchHits, second: SearchHits, count: int) -> SearchHits:
    """The nearest `count` of both, which have no node in common."""
    return best_of(
        np.concatenate((first.positions, second.positions)), np.concatenate((first.products, second.products)), count
    )
