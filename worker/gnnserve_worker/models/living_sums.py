"""Sums over neighbours that are kept by increments while a graph changes, and never drift.

A sum holds its addends as whole numbers: each is scaled by a power of two and rounded, so that what was added can be
taken away to the bit, in any order, ever again. The power is the node's own, and leaves room for a number of increments
of a certain size; a sum that outgrows that is made anew from the node's list. A node's first sum is what was aggregated
ahead of time, where that is kept, so that it costs no more for long lists than for short ones; sums of nodes that
nothing ever happens to take no memory.

Increments in place of recomputation: a linear aggregation changes by what its inputs change by (RIPPLE++). Sums in
float32 would drift by 1e-5 after ten million changes.
"""

from __future__ import annotations

import math

import numpy as np

from gnnserve_worker.graph.living_lists import LivingLists
from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.kernels.primitives import prefetch, prefetch_row
from gnnserve_worker.models.network import Layer
from gnnserve_worker.parallel import map_parallel, thread_count
from gnnserve_worker.tables.growing import empty_growing
from gnnserve_worker.tables.table import Rows, Table

_NEVER, _OUTGROWN, _ZERO = 0, -1, 1000
"""In place of the power of a sum that was never kept, or is not kept any more; what is added to a power."""
_SUM_BITS, _CHANGE_BITS = 29, 28
"""A sum begins below 2^29, and all increments that it has room for stay below 2^28 each way."""
_FEWEST = 64
"""Increments that a sum has room for beside two for each neighbour."""
_COARSE_BITS = 14
"""A sum that becomes smaller than 2^14 is made anew."""
_FROM_LIST = 1
_AHEAD = 6
"""Sums that are fetched into the cache ahead of time: they are far from each other, and larger than any cache."""
_INFINITE_BITS = 0x7F800000
"""As a float32; NaN has larger ones, without the sign."""


