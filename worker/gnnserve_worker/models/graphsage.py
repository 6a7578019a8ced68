"""GraphSAGE with mean aggregation (Hamilton et al., NIPS 2017), as torch_geometric.nn.GraphSAGE computes it:

    h'(i) = W_l · mean over neighbours j of h(j) + b + W_r · h(i),   ReLU between layers

with PyG's checkpoint keys `convs.<layer>.lin_l.weight`, `.lin_l.bias` and `convs.<layer>.lin_r.weight`. Both products
are one, of [mean, own] and the two weights below each other.

Over several relations, as torch_geometric computes it with a HeteroConv of a SAGEConv for each, whose results are
summed:

    h'(i) = Σ over relations r: W_l^r · mean over neighbours j of h(j) + b^r + W_r^r · h(i),   ReLU between layers

with PyG's keys `convs.<layer>.convs.<source___relation___target>.lin_l.weight`, `.lin_l.bias` and `.lin_r.weight`, the
angle brackets included.
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
from gnnserve_worker.models.architecture import (
    Array,
    Axis,
    FirstLayer,
    LayerKey,
    LayerWeights,
    NamedArrays,
    OneTypeSpec,
    RelationalLayer,
    RelationalShape,
    RelationalSpec,
    Shapes,
    key_of,
    relation_key,
)
from gnnserve_worker.models.blas import preferred_compute
from gnnserve_worker.models.layer_kind import LayerKind
from gnnserve_worker.models.network import Layer, Linear, no_bias
from gnnserve_worker.models.plain import PlainGraph, Reading
from gnnserve_worker.tables.table import Aggregation, Aggregator, Own

_NEIGHBOURS, _OWN, _BIAS = "lin_l.weight", "lin_r.weight", "lin_l.bias"
_KEY = re.compile(r"^(?P<layer>.+)\.(?P<weight>lin_l\.weight|lin_l\.bias|lin_r\.weight)$")

SAGE_CONV = LayerKind("SAGEConv", r"lin_[lr]\.weight|lin_l\.bias", (r"lin_l\.weight", r"lin_r\.weight", r"lin_l\.bias"))


class GraphSageSpec(OneTypeSpec):
    architecture = Architecture.GRAPHSAGE
    shapes: ClassVar = {
        _NEIGHBOURS: (Axis.OUTPUTS, Axis.INPUTS),
        _OWN: (Axis.OUTPUTS, Axis.INPUTS),
        _BIAS: (Axis.OUTPUTS,),
    }
    first_products = (_NEIGHBOURS, _OWN)
    module = "GraphSAGE"
    layer_tensors = "lin_l.weight, lin_l.bias and lin_r.weight of each SAGEConv"
    aggregator = Aggregator.MEAN
    layer_kinds = (
        SAGE_CONV,
        LayerKind(
            "SAGEConv with bias=False", r"lin_[lr]\.weight", (r"lin_l\.weight", r"lin_r\.weight"),
            added={_BIAS: lambda shapes: shapes[_NEIGHBOURS][:1]},
        ),
        LayerKind(
            "SAGEConv with root_weight=False", r"lin_l\.(weight|bias)", (r"lin_l\.weight", r"lin_l\.bias"),
            added={_OWN: lambda shapes: shapes[_NEIGHBOURS]},
        ),
        LayerKind(
            "SAGEConv of DGL", r"fc_(self|neigh)\.weight|bias", (r"fc_self\.weight", r"fc_neigh\.weight", "bias"),
            renamed={"fc_neigh.weight": _NEIGHBOURS, "fc_self.weight": _OWN, "bias": _BIAS},
        ),
    )  # fmt: skip
    assumptions: ClassVar = {
        "activation": "ReLU between layers",
        "aggregation": "the mean of the neighbours",
        "self-loops": "none are added",
        "normalisation": "none of the outputs",
        "edge weights": "none",
        "residual": "none",
    }
    stores_own = True
    learning_rate = 0.01

    def recognise(self, keys: Iterable[str]) -> dict[str, LayerKey]:
        matched = ((key, _KEY.match(key)) for key in keys)
        return {key: LayerKey(match["layer"], match["weight"]) for key, match in matched if match is not None}

    def compute_for(self, storage: Storage) -> Compute:
        return preferred_compute(storage)

    def build_layer(self, weights: LayerWeights, *, relu: bool, compute: Compute) -> Layer:
        product = Linear.build(
            np.concatenate([weights[_NEIGHBOURS].T, weights[_OWN].T]), weights[_BIAS], relu=relu, compute=compute
        )
        aggregation = Aggregation(self.aggregator, Own.BESIDE, 1.0, no_bias(), relu=False)
        return Layer(weights.size(Axis.INPUTS), weights.size(Axis.OUTPUTS), aggregation, (product,))

    def build_projected_layer(self, weights: LayerWeights, *, relu: bool) -> Layer:
        """Build the layer for a table that holds W_l · x(j) and, for the node itself, W_r · x(i)."""
        outputs = weights.size(Axis.OUTPUTS)
        aggregation = Aggregation(self.aggregator, Own.ADDED, 1.0, weights[_BIAS], relu=relu)
        return Layer(outputs, outputs, aggregation, ())

    def split_first_layer(self, tensors: Mapping[str, np.ndarray]) -> FirstLayer:
        neighbours, own, bias = (tensors[key_of(0, weight)] for weight in (_NEIGHBOURS, _OWN, _BIAS))
        return FirstLayer(self.aggregator, neighbours.T, own.T, bias, 1.0)

    def plain_layer(
        self, weights: Mapping[str, np.ndarray], rows: np.ndarray, graph: PlainGraph, reading: Reading,
        attention: AttentionManifest | None,
    ) -> np.ndarray:  # fmt: skip
        read = graph.aggregated(rows, reading.aggregation or "mean")
        outputs: np.ndarray = read @ weights[_NEIGHBOURS].T + weights[_BIAS] + rows @ weights[_OWN].T
        return outputs

    def first_layer_tensors(self, first: FirstLayer) -> dict[str, np.ndarray]:
        if first.own is None:
            raise ValueError("a first layer of GraphSAGE has weights of its own for the node itself")
        return {_NEIGHBOURS: first.neighbours.T, _OWN: first.own.T, _BIAS: first.bias}


class RelationalGraphSageSpec(RelationalSpec):
    architecture = Architecture.GRAPHSAGE
    module = "HeteroConv of SAGEConv"
    learning_rate = 0.01
    assumptions: ClassVar = {
        "activation": "ReLU between layers",
        "aggregation": "the mean of the neighbours by each relation",
        "relations": "what they give is summed",
        "self-loops": "none are added",
        "normalisation": "none of the outputs",
        "edge weights": "none",
        "residual": "none",
    }
    layer_kinds = (SAGE_CONV,)

    def layer_shapes(self, shape: RelationalShape) -> Shapes:
        found: dict[str, tuple[int, ...]] = {}
        for layer in range(shape.layers):
            outputs = shape.outputs(layer)
            before = shape.reached()[layer]
            for _, relation in shape.read(layer):
                source, target = shape.graph.place_of(relation.source), shape.graph.place_of(relation.target)
                widths = [shape.width(kind) if layer == 0 else shape.hidden for kind in (source, target)]
                key = relation_key(layer, relation)
                found |= {f"{key}.lin_l.weight": (outputs, widths[0]), f"{key}.lin_l.bias": (outputs,)}
                if target in before:
                    found[f"{key}.lin_r.weight"] = (outputs, widths[1])
        return found

    def layer(self, tensors: NamedArrays, shape: RelationalShape, layer: int) -> RelationalLayer:
        relations: dict[int, Array] = {}
        own: dict[int, Array] = {}
        biases: dict[int, Array] = {}
        for place, relation in shape.read(layer):
            key, target = relation_key(layer, relation), shape.graph.place_of(relation.target)
            relations[place] = tensors[f"{key}.lin_l.weight"].T
            root = tensors.get(f"{key}.lin_r.weight")
            if root is not None:
                own[target] = own[target] + root.T if target in own else root.T
            biases[target] = biases.get(target, 0) + tensors[f"{key}.lin_l.bias"]
        return RelationalLayer(relations, own, biases)
