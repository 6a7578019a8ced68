"""Building the neighbour lists of a `Graph` from edges that arrive in pieces, in any order, by `counting_sorts.py`.

Where edges have payload, they are numbered as they come, and the number of each goes along as the row of its payload.

Memory: 8 bytes per edge while edges arrive, and at most 12 while they are sorted (16 with both directions, of which 8
are the result), besides counters of 8 bytes per node and thread, which are at most 8 bytes per edge or node. With rows
each of these is half as much again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gnnserve_api.files.edges import Direction, Duplicates, SelfLoops
from gnnserve_worker.graph.counting_sorts import (
    Lists,
    Rows,
    grouped,
    merge_repeats,
    order_by_time,
    transposed,
    united,
    united_starts,
)
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.store import Finding, Graph
from gnnserve_worker.kernel_cache import kernel

_PIECE_EDGES = 1 << 20
"""Most edges in one piece; threads work on one piece each."""
_NO_ROWS = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class EdgeCounts:
    """Counts of the edges that were left out, merged or added."""

    read: int
    dangling: int
    """Edges left out because an end is not a node."""
    self_loops_removed: int
    merged: int
    """Edges that were given before, with the same source and target."""
    reversed_added: int
    """Edges, of `Direction.UNDIRECTED` alone, whose other direction was not given."""

    def findings(self) -> tuple[Finding, ...]:
        """The counts as findings, except the dangling edges: only the source knows the names of their ends."""
        told = (
            ("duplicate edges merged", self.merged),
            ("self-loops removed", self.self_loops_removed),
            ("edges added in the other direction", self.reversed_added),
        )
        return tuple(Finding(what, count) for what, count in told if count)


class EdgeList:
    """Collects edges in any order, and turns them into a `Graph` once."""

    def __init__(
        self,
        nodes: int,
        direction: Direction = Direction.DIRECTED,
        duplicates: Duplicates = Duplicates.MERGE,
        self_loops: SelfLoops = SelfLoops.KEEP,
        *,
        has_payload: bool = False,
    ) -> None:
        """`has_payload`: edges are numbered as they come, those without a node at an end aside; the number is the row
        of an edge's payload."""
        self._nodes = nodes
        self._direction = direction
        self._merges = duplicates is Duplicates.MERGE
        self._keeps_loops = self_loops is SelfLoops.KEEP
        self._senders: list[np.ndarray] = []
        self._receivers: list[np.ndarray] = []
        self._rows: list[np.ndarray] | None = [] if has_payload else None
        self._read = self._dangling = self._loops_removed = self._numbered = 0

    def add(self, sources: np.ndarray, targets: np.ndarray) -> int:
        """Add edges by the positions of their ends, two integer arrays of one length. An edge with an end outside 0 to
        nodes - 1 is left out.

        Returns the index of the first edge left out, or -1.
        """
        first_dangling = -1
        for start in range(0, len(sources), _PIECE_EDGES):
            piece = slice(start, start + _PIECE_EDGES)
            found = self._add_piece(_kernel_integers(sources[piece]), _kernel_integers(targets[piece]))
            if found >= 0 > first_dangling:
                first_dangling = start + found
        self._read += len(sources)
        return first_dangling

    def _add_piece(self, sources: np.ndarray, targets: np.ndarray) -> int:
        senders = np.empty(len(sources), dtype=np.int32)
        receivers = np.empty(len(sources), dtype=np.int32)
        rows = None if self._rows is None else np.empty(len(sources), dtype=np.int32)
        kept, loops, dangling, first_dangling = _pack(
            sources, targets, self._nodes, self._keeps_loops, senders, receivers, rows, self._numbered
        )
        self._numbered += len(sources) - dangling
        if kept < len(sources):
            senders, receivers = senders[:kept].copy(), receivers[:kept].copy()
            rows = None if rows is None else rows[:kept].copy()
        if self._rows is not None and rows is not None:
            self._rows.append(rows)
        if self._direction is Direction.REVERSED:
            senders, receivers = receivers, senders
        self._senders.append(senders)
        self._receivers.append(receivers)
        self._dangling += dangling
        self._loops_removed += loops
        return int(first_dangling)

    def to_graph(self, payload: EdgePayload | None = None) -> tuple[Graph, EdgeCounts]:
        """Build the graph, with ascending neighbour lists. The edge list is empty afterwards: its memory is reused.

        `payload`: of the edges, a row for each that is numbered. Of equal edges that are merged the last one listed
        counts, where edges go both ways whichever end is listed first; those that are kept stand in the order of time,
        then as they are listed."""
        given = sum(map(len, self._senders))
        lists = grouped(self._senders, self._receivers, self._rows, self._nodes)
        self._senders, self._receivers, self._rows = [], [], None
        indptr, indices, rows = transposed(*lists)
        del lists
        if self._merges:
            kept = merge_repeats(indptr, indices, rows)
            # Resize in place: a copy would need memory for both. No other reference to the arrays exists.
            indices.resize(kept, refcheck=False)
            if rows is not None:
                rows.resize(kept, refcheck=False)
        distinct = len(indices)
        if self._direction is Direction.UNDIRECTED:
            forward = (indptr, indices, rows)
            indptr, indices, rows = united(forward, transposed(*forward), merges=self._merges)
        if rows is not None and payload is not None and not self._merges:
            order_by_time(indptr, indices, rows, payload.times)
        counts = EdgeCounts(self._read, self._dangling, self._loops_removed, given - distinct, len(indices) - distinct)
        return Graph(indptr, indices, payload_rows=_NO_ROWS if rows is None else rows), counts


