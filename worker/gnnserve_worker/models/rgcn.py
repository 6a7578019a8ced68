"""Relational graph convolution with basis decomposition (RGCN, section 2.2), as torch_geometric.nn.RGCNConv has it:

    h'(i) = Σ over relations r: W_r · mean over neighbours j of h(j), + W_0 · h(i) + b,   W_r = Σ_b a_rb · V_b

with PyG's keys `convs.<layer>.weight` [bases, inputs, outputs], `.comp` [relations, bases], `.root` and `.bias`;
without bases `.weight` is [relations, inputs, outputs]. Relations are numbered as `gnnserve graph inspect` lists them.
Its nodes share one width: a torch.nn.Linear `encoders.<type>` brings the features of a type to that of hidden layers.
"""

from __future__ import annotations

from typing import ClassVar

from gnnserve_api.spec.model import Architecture
from gnnserve_worker.models.architecture import (
    Array,
    NamedArrays,
    RelationalLayer,
    RelationalShape,
    RelationalSpec,
    Shapes,
)
from gnnserve_worker.models.layer_kind import LayerKind


class RgcnSpec(RelationalSpec):
    architecture = Architecture.RGCN
    module = "RGCNConv"
    learning_rate = 0.01
    layer_kinds = (
        LayerKind("RGCNConv", r"weight|root|bias|comp", ("weight", "root", "bias"), {"weight": 3}),
    )  # fmt: skip
    assumptions: ClassVar = {
        "activation": "ReLU between layers",
        "aggregation": "the mean of the neighbours by each relation",
        "relations": "what they give is summed",
        "order of relations": "as `gnnserve graph inspect` lists them",
        "self-loops": "none are added",
        "edge weights": "none",
        "residual": "none",
    }
    own_fields = ("bases",)
    gives_own_part = True

    def layer_shapes(self, shape: RelationalShape) -> Shapes:
        found: dict[str, tuple[int, ...]] = {}
        for kind in shape.graph.types:
            if kind.features is not None:
                key = f"encoders.{kind.name}"
                found |= {f"{key}.weight": (shape.hidden, kind.features), f"{key}.bias": (shape.hidden,)}
        relations = len(shape.graph.relations)
        for layer in range(shape.layers):
            outputs = shape.outputs(layer)
            found[f"convs.{layer}.weight"] = (shape.bases or relations, shape.hidden, outputs)
            if shape.bases is not None:
                found[f"convs.{layer}.comp"] = (relations, shape.bases)
            found |= {f"convs.{layer}.root": (shape.hidden, outputs), f"convs.{layer}.bias": (outputs,)}
        return found

    def layer(self, tensors: NamedArrays, shape: RelationalShape, layer: int) -> RelationalLayer:
        weight, comp = tensors[f"convs.{layer}.weight"], tensors.get(f"convs.{layer}.comp")
        if comp is not None:
            bases, inputs, outputs = weight.shape
            weight = (comp @ weight.reshape(bases, inputs * outputs)).reshape(len(comp), inputs, outputs)
        root, bias = tensors[f"convs.{layer}.root"], tensors[f"convs.{layer}.bias"]
        graph = shape.graph
        relations: dict[int, Array] = {place: weight[place] for place in range(len(graph.relations))}
        # A type that reads nothing keeps its own part: all nodes are of one type to this architecture.
        own: dict[int, Array] = dict.fromkeys(range(len(graph.types)), root)
        biases: dict[int, Array] = dict.fromkeys(range(len(graph.types)), bias)
        if layer > 0:
            return RelationalLayer(relations, own, biases)
        shifts: dict[int, Array] = {}
        for kind, described in enumerate(graph.types):
            if described.features is None:
                continue
            encoder, shift = (tensors[f"encoders.{described.name}.{part}"] for part in ("weight", "bias"))
            own[kind], biases[kind] = encoder.T @ root, shift @ root + bias
            for place, relation in enumerate(graph.relations):
                if relation.source == described.name:
                    relations[place], shifts[place] = encoder.T @ weight[place], shift @ weight[place]
        return RelationalLayer(relations, own, biases, shifts)
