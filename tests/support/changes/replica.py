"""A graph in memory that batches of changes are applied to: small and obvious, in the place of a worker's."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from gnnserve_worker.graph.change_batch import (
    BatchEffect,
    ChangeBatch,
    ChangeCounts,
    ChangeProblem,
    ChangeRefusal,
    encode_batch,
)
from gnnserve_worker.graph.change_ids import IntegerIds

FEATURES = 2
Edge = tuple[int, int]


def make_batch(
    new: Sequence[int] = (), edges: Sequence[Edge] = (), removed_edges: Sequence[Edge] = (), removed: Sequence[int] = ()
) -> ChangeBatch:
    counts = ChangeCounts(
        new_nodes=len(new), edges=len(edges), removed_edges=len(removed_edges), removed_nodes=len(removed)
    )
    ids = [*new, *np.ravel(edges).tolist(), *np.ravel(removed_edges).tolist(), *removed]
    return ChangeBatch(
        counts, IntegerIds(np.array(ids, dtype=np.int64)), np.zeros((len(new), FEATURES), dtype=np.float32)
    )


def make_body(new: Sequence[int] = (), size: int = 0) -> bytes:
    """The binary form of a batch with new nodes, or some bytes of that size, which only a log takes."""
    return bytes(size) if size else encode_batch(make_batch(new))


class FakeReplica:
    """Nodes and edges as sets. Without `nodes`, edges may be between any."""

    def __init__(self, nodes: Iterable[int] = (), offset: int = 0, room: int = 1 << 40) -> None:
        self.nodes = set(nodes)
        self.edges: set[Edge] = set()
        self.room = room
        """Items that it has room for."""
        self.gate = threading.Event()
        """While it is clear, `apply` waits."""
        self.gate.set()
        self.reached = threading.Event()
        """Set when `apply` is called."""
        self.history = 0
        """Checksum of all that was applied, and of what was said."""
        self.fault: Exception | None = None
        """What `apply` raises."""
        self.base_offset = self._offset = offset
        self.base_checksum: int | None = None if offset else 0
        self.changes_since_base = 0
        self.inferences = 0
        self.computing_s = 0.0
        self.delta_bytes = 0
        self._lock = threading.Lock()

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def is_busy(self) -> bool:
        return self._lock.locked()

    def check(self, batch: ChangeBatch) -> ChangeRefusal | None:
        with self._lock:
            return self._check(batch)

    def apply(self, offset: int, batches: Sequence[ChangeBatch]) -> list[BatchEffect | ChangeRefusal]:
        said: list[BatchEffect | ChangeRefusal] = []
        for number, batch in enumerate(batches):
            said.append(self._apply_one(offset + number, batch))
            if self._offset < offset + number:
                break
        return said

    def _apply_one(self, offset: int, batch: ChangeBatch) -> BatchEffect | ChangeRefusal:
        self.reached.set()
        assert self.gate.wait(60)
        if self.fault is not None:
            raise self.fault
        with self._lock:
            assert offset == self._offset + 1
            refusal = self._check(batch)
            if refusal is not None and refusal.problem is ChangeProblem.NO_ROOM:
                return refusal
            said = self._apply(batch) if refusal is None else refusal
            self.history = zlib.crc32(f"{offset} {said}".encode(), zlib.crc32(encode_batch(batch), self.history))
            self._offset = offset
            return said

    def _check(self, batch: ChangeBatch) -> ChangeRefusal | None:
        if batch.counts.items > self.room:
            return ChangeRefusal(ChangeProblem.NO_ROOM, "", "changes take all of their memory", "compact the graph")
        new, edges, _, removed = _read(batch)
        for place, node in enumerate(new):
            if node in self.nodes:
                return _refusal(ChangeProblem.STORED_NODE, f"nodes[{place}]", f"node {node} is there already")
        known = self.nodes.union(new)
        for place, edge in enumerate(edges):
            for end, node in enumerate(edge):
                if node not in known:
                    return _refusal(ChangeProblem.UNKNOWN_NODE, f"edges[{place}][{end}]", f"there is no node {node}")
        for place, node in enumerate(removed):
            if node not in known:
                return _refusal(ChangeProblem.UNKNOWN_NODE, f"removedNodes[{place}]", f"there is no node {node}")
        return None

    def _apply(self, batch: ChangeBatch) -> BatchEffect:
        new, edges, removed_edges, removed = _read(batch)
        self.room -= batch.counts.items
        self.nodes.update(new)
        unchanged = sum(edge in self.edges for edge in edges)
        self.edges.update(edges)
        unchanged += sum(edge not in self.edges for edge in removed_edges)
        self.edges.difference_update(removed_edges)
        self.nodes.difference_update(removed)
        self.edges = {edge for edge in self.edges if not set(edge) & set(removed)}
        return BatchEffect(unchanged)


def _refusal(problem: ChangeProblem, field: str, message: str) -> ChangeRefusal:
    return ChangeRefusal(problem, field, message, "see GET /v1/nodes")


def _read(batch: ChangeBatch) -> tuple[list[int], list[Edge], list[Edge], list[int]]:
    assert batch.ids.integers is not None
    ids = batch.ids.integers.tolist()
    counts = batch.counts
    ends = np.cumsum([counts.new_nodes, 2 * counts.edges, 2 * counts.removed_edges, counts.removed_nodes]).tolist()
    new, edges, removed_edges, removed = (ids[start:end] for start, end in zip([0, *ends], ends, strict=False))
    return new, _pairs(edges), _pairs(removed_edges), removed


def _pairs(ids: list[int]) -> list[Edge]:
    return list(zip(ids[::2], ids[1::2], strict=True))