class LivingSums:
    """Sums of the rows of a table of products, float32, over each node's neighbours."""

    def __init__(
        self, table: Table, lists: LivingLists, aggregated: Rows | None, layer: Layer, nodes: int
    ) -> None:  # fmt: skip
        """`aggregated`: what the layer aggregates of the first `nodes`, as it was made ahead of time. None: it is not
        kept, and first sums are made from lists."""
        room = len(lists.bounds)
        self._table, self._lists, self._aggregated, self._nodes = table, lists, aggregated, nodes
        self._is_mean, self._own_factor = layer.aggregation.mean, layer.aggregation.own_factor
        self._sums = empty_growing((room, table.columns), np.int32)
        self._powers = empty_growing((room,), np.int16)
        """_ZERO + the power of two by which the node's addends are multiplied; _NEVER, _OUTGROWN."""
        self._counts = empty_growing((room, 3), np.int32)
        """How many increments the sum has had, how many it has room for, and whether it was made from the list."""

    def begin(self, nodes: np.ndarray) -> None:
        """Begin the sums of these nodes (int64) that were never kept. To be called before anything that they are made
        of changes: the node's list, its row, what was aggregated."""
        if self._aggregated is None:
            return
        _begin(
            self._sums, self._powers, self._counts, self._table.rows.values, self._table.own.values,
            self._aggregated.values, self._lists.bounds, nodes, self._nodes, self._is_mean, self._own_factor,
        )  # fmt: skip

    def begun(self, nodes: int) -> np.ndarray:
        """Which of the first `nodes` have had a sum: int64, ascending."""
        return np.flatnonzero(self._powers[:nodes] != _NEVER)

    def forget(self, nodes: int) -> None:
        """Make the sums of the first `nodes` anew from lists when they are read next. To be called where first sums are
        made from lists."""
        assert self._aggregated is None  # noqa: S101
        self._powers[:nodes] = _NEVER

    def rows_of(self, nodes: np.ndarray) -> np.ndarray:
        """A copy of the table's rows of these nodes (int64), float32 [nodes, columns and padding]."""
        return np.asarray(self._table.rows.values[nodes])

    def change(self, entries: np.ndarray, *, adds: bool) -> None:
        """Add the rows of nodes that lists gained, or take away those of nodes that they lost, as the table has them
        now: (reader, sender), int64 [entries, 2]."""
        if len(entries):
            _change(self._sums, self._powers, self._counts, self._table.rows.values, entries, adds)

    def move(
        self, nodes: np.ndarray, readers: LivingLists, before: np.ndarray, *, shared_among: int | None = None
    ) -> None:
        """Put the rows that the table has now of these nodes (int64) in the place of others, in the sums of all who
        read them. `readers`: for each node the lists that name it, `before`: rows that the table had, float32
        [nodes, columns at least]. `shared_among`: numbers that readers have, a part of which each thread moves; None:
        the calling one moves all."""
        if not len(nodes):
            return
        parts = 1 if shared_among is None else thread_count()
        firsts = [(shared_among or 0) * part // parts for part in range(parts)]

        def move_part(part: int) -> None:
            _move(
                self._sums, self._powers, self._counts, self._table.rows.values, nodes, readers.bounds,
                readers.indices, before, firsts[part], [*firsts[1:], len(readers.bounds)][part],
            )  # fmt: skip

        map_parallel(move_part, parts)

    def aggregate(self, nodes: np.ndarray, out: np.ndarray) -> None:
        """What the layer aggregates of these nodes (int64), without bias and ReLU: float32 [nodes, columns]."""
        lists = self._lists
        _aggregate(
            self._sums, self._powers, self._counts, self._table.rows.values, self._table.own.values, lists.bounds,
            lists.indices, nodes, self._is_mean, self._own_factor, out,
        )  # fmt: skip

    def residuals(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By what the sums of these nodes (int64) differ from those of their neighbours now, in the sums' own units,
        int64 [nodes, columns]; and which of them were made from lists, bool [nodes], -1 in all columns of those that
        are not kept. As long as a sum is kept its residual stays the same to the bit, and one that was made from a list
        has none."""
        found = np.full((len(nodes), self._sums.shape[1]), -1, np.int64)
        lists = self._lists
        _residuals(self._sums, self._powers, self._table.rows.values, lists.bounds, lists.indices, nodes, found)
        return found, self._counts[nodes, 2] == _FROM_LIST


@inlined
def _scale_of(power: int) -> np.float32:
    # By the exponent's bits, which the powers of `_keep` fit: to raise 2 to a power takes as long as to move a sum.
    return np.int32((np.int32(power) + np.int32(127 - _ZERO)) << np.int32(23)).view(np.float32)


@inlined
def _largest(row: np.ndarray, width: int) -> np.float32:
    """Infinite where any of the row's numbers is none."""
    # Positive floats are in the order of their bits, and integers are compared many at a time.
    bits = row.view(np.int32)
    largest = np.int32(0)
    for column in range(width):
        largest = max(largest, bits[column] & np.int32(0x7FFFFFFF))
    return np.float32(np.inf) if largest >= _INFINITE_BITS else np.int32(largest).view(np.float32)


@inlined
def _fetch_sum(sums: np.ndarray, powers: np.ndarray, counts: np.ndarray, node: int) -> None:
    prefetch_row(sums, node, 0, sums.shape[1])
    prefetch(powers, np.int64(node))
    prefetch(counts, np.int64(node) * 3)


@inlined
def _keep(node: int, powers: np.ndarray, counts: np.ndarray, degree: int, total: float, addend: float) -> bool:
    """Choose the power of a sum whose numbers are `total` at most, with room for addends up to `addend`. False: these
    are no numbers to be kept."""
    most = 2 * degree + _FEWEST
    bound = max(total, 2.0 * most * addend)
    if not bound <= 1e37:
        powers[node] = _OUTGROWN
        return False
    power = _SUM_BITS - math.ceil(math.log2(max(bound, 1e-30)))
    powers[node] = _ZERO + max(min(power, 60), -120)
    counts[node, 0] = 0
    counts[node, 1] = most
    return True


@inlined
def _takes(node: int, powers: np.ndarray, counts: np.ndarray, largest: np.float32) -> bool:
    """Count an increment; False: the sum is not kept, or no longer."""
    if powers[node] <= 0:
        return False
    counts[node, 0] += 1
    most = counts[node, 1]
    scale = _scale_of(powers[node])
    if counts[node, 0] > most or not largest * scale * np.float32(most) <= np.float32(1 << _CHANGE_BITS):
        powers[node] = _OUTGROWN
        return False
    return True


@kernel
def _begin(
    sums: np.ndarray, powers: np.ndarray, counts: np.ndarray, rows: np.ndarray, own_rows: np.ndarray,
    aggregated: np.ndarray, bounds: np.ndarray, nodes: np.ndarray, stored: int, mean: bool, own_factor: float,
) -> None:  # fmt: skip
    width = sums.shape[1]
    factor = np.float32(own_factor)
    for i in range(len(nodes)):
        node = nodes[i]
        if powers[node] != _NEVER:
            continue
        if node >= stored:
            powers[node] = _OUTGROWN
            continue
        degree = bounds[node, 1] - bounds[node, 0]
        times = np.float32(degree) if mean else np.float32(1.0)
        own = own_rows[node]
        begun = aggregated[node]
        largest = np.float32(0.0)
        for column in range(width):
            largest = max(largest, abs((begun[column] - factor * own[column]) * times))
        addend = max(8.0 * float(largest) / max(degree, 1), 2.0 * float(_largest(rows[node], width)))
        if not _keep(node, powers, counts, degree, float(largest), addend):
            continue
        counts[node, 2] = 0
        scale = times * _scale_of(powers[node])
        total = sums[node]
        for column in range(width):
            total[column] = np.int32(np.rint((begun[column] - factor * own[column]) * scale))


@kernel
def _change(
    sums: np.ndarray, powers: np.ndarray, counts: np.ndarray, rows: np.ndarray, entries: np.ndarray, adds: bool
) -> None:
    width = sums.shape[1]
    sign = np.int32(1 if adds else -1)
    for i in range(len(entries)):
        if i + _AHEAD < len(entries):
            _fetch_sum(sums, powers, counts, entries[i + _AHEAD, 0])
            prefetch_row(rows, entries[i + _AHEAD, 1], 0, width)
        reader = entries[i, 0]
        row = rows[entries[i, 1]]
        if not _takes(reader, powers, counts, _largest(row, width)):
            continue
        scale = _scale_of(powers[reader])
        total = sums[reader]
        for column in range(width):
            total[column] += sign * np.int32(np.rint(row[column] * scale))


@inlined
def _entries_within(
    bounds: np.ndarray, indices: np.ndarray, node: int, first: int, last: int
) -> tuple[np.int64, np.int64]:  # fmt: skip
    """Begin and end of what an ascending list names from the first up to the last."""
    begin = bounds[node, 0]
    end = bounds[node, 1]
    while begin < end and indices[begin] < first:
        begin += 1
    while begin < end and indices[end - 1] >= last:
        end -= 1
    return begin, end


@kernel
def _move(
    sums: np.ndarray, powers: np.ndarray, counts: np.ndarray, rows: np.ndarray, nodes: np.ndarray,
    reader_bounds: np.ndarray, readers: np.ndarray, before: np.ndarray, first: int, last: int,
) -> None:  # fmt: skip
    """Sums of readers from the first up to the last."""
    width = sums.shape[1]
    following = np.int64(0)
    following_end = np.int64(0)
    for i in range(-1, len(nodes)):
        begin = following
        end = following_end
        if i + 1 < len(nodes):
            # Lists are short: sums of the next one's beginning are fetched while this one ends.
            following, following_end = _entries_within(reader_bounds, readers, nodes[i + 1], first, last)
            prefetch_row(rows, nodes[i + 1], 0, width)
        if begin == end:
            continue
        row = rows[nodes[i]]
        old = before[i]
        largest = max(_largest(row, width), _largest(old, width))
        for entry in range(begin, end):
            ahead = np.int64(entry + _AHEAD)
            last_ahead = end
            if ahead >= end:
                ahead += following - end
                last_ahead = following_end
            # Where rows wait until they are read, few sums are kept.
            if ahead < last_ahead and powers[readers[ahead]] > 0:
                _fetch_sum(sums, powers, counts, readers[ahead])
            reader = readers[entry]
            if not _takes(reader, powers, counts, largest):
                continue
            scale = _scale_of(powers[reader])
            total = sums[reader]
            for column in range(width):
                total[column] += np.int32(np.rint(row[column] * scale)) - np.int32(np.rint(old[column] * scale))


@inlined
def _make(
    node: int, sums: np.ndarray, powers: np.ndarray, counts: np.ndarray, rows: np.ndarray, bounds: np.ndarray,
    indices: np.ndarray,
) -> bool:  # fmt: skip
    """Make a node's sum from its list; False: it cannot be kept."""
    width = sums.shape[1]
    begin = bounds[node, 0]
    end = bounds[node, 1]
    largest = np.float32(0.0)
    for entry in range(begin, end):
        largest = max(largest, _largest(rows[indices[entry]], width))
    degree = end - begin
    if not _keep(node, powers, counts, degree, degree * float(largest), max(2.0 * float(largest), 1e-6)):
        return False
    counts[node, 2] = _FROM_LIST
    scale = _scale_of(powers[node])
    total = sums[node]
    total[:] = 0
    for entry in range(begin, end):
        row = rows[indices[entry]]
        for column in range(width):
            total[column] += np.int32(np.rint(row[column] * scale))
    return True


@inlined
def _is_coarse(total: np.ndarray, width: int) -> bool:
    """Whether a sum is so small in its own units that rounding shows: large addends have left it."""
    largest = np.int32(0)
    for column in range(width):
        largest = max(largest, abs(total[column]))
    return bool(largest < 1 << _COARSE_BITS)


@kernel
def _aggregate(
    sums: np.ndarray, powers: np.ndarray, counts: np.ndarray, rows: np.ndarray, own_rows: np.ndarray,
    bounds: np.ndarray, indices: np.ndarray, nodes: np.ndarray, mean: bool, own_factor: float, out: np.ndarray,
) -> None:  # fmt: skip
    width = sums.shape[1]
    factor = np.float32(own_factor)
    for i in range(len(nodes)):
        if i + _AHEAD < len(nodes):
            _fetch_sum(sums, powers, counts, nodes[i + _AHEAD])
            prefetch_row(own_rows, nodes[i + _AHEAD], 0, width)
            prefetch(bounds, nodes[i + _AHEAD] * 2)
        node = nodes[i]
        row = out[i]
        degree = bounds[node, 1] - bounds[node, 0]
        share = np.float32(1.0 / degree) if mean and degree > 0 else np.float32(1.0)
        own = own_rows[node]
        if powers[node] > 0 and 4 * degree < counts[node, 1] - _FEWEST:
            # The list is half as long as at first: what rounding left of so many addends would begin to show.
            powers[node] = _OUTGROWN
        if powers[node] <= 0 and not _make(node, sums, powers, counts, rows, bounds, indices):
            for column in range(width):
                row[column] = np.float32(0.0)
            for entry in range(bounds[node, 0], bounds[node, 1]):
                for column in range(width):
                    row[column] += rows[indices[entry], column]
            for column in range(width):
                row[column] = row[column] * share + factor * own[column]
            continue
        total = sums[node]
        if counts[node, 0] > 0 and degree > 0 and _is_coarse(total, width):
            _make(node, sums, powers, counts, rows, bounds, indices)
        step = share / _scale_of(powers[node])
        if degree == 0:
            # Rounding has left something of the first sum, which is no neighbour's.
            step = np.float32(0.0)
        for column in range(width):
            row[column] = np.float32(total[column]) * step + factor * own[column]


@kernel
def _residuals(
    sums: np.ndarray, powers: np.ndarray, rows: np.ndarray, bounds: np.ndarray, indices: np.ndarray,
    nodes: np.ndarray, found: np.ndarray,
) -> None:  # fmt: skip
    for i in range(len(nodes)):
        node = nodes[i]
        if powers[node] <= 0:
            continue
        scale = _scale_of(powers[node])
        for column in range(sums.shape[1]):
            total = np.int64(0)
            for entry in range(bounds[node, 0], bounds[node, 1]):
                total += np.int64(np.rint(rows[indices[entry], column] * scale))
            found[i, column] = sums[node, column] - total
