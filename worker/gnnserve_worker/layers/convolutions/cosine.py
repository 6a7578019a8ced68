"""Attention by the cosine of both ends: AGNN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gnnserve_api.files.layers import ConvolutionManifest
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.layers.convolutions.attention import soften
from gnnserve_worker.layers.convolutions.kind import BuiltConvolution, ConvolutionKind, Ends, Shapes, Step
from gnnserve_worker.layers.dense import LEAST_LENGTH
from gnnserve_worker.tables.table import NO_SCALES
from gnnserve_worker.tables.vectors import dot_row


@dataclass(frozen=True, slots=True)
class CosineAttention(BuiltConvolution):
    """Sums of the rows as they are."""

    beta: np.float32
    """Number that cosines are multiplied by."""
    has_self_loops: bool

    def aggregate(self, products: np.ndarray, step: Step) -> np.ndarray:
        lists, memory, count = step.lists, step.memory, step.count
        rows = np.ascontiguousarray(products)
        inverse = memory.rows(len(rows), 1)
        _inverse_lengths(rows, inverse, NO_SCALES)
        scores, summed = memory.rows(int(lists.bounds[count]), 1), memory.rows(count, rows.shape[1])
        _attend(rows, inverse, lists.sources, lists.bounds, self.beta, self.has_self_loops, scores, NO_SCALES, summed)
        return summed


@kernel
def _inverse_lengths(rows: np.ndarray, inverse: np.ndarray, no_scales: np.ndarray) -> None:
    columns, flat = rows.shape[1], rows.reshape(-1)
    for row in range(len(rows)):
        length = np.float32(np.sqrt(dot_row(rows, no_scales, row, columns, flat, row * columns)))
        inverse[row, 0] = np.float32(1.0) / max(length, LEAST_LENGTH)


@kernel
def _attend(
    rows: np.ndarray, inverse: np.ndarray, sources: np.ndarray, bounds: np.ndarray, beta: np.float32,
    has_self_loops: bool, scores: np.ndarray, no_scales: np.ndarray, summed: np.ndarray,
) -> None:  # fmt: skip
    """Sums of the rows of each target's list, float32 [targets, columns], weighed by their cosines; rows are added up
    while the cache still has what their cosines were made of. `scores`: of the edges, made and used here. Where nodes
    read themselves, a loop that is an edge counts for nothing."""
    columns, flat = rows.shape[1], rows.reshape(-1)
    for target in range(len(summed)):
        begin, end = bounds[target], bounds[target + 1]
        scale, place = beta * inverse[target, 0], target * columns
        for edge in range(begin, end):
            source = sources[edge]
            if has_self_loops and source == target:
                scores[edge, 0] = -np.inf
            else:
                scores[edge, 0] = scale * inverse[source, 0] * dot_row(rows, no_scales, source, columns, flat, place)
        itself = np.float32(-np.inf)
        if has_self_loops:
            itself = scale * inverse[target, 0] * dot_row(rows, no_scales, target, columns, flat, place)
        weight = soften(scores, begin, end, 0, itself)
        line = summed[target]
        for column in range(columns):
            line[column] = weight * rows[target, column]
        for edge in range(begin, end):
            row, weight = rows[sources[edge]], scores[edge, 0]
            for column in range(columns):
                line[column] += weight * row[column]


class Agnn(ConvolutionKind):
    reads = frozenset({"self_loops"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        del conv, ends
        return {"beta": (1,)}

    def width(self, conv: ConvolutionManifest, ends: Ends) -> int:
        del conv
        return ends.source

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        del conv
        return [] if ends.is_same_type else ["it is of relations within a type; take GAT between types"]

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray]) -> BuiltConvolution:
        del ends
        return CosineAttention(tensors["beta"][0], conv.self_loops)
