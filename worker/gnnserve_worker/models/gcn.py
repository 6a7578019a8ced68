"""Graph convolutional network (Kipf and Welling, ICLR 2017), as torch_geometric.nn.GCN computes it:

    h'(i) = W · (sum over neighbours j of h(j) / √(d(i)·d(j)) + h(i) / d(i)) + b,   ReLU between layers

with PyG's checkpoint keys `convs.<layer>.lin.weight` and `convs.<layer>.bias`. The weights are those of the full graph,
also where neighbours are sampled: `sampling/normalised.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from gnnserve_api.spec.model import Architecture
from gnnserve_worker.models.architecture import Axis, LayerKey
from gnnserve_worker.models.layer_kind import LayerKind, Shapes
from gnnserve_worker.models.plain import PlainGraph, Reading
from gnnserve_worker.models.single_product import WEIGHT, SingleProductSpec
from gnnserve_worker.tables.table import Aggregator

_BIAS = "bias"
_KEY = re.compile(r"^(?P<layer>.+)\.(?P<weight>lin\.weight|bias)$")
_MARKS_OF_OTHERS = ("lin.bias", "att", "att_src")
"""Tensors beside a `lin.weight` that only other convolutions have: projecting SAGEConv, GATv2Conv, GATConv."""


def _is_transposed(shapes: Shapes) -> bool:
    """Whether a matrix is [inputs, outputs]; a Linear's is [outputs, inputs]."""
    rows, columns = shapes["weight"]
    return rows != columns and shapes["bias"] == (columns,)


class GcnSpec(SingleProductSpec):
    architecture = Architecture.GCN
    shapes: ClassVar = {WEIGHT: (Axis.OUTPUTS, Axis.INPUTS), _BIAS: (Axis.OUTPUTS,)}
    bias = _BIAS
    module = "GCN"
    layer_tensors = "lin.weight and bias of each GCNConv"
    layer_kinds = (
        LayerKind("GCNConv", r"lin\.weight|bias", (r"lin\.weight", "bias")),
        LayerKind(
            "GCNConv with bias=False", r"lin\.weight", (r"lin\.weight",),
            added={_BIAS: lambda shapes: shapes[WEIGHT][:1]},
        ),
        LayerKind(
            "GCNConv of torch_geometric below 2.0 (or GraphConv of DGL)", r"weight|bias", ("weight", "bias"),
            {"weight": 2}, _is_transposed, renamed={"weight": WEIGHT}, transposed=("weight",),
            note="DGL's GraphConv adds no self-loops, so that its scores would be others",
        ),
    )  # fmt: skip
    assumptions: ClassVar = {
        "activation": "ReLU between layers",
        "aggregation": "the sum of the neighbours and of the node itself",
        "self-loops": "one is added to each node",
        "normalisation": "by the roots of both degrees, as gcn_norm has it",
        "edge weights": "none",
        "residual": "none",
    }
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

    def plain_sums(self, rows: np.ndarray, graph: PlainGraph, reading: Reading) -> np.ndarray:
        return (
            graph.summed(rows, reading) if reading.aggregation is None else graph.aggregated(rows, reading.aggregation)
        )
