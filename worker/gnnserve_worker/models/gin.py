"""Graph isomorphism network with sum aggregation (Xu et al., ICLR 2019), as torch_geometric.nn.GIN computes it:

    h'(i) = W_1 · ReLU(W_0 · ((1 + ε)·h(i) + sum over neighbours j of h(j)) + b_0) + b_1,   ReLU between layers

where W_0 has as many outputs as W_1, or `mlp_hidden` (64 or 128 reproduce the sizes of
Dynamic GNN inference as-a-service, table 2),
with PyG's checkpoint keys `convs.<layer>.nn.lins.<0|1>.weight`, `.bias` and `convs.<layer>.eps`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gnnserve_worker.models.dense import Linear
from gnnserve_worker.models.network import Layer, no_bias, take
from gnnserve_worker.tables.gather import Combination


def build_layer(
    tensors: Mapping[str, np.ndarray], layer: int, inputs: int, between: int, outputs: int, *, relu: bool
) -> Layer:
    """`between`: outputs of the first product."""
    key = f"convs.{layer}.nn.lins"
    weight = take(tensors, f"{key}.0.weight", (between, inputs)).T
    bias = take(tensors, f"{key}.0.bias", (between,))
    # Always in float32: `build.compute_for` says why.
    first = Linear.build(weight, bias, relu=True, compute="float32")
    combination = Combination(False, False, _own_factor(tensors, layer), no_bias(), relu=False)
    return Layer(inputs, outputs, combination, (first, _second(tensors, layer, between, outputs, relu=relu)))


def build_projected_layer(tensors: Mapping[str, np.ndarray], between: int, outputs: int, *, relu: bool) -> Layer:
    """The first layer over a table that holds W_0 · x, `between` columns."""
    bias = take(tensors, "convs.0.nn.lins.0.bias", (between,))
    combination = Combination(False, False, _own_factor(tensors, 0), bias, relu=True)
    return Layer(between, outputs, combination, (_second(tensors, 0, between, outputs, relu=relu),))


def _second(tensors: Mapping[str, np.ndarray], layer: int, inputs: int, outputs: int, *, relu: bool) -> Linear:
    """It reads what the first product wrote, which is float32."""
    key = f"convs.{layer}.nn.lins.1"
    weight = take(tensors, f"{key}.weight", (outputs, inputs)).T
    return Linear.build(weight, take(tensors, f"{key}.bias", (outputs,)), relu=relu, compute="float32")


def _own_factor(tensors: Mapping[str, np.ndarray], layer: int) -> float:
    return 1.0 + float(take(tensors, f"convs.{layer}.eps", (1,))[0])
