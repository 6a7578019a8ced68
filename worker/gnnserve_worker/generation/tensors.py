"""Weights as a state dict of numpy arrays under torch_geometric's keys, and what pruning does to their first layer.

No torch: given weights are ranked, pruned and projected without importing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

Tensors = dict[str, np.ndarray]

_SAGE_NEIGHBOURS, _SAGE_OWN, _SAGE_BIAS = "convs.0.lin_l.weight", "convs.0.lin_r.weight", "convs.0.lin_l.bias"
_GIN_WEIGHT, _GIN_BIAS, _GIN_EPSILON = "convs.0.nn.lins.0.weight", "convs.0.nn.lins.0.bias", "convs.0.eps"
_FIRST_LAYER_WEIGHTS = frozenset({_SAGE_NEIGHBOURS, _SAGE_OWN, _GIN_WEIGHT})
"""What multiplies a node's features."""


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """The first linear layer: aggregate of the neighbours · `neighbours` + node · `own` + `bias`."""

    neighbours: np.ndarray
    """float32 [columns, outputs]."""
    own: np.ndarray | None
    """float32 [columns, outputs]. None: there is one matrix for the sum of both inputs (GIN)."""
    bias: np.ndarray
    """float32 [outputs]."""
    own_share: float
    """What the node's own features count for in that sum: 1 + ε. Unused where `own` has weights of its own."""

    @property
    def columns(self) -> int:
        return len(self.neighbours)

    @property
    def outputs(self) -> int:
        return int(self.neighbours.shape[1])

    def keep(self, columns: np.ndarray) -> FirstLayer:
        """For inputs with the given columns, in the given order."""
        own = None if self.own is None else self.own[columns]
        return replace(self, neighbours=self.neighbours[columns], own=own)


def first_layer(tensors: Mapping[str, np.ndarray]) -> FirstLayer:
    if _GIN_WEIGHT in tensors:
        share = 1.0 + float(tensors[_GIN_EPSILON][0])
        return FirstLayer(tensors[_GIN_WEIGHT].T, None, tensors[_GIN_BIAS], share)
    return FirstLayer(tensors[_SAGE_NEIGHBOURS].T, tensors[_SAGE_OWN].T, tensors[_SAGE_BIAS], 1.0)


def with_first_layer(tensors: Mapping[str, np.ndarray], first: FirstLayer) -> Tensors:
    if first.own is None:
        changed = {_GIN_WEIGHT: first.neighbours.T, _GIN_BIAS: first.bias}
    else:
        changed = {_SAGE_NEIGHBOURS: first.neighbours.T, _SAGE_OWN: first.own.T, _SAGE_BIAS: first.bias}
    return {**tensors, **{key: np.ascontiguousarray(value, dtype=np.float32) for key, value in changed.items()}}


def keep_columns_of(tensors: Mapping[str, np.ndarray], columns: np.ndarray) -> Tensors:
    """The same network for inputs with the given columns, in the given order."""
    return with_first_layer(tensors, first_layer(tensors).keep(columns))


def without_first_product(tensors: Mapping[str, np.ndarray]) -> Tensors:
    """The network of a projected variant: features have met these matrices already, in its table."""
    return {key: value for key, value in tensors.items() if key not in _FIRST_LAYER_WEIGHTS}
