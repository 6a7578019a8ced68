"""Building the neighbour lists of a `Graph` from edges that arrive in pieces, in any order.

Two counting sorts without comparisons do it: grouping edges by their source, then reading those groups in the order of
nodes into the lists of the targets, leaves every list ascending. A third sort gives the other direction, which is
merged in row by row. Every step works on int32 and on all threads.

Where edges have payload, the number of each edge goes along with its ends, as the row of its payload: kernels are
compiled once with rows and once without (None). Sorts keep the order of equal edges, so that rows of parallel entries
ascend, and the last one listed is the one that is kept where they are merged.

Memory: 8 bytes per edge while edges arrive, and at most 12 while they are sorted (16 with both directions, of which 8
are the result), besides counters of 8 bytes per node and thread, which are at most 8 bytes per edge or node. With rows
each of these is half as much again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from gnnserve_api.edges import Direction, Duplicates, SelfLoops
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.store import Finding, Graph
from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.kernels.primitives import prefetch
from gnnserve_worker.parallel import map_parallel, thread_count

_Lists: TypeAlias = tuple[np.ndarray, np.ndarray]
_ListsWithRows: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray | None]
_Rows: TypeAlias = np.ndarray | None
"""Rows of payload beside entries or edges, int32; None: edges have no payload."""
_PIECE_EDGES = 1 << 20
"""Most edges in one piece; threads work on one piece each."""
_AHEAD = 16
"""A node's place is prefetched this many edges before its turn."""
_ROW_BLOCKS_PER_THREAD = 8
"""Blocks per thread: several, so that threads end together although some nodes have most of the edges."""
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
        lists = _grouped(self._senders, self._receivers, self._rows, self._nodes)
        self._senders, self._receivers, self._rows = [], [], None
        indptr, indices, rows = _transposed(*lists)
        del lists
        if self._merges:
            kept = _merge_repeats(indptr, indices, rows)
            # Resize in place: a copy would need memory for both. No other reference to the arrays exists.
            indices.resize(kept, refcheck=False)
            if rows is not None:
                rows.resize(kept, refcheck=False)
        distinct = len(indices)
        if self._direction is Direction.UNDIRECTED:
            forward = (indptr, indices, rows)
            indptr, indices, rows = _united(forward, _transposed(*forward), merges=self._merges)
        if rows is not None and payload is not None and not self._merges:
            _order_by_time(indptr, indices, rows, payload.times)
        counts = EdgeCounts(self._read, self._dangling, self._loops_removed, given - distinct, len(indices) - distinct)
        return Graph(indptr, indices, payload_rows=_NO_ROWS if rows is None else rows), counts


@dataclass(frozen=True, slots=True)
class BothDirections:
    """Neighbour lists, and what they lack of edges that go both ways."""

    one_way: int
    """Edges whose other direction is listed less often than they are."""
    example: str
    """The first of them, as `3 to 7`; empty: there is none."""
    _forward: _Lists
    _reverse: _Lists

    @staticmethod
    def of(graph: Graph) -> BothDirections:
        reverse = _transposed(graph.indptr, graph.indices, None)[:2]
        # Ascending, which the lists of a file need not be.
        forward = _transposed(*reverse, None)[:2]
        one_way = int(_united_starts(forward, reverse, merges=True)[-1]) - graph.edges
        example = _first_one_way(forward, reverse) if one_way else ""
        return BothDirections(one_way, example, forward, reverse)

    def to_graph(self) -> Graph:
        """The graph with the other direction of each edge, as often as the more frequent of the two is listed; lists
        are ascending."""
        indptr, indices, _ = _united((*self._forward, None), (*self._reverse, None), merges=True)
        return Graph(indptr, indices)


def _first_one_way(forward: _Lists, reverse: _Lists) -> str:
    """The first edge of one of the two lists that the other has less often; there is one."""
    node = _first_other_row(forward, reverse)
    senders, readers = (Counter[int](ends[at[node] : at[node + 1]].tolist()) for at, ends in (forward, reverse))
    left = senders - readers
    return f"{min(left)} to {node}" if left else f"{node} to {min(readers - senders)}"


def _first_other_row(lists: _Lists, others: _Lists) -> int:
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


