"""Aggregates of rows over lists of neighbours, one pass over each list, without rows of edges.

All kernels read `rows` float32 [rows, columns] at `sources` int64 [edges], whose edges `bounds[target]` to
`bounds[target + 1]` are of one target, and write to `out` float32 [targets, …] from column `first` on. A target whose
list is empty has 0, as in torch_geometric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from gnnserve_api.files.layers import Aggregation
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.tables.attention import exponential

NO_WEIGHTS = np.empty(0, np.float32)
NO_ROWS = np.empty((0, 0), np.float32)

_LEAST_VARIANCE = np.float32(1e-5)
_LEAST_DEVIATION = np.float32(math.sqrt(1e-5))

_Write = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, int], None]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate of the rows of neighbours."""

    kind: Aggregation
    write: _Write
    """Writes it: (rows, sources, bounds, weights of the edges or none, out, first column)."""


@kernel
def list_bounds(targets: np.ndarray, bounds: np.ndarray) -> None:
    """Fill in where the edges of each target begin and end. `targets`: int64 [edges], ascending."""
    edge, edges = 0, len(targets)
    for target in range(len(bounds) - 1):
        bounds[target] = edge
        while edge < edges and targets[edge] == target:
            edge += 1
    bounds[-1] = edge


@kernel
def sum_lists(
    rows: np.ndarray, sources: np.ndarray, bounds: np.ndarray, weights: np.ndarray, own: np.ndarray,
    own_weights: np.ndarray, is_mean: bool, out: np.ndarray, first: int,
) -> None:  # fmt: skip
    """Sums, or means: weighed, where there are weights, and with the target's own row times its weight, where there are
    any; one alone is of all targets."""
    columns = rows.shape[1]
    for target in range(len(out)):
        line = out[target, first : first + columns]
        if len(own_weights) > 0:
            factor = own_weights[target] if len(own_weights) > 1 else own_weights[0]
            for column in range(columns):
                line[column] = factor * own[target, column]
        else:
            for column in range(columns):
                line[column] = 0.0
        begin, end = bounds[target], bounds[target + 1]
        for edge in range(begin, end):
            row = rows[sources[edge]]
            if len(weights) > 0:
                weight = weights[edge]
                for column in range(columns):
                    line[column] += weight * row[column]
            else:
                for column in range(columns):
                    line[column] += row[column]
        if is_mean and end - begin > 1:
            share = np.float32(1.0) / np.float32(end - begin)
            for column in range(columns):
                line[column] *= share


def _sum(
    rows: np.ndarray, sources: np.ndarray, bounds: np.ndarray, weights: np.ndarray, out: np.ndarray, first: int,
    *, is_mean: bool,
) -> None:  # fmt: skip
    sum_lists(rows, sources, bounds, weights, NO_ROWS, NO_WEIGHTS, is_mean, out, first)


@kernel
def _extremes(
    rows: np.ndarray, sources: np.ndarray, bounds: np.ndarray, weights: np.ndarray, out: np.ndarray, first: int,
    is_largest: bool,
) -> None:  # fmt: skip
    columns = rows.shape[1]
    for target in range(len(out)):
        line = out[target, first : first + columns]
        for column in range(columns):
            line[column] = 0.0
        begin = bounds[target]
        for edge in range(begin, bounds[target + 1]):
            row = rows[sources[edge]]
            weight = weights[edge] if len(weights) > 0 else np.float32(1.0)
            for column in range(columns):
                value = weight * row[column]
                # NaN stays NaN.
                is_kept = line[column] > value if is_largest else line[column] < value
                line[column] = line[column] if edge > begin and (is_kept or line[column] != line[column]) else value


