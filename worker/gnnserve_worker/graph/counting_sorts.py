"""Counting sorts of edges, without comparisons, on int32 and on all threads.

Grouping edges by their source, then reading those groups in the order of nodes into the lists of the targets, leaves
every list ascending. A third sort gives the other direction, which is merged in row by row.

Where edges have payload, the row of each goes along with it: kernels are compiled once with rows and once without
(None). Sorts keep the order of equal edges, so that rows of parallel entries ascend, and the last one listed is the one
that is kept where they are merged.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.kernels.primitives import prefetch
from gnnserve_worker.parallel import map_parallel, thread_count

Lists: TypeAlias = tuple[np.ndarray, np.ndarray]
ListsWithRows: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray | None]
Rows: TypeAlias = np.ndarray | None
"""Rows of payload beside entries or edges, int32; None: edges have no payload."""
_AHEAD = 16
"""A node's place is prefetched this many edges before its turn."""
_ROW_BLOCKS_PER_THREAD = 8
"""Blocks per thread: several, so that threads end together although some nodes have most of the edges."""


def grouped(
    keys: list[np.ndarray], values: list[np.ndarray], rows: list[np.ndarray] | None, nodes: int
) -> ListsWithRows:
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
    entries, grouped_rows = _empty(edges, rows is not None)

    def scatter(worker: int) -> None:
        for piece in shares[worker]:
            own = None if rows is None else rows[piece]
            _scatter(keys[piece], values[piece], cursors[worker], entries, own, grouped_rows)

    map_parallel(scatter, workers)
    return indptr, entries, grouped_rows


def _empty(edges: int, has_rows: bool) -> tuple[np.ndarray, Rows]:
    return np.empty(edges, dtype=np.int32), np.empty(edges, dtype=np.int32) if has_rows else None


def transposed(indptr: np.ndarray, indices: np.ndarray, rows: Rows) -> ListsWithRows:
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


def united(lists: ListsWithRows, others: ListsWithRows, *, merges: bool) -> ListsWithRows:
    """Merge both lists row by row, ascending. A self-loop is its own reverse and is kept once."""
    (indptr, indices, rows), (other_indptr, other_indices, other_rows) = lists, others
    blocks = thread_count() * _ROW_BLOCKS_PER_THREAD
    bounds = _row_bounds(indptr, blocks)
    united_indptr = united_starts((indptr, indices), (other_indptr, other_indices), merges=merges)
    entries, united_rows = _empty(int(united_indptr[-1]), rows is not None)
    map_parallel(
        lambda block: _unite(
            indptr, indices, other_indptr, other_indices, merges, bounds[block], bounds[block + 1],
            united_indptr, entries, rows, other_rows, united_rows,
        ),
        blocks,
    )  # fmt: skip
    return united_indptr, entries, united_rows


def united_starts(lists: Lists, others: Lists, *, merges: bool) -> np.ndarray:
    """Where the rows of `united` begin, int64 [nodes + 1]."""
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


def order_by_time(indptr: np.ndarray, indices: np.ndarray, rows: np.ndarray, times: np.ndarray) -> None:
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
    keys: np.ndarray, values: np.ndarray, cursors: np.ndarray, out: np.ndarray, rows: Rows, out_rows: Rows
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
    indptr: np.ndarray, indices: np.ndarray, start: int, end: int, cursors: np.ndarray, out: np.ndarray, rows: Rows,
    out_rows: Rows,
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
def merge_repeats(indptr: np.ndarray, indices: np.ndarray, rows: Rows) -> int:
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
    out: np.ndarray, first: int, writes: bool, left_rows: Rows, right_rows: Rows, out_rows: Rows,
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
    start: int, end: int, united_indptr: np.ndarray, united: np.ndarray, rows: Rows, other_rows: Rows,
    united_rows: Rows,
) -> None:  # fmt: skip
    for row in range(start, end):
        _unite_row(
            indices, indptr[row], indptr[row + 1], other_indices, other_indptr[row], other_indptr[row + 1], row,
            merges, united, united_indptr[row], True, rows, other_rows, united_rows,
        )  # fmt: skip
