"""GraphSAGE with mean aggregation (Hamilton et al., NIPS 2017), as torch_geometric.nn.GraphSAGE computes it:

    h'(i) = W_l · mean over neighbours j of h(j) + b + W_r · h(i),   ReLU between layers

with PyG's checkpoint keys `convs.<layer>.lin_l.weight`, `.lin_l.bias` and `.lin_r.weight`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gnnserve_worker.models.network import take


@dataclass(frozen=True, slots=True)
class SAGELayer:
    neighbours: np.ndarray
    """float32 [inputs, outputs], transposed so that rows multiply from the left."""
    own: np.ndarray
    bias: np.ndarray

    @staticmethod
    def build(tensors: Mapping[str, np.ndarray], layer: int, inputs: int, outputs: int) -> SAGELayer:
        key = f"convs.{layer}"
        return SAGELayer(
            take(tensors, f"{key}.lin_l.weight", (outputs, inputs)).T.copy(),
            take(tensors, f"{key}.lin_r.weight", (outputs, inputs)).T.copy(),
            take(tensors, f"{key}.lin_l.bias", (outputs,)),
        )

    def apply(self, own: np.ndarray, aggregated: np.ndarray) -> np.ndarray:
        hidden: np.ndarray = aggregated @ self.neighbours
        hidden += own @ self.own
        hidden += self.bias
        return hidden
