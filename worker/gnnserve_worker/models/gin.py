"""Graph isomorphism network with sum aggregation (Xu et al., ICLR 2019), as torch_geometric.nn.GIN computes it:

    h'(i) = W_1 · ReLU(W_0 · ((1 + ε)·h(i) + sum over neighbours j of h(j)) + b_0) + b_1,   ReLU between layers

with PyG's checkpoint keys `convs.<layer>.nn.lins.<0|1>.weight`, `.bias` and `convs.<layer>.eps`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gnnserve_worker.models.network import take


@dataclass(frozen=True, slots=True)
class GINLayer:
    first: np.ndarray
    """float32 [inputs, outputs], transposed so that rows multiply from the left."""
    first_bias: np.ndarray
    second: np.ndarray
    second_bias: np.ndarray
    epsilon: np.float32

    @staticmethod
    def build(tensors: Mapping[str, np.ndarray], layer: int, inputs: int, outputs: int) -> GINLayer:
        key = f"convs.{layer}.nn.lins"
        return GINLayer(
            take(tensors, f"{key}.0.weight", (outputs, inputs)).T.copy(),
            take(tensors, f"{key}.0.bias", (outputs,)),
            take(tensors, f"{key}.1.weight", (outputs, outputs)).T.copy(),
            take(tensors, f"{key}.1.bias", (outputs,)),
            take(tensors, f"convs.{layer}.eps", (1,))[0],
        )

    def apply(self, own: np.ndarray, aggregated: np.ndarray) -> np.ndarray:
        total = own * (np.float32(1.0) + self.epsilon)
        total += aggregated
        inner: np.ndarray = total @ self.first
        inner += self.first_bias
        np.maximum(inner, 0.0, out=inner)
        hidden: np.ndarray = inner @ self.second
        hidden += self.second_bias
        return hidden
