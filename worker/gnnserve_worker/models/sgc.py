"""Simple graph convolution (Wu et al., ICML 2019), as torch_geometric.nn.SGConv computes it:

    scores(i) = W · (S^K X)(i) + b,   S = D^-1/2 (A + I) D^-1/2

with PyG's checkpoint keys `<layer>.lin.weight` and `<layer>.lin.bias`. S^K X is made when variants are
(`generation/training_set.py`), so serving reads a node's own row and samples nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from gnnserve_api.spec.model import Architecture
from gnnserve_worker.models.architecture import Axis, LayerKey
from gnnserve_worker.models.layer_kind import LayerKind
from gnnserve_worker.models.plain import PlainGraph, Reading
from gnnserve_worker.models.single_product import WEIGHT, SingleProductSpec
from gnnserve_worker.tables.table import Aggregator

_BIAS = "lin.bias"
_KEY = re.compile(r"^(?P<layer>.+)\.(?P<weight>lin\.weight|lin\.bias)$")
_MARKS_OF_OTHERS = ("lin_l.weight", "att_src", "bias")
"""Tensors beside a `lin.weight` that only other convolutions have: projecting SAGEConv, GATConv, GCNConv."""


class SgcSpec(SingleProductSpec):
    architecture = Architecture.SGC
    shapes: ClassVar = {WEIGHT: (Axis.OUTPUTS, Axis.INPUTS), _BIAS: (Axis.OUTPUTS,)}
    bias = _BIAS
    module = "SGConv"
    layer_tensors = "lin.weight and lin.bias of one SGConv"
    layer_kinds: ClassVar[tuple[LayerKind, ...]] = (
        LayerKind("SGConv", r"lin\.weight|lin\.bias", (r"lin\.weight", r"lin\.bias")),
    )
    assumptions: ClassVar = {
        "aggregation": "the sum of the neighbours and of the node itself, as often as spec.model.hops says",
        "self-loops": "one is added to each node",
        "normalisation": "by the roots of both degrees, as gcn_norm has it",
        "edge weights": "none",
    }
    own_fields = ("hops",)
    aggregator = Aggregator.NONE
    learning_rate = 0.05

    def recognise(self, keys: Iterable[str]) -> dict[str, LayerKey]:
        found = set(keys)
        matched = {key: match for key in sorted(found) if (match := _KEY.match(key)) is not None}
        return {
            key: LayerKey(match["layer"], match["weight"])
            for key, match in matched.items()
            if f"{match['layer']}.{_BIAS}" in found
            and not any(f"{match['layer']}.{mark}" in found for mark in _MARKS_OF_OTHERS)
        }

    def plain_rows(self, features: np.ndarray, graph: PlainGraph, reading: Reading, hops: int | None) -> np.ndarray:
        rows = features
        for _ in range(hops or 0):
            rows = graph.summed(rows, reading)
        return rows