@dataclass(frozen=True, slots=True)
class BothDirections:
    """Neighbour lists, and what they lack of edges that go both ways."""

    one_way: int
    """Edges whose other direction is listed less often than they are."""
    example: str
    """The first of them, as `3 to 7`; empty: there is none."""
    _forward: Lists
    _reverse: Lists

    @staticmethod
    def of(graph: Graph) -> BothDirections:
        reverse = transposed(graph.indptr, graph.indices, None)[:2]
        # Ascending, which the lists of a file need not be.
        forward = transposed(*reverse, None)[:2]
        one_way = int(united_starts(forward, reverse, merges=True)[-1]) - graph.edges
        example = _first_one_way(forward, reverse) if one_way else ""
        return BothDirections(one_way, example, forward, reverse)

    def to_graph(self) -> Graph:
        """The graph with the other direction of each edge, as often as the more frequent of the two is listed; lists
        are ascending."""
        indptr, indices, _ = united((*self._forward, None), (*self._reverse, None), merges=True)
        return Graph(indptr, indices)


def _first_one_way(forward: Lists, reverse: Lists) -> str:
    """The first edge of one of the two lists that the other has less often; there is one."""
    node = _first_other_row(forward, reverse)
    senders, readers = (Counter[int](ends[at[node] : at[node + 1]].tolist()) for at, ends in (forward, reverse))
    left = senders - readers
    return f"{min(left)} to {node}" if left else f"{node} to {min(readers - senders)}"


def _first_other_row(lists: Lists, others: Lists) -> int:
    (starts, entries), (other_starts, other_entries) = lists, others
    unequal = np.flatnonzero(starts != other_starts)
    row = int(unequal[0]) - 1 if len(unequal) else len(starts) - 1
    entry = np.flatnonzero(entries[: starts[row]] != other_entries[: starts[row]])
    return int(np.searchsorted(starts, entry[0], side="right")) - 1 if len(entry) else row


def row_blocks(indptr: np.ndarray, most_edges: int) -> Iterator[tuple[int, int]]:
    """First row and end of consecutive runs of rows, each with at most `most_edges` edges or a single row."""
    rows = len(indptr) - 1
    start = 0
    while start < rows:
        end = int(np.searchsorted(indptr, indptr[start] + most_edges, side="right")) - 1
        end = min(max(end, start + 1), rows)
        yield start, end
        start = end


def _kernel_integers(values: np.ndarray) -> np.ndarray:
    """The values as int32 or int64, the types that kernels are compiled for."""
    return np.ascontiguousarray(values, dtype=np.int32 if values.dtype == np.int32 else np.int64)


@kernel
def _pack(
    sources: np.ndarray, targets: np.ndarray, nodes: int, keeps_loops: bool,
    packed_sources: np.ndarray, packed_targets: np.ndarray, rows: Rows, first_row: int,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Returns the numbers of edges kept, of self-loops and of dangling edges left out, and the first dangling edge.
    `first_row`: of the first edge that is not dangling."""
    kept = loops = dangling = 0
    first_dangling = -1
    for i in range(len(sources)):
        source, target = sources[i], targets[i]
        if source < 0 or source >= nodes or target < 0 or target >= nodes:
            dangling += 1
            if first_dangling < 0:
                first_dangling = i
        elif source == target and not keeps_loops:
            loops += 1
        else:
            packed_sources[kept] = source
            packed_targets[kept] = target
            if rows is not None:
                rows[kept] = first_row + i - dangling
            kept += 1
    return kept, loops, dangling, first_dangling
