"""Graph attention network (Veličković et al., ICLR 2018), as torch_geometric.nn.GAT computes it:

    h'(i) = heads beside each other of sum α(j → i) · W h(j), over the neighbours j of i and i itself, + b

with α of `tables/attention.py`, ReLU between layers, and the mean of the heads in the last one; PyG's checkpoint keys
are `convs.<layer>.lin.weight`, `.att_src`, `.att_dst` and `.bias`. A node is in its own sum exactly once. The softmax
is over those neighbours that were sampled.

Over several relations, as torch_geometric computes it with a HeteroConv of a GATConv for each, without self-loops,
whose results are summed:

    h'(i) = Σ over relations r: Σ over neighbours j of α_r(j → i) W_s^r h(j), + b^r,   ReLU between layers
    α_r(j → i) = softmax over the neighbours by r of LeakyReLU(a_s^r · W_s^r h(j) + a_d^r · W_d^r h(i))

for each head; heads of hidden layers stand beside each other, those of the last one are averaged. PyG's keys are
`convs.<layer>.convs.<source___relation___target>.lin_src.weight`, `.lin_dst.weight`, `.att_src`, `.att_dst` and
`.bias`. The product of a relation is W_s h(j) and behind it a_s · W_s h(j) of each head; that of a type with its own
weights is a_d · W_d h(i) of each relation that it reads and each head.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
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
    Heads,
    LayerKey,
    LayerWeights,
    NamedArrays,
    OneTypeSpec,
    Projection,
    RelationalLayer,
    RelationalShape,
    RelationalSpec,
    Shapes,
    key_of,
    relation_key,
)
from gnnserve_worker.models.blas import preferred_compute
from gnnserve_worker.models.layer_kind import LayerKind
from gnnserve_worker.models.network import Layer, Linear, PerHead, Product, no_bias
from gnnserve_worker.models.plain import PlainGraph, Reading, attended
from gnnserve_worker.tables.attention import Attention
from gnnserve_worker.tables.table import Aggregation, Aggregator, Own

_WEIGHT, _SOURCE, _TARGET, _BIAS = "lin.weight", "att_src", "att_dst", "bias"
_KEY = re.compile(r"^(?P<layer>.+)\.(?P<weight>lin\.weight|lin_src\.weight|att_src|att_dst|bias)$")
_OLDER = {"lin_src.weight": _WEIGHT}
"""Names of tensors in earlier versions of torch_geometric."""


class GatSpec(OneTypeSpec):
    architecture = Architecture.GAT
    # Attention first, since its shape tells a wrong number of heads from a wrong width.
    shapes: ClassVar = {
        _SOURCE: (Axis.ONE, Axis.HEADS, Axis.HEAD_OUTPUTS),
        _TARGET: (Axis.ONE, Axis.HEADS, Axis.HEAD_OUTPUTS),
        _WEIGHT: (Axis.ALL_OUTPUTS, Axis.INPUTS),
        _BIAS: (Axis.OUTPUTS,),
    }
    first_products = (_WEIGHT, _SOURCE, _TARGET)
    module = "GAT"
    layer_tensors = "lin.weight, att_src, att_dst and bias of each GATConv"
    layer_kinds = (
        LayerKind("GATConv", r"(lin|lin_src)\.weight|att_(src|dst)|bias",
                  (r"(lin|lin_src)\.weight", "att_src", "att_dst", "bias")),
        LayerKind(
            "GATConv with lin_src and lin_dst", r"lin_(src|dst)\.weight|att_(src|dst)|bias",
            (r"lin_src\.weight", r"lin_dst\.weight", "att_src", "att_dst", "bias"),
            renamed={"lin_src.weight": _WEIGHT, "lin_dst.weight": ""},
            note="before torch_geometric 2.3 both are equal; where they are not, the layer is not served over one type",
        ),
        LayerKind(
            "GATConv of torch_geometric below 2.0", r"lin_[lr]\.weight|att_[lr]|bias",
            (r"lin_l\.weight", "att_l", "att_r", "bias"),
            renamed={"lin_l.weight": _WEIGHT, "att_l": _SOURCE, "att_r": _TARGET, "lin_r.weight": ""},
        ),
    )  # fmt: skip
    assumptions: ClassVar = {
        "activation": "ReLU between layers",
        "aggregation": "the sum by attention",
        "attention": "scores go through a leaky ReLU of spec.model.negativeSlope",
        "self-loops": "one is added to each node, in place of its own",
        "normalisation": "none",
        "edge weights": "none",
        "residual": "none",
    }
    own_fields = ("heads", "output_heads", "negative_slope")
    aggregator = Aggregator.ATTENTION
    learning_rate = 0.005

    def recognise(self, keys: Iterable[str]) -> dict[str, LayerKey]:
        matched = {key: match for key in sorted(keys) if (match := _KEY.match(key)) is not None}
        layers = {match["layer"] for match in matched.values() if match["weight"] in (_SOURCE, _TARGET)}
        # A lone `lin.weight` or `bias` may belong to anything.
        return {
            key: LayerKey(match["layer"], _OLDER.get(match["weight"], match["weight"]))
            for key, match in matched.items()
            if match["layer"] in layers
        }

    def compute_for(self, storage: Storage) -> Compute:
        return preferred_compute(storage)

    def build_layer(self, weights: LayerWeights, *, relu: bool, compute: Compute) -> Layer:
        """Each head sums rows as they are; its part of W comes after the sum."""
        by_head = _by_head(weights[_WEIGHT].T, weights.size(Axis.HEADS))
        vectors = _scoring(by_head, weights[_SOURCE], weights[_TARGET])
        aggregation = self._aggregation(weights, vectors.T, no_bias(), relu=False)
        product = (
            _averaged(by_head, weights[_BIAS], relu, compute)
            if _is_averaged(weights)
            else _beside(by_head, weights[_BIAS], relu, compute)
        )
        return Layer(weights.size(Axis.INPUTS), weights.size(Axis.OUTPUTS), aggregation, (product,))

    def build_projected_layer(self, weights: LayerWeights, *, relu: bool) -> Layer:
        """The table holds W · x and what every head scores it by, as the node itself and as a neighbour."""
        outputs, heads = weights.size(Axis.OUTPUTS), weights.size(Axis.HEADS)
        inputs = weights.size(Axis.ALL_OUTPUTS) + 2 * heads
        if not _is_averaged(weights):
            return Layer(inputs, outputs, self._aggregation(weights, None, weights[_BIAS], relu=relu), ())
        aggregation = self._aggregation(weights, None, no_bias(), relu=False)
        identity = np.broadcast_to(np.eye(outputs, dtype=np.float32), (heads, outputs, outputs))
        return Layer(inputs, outputs, aggregation, (_averaged(identity, weights[_BIAS], relu, "float32"),))

    def split_first_layer(self, tensors: Mapping[str, np.ndarray]) -> FirstLayer:
        weight, bias = tensors[key_of(0, _WEIGHT)].T, tensors[key_of(0, _BIAS)]
        averaged = weight.shape[1] // len(bias)
        return FirstLayer(self.aggregator, weight, None, np.tile(bias, averaged), 1.0, averaged)

    def project(self, tensors: Mapping[str, np.ndarray]) -> Projection:
        source, target = (tensors[key_of(0, name)] for name in (_SOURCE, _TARGET))
        weight = tensors[key_of(0, _WEIGHT)].T
        scoring = _scoring(_by_head(weight, source.shape[1]), source, target)
        return Projection(np.concatenate([weight, scoring], axis=1), None)

    def plain_layer(
        self, weights: Mapping[str, np.ndarray], rows: np.ndarray, graph: PlainGraph, reading: Reading,
        attention: AttentionManifest | None,
    ) -> np.ndarray:  # fmt: skip
        if attention is None:
            raise ValueError("the network is a GAT, and nothing says how many attention heads it has")
        source, target, bias = weights[_SOURCE], weights[_TARGET], weights[_BIAS]
        heads = (rows @ weights[_WEIGHT].T).reshape(len(rows), *source.shape[1:])
        slope = attention.negative_slope if reading.negative_slope is None else reading.negative_slope
        sums = attended(graph, heads, source, target, slope, reading.loop_weight)
        is_beside = len(bias) == source.shape[1] * source.shape[2]
        outputs: np.ndarray = (sums.reshape(len(rows), -1) if is_beside else sums.mean(axis=1)) + bias
        return outputs

    def first_layer_tensors(self, first: FirstLayer) -> dict[str, np.ndarray]:
        return {_WEIGHT: first.neighbours.T, _BIAS: first.bias.reshape(first.averaged_heads, -1).mean(axis=0)}

    def _aggregation(
        self, weights: LayerWeights, vectors: np.ndarray | None, bias: np.ndarray, *, relu: bool
    ) -> Aggregation:
        if weights.attention is None:
            raise ValueError("the network is a GAT, and its manifest says nothing of attention heads")
        flat = no_bias() if vectors is None else np.ascontiguousarray(vectors, dtype=np.float32).ravel()
        attention = Attention(weights.size(Axis.HEADS), weights.attention.negative_slope, flat)
        return Aggregation(self.aggregator, Own.ADDED, 1.0, bias, relu, attention)


def _is_averaged(weights: LayerWeights) -> bool:
    return weights.size(Axis.OUTPUTS) != weights.size(Axis.ALL_OUTPUTS)


def _by_head(weight: np.ndarray, heads: int) -> np.ndarray:
    """float32 [heads, inputs, columns of a head]."""
    return np.ascontiguousarray(weight.reshape(len(weight), heads, -1).transpose(1, 0, 2))


def _scoring(by_head: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """float32 [inputs, 2 · heads]: what scores a row as a neighbour, head by head, then as the node itself."""
    parts = [
        np.einsum("hic,hc->ih", by_head.astype(np.float64), each[0].astype(np.float64)) for each in (source, target)
    ]
    return np.concatenate(parts, axis=1).astype(np.float32)


def _averaged(by_head: np.ndarray, bias: np.ndarray, relu: bool, compute: Compute) -> Product:
    """The mean of the heads' products is one product of all heads' sums beside each other."""
    heads, inputs, outputs = by_head.shape
    return Linear.build(by_head.reshape(heads * inputs, outputs) / np.float32(heads), bias, relu=relu, compute=compute)


def _beside(by_head: np.ndarray, bias: np.ndarray, relu: bool, compute: Compute) -> Product:
    """The heads' products beside each other."""
    biases = bias.reshape(len(by_head), -1)
    parts = [Linear.build(part, of_it, relu=relu, compute=compute) for part, of_it in zip(by_head, biases, strict=True)]
    return parts[0] if len(parts) == 1 else PerHead(tuple(parts))