@kernel
def _spreads(
    rows: np.ndarray, sources: np.ndarray, bounds: np.ndarray, weights: np.ndarray, out: np.ndarray, first: int,
    is_root: bool,
) -> None:  # fmt: skip
    """Mean of the squares less the square of the mean, or its root: as the mean of the squares of what is left once the
    mean is taken off, since the difference of two large numbers has few digits."""
    columns = rows.shape[1]
    mean = np.empty(columns, np.float32)
    for target in range(len(out)):
        line = out[target, first : first + columns]
        for column in range(columns):
            line[column] = 0.0
            mean[column] = 0.0
        begin, end = bounds[target], bounds[target + 1]
        share = np.float32(1.0) / np.float32(max(end - begin, 1))
        for edge in range(begin, end):
            row = rows[sources[edge]]
            weight = weights[edge] * share if len(weights) > 0 else share
            for column in range(columns):
                mean[column] += weight * row[column]
        for edge in range(begin, end):
            row = rows[sources[edge]]
            weight = weights[edge] if len(weights) > 0 else np.float32(1.0)
            for column in range(columns):
                left = weight * row[column] - mean[column]
                line[column] += left * left
        for column in range(columns):
            spread = line[column] * share
            if is_root:
                spread = np.sqrt(_LEAST_VARIANCE if spread < _LEAST_VARIANCE else spread)
                spread = np.float32(0.0) if spread <= _LEAST_DEVIATION else spread
            line[column] = spread


@kernel
def _softmax(
    rows: np.ndarray, sources: np.ndarray, bounds: np.ndarray, weights: np.ndarray, out: np.ndarray, first: int,
    temperatures: np.ndarray,
) -> None:  # fmt: skip
    """Sum of the rows weighed by a softmax of each column, times its temperature."""
    columns = rows.shape[1]
    largest, total = np.empty(columns, np.float32), np.empty(columns, np.float32)
    for target in range(len(out)):
        line = out[target, first : first + columns]
        begin, end = bounds[target], bounds[target + 1]
        for column in range(columns):
            line[column] = 0.0
            total[column] = 0.0
            largest[column] = -np.inf
        for edge in range(begin, end):
            row = rows[sources[edge]]
            weight = weights[edge] if len(weights) > 0 else np.float32(1.0)
            for column in range(columns):
                largest[column] = max(largest[column], weight * row[column] * temperatures[column])
        for edge in range(begin, end):
            row = rows[sources[edge]]
            weight = weights[edge] if len(weights) > 0 else np.float32(1.0)
            for column in range(columns):
                value = weight * row[column]
                share = exponential(value * temperatures[column] - largest[column])
                line[column] += share * value
                total[column] += share
        if end > begin:
            for column in range(columns):
                line[column] /= total[column]


def _fixed(compute: Callable[..., None], last: object) -> _Write:
    """The kernel with its last argument."""
    return lambda rows, sources, bounds, weights, out, first: compute(rows, sources, bounds, weights, out, first, last)


_WITHOUT_TENSORS: Mapping[Aggregation, _Write] = {
    Aggregation.MEAN: partial(_sum, is_mean=True),
    Aggregation.SUM: partial(_sum, is_mean=False),
    Aggregation.MAX: _fixed(_extremes, True),
    Aggregation.MIN: _fixed(_extremes, False),
    Aggregation.STD: _fixed(_spreads, True),
    Aggregation.VAR: _fixed(_spreads, False),
}


def temperature_keys(aggregations: tuple[Aggregation, ...]) -> dict[int, str]:
    """Keys of the temperatures of softmax aggregations, by their places."""
    if aggregations == (Aggregation.SOFTMAX,):
        return {0: "aggr_module.t"}
    return {
        place: f"aggr_module.aggrs.{place}.t" for place, one in enumerate(aggregations) if one is Aggregation.SOFTMAX
    }


def build_aggregates(aggregations: tuple[Aggregation, ...], tensors: Mapping[str, np.ndarray]) -> tuple[Aggregate, ...]:
    """`tensors`: of the convolution."""
    keys = temperature_keys(aggregations)
    return tuple(
        Aggregate(one, _fixed(_softmax, tensors[keys[place]]) if place in keys else _WITHOUT_TENSORS[one])
        for place, one in enumerate(aggregations)
    )