def _grouped(
    keys: list[np.ndarray], values: list[np.ndarray], rows: list[np.ndarray] | None, nodes: int
) -> _ListsWithRows:
    """Group values by key into CSR lists, in the order in which they are given. `keys`, `values` and `rows` are int32
    pieces of equal lengths."""
    edges = sum(map(len, keys))
    workers = _worker_count(nodes, edges)
    shares = [range(len(keys) * worker // workers, len(keys) * (worker + 1) // workers) for worker in range(workers)]
    cursors = np.zeros((workers, nodes), dtype=np.int64)

    def count(worker: int) -> None:
        for piece in shares[worker]:
            _count(keys[piece], cursors[worker])

    map_parallel(count, workers)
    indptr = np.empty(nodes + 1, dtype=np.int64)
    _begin(cursors, indptr)
    grouped, grouped_rows = _empty(edges, rows is not None)

    def scatter(worker: int) -> None:
        for piece in shares[worker]:
            own = None if rows is None else rows[piece]
            _scatter(keys[piece], values[piece], cursors[worker], grouped, own, grouped_rows)

    map_parallel(scatter, workers)
    return indptr, grouped, grouped_rows


def _empty(edges: int, has_rows: bool) -> tuple[np.ndarray, _Rows]:
    return np.empty(edges, dtype=np.int32), np.empty(edges, dtype=np.int32) if has_rows else None


def _transposed(indptr: np.ndarray, indices: np.ndarray, rows: _Rows) -> _ListsWithRows:
    """The same edges, grouped by their other end; lists are ascending, and equal entries stand as they did."""
    nodes = len(indptr) - 1
    workers = _worker_count(nodes, len(indices))
    bounds = _row_bounds(indptr, workers)
    cursors = np.zeros((workers, nodes), dtype=np.int64)
    map_parallel(
        lambda worker: _count(indices[indptr[bounds[worker]] : indptr[bounds[worker + 1]]], cursors[worker]), workers
    )
    other_indptr = np.empty(nodes + 1, dtype=np.int64)
    _begin(cursors, other_indptr)
    other_indices, other_rows = _empty(len(indices), rows is not None)
    map_parallel(
        lambda worker: _scatter_rows(
            indptr, indices, bounds[worker], bounds[worker + 1], cursors[worker], other_indices, rows, other_rows
        ),
        workers,
    )
    return other_indptr, other_indices, other_rows


def _united(lists: _ListsWithRows, others: _ListsWithRows, *, merges: bool) -> _ListsWithRows:
    """Merge both lists row by row, ascending. A self-loop is its own reverse and is kept once."""
    (indptr, indices, rows), (other_indptr, other_indices, other_rows) = lists, others
    blocks = thread_count() * _ROW_BLOCKS_PER_THREAD
    bounds = _row_bounds(indptr, blocks)
    united_indptr = _united_starts((indptr, indices), (other_indptr, other_indices), merges=merges)
    united, united_rows = _empty(int(united_indptr[-1]), rows is not None)
    map_parallel(
        lambda block: _unite(
            indptr, indices, other_indptr, other_indices, merges, bounds[block], bounds[block + 1],
            united_indptr, united, rows, other_rows, united_rows,
        ),
        blocks,
    )  # fmt: skip
    return united_indptr, united, united_rows


def _united_starts(lists: _Lists, others: _Lists, *, merges: bool) -> np.ndarray:
    """Where the rows of `_united` begin, int64 [nodes + 1]."""
    (indptr, indices), (other_indptr, other_indices) = lists, others
    blocks = thread_count() * _ROW_BLOCKS_PER_THREAD
    bounds = _row_bounds(indptr, blocks)
    starts = np.zeros(len(indptr), dtype=np.int64)
    map_parallel(
        lambda block: _unite_lengths(
            indptr, indices, other_indptr, other_indices, merges, bounds[block], bounds[block + 1], starts
        ),
        blocks,
    )
    return np.cumsum(starts, out=starts)


def _order_by_time(indptr: np.ndarray, indices: np.ndarray, rows: np.ndarray, times: np.ndarray) -> None:
    """Put rows of parallel entries into the order of time, then of rows. `times`: of each row; [0]: they have none."""
    is_again = np.zeros(len(indices) + 1, np.bool_)
    np.equal(indices[1:], indices[:-1], out=is_again[1:-1])
    is_again[indptr[:-1]] = False  # the first entry of a list
    parallel = np.flatnonzero(is_again[:-1] | is_again[1:])
    own = rows[parallel]
    run = np.cumsum(~is_again[parallel])
    order = np.lexsort((own, times[own], run) if len(times) else (own, run))
    rows[parallel] = own[order]


def _worker_count(nodes: int, edges: int) -> int:
    """Number of threads: each has counters of its own, which together take no more memory than the edges."""
    return max(1, min(thread_count(), edges // max(nodes, 1)))


def _row_bounds(indptr: np.ndarray, parts: int) -> list[int]:
    """Bounds of `parts` runs of rows with about equally many edges."""
    wanted = np.linspace(0, indptr[-1], parts + 1)[1:-1]
    return [0, *np.searchsorted(indptr, wanted).tolist(), len(indptr) - 1]


@kernel
def _pack(
    sources: np.ndarray, targets: np.ndarray, nodes: int, keeps_loops: bool,
    packed_sources: np.ndarray, packed_targets: np.ndarray, rows: _Rows, first_row: int,
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


@kernel
def _count(keys: np.ndarray, counts: np.ndarray) -> None:
    for i in range(len(keys)):
        counts[keys[i]] += 1


@kernel
def _begin(counts: np.ndarray, indptr: np.ndarray) -> None:
    """Turn each worker's counts into its first place to write: after those of the workers before it."""
    running = 0
    for node in range(counts.shape[1]):
        indptr[node] = running
        for worker in range(counts.shape[0]):
            count = counts[worker, node]
            counts[worker, node] = running
            running += count
    indptr[counts.shape[1]] = running


@kernel
def _scatter(
    keys: np.ndarray, values: np.ndarray, cursors: np.ndarray, out: np.ndarray, rows: _Rows, out_rows: _Rows
) -> None:
    for i in range(len(keys)):
        if i + _AHEAD < len(keys):
            prefetch(out, cursors[keys[i + _AHEAD]])
        key = keys[i]
        out[cursors[key]] = values[i]
        if rows is not None and out_rows is not None:
            out_rows[cursors[key]] = rows[i]
        cursors[key] += 1


@kernel
def _scatter_rows(
    indptr: np.ndarray, indices: np.ndarray, start: int, end: int, cursors: np.ndarray, out: np.ndarray, rows: _Rows,
    out_rows: _Rows,
) -> None:  # fmt: skip
    last = indptr[end]
    for row in range(start, end):
        for i in range(indptr[row], indptr[row + 1]):
            if i + _AHEAD < last:
                prefetch(out, cursors[indices[i + _AHEAD]])
            key = indices[i]
            out[cursors[key]] = row
            if rows is not None and out_rows is not None:
                out_rows[cursors[key]] = rows[i]
            cursors[key] += 1


@kernel
def _merge_repeats(indptr: np.ndarray, indices: np.ndarray, rows: _Rows) -> int:
    """Merge repeated entries in place, of whose rows the last one is kept. Returns the number of entries left."""
    kept = 0
    start = indptr[0]
    for row in range(len(indptr) - 1):
        end = indptr[row + 1]
        first = kept
        for i in range(start, end):
            if kept == first or indices[kept - 1] != indices[i]:
                indices[kept] = indices[i]
                kept += 1
            if rows is not None:
                rows[kept - 1] = rows[i]
        start = end
        indptr[row + 1] = kept
    return kept


@inlined
def _unite_row(
    left: np.ndarray, i: int, left_end: int, right: np.ndarray, j: int, right_end: int, row: int, merges: bool,
    out: np.ndarray, first: int, writes: bool, left_rows: _Rows, right_rows: _Rows, out_rows: _Rows,
) -> int:  # fmt: skip
    """Count the merged entries. `right` has the self-loops of `left`."""
    count = 0
    while i < left_end or j < right_end:
        takes_left = j >= right_end or (i < left_end and left[i] <= right[j])
        value = left[i] if takes_left else right[j]
        payload_row = 0
        if left_rows is not None and right_rows is not None:
            payload_row = left_rows[i] if takes_left else right_rows[j]
        if takes_left:
            i += 1
            if merges and j < right_end and right[j] == value:
                if right_rows is not None:
                    payload_row = max(payload_row, right_rows[j])
                j += 1
        else:
            j += 1
            if value == row:
                continue
        if writes:
            out[first + count] = value
            if out_rows is not None:
                out_rows[first + count] = payload_row
        count += 1
    return count


@kernel
def _unite_lengths(
    indptr: np.ndarray, indices: np.ndarray, other_indptr: np.ndarray, other_indices: np.ndarray, merges: bool,
    start: int, end: int, united_indptr: np.ndarray,
) -> None:  # fmt: skip
    for row in range(start, end):
        united_indptr[row + 1] = _unite_row(
            indices, indptr[row], indptr[row + 1], other_indices, other_indptr[row], other_indptr[row + 1], row,
            merges, indices, 0, False, None, None, None,
        )  # fmt: skip


@kernel
def _unite(
    indptr: np.ndarray, indices: np.ndarray, other_indptr: np.ndarray, other_indices: np.ndarray, merges: bool,
    start: int, end: int, united_indptr: np.ndarray, united: np.ndarray, rows: _Rows, other_rows: _Rows,
    united_rows: _Rows,
) -> None:  # fmt: skip
    for row in range(start, end):
        _unite_row(
            indices, indptr[row], indptr[row + 1], other_indices, other_indptr[row], other_indptr[row + 1], row,
            merges, united, united_indptr[row], True, rows, other_rows, united_rows,
        )  # fmt: skip
