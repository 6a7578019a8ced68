"""GraphSAGE with mean aggregation (Hamilton et al., NIPS 2017), as torch_geometric.nn.GraphSAGE computes it:

    h'(i) = W_l · mean over neighbours j of h(j) + b + W_r · h(i),   ReLU between layers

with PyG's checkpoint keys `convs.<layer>.lin_l.weight`, `.lin_l.bias` and `convs.<layer>.lin_r.weight`. Both products
are one, of [mean, own] and the two weights below each other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gnnserve_api.profile import Compute
from gnnserve_worker.models.dense import Linear
from gnnserve_worker.models.network import Layer, no_bias, take
from gnnserve_worker.tables.gather import Combination


def build_layer(
    tensors: Mapping[str, np.ndarray], layer: int, inputs: int, outputs: int, *, relu: bool, compute: Compute
) -> Layer:
    neighbours = take(tensors, f"convs.{layer}.lin_l.weight", (outputs, inputs)).T
    own = take(tensors, f"convs.{layer}.lin_r.weight", (outputs, inputs)).T
    bias = take(tensors, f"convs.{layer}.lin_l.bias", (outputs,))
    product = Linear.build(np.concatenate([neighbours, own]), bias, relu=relu, compute=compute)
    combination = Combination(mean=True, stacked=True, own_factor=1.0, bias=no_bias(), relu=False)
    return Layer(inputs, outputs, combination, (product,))


def build_projected_layer(tensors: Mapping[str, np.ndarray], outputs: int, *, relu: bool) -> Layer:
    """The first layer over a table that holds W_l · x(j) and, of its own, W_r · x(i)."""
    bias = take(tensors, "convs.0.lin_l.bias", (outputs,))
    combination = Combination(mean=True, stacked=False, own_factor=1.0, bias=bias, relu=relu)
    return Layer(outputs, outputs, combination, ())
