"""Modules read into layers, beside themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from tests.support.programs.described import GRAPH
from torch import Tensor, nn

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.graph_schema import (
    AS_LISTED,
    GraphSchema,
    PayloadManifest,
    TypeManifest,
    relation_manifest,
)
from gnnserve_api.files.layers import LayersManifest
from gnnserve_describe import nodes_of
from gnnserve_describe.example import Example, example_of
from gnnserve_describe.layers.module import GraphPlaces, layers_of
from gnnserve_describe.layers.reading import LayersRead
from gnnserve_describe.layout import layout_of
from gnnserve_describe.probe import make_probe, shape_of
from gnnserve_describe.scored import Choose
from gnnserve_describe.scoring import Scorer, outputs_of
from gnnserve_worker.generation.layer_modules import GraphTensors, LayersModule, load_canonical
from gnnserve_worker.layers.shapes import problems_of, tensor_shapes


class Read:
    """A module read into layers, beside itself."""

    def __init__(self, module: nn.Module, graph: Any, scored: Choose | None = None) -> None:
        """`scored`: None: classes of nodes."""
        torch.manual_seed(5)
        for each in module.modules():
            if isinstance(each, nn.BatchNorm1d) and each.running_mean is not None and each.running_var is not None:
                each.running_mean.normal_()
                each.running_var.uniform_(0.5, 2)
        self.example: Example = example_of(module.eval(), graph, scored or nodes_of(None))
        probe = make_probe(self.example.graph, shape_of(self.example.graph), 0)
        call, labels = self.example.call, self.example.labels
        gives_rows = self.example.scored.gives_rows
        self.scorers = [
            Scorer(module, call, outputs_of(module, call, probe.graph, kind, labels, gives_rows=gives_rows), kind)
            for kind in self.example.scored.types
        ]
        self.found: LayersRead = layers_of(self.scorers, probe.graph, self.example, layout_of(self.example.graph))

    @property
    def layers(self) -> LayersManifest:
        return self.found.layers

    def check(self) -> LayersManifest:
        """The layers, whose scores over the whole graph are those of the module."""
        places, layout = GraphPlaces.of(self.example), layout_of(self.example.graph)
        arrays = dict(zip(layout.inputs, layout.tensors_of(self.example.graph), strict=True))
        features = {each.type: tensor for each, tensor in arrays.items() if each.name.startswith("x")}
        edges = {each.relation: tensor for each, tensor in arrays.items() if each.name.startswith("edge_index")}
        payload = {each.relation: tensor for each, tensor in arrays.items() if each.name.startswith("edge_attr")}
        both_ways = EdgeRules(Direction.UNDIRECTED, Duplicates.KEEP)
        reverses = shape_of(self.example.graph).reverses
        schema = GraphSchema(
            tuple(
                TypeManifest(kind, len(features[kind]), features[kind].shape[1], "Positions") for kind in places.types
            ),
            tuple(
                relation_manifest(
                    key.source, key.name, key.target, edges[key].shape[1], None,
                    both_ways if reverses.get(key) == key else AS_LISTED,
                    *_payload(payload.get(key)),
                )
                for key in places.relations
            ),
        )  # fmt: skip
        columns = [features[kind].shape[1] for kind in places.types]
        assert problems_of(self.layers, schema, columns) == []
        tensors = {name: each.numpy() for name, each in self.found.tensors.items()}
        shapes = tensor_shapes(self.layers, schema, columns)
        assert {name: each.shape for name, each in tensors.items()} == shapes
        graph = GraphTensors(
            [features[kind] for kind in places.types], [edges[key] for key in places.relations],
            [_columns(payload[key]) if key in payload else {} for key in places.relations],
        )  # fmt: skip
        for scorer in self.scorers:
            network = LayersModule(self.layers, schema, columns, places.types.index(scorer.target)).eval()
            load_canonical(network, tensors)
            wanted = scorer.scores(self.example.graph)
            with torch.no_grad():
                scores = network(graph)
            np.testing.assert_allclose(scores, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))
        return self.layers


def _payload(payload: Tensor | None) -> list[PayloadManifest]:
    return [] if payload is None else [PayloadManifest(tuple(_columns(payload)), "", len(payload))]


def _columns(payload: Tensor) -> Mapping[str, Tensor]:
    return {str(place): payload[:, place] for place in range(payload.shape[1])}


def read(module: nn.Module, graph: Any = GRAPH) -> LayersManifest:
    return Read(module, graph).check()


class Forward(nn.Module):
    """Modules by their names, and a function of them that is `forward`."""

    def __init__(self, forward: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.parts = nn.ModuleDict(modules)
        self.function = forward

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Any:
        return self.function(self.parts, x, edge_index, edge_attr)
