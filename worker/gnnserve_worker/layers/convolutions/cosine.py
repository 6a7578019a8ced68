"""Attention by the cosine of both ends: AGNN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gnnserve_api.files.layers import ConvolutionManifest
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.layers.convolutions.attention import sum_attended
from gnnserve_worker.layers.convolutions.kind import BuiltConvolution, ConvolutionKind, Ends, Shapes, Step
from gnnserve_worker.layers.dense import unit_rows
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
        unit = memory.rows(*products.shape)
        unit[:] = products
        unit_rows(unit)
        scores = memory.rows(int(lists.bounds[count]), 1)
        own = memory.rows(count if self.has_self_loops else 0, 1)
        _cosines(unit, count, lists.sources, lists.bounds, self.beta, scores, own, NO_SCALES)
        summed = memory.rows(count, products.shape[1])
        sum_attended(scores, own, products, lists.sources, lists.bounds, 0, products.shape[1], False, summed)
        return summed


@kernel
def _cosines(
    unit: np.ndarray, targets: int, sources: np.ndarray, bounds: np.ndarray, beta: np.float32, scores: np.ndarray,
    own: np.ndarray, no_scales: np.ndarray,
) -> None:  # fmt: skip
    """Fill in scores of the edges, and, where nodes read themselves, of these; a loop that is an edge counts for
    nothing then."""
    columns = unit.shape[1]
    flat = unit.reshape(-1)
    for target in range(targets):
        for edge in range(bounds[target], bounds[target + 1]):
            source = sources[edge]
            if len(own) > 0 and source == target:
                scores[edge, 0] = -np.inf
            else:
                scores[edge, 0] = beta * dot_row(unit, no_scales, source, columns, flat, target * columns)
        if len(own) > 0:
            own[target, 0] = beta * dot_row(unit, no_scales, target, columns, flat, target * columns)


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
