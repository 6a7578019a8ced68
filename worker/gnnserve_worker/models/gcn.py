"""Graph convolutional network (Kipf and Welling, ICLR 2017), as torch_geometric.nn.GCN computes it:

    h'(i) = W · (sum over neighbours j of h(j) / √(d(i)·d(j)) + h(i) / d(i)) + b,   ReLU between layers

with PyG's checkpoint keys `convs.<layer>.lin.weight` and `convs.<layer>.bias`. The weights are those of the full graph,
also where neighbours are sampled: `sampling/normalised.py`.
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

_WEIGHT, _BIAS = "lin.weight", "bias"
_KEY = re.compile(r"^(?P<layer>.+)\.(?P<weight>lin\.weight|bias)$")
_MARKS_OF_OTHERS = ("lin.bias", "att", "att_src")
"""Tensors beside a `lin.weight` that only other convolutions have: projecting SAGEConv, GATv2Conv, GATConv."""


class GcnSpec(ArchitectureSpec):
    architecture = Architecture.GCN
    shapes: ClassVar = {_WEIGHT: (Axis.OUTPUTS, Axis.INPUTS), _BIAS: (Axis.OUTPUTS,)}
    first_products = (_WEIGHT,)
    layer_tensors = "lin.weight and bias of each GCNConv"
    aggregator = Aggregator.NORMALISED_SUM
    learning_rate = 0.01

    def recognise(self, keys: Iterable[str]) -> dict[str, LayerKey]:
        found = set(keys)
        matched = {key: match for key in sorted(found) if (match := _KEY.match(key)) is not None}
        layers = {
            match["layer"]
            for match in matched.values()
            if match["weight"] == _WEIGHT and not any(f"{match['layer']}.{mark}" in found for mark in _MARKS_OF_OTHERS)
        }
        # A lone `bias` may belong to anything.
        recognised = {key: LayerKey(m["layer"], m["weight"]) for key, m in matched.items() if m["layer"] in layers}
        return dict(sorted(recognised.items(), key=lambda item: item[1].weight != _WEIGHT))

    def compute_for(self, storage: Storage) -> Compute:
        return preferred_compute(storage)

    def build_layer(self, weights: LayerWeights, *, relu: bool, compute: Compute) -> Layer:
        product = Linear.build(weights[_WEIGHT].T, weights[_BIAS], relu=relu, compute=compute)
        aggregation = Aggregation(self.aggregator, Own.ADDED, 1.0, no_bias(), relu=False)
        return Layer(weights.size(Axis.INPUTS), weights.size(Axis.OUTPUTS), aggregation, (product,))

    def build_projected_layer(self, weights: LayerWeights, *, relu: bool) -> Layer:
        """Build the layer for a table that holds W · x."""
        outputs = weights.size(Axis.OUTPUTS)
        aggregation = Aggregation(self.aggregator, Own.ADDED, 1.0, weights[_BIAS], relu=relu)
        return Layer(outputs, outputs, aggregation, ())

    def split_first_layer(self, tensors: Mapping[str, np.ndarray]) -> FirstLayer:
        return FirstLayer(self.aggregator, tensors[key_of(0, _WEIGHT)].T, None, tensors[key_of(0, _BIAS)], 1.0)

    def first_layer_tensors(self, first: FirstLayer) -> dict[str, np.ndarray]:
        return {_WEIGHT: first.neighbours.T, _BIAS: first.bias}