class RelationalGatSpec(RelationalSpec):
    architecture = Architecture.GAT
    module = "HeteroConv of GATConv without self-loops"
    learning_rate = 0.005
    layer_kinds = (
        LayerKind("GATConv with lin_src and lin_dst", r"lin_(src|dst)\.weight|att_(src|dst)|bias",
                  (r"lin_src\.weight", r"lin_dst\.weight", "att_src", "att_dst", "bias")),
    )  # fmt: skip
    assumptions: ClassVar = {
        "activation": "ReLU between layers",
        "aggregation": "the sum by attention of each relation",
        "attention": "scores go through a leaky ReLU of spec.model.negativeSlope",
        "relations": "what they give is summed",
        "self-loops": "none are added",
        "normalisation": "none",
        "edge weights": "none",
        "residual": "none",
    }
    own_fields = ("heads", "output_heads", "negative_slope")

    def layer_shapes(self, shape: RelationalShape) -> Shapes:
        found: dict[str, tuple[int, ...]] = {}
        for layer in range(shape.layers):
            before = shape.reached()[layer]
            heads = shape.heads_of(layer)
            for _, relation in shape.read(layer):
                source, target = shape.graph.place_of(relation.source), shape.graph.place_of(relation.target)
                if target not in before:
                    continue
                widths = [shape.width(kind) if layer == 0 else shape.hidden for kind in (source, target)]
                key, inner = relation_key(layer, relation), heads.heads * heads.columns
                found |= {
                    f"{key}.lin_src.weight": (inner, widths[0]),
                    f"{key}.lin_dst.weight": (inner, widths[1]),
                    f"{key}.att_src": (1, heads.heads, heads.columns),
                    f"{key}.att_dst": (1, heads.heads, heads.columns),
                    f"{key}.bias": (shape.outputs(layer),),
                }
        return found

    def layer(self, tensors: NamedArrays, shape: RelationalShape, layer: int) -> RelationalLayer:
        heads, graph = shape.heads_of(layer), shape.graph
        relations: dict[int, Array] = {}
        readers: dict[int, list[Array | None]] = {}
        biases: dict[int, Array] = {}
        for place, relation in enumerate(graph.relations):
            key, target = relation_key(layer, relation), graph.place_of(relation.target)
            readers.setdefault(target, []).append(None)
            if f"{key}.bias" not in tensors:  # nothing is read by it here
                continue
            matrix = tensors[f"{key}.lin_src.weight"].T
            relations[place] = heads.beside(matrix, _scored(matrix, tensors[f"{key}.att_src"], heads.heads))
            vectors = tensors[f"{key}.att_dst"]
            readers[target][-1] = _scored(tensors[f"{key}.lin_dst.weight"].T, vectors, heads.heads)
            biases[target] = biases.get(target, 0) + tensors[f"{key}.bias"]
        own = {target: _all_beside(heads, scored) for target, scored in readers.items() if target in biases}
        return RelationalLayer(relations, own, biases, heads=heads)


def _all_beside(heads: Heads, scored: Sequence[Array | None]) -> Array:
    """What each head makes of a reader, relation after relation; 0 for those that nothing is read by."""
    nothing = 0 * next(one for one in scored if one is not None)
    return heads.beside(*(nothing if one is None else one for one in scored))


def _scored(matrix: Array, vectors: Array, heads: int) -> Array:
    """What each head makes of a row: [inputs, heads], of the product [inputs, heads · columns] and its vectors."""
    inputs = matrix.shape[0]
    return (matrix.reshape(inputs, heads, -1) * vectors).sum(-1)
