"""Architectures whose layer is one product of what was aggregated, h' = W · aggregate + b."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from gnnserve_api.files.profile import Compute
from gnnserve_api.files.repository import AttentionManifest
from gnnserve_api.variants import Storage
from gnnserve_worker.models.architecture import Axis, FirstLayer, LayerWeights, OneTypeSpec, key_of
from gnnserve_worker.models.blas import preferred_compute
from gnnserve_worker.models.network import Layer, Linear, no_bias
from gnnserve_worker.models.plain import PlainGraph, Reading
from gnnserve_worker.tables.table import Aggregation, Own

WEIGHT = "lin.weight"
"""PyG's name of W in its convolutions."""


class SingleProductSpec(OneTypeSpec):
    """The node itself is in its aggregate, which the aggregator weighs: neighbours and node have the same matrix."""

    first_products = (WEIGHT,)
    weight: ClassVar[str] = WEIGHT
    """Name of W, the one of `first_products`."""
    bias: ClassVar[str]
    """Name of the layer's bias."""

    def compute_for(self, storage: Storage) -> Compute:
        return preferred_compute(storage)

    def build_layer(self, weights: LayerWeights, *, relu: bool, compute: Compute) -> Layer:
        product = Linear.build(weights[self.weight].T, weights[self.bias], relu=relu, compute=compute)
        aggregation = Aggregation(self.aggregator, Own.ADDED, 1.0, no_bias(), relu=False)
        return Layer(weights.size(Axis.INPUTS), weights.size(Axis.OUTPUTS), aggregation, (product,))

    def build_projected_layer(self, weights: LayerWeights, *, relu: bool) -> Layer:
        """Build the layer for a table that holds the products of W."""
        outputs = weights.size(Axis.OUTPUTS)
        aggregation = Aggregation(self.aggregator, Own.ADDED, 1.0, weights[self.bias], relu=relu)
        return Layer(outputs, outputs, aggregation, ())

    def split_first_layer(self, tensors: Mapping[str, np.ndarray]) -> FirstLayer:
        return FirstLayer(self.aggregator, tensors[key_of(0, self.weight)].T, None, tensors[key_of(0, self.bias)], 1.0)

    def plain_layer(
        self, weights: Mapping[str, np.ndarray], rows: np.ndarray, graph: PlainGraph, reading: Reading,
        attention: AttentionManifest | None,
    ) -> np.ndarray:  # fmt: skip
        outputs: np.ndarray = self.plain_sums(rows, graph, reading) @ weights[self.weight].T + weights[self.bias]
        return outputs

    def plain_sums(self, rows: np.ndarray, graph: PlainGraph, reading: Reading) -> np.ndarray:
        """What the layer's product reads: the rows themselves, unless neighbours are aggregated."""
        return rows

    def first_layer_tensors(self, first: FirstLayer) -> dict[str, np.ndarray]:
        return {self.weight: first.neighbours.T, self.bias: first.bias}
