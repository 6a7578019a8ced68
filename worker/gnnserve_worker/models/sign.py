"""A multilayer perceptron over propagated features (SIGN: Frasca et al., *SIGN: Scalable Inception Graph Neural
Networks*, 2020), with one hidden layer for all powers of the adjacency together:

    scores(i) = … W_2 · ReLU(W_1 · [X, A X, …, A^K X](i) + b_1) + b_2,   A = D^-1 · adjacency

with torch_geometric.nn.MLP's checkpoint keys `lins.<layer>.weight` and `lins.<layer>.bias`. The row of a node is made
when variants are (`generation/training_set.py`), so serving samples nothing. With K = 0 it is made of a node's own
features alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from gnnserve_api.spec.model import Architecture
from gnnserve_worker.models.architecture import Axis, LayerKey
from gnnserve_worker.models.layer_kind import LINEAR
from gnnserve_worker.models.plain import PlainGraph, Reading
from gnnserve_worker.models.single_product import SingleProductSpec
from gnnserve_worker.tables.table import Aggregator

_WEIGHT, _BIAS = "weight", "bias"
_KEY = re.compile(r"^(?P<layer>lins\.[0-9]+)\.(?P<weight>weight|bias)$")


class SignSpec(SingleProductSpec):
    architecture = Architecture.SIGN
    shapes: ClassVar = {_WEIGHT: (Axis.OUTPUTS, Axis.INPUTS), _BIAS: (Axis.OUTPUTS,)}
    first_products = (_WEIGHT,)
    weight = _WEIGHT
    bias = _BIAS
    module = "MLP"
    layer_names = "lins.0, lins.1 …"
    layer_tensors = "weight and bias of each layer of an MLP"
    layer_kinds = (LINEAR,)
    assumptions: ClassVar = {
        "activation": "ReLU between layers",
        "aggregation": "features, and beside them the sums of the neighbours and of the node itself, a hop at a time",
        "self-loops": "one is added to each node",
        "normalisation": "by the roots of both degrees, as gcn_norm has it",
        "edge weights": "none",
        "residual": "none",
    }
    own_fields = ("hops",)
    aggregator = Aggregator.NONE
    learning_rate = 0.01

    def recognise(self, keys: Iterable[str]) -> dict[str, LayerKey]:
        matched = ((key, _KEY.match(key)) for key in sorted(keys))
        return {key: LayerKey(match["layer"], match["weight"]) for key, match in matched if match is not None}

    def plain_rows(self, features: np.ndarray, graph: PlainGraph, reading: Reading, hops: int | None) -> np.ndarray:
        blocks = [features]
        for _ in range(hops or 0):
            blocks.append(graph.summed(blocks[-1], reading))
        return np.concatenate(blocks, axis=1)
