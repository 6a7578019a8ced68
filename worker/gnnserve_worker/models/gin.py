"""Graph isomorphism network with sum aggregation (Xu et al., ICLR 2019), as torch_geometric.nn.GIN computes it:

    h'(i) = W_1 · ReLU(W_0 · ((1 + ε)·h(i) + sum over neighbours j of h(j)) + b_0) + b_1,   ReLU between layers

where W_0 has as many outputs as W_1, or `mlp_hidden` (64 or 128 reproduce the sizes of
Dynamic GNN inference as-a-service, table 2),
with PyG's checkpoint keys `convs.<layer>.nn.lins.<0|1>.weight`, `.bias` and `convs.<layer>.eps`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np

from gnnserve_api.files.profile import Compute
from gnnserve_api.files.repository import AttentionManifest
from gnnserve_api.spec.model import Architecture
from gnnserve_api.variants import Storage
from gnnserve_worker.models.architecture import Axis, FirstLayer, LayerKey, LayerWeights, OneTypeSpec, key_of
from gnnserve_worker.models.layer_kind import LayerKind, Shapes
from gnnserve_worker.models.network import Layer, Linear, no_bias
from gnnserve_worker.models.plain import PlainGraph, Reading
from gnnserve_worker.tables.table import Aggregation, Aggregator, Own

_FIRST, _FIRST_BIAS, _SECOND, _SECOND_BIAS = (
    f"nn.lins.{product}.{weight}" for product in (0, 1) for weight in ("weight", "bias")
)
_EPSILON = "eps"
_KEY = re.compile(r"^(?P<layer>.+)\.(?:nn\.(?:lins\.)?(?P<product>[0-9]+)\.(?P<weight>weight|bias)|(?P<eps>eps))$")


def _are_two_products(shapes: Shapes) -> bool:
    """Whether the layer has two matrices: a norm between them has a weight of one dimension."""
    weights = [len(shape) for name, shape in shapes.items() if name.endswith("weight")]
    return weights == [2, 2]


class GinSpec(OneTypeSpec):
    architecture = Architecture.GIN
    # The second product first, since it tells a wrong width between the two from a wrong one of the layer.
    shapes: ClassVar = {
        _SECOND: (Axis.OUTPUTS, Axis.INNER),
        _SECOND_BIAS: (Axis.OUTPUTS,),
        _FIRST: (Axis.INNER, Axis.INPUTS),
        _FIRST_BIAS: (Axis.INNER,),
        _EPSILON: (Axis.ONE,),
    }
    first_products = (_FIRST,)
    module = "GIN"
    layer_tensors = (
        "nn.0.weight, nn.0.bias, nn.2.weight, nn.2.bias and eps of each GINConv over "
        "Sequential(Linear, ReLU, Linear), or nn.lins.0 and nn.lins.1 of one over an MLP"
    )
    layer_kinds = (
        LayerKind("GINConv", r"nn\.(lins\.)?\d+\.(weight|bias)|eps", (r"nn\.(lins\.)?\d+\.weight", "eps"),
                  accepts=_are_two_products),
    )  # fmt: skip
    assumptions: ClassVar = {
        "activation": "ReLU between layers",
        "inner activation": "ReLU between the products of a layer",
        "aggregation": "the sum of the neighbours",
        "self-loops": "none are added; a node counts 1 + eps times",
        "normalisation": "none",
        "edge weights": "none",
        "residual": "none",
    }
    own_fields = ("mlp_hidden",)
    aggregator = Aggregator.SUM
    learning_rate = 0.001

    def recognise(self, keys: Iterable[str]) -> dict[str, LayerKey]:
        matched = {key: match for key in keys if (match := _KEY.match(key)) is not None}
        products = _products(matched.values())
        found = {
            key: LayerKey(match["layer"], f"nn.lins.{products[match['layer']].index(int(match['product']))}.{weight}")
            for key, match in matched.items()
            if (weight := match["weight"]) is not None
        }
        # A lone `eps` may belong to anything.
        epsilons = {
            key: LayerKey(match["layer"], _EPSILON)
            for key, match in matched.items()
            if match["eps"] is not None and match["layer"] in products
        }
        return found | epsilons

    def compute_for(self, storage: Storage) -> Compute:
        """float32 for every storage: sums of many rows would lose most of bfloat16's few digits."""
        return "float32"

    def build_layer(self, weights: LayerWeights, *, relu: bool, compute: Compute) -> Layer:
        """Build the layer, always in float32, for the reason given in `compute_for`."""
        first = Linear.build(weights[_FIRST].T, weights[_FIRST_BIAS], relu=True, compute="float32")
        aggregation = Aggregation(self.aggregator, Own.ADDED, _own_factor(weights), no_bias(), relu=False)
        products = (first, _second_product(weights, relu=relu))
        return Layer(weights.size(Axis.INPUTS), weights.size(Axis.OUTPUTS), aggregation, products)

    def build_projected_layer(self, weights: LayerWeights, *, relu: bool) -> Layer:
        """Build the layer for a table that holds W_0 · x."""
        aggregation = Aggregation(self.aggregator, Own.ADDED, _own_factor(weights), weights[_FIRST_BIAS], relu=True)
        products = (_second_product(weights, relu=relu),)
        return Layer(weights.size(Axis.INNER), weights.size(Axis.OUTPUTS), aggregation, products)

    def split_first_layer(self, tensors: Mapping[str, np.ndarray]) -> FirstLayer:
        weight, bias, epsilon = (tensors[key_of(0, name)] for name in (_FIRST, _FIRST_BIAS, _EPSILON))
        return FirstLayer(self.aggregator, weight.T, None, bias, 1.0 + float(epsilon[0]))

    def plain_layer(
        self, weights: Mapping[str, np.ndarray], rows: np.ndarray, graph: PlainGraph, reading: Reading,
        attention: AttentionManifest | None,
    ) -> np.ndarray:  # fmt: skip
        read = graph.aggregated(rows, reading.aggregation or "sum") + (1 + weights[_EPSILON]) * rows
        inner = reading.inner_activation(read @ weights[_FIRST].T + weights[_FIRST_BIAS])
        outputs: np.ndarray = inner @ weights[_SECOND].T + weights[_SECOND_BIAS]
        return outputs

    def first_layer_tensors(self, first: FirstLayer) -> dict[str, np.ndarray]:
        return {_FIRST: first.neighbours.T, _FIRST_BIAS: first.bias}

    def split_inner(self, tensors: Mapping[str, np.ndarray]) -> FirstLayer | None:
        weight, bias = (tensors[key_of(0, name)] for name in (_SECOND, _SECOND_BIAS))
        return FirstLayer(Aggregator.NONE, weight.T, None, bias, 1.0)

    def inner_tensors(self, inner: FirstLayer) -> dict[str, np.ndarray]:
        return {_SECOND: inner.neighbours.T, _SECOND_BIAS: inner.bias}


def _second_product(weights: LayerWeights, *, relu: bool) -> Linear:
    """Build the second product, which reads what the first one wrote, in float32."""
    return Linear.build(weights[_SECOND].T, weights[_SECOND_BIAS], relu=relu, compute="float32")


def _own_factor(weights: LayerWeights) -> float:
    return 1.0 + float(weights[_EPSILON][0])


def _products(matches: Iterable[re.Match[str]]) -> dict[str, list[int]]:
    """Numbers of the linear layers inside of each GINConv: 0 and 2 where an activation stands between them."""
    found: dict[str, set[int]] = {}
    for match in matches:
        if match["product"] is not None:
            found.setdefault(match["layer"], set()).add(int(match["product"]))
    return {layer: sorted(numbers) for layer, numbers in found.items()}
