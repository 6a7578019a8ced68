"""Graph convolutional network (Kipf and Welling, ICLR 2017), as torch_geometric.nn.GCN computes it:

    h'(i) = W · (sum over neighbours j of h(j) / √(d(i)·d(j)) + h(i) / d(i)) + b,   ReLU between layers

with PyG's checkpoint keys `convs.<layer>.lin.weight` and `convs.<layer>.bias`. The weights are those of the full graph,
also where neighbours are sampled: `sampling/normalised.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

from gnnserve_api.spec.model import Architecture
from gnnserve_worker.models.architecture import Axis, LayerKey
from gnnserve_worker.models.single_product import WEIGHT, SingleProductSpec
from gnnserve_worker.tables.gather import Aggregator

_BIAS = "bias"
_KEY = re.compile(r"^(?P<layer>.+)\.(?P<weight>lin\.weight|bias)$")
_MARKS_OF_OTHERS = ("lin.bias", "att", "att_src")
"""Tensors beside a `lin.weight` that only other convolutions have: projecting SAGEConv, GATv2Conv, GATConv."""


class GcnSpec(SingleProductSpec):
    architecture = Architecture.GCN
    shapes: ClassVar = {WEIGHT: (Axis.OUTPUTS, Axis.INPUTS), _BIAS: (Axis.OUTPUTS,)}
    bias = _BIAS
    module = "GCN"
    layer_tensors = "lin.weight and bias of each GCNConv"
    aggregator = Aggregator.NORMALISED_SUM
    learning_rate = 0.01

    def recognise(self, keys: Iterable[str]) -> dict[str, LayerKey]:
        found = set(keys)
        matched = {key: match for key in sorted(found) if (match := _KEY.match(key)) is not None}
        layers = {
            match["layer"]
            for match in matched.values()
            if match["weight"] == WEIGHT and not any(f"{match['layer']}.{mark}" in found for mark in _MARKS_OF_OTHERS)
        }
        # A lone `bias` may belong to anything.
        recognised = {key: LayerKey(m["layer"], m["weight"]) for key, m in matched.items() if m["layer"] in layers}
        return dict(sorted(recognised.items(), key=lambda item: item[1].weight != WEIGHT))
