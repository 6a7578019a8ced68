"""A module read into layers, given how it is called over the user's graph: the entrance of this folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from gnnserve_api.files.layers import Convolution, DenseManifest, LayersManifest
from gnnserve_api.files.programs import InputRole, RelationKey
from gnnserve_api.variants import MAX_LAYERS
from gnnserve_describe.example import Example
from gnnserve_describe.graph import GraphTensors
from gnnserve_describe.layers.reading import LayersRead, read_layers
from gnnserve_describe.layers.recording import Recorder
from gnnserve_describe.layers.values import EdgeColumns, EdgeKinds, Edges, Features, NotLayersError, Unread, Value
from gnnserve_describe.layout import InputLayout
from gnnserve_describe.probe import shape_of
from gnnserve_describe.scoring import Scorer

_MOST_PRODUCTS = 8
"""Most products that a manifest has in one place."""


@dataclass(frozen=True, slots=True)
class GraphPlaces:
    """Types and relations in the order of the graph's manifest, by which a network of layers calls them."""

    types: tuple[str, ...]
    """The type that is scored comes first."""
    relations: tuple[RelationKey, ...]

    def __str__(self) -> str:
        named = "; ".join(f"{each.source} {each.name} {each.target}" for each in self.relations)
        return f"{', '.join(self.types)}; {named}"

    @classmethod
    def of(cls, example: Example) -> GraphPlaces:
        """Places in the file of several types that is written beside, whose relations stand by their names."""
        types = tuple(
            sorted(example.graph.types, key=lambda kind: example.scored.has_classes and kind != example.target)
        )
        named = sorted(example.graph.edges, key=lambda key: f"{key.source}/{key.name}/{key.target}/edge_index")
        return cls(types, tuple(sorted(named, key=lambda key: types.index(key.target))))


def layers_of(scorers: Sequence[Scorer], graph: GraphTensors, example: Example, layout: InputLayout) -> LayersRead:
    """`scorers`: of one module and call. `graph`: a small one. NotLayersError: it is no such network."""
    first, places, shape = scorers[0], GraphPlaces.of(example), shape_of(example.graph)
    if places.types[0] != first.target:
        raise NotLayersError(f"rows of {first.target!r} are scored, which are not the first type of the graph")
    # Nodes that are added to make types alike are none of the graph's: what is recorded is the same without them.
    call = replace(first.call, has_equal_types=False)
    recorder = Recorder()
    _give(recorder, graph, layout, shape.reverses)
    with torch.no_grad(), recorder.hooks(first.module), recorder:
        returned = replace(first, call=call).run(graph)
    outputs: dict[str, Value] = {}
    embeddings: torch.Tensor | None = None
    for each in scorers:
        scores, embeddings = each.parts(returned)
        value = recorder.value_of(scores)
        if value is None:
            raise NotLayersError("its scores are not computed of the graph")
        outputs[each.target] = value
    features = {each.input.type: each.columns for each in layout.matrices if each.input.role is InputRole.FEATURES}
    columns = {kind: features.get(kind, 0) for kind in places.types}
    found = read_layers(outputs, columns, places.relations, adds_class=first.outputs.adds_class)
    has_others = embeddings is not None and not found.gives_beside(recorder.value_of(embeddings))
    _check_limits(found.layers)
    for conv in (conv for layer in found.layers.layers for conv in layer.convs):
        relation = places.relations[conv.relation]
        if conv.conv is Convolution.CHEBYSHEV and shape.reverses.get(relation) != relation:
            raise NotLayersError("ChebConv counts the edges that leave a node, and edges here go one way")
    return replace(found, has_other_embeddings=has_others)


def _check_limits(layers: LayersManifest) -> None:
    """NotLayersError: a manifest takes fewer."""
    if max(len(layers.layers), layers.hops) > MAX_LAYERS:
        raise NotLayersError(f"it reads {layers.hops} hops, and layers read {MAX_LAYERS} at most")
    mlps = (conv.mlp for layer in layers.layers for conv in layer.convs)
    several: Sequence[Sequence[DenseManifest]] = (layers.head, *(each.products for each in layers.before), *mlps)
    if max(map(len, several)) > _MOST_PRODUCTS:
        raise NotLayersError(f"{max(map(len, several))} products stand in a row, and a manifest has {_MOST_PRODUCTS}")


def _give(
    recorder: Recorder, graph: GraphTensors, layout: InputLayout, reverses: Mapping[RelationKey, RelationKey]
) -> None:
    """Values of the tensors that the module is given."""
    for each in layout.matrices:
        given = each.input
        if given.role is InputRole.EDGES:
            edges = recorder.made(Edges, given.relation, reverses.get(given.relation))
            recorder.give(graph.edges[given.relation], edges)
        first, columns = 0, each.columns
        for block in each.blocks:
            match given.role:
                case InputRole.FEATURES if block.dtype.is_floating_point:
                    value: Value = recorder.made(Features, given.type, first, block.columns, columns)
                case InputRole.EDGE_FEATURES if block.dtype.is_floating_point:
                    value = recorder.made(EdgeColumns, given.relation, first, block.columns)
                case InputRole.EDGE_FEATURES if block.is_flat:
                    value = recorder.made(EdgeKinds, given.relation, first)
                case _:
                    value = Unread(f"{block.name} has whole numbers, which no layer reads")
            blocks = graph.features[given.type] if given.role is InputRole.FEATURES else graph.payload[given.relation]
            recorder.give(blocks[block.name], value)
            first += block.columns
