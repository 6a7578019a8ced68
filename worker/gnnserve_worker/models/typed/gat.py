"""Graph attention over several types, as torch_geometric computes it with a HeteroConv of a GATConv for each relation,
without self-loops, whose results are summed:

    h'(i) = Σ over relations r: Σ over neighbours j of α_r(j → i) W_s^r h(j), + b^r,   ReLU between layers
    α_r(j → i) = softmax over the neighbours by r of LeakyReLU(a_s^r · W_s^r h(j) + a_d^r · W_d^r h(i))

for each head; heads of hidden layers stand beside each other, those of the last one are averaged. PyG's keys are
`convs.<layer>.convs.<source___relation___target>.lin_src.weight`, `.lin_dst.weight`, `.att_src`, `.att_dst` and
`.bias`. The product of a relation is W_s h(j) and behind it a_s · W_s h(j) of each head; that of a type with its own
weights is a_d · W_d h(i) of each relation that it reads and each head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gnnserve_api.spec.model import Architecture
from gnnserve_worker.models.layer_kind import LayerKind
from gnnserve_worker.models.typed.architecture import (
    Array,
    Heads,
    RelationalLayer,
    Shapes,
    Tensors,
    TypedArchitectureSpec,
    TypedShape,
)
from gnnserve_worker.models.typed.graphsage import key_of


class TypedGatSpec(TypedArchitectureSpec):
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

    def layer_shapes(self, shape: TypedShape) -> Shapes:
        found: dict[str, tuple[int, ...]] = {}
        for layer in range(shape.layers):
            before = shape.reached()[layer]
            heads = shape.heads_of(layer)
            for _, relation in shape.read(layer):
                source, target = shape.graph.place_of(relation.source), shape.graph.place_of(relation.target)
                if target not in before:
                    continue
                widths = [shape.width(kind) if layer == 0 else shape.hidden for kind in (source, target)]
                key, inner = key_of(layer, relation), heads.heads * heads.columns
                found |= {
                    f"{key}.lin_src.weight": (inner, widths[0]),
                    f"{key}.lin_dst.weight": (inner, widths[1]),
                    f"{key}.att_src": (1, heads.heads, heads.columns),
                    f"{key}.att_dst": (1, heads.heads, heads.columns),
                    f"{key}.bias": (shape.outputs(layer),),
                }
        return found

    def layers(self, tensors: Tensors, shape: TypedShape) -> Sequence[RelationalLayer]:
        return [self._layer(tensors, shape, layer) for layer in range(shape.layers)]

    def _layer(self, tensors: Tensors, shape: TypedShape, layer: int) -> RelationalLayer:
        heads, graph = shape.heads_of(layer), shape.graph
        relations: dict[int, Array] = {}
        readers: dict[int, list[Array | None]] = {}
        biases: dict[int, Array] = {}
        for place, relation in enumerate(graph.relations):
            key, target = key_of(layer, relation), graph.place_of(relation.target)
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
