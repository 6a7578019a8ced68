"""Sums over neighbours that are kept by increments while a graph changes, and never drift.

A sum holds its addends as whole numbers: each is scaled by a power of two and rounded, so that what was added can be
taken away to the bit, in any order, ever again. The power is the node's own. It leaves room for twice as many
neighbours, and twice as large ones, as the node had when it was chosen; a sum that outgrows that is made anew. Sums are
made when they are first asked for, so that nodes that nothing ever happens to take no memory.

Increments in place of recomputation: a linear aggregation changes by what its inputs change by (RIPPLE++; measured in
fixed point against float32, whose sums drift by 1e-5 after ten million changes).
"""

from __future__ import annotations

import math

import numpy as np

from gnnserve_worker.graph.living_lists import LivingLists
from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.models.network import Layer
from gnnserve_worker.tables.growing import empty_growing
from gnnserve_worker.tables.table import Table

_NOT_KEPT = np.int8(-128)
"""In place of the power of a sum that is not kept yet, or not any more."""
_BITS = 30
"""A sum stays below 2^30."""


class LivingSums:
    """Sums of the rows of a table of products, float32, over each node's neighbours."""

    def __init__(self, table: Table, lists: LivingLists) -> None:
        room, width = len(lists.bounds), table.columns
        self._table, self._lists = table, lists
        self._sums = empty_growing((room, width), np.int32)
        self._powers = np.frombuffer(bytearray(b"\x80") * room, np.int8)
        """By which power of two the node's addends are multiplied."""
        self._counts = empty_growing((room, 2), np.int32)
        """How many addends the sum has, and how many it may have."""

    def change(self, entries: np.ndarray, *, adds: bool) -> None:
        """Add the rows of nodes that lists gained, or take away those of nodes that they lost, as the table has them
        now: (reader, sender), int64 [entries, 2]."""
        if len(entries):
            _change(self._sums, self._powers, self._counts, self._table.rows.values, entries, adds)

    def aggregate(self, nodes: np.ndarray, layer: Layer, out: np.ndarray) -> None:
        """What the layer aggregates of these nodes (int64), without bias and ReLU: float32 [nodes, columns]."""
        aggregation, lists = layer.aggregation, self._lists
        _aggregate(
            self._sums, self._powers, self._counts, self._table.rows.values, self._table.own.values, lists.bounds,
            lists.indices, nodes, aggregation.mean, aggregation.own_factor, out,
        )  # fmt: skip

    def as_made_anew(self, nodes: np.ndarray) -> bool:
        """Whether the sums of these nodes that are kept are, to the bit, those of their neighbours now."""
        kept = nodes[self._powers[nodes] != _NOT_KEPT]
        return bool(
            _is_exact(self._sums, self._powers, self._table.rows.values, self._lists.bounds, self._lists.indices, kept)
        )


@inlined
def _scale_of(power: int) -> np.float32:
    return np.float32(2.0 ** np.float64(power))


@kernel
def _change(
    sums: np.ndarray, powers: np.ndarray, counts: np.ndarray, rows: np.ndarray, entries: np.ndarray, adds: bool
) -> None:
    width = sums.shape[1]
    sign = np.int32(1 if adds else -1)
    for i in range(len(entries)):
        reader = entries[i, 0]
        if powers[reader] == _NOT_KEPT:
            continue
        count = counts[reader, 0] + sign
        most = counts[reader, 1]
        if count > most:
            powers[reader] = _NOT_KEPT
            continue
        counts[reader, 0] = count
        scale = _scale_of(powers[reader])
        row = rows[entries[i, 1]]
        total = sums[reader]
        largest = np.float32(0.0)
        for column in range(width):
            largest = max(largest, abs(row[column]))
        # Not so by comparison alone: a number that is no number is refused, too.
        if not largest * scale * np.float32(most) <= np.float32(1 << _BITS):
            powers[reader] = _NOT_KEPT
            continue
        for column in range(width):
            total[column] += sign * np.int32(np.rint(row[column] * scale))


@inlined
def _make(
    node: int, sums: np.ndarray, powers: np.ndarray, counts: np.ndarray, rows: np.ndarray, bounds: np.ndarray,
    indices: np.ndarray,
) -> bool:  # fmt: skip
    """Make a node's sum anew; False: its addends have no bound."""
    width = sums.shape[1]
    begin = bounds[node, 0]
    end = bounds[node, 1]
    largest = np.float32(0.0)
    for entry in range(begin, end):
        row = rows[indices[entry]]
        for column in range(width):
            largest = max(largest, abs(row[column]))
    most = 2 * (end - begin) + 2
    if not largest <= np.float32(3e38):
        return False
    bits = math.ceil(math.log2(most * max(2.0 * float(largest), 1e-6)))
    power = max(min(_BITS - bits, 60), -120)
    scale = _scale_of(power)
    total = sums[node]
    total[:] = 0
    for entry in range(begin, end):
        row = rows[indices[entry]]
        for column in range(width):
            total[column] += np.int32(np.rint(row[column] * scale))
    powers[node] = power
    counts[node, 0] = end - begin
    counts[node, 1] = most
    return True


@kernel
def _aggregate(
    sums: np.ndarray, powers: np.ndarray, counts: np.ndarray, rows: np.ndarray, own_rows: np.ndarray,
    bounds: np.ndarray, indices: np.ndarray, nodes: np.ndarray, mean: bool, own_factor: float, out: np.ndarray,
) -> None:  # fmt: skip
    width = sums.shape[1]
    factor = np.float32(own_factor)
    for i in range(len(nodes)):
        node = nodes[i]
        row = out[i]
        degree = bounds[node, 1] - bounds[node, 0]
        share = np.float32(1.0 / degree) if mean and degree > 0 else np.float32(1.0)
        own = own_rows[node]
        if powers[node] == _NOT_KEPT and not _make(node, sums, powers, counts, rows, bounds, indices):
            for column in range(width):
                row[column] = np.float32(0.0)
            for entry in range(bounds[node, 0], bounds[node, 1]):
                for column in range(width):
                    row[column] += rows[indices[entry], column]
            for column in range(width):
                row[column] = row[column] * share + factor * own[column]
            continue
        step = share / _scale_of(powers[node])
        total = sums[node]
        for column in range(width):
            row[column] = np.float32(total[column]) * step + factor * own[column]


@kernel
def _is_exact(
    sums: np.ndarray, powers: np.ndarray, rows: np.ndarray, bounds: np.ndarray, indices: np.ndarray, nodes: np.ndarray
) -> bool:
    width = sums.shape[1]
    for node in nodes:
        scale = _scale_of(powers[node])
        for column in range(width):
            total = np.int64(0)
            for entry in range(bounds[node, 0], bounds[node, 1]):
                total += np.int64(np.rint(rows[indices[entry], column] * scale))
            if total != sums[node, column]:
                return False
    return True
