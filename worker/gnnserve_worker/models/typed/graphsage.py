"""GraphSAGE over several types, as torch_geometric computes it with a HeteroConv of a SAGEConv for each relation, whose
results are summed:

    h'(i) = Σ over relations r: W_l^r · mean over neighbours j of h(j) + b^r + W_r^r · h(i),   ReLU between layers

with PyG's keys `convs.<layer>.convs.<source___relation___target>.lin_l.weight`, `.lin_l.bias` and `.lin_r.weight`, the
angle brackets included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gnnserve_api.spec.model import Architecture
from gnnserve_api.typed import RelationManifest
from gnnserve_worker.models.graphsage import SAGE_CONV
from gnnserve_worker.models.typed.architecture import (
    Array,
    RelationalLayer,
    Shapes,
    Tensors,
    TypedArchitectureSpec,
    TypedShape,
)


class TypedGraphSageSpec(TypedArchitectureSpec):
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

    def layer_shapes(self, shape: TypedShape) -> Shapes:
        found: dict[str, tuple[int, ...]] = {}
        for layer in range(shape.layers):
            outputs = shape.outputs(layer)
            before = shape.reached()[layer]
            for _, relation in shape.read(layer):
                source, target = shape.graph.place_of(relation.source), shape.graph.place_of(relation.target)
                widths = [shape.width(kind) if layer == 0 else shape.hidden for kind in (source, target)]
                key = key_of(layer, relation)
                found |= {f"{key}.lin_l.weight": (outputs, widths[0]), f"{key}.lin_l.bias": (outputs,)}
                if target in before:
                    found[f"{key}.lin_r.weight"] = (outputs, widths[1])
        return found

    def layers(self, tensors: Tensors, shape: TypedShape) -> Sequence[RelationalLayer]:
        return [self._layer(tensors, shape, layer) for layer in range(shape.layers)]

    def _layer(self, tensors: Tensors, shape: TypedShape, layer: int) -> RelationalLayer:
        relations: dict[int, Array] = {}
        own: dict[int, Array] = {}
        biases: dict[int, Array] = {}
        for place, relation in shape.read(layer):
            key, target = key_of(layer, relation), shape.graph.place_of(relation.target)
            relations[place] = tensors[f"{key}.lin_l.weight"].T
            root = tensors.get(f"{key}.lin_r.weight")
            if root is not None:
                own[target] = own[target] + root.T if target in own else root.T
            biases[target] = biases.get(target, 0) + tensors[f"{key}.lin_l.bias"]
        return RelationalLayer(relations, own, biases)


def key_of(layer: int, relation: RelationManifest) -> str:
    """What the keys of a relation's convolution begin with."""
    return f"convs.{layer}.convs.<{relation.source}___{relation.name}___{relation.target}>"
