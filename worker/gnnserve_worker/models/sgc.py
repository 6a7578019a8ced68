"""Simple graph convolution (Wu et al., ICML 2019), as torch_geometric.nn.SGConv computes it:

    scores(i) = W · (S^K X)(i) + b,   S = D^-1/2 (A + I) D^-1/2

with PyG's checkpoint keys `<layer>.lin.weight` and `<layer>.lin.bias`. S^K X is made when variants are
(`generation/propagation.py`), so serving reads a node's own row and samples nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np

from gnnserve_api.profile import Compute
from gnnserve_api.spec.model import Architecture
from gnnserve_api.variants import Storage
from gnnserve_worker.models.architecture import ArchitectureSpec, Axis, LayerKey, LayerWeights, key_of
from gnnserve_worker.models.dense import Linear, preferred_compute
from gnnserve_worker.models.first_layer import FirstLayer
from gnnserve_worker.models.network import Layer, no_bias
from gnnserve_worker.tables.gather import Aggregation, Aggregator, Own

_WEIGHT, _BIAS = "lin.weight", "lin.bias"
_KEY = re.compile(r"^(?P<layer>.+)\.(?P<weight>lin\.weight|lin\.bias)$")
_MARKS_OF_OTHERS = ("lin_l.weight", "att_src", "bias")
"""Tensors beside a `lin.weight` that only other convolutions have: projecting SAGEConv, GATConv, GCNConv."""


class SgcSpec(ArchitectureSpec):
    architecture = Architecture.SGC
    shapes: ClassVar = {_WEIGHT: (Axis.OUTPUTS, Axis.INPUTS), _BIAS: (Axis.OUTPUTS,)}
    first_products = (_WEIGHT,)
    layer_tensors = "lin.weight and lin.bias of one SGConv"
    aggregator = Aggregator.NONE
    propagates = True
    learning_rate = 0.05

    def recognise(self, keys: Iterable[str]) -> dict[str, LayerKey]:
        found = set(keys)
        matched = {key: match for key in sorted(found) if (match := _KEY.match(key)) is not None}
        return {
            key: LayerKey(match["layer"], match["weight"])
            for key, match in matched.items()
            if f"{match['layer']}.{_BIAS}" in found
            and not any(f"{match['layer']}.{mark}" in found for mark in _MARKS_OF_OTHERS)
        }

    def compute_for(self, storage: Storage) -> Compute:
        return preferred_compute(storage)

    def build_layer(self, weights: LayerWeights, *, relu: bool, compute: Compute) -> Layer:
        product = Linear.build(weights[_WEIGHT].T, weights[_BIAS], relu=relu, compute=compute)
        aggregation = Aggregation(self.aggregator, Own.ADDED, 1.0, no_bias(), relu=False)
        return Layer(weights.size(Axis.INPUTS), weights.size(Axis.OUTPUTS), aggregation, (product,))

    def build_projected_layer(self, weights: LayerWeights, *, relu: bool) -> Layer:
        """The table holds W · S^K x."""
        outputs = weights.size(Axis.OUTPUTS)
        aggregation = Aggregation(self.aggregator, Own.ADDED, 1.0, weights[_BIAS], relu=relu)
        return Layer(outputs, outputs, aggregation, ())

    def split_first_layer(self, tensors: Mapping[str, np.ndarray]) -> FirstLayer:
        return FirstLayer(self.aggregator, tensors[key_of(0, _WEIGHT)].T, None, tensors[key_of(0, _BIAS)], 1.0)

    def first_layer_tensors(self, first: FirstLayer) -> dict[str, np.ndarray]:
        return {_WEIGHT: first.neighbours.T, _BIAS: first.bias}
