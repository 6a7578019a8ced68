"""Neighbours that are scaled and shifted by what the node that reads them makes of itself: FiLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gnnserve_api.files.layers import ConvolutionManifest
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.layers.convolutions.kind import (
    BuiltConvolution,
    ConvolutionKind,
    Ends,
    Shapes,
    Step,
    dense_shapes,
)
from gnnserve_worker.layers.dense import Product
from gnnserve_worker.layers.memory import RunMemory
from gnnserve_worker.tables.attention import leaky


@dataclass(frozen=True, slots=True)
class Modulated(BuiltConvolution):
    product: Product
    """Product of the rows of neighbours."""
    modulation: Product
    """Product of a node's row: what is added to a neighbour's, and behind it what that is multiplied by."""
    own: Product
    """Product of the node's own row."""
    own_modulation: Product
    slope: float

    def of_sources(self, sources: np.ndarray, memory: RunMemory) -> np.ndarray:
        return self.product(sources, memory)

    def aggregate(self, products: np.ndarray, step: Step) -> np.ndarray:
        lists, memory, targets = step.lists, step.memory, step.targets[: step.count]
        out = memory.rows(step.count, products.shape[1])
        modulate(
            products, self.modulation(targets, memory), self.own(targets, memory), self.own_modulation(targets, memory),
            lists.sources, lists.bounds, self.slope, out,
        )  # fmt: skip
        return out


@kernel
def modulate(
    rows: np.ndarray, modulation: np.ndarray, own: np.ndarray, own_modulation: np.ndarray, sources: np.ndarray,
    bounds: np.ndarray, slope: float, out: np.ndarray,
) -> None:  # fmt: skip
    """Means of the neighbours, and the node's own row, each behind a leaky ReLU."""
    columns = rows.shape[1]
    for target in range(len(out)):
        line = out[target]
        for column in range(columns):
            line[column] = 0.0
        begin, end = bounds[target], bounds[target + 1]
        for edge in range(begin, end):
            row = rows[sources[edge]]
            for column in range(columns):
                value = modulation[target, columns + column] * row[column] + modulation[target, column]
                line[column] += leaky(value, slope)
        share = np.float32(1.0) / np.float32(max(end - begin, 1))
        for column in range(columns):
            value = own_modulation[target, columns + column] * own[target, column] + own_modulation[target, column]
            line[column] = line[column] * share + leaky(value, slope)


class Film(ConvolutionKind):
    reads = frozenset({"negative_slope"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        return {
            **dense_shapes("lins.0", conv.width, ends.source, bias=False),
            **dense_shapes("films.0", 2 * conv.width, ends.target, bias=True),
            **dense_shapes("lin_skip", conv.width, ends.target, bias=False),
            **dense_shapes("film_skip", 2 * conv.width, ends.target, bias=False),
        }

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray]) -> BuiltConvolution:
        del ends
        return Modulated(
            Product.build(tensors["lins.0.weight"]),
            Product.build(tensors["films.0.weight"], tensors["films.0.bias"]),
            Product.build(tensors["lin_skip.weight"]),
            Product.build(tensors["film_skip.weight"]),
            conv.negative_slope,
        )
