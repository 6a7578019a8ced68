"""Random changes of a graph, as batches: edges that come and go, other features, new nodes.

Batches may be applied in any order, and several at a time: each names nodes of the graph as it was generated, and those
that it brings itself. As many edges leave as come between stored nodes, so that lists stay as long as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts
from gnnserve_worker.graph.change_ids import IntegerIds
from gnnserve_worker.graph.store import Graph

_POOL = 1 << 19
"""Most entries that are drawn for the edges that leave."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of changes; what is left are edges."""

    new_nodes: float = 0.1
    overrides: float = 0.2

    @property
    def shares(self) -> tuple[float, float, float]:
        """Shares of new nodes, overrides and edges."""
        return self.new_nodes, self.overrides, 1.0 - self.new_nodes - self.overrides

    def counts(self, size: int) -> tuple[int, int, int]:
        """New nodes, overrides and edges of a batch of that size."""
        new, overrides = round(size * self.new_nodes), round(size * self.overrides)
        return new, overrides, size - new - overrides


MIXED = Mix()
FEW_NEW_NODES = Mix(new_nodes=0.01)
"""So that ten million changes stay within memory."""


class ChangeStream:
    """Batches without end, the same for the same seed."""

    def __init__(self, graph: Graph, features: int, seed: int, mix: Mix = MIXED, *, by_degree: bool = False) -> None:
        """`graph`: symmetric, as generated. `by_degree`: a node is drawn as often as lists name it; else all alike."""
        self._indices = graph.indices
        self._stored = graph.nodes
        self._features = features
        self._mix = mix
        self._by_degree = by_degree
        self._draw = np.random.default_rng(seed)
        self._next_id = graph.nodes
        entries = np.unique(self._draw.integers(0, graph.edges, min(_POOL, graph.edges)))
        readers = np.searchsorted(graph.indptr, entries, side="right") - 1
        pool = np.stack((readers, np.asarray(graph.indices[entries], np.int64)), axis=1)
        self._pool = pool[pool[:, 0] < pool[:, 1]]
        """Edges between stored nodes that are there, one of which leaves as another one comes: int64 [edges, 2]."""

    def skip_ids(self, count: int) -> None:
        """Leave out so many ids of new nodes, which another stream has used."""
        self._next_id += count

    def batch(self, size: int) -> ChangeBatch:
        """A batch of ten changes at least. Each of its new nodes has an edge to a stored one."""
        new, overrides, edges = self._mix.counts(size)
        return self._batch(new, overrides, edges, attached=new)

    def singles(self, count: int) -> list[ChangeBatch]:
        """Batches of one change each, in random order. New nodes have no edges, which may come before them."""
        whole = self._batch(*self._mix.counts(count), attached=0)
        singles = [*_split(whole)]
        return [singles[place] for place in self._draw.permutation(len(singles)).tolist()]

    def small(self, size: int) -> ChangeBatch:
        """A batch of so many changes, however few: each of a kind that is drawn."""
        new, overrides = self._draw.multinomial(size, self._mix.shares)[:2].tolist()
        return self._batch(new, overrides, size - new - overrides, attached=min(new, size - new - overrides))

    def batches(self, size: int, count: int) -> Iterator[ChangeBatch]:
        if size == 1:
            yield from self.singles(count)
            return
        for _ in range(count):
            yield self.batch(size)

    def overriding(self, nodes: np.ndarray) -> ChangeBatch:
        """Other features of these nodes (int64)."""
        rows = self._draw.standard_normal((len(nodes), self._features), dtype=np.float32)
        return ChangeBatch(ChangeCounts(overrides=len(nodes)), IntegerIds(nodes), rows)

    def _batch(self, new: int, overrides: int, edges: int, attached: int) -> ChangeBatch:
        removed = (edges - attached) // 2
        added = edges - removed
        ids = np.arange(self._next_id, self._next_id + new)
        self._next_id += new
        overridden = self._distinct_nodes(overrides)
        ends = self._nodes(2 * added).reshape(-1, 2)
        ends[:attached, 1] = ids[:attached]
        is_loop = ends[:, 0] == ends[:, 1]
        ends[is_loop, 1] = (ends[is_loop, 0] + 1) % self._stored
        places = self._draw.choice(len(self._pool), removed, replace=False)
        leaving = self._pool[places]
        self._pool[places] = ends[attached : attached + removed]
        rows = self._draw.standard_normal((new + len(overridden), self._features), dtype=np.float32)
        counts = ChangeCounts(new, len(overridden), 0, added, removed, 0)
        return ChangeBatch(counts, IntegerIds(np.concatenate((ids, overridden, ends.ravel(), leaving.ravel()))), rows)

    def _nodes(self, count: int) -> np.ndarray:
        if self._by_degree:
            return np.asarray(self._indices[self._draw.integers(0, len(self._indices), count)], np.int64)
        return self._draw.integers(0, self._stored, count)

    def _distinct_nodes(self, count: int) -> np.ndarray:
        if not self._by_degree:
            return self._draw.choice(self._stored, count, replace=False)
        drawn = self._nodes(4 * count)
        _, first = np.unique(drawn, return_index=True)
        return drawn[np.sort(first)][:count]


def _split(batch: ChangeBatch) -> Iterator[ChangeBatch]:
    """The changes of a batch without labels, one by one."""
    counts, values = batch.counts, batch.ids.integers
    assert values is not None  # noqa: S101
    kinds = (
        (ChangeCounts(new_nodes=1), counts.new_nodes, 1), (ChangeCounts(overrides=1), counts.overrides, 1),
        (ChangeCounts(edges=1), counts.edges, 2), (ChangeCounts(removed_edges=1), counts.removed_edges, 2),
        (ChangeCounts(removed_nodes=1), counts.removed_nodes, 1),
    )  # fmt: skip
    start = row = 0
    for kind, items, ids in kinds:
        for _ in range(items):
            yield ChangeBatch(kind, IntegerIds(values[start : start + ids]), batch.features[row : row + kind.rows])
            start += ids
            row += kind.rows
