"""Networks of layers that are drawn from all operations, where the graph changes and requests bring overlays: they
answer as torch_geometric's modules of the same description do over the graph built anew."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from tests.support.changes.listed import (
    CLASSES,
    ListedScene,
    drawn_request,
    service_over,
    source_of,
    tensors_of,
    typed_tensors_of,
)
from tests.support.changes.living import PlainGraph, ids_of
from tests.support.models.random_layers import draw_layers, draw_tensors, products
from tests.support.programs.program_types_generated import GrownGraph, hetero_data
from tests.support.serving.questions import question_of

from gnnserve_api.families import point_of
from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layer_fields import layer_fields
from gnnserve_api.files.layers import Convolution, LayersManifest
from gnnserve_api.files.programs import RelationKey
from gnnserve_worker.generation.layer_modules import GraphTensors, LayersModule, canonical, load_canonical
from gnnserve_worker.graph.change_batch import ChangeBatch
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.layers.shapes import columns_of
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.serving.http.changes.reading import read_changes
from gnnserve_worker.serving.http.codecs.json import JsonCodec

NODES, SIZES = 60, (2, 6, 12)


class OverlayRequest(NamedTuple):
    body: dict[str, Any]
    seen: GraphTensors
    """The graph that it sees."""
    places: np.ndarray
    """Places there of the nodes that it asks about, int64."""


class ChangingGraph(Protocol):
    """A plain model of a graph, beside which a revision of it changes."""

    source: dict[str, Any]

    def batch(self, draw: np.random.Generator, size: int, scene: ListedScene) -> ChangeBatch:
        """Draw changes, which it has from then on."""

    def nodes(self, scene: ListedScene) -> np.ndarray:
        """Nodes of the first type, in the order of the tensors."""

    def tensors(self, schema: GraphSchema) -> GraphTensors: ...

    def request(self, draw: np.random.Generator, schema: GraphSchema) -> OverlayRequest:
        """Draw a request, which leaves the graph as it is."""


class OneType:
    def __init__(self, folder: Path, direction: Direction) -> None:
        self.plain, self.fresh = PlainGraph(NODES, 3, EdgeRules(direction, Duplicates.KEEP)), [*range(1000, 900, -1)]
        self.source = source_of(folder, self.plain)

    def batch(self, draw: np.random.Generator, size: int, scene: ListedScene) -> ChangeBatch:
        return self.plain.random_batch(draw, size, self.fresh)

    def nodes(self, scene: ListedScene) -> np.ndarray:
        return scene.living.graph.ids.find(ids_of([*self.plain.lists]))

    def tensors(self, schema: GraphSchema) -> GraphTensors:
        return tensors_of(self.plain)

    def request(self, draw: np.random.Generator, schema: GraphSchema) -> OverlayRequest:
        body, seen, asked = drawn_request(self.plain, draw)
        return OverlayRequest(body, tensors_of(seen), asked)


class SeveralTypes:
    """Edges of a relation have columns."""

    def __init__(self, folder: Path) -> None:
        self.grown = GrownGraph()
        self.source = {"typed": {**hetero_data(folder), "target": "user", "reverse": "Disabled"}}

    def batch(self, draw: np.random.Generator, size: int, scene: ListedScene) -> ChangeBatch:
        body = json.dumps(self.grown.drawn_changes(draw)).encode()
        return read_changes(body, b"application/json", scene.served)[1]

    def nodes(self, scene: ListedScene) -> np.ndarray:
        users = [f"user/{node}" for node in self.grown.users]
        return np.array([scene.served.graph.naming.find_one(user, "nodes", "") for user in users])

    def tensors(self, schema: GraphSchema) -> GraphTensors:
        return typed_tensors_of(self.grown, schema)

    def request(self, draw: np.random.Generator, schema: GraphSchema) -> OverlayRequest:
        seen = copy.deepcopy(self.grown)
        overlay, asked = seen.drawn(draw), draw.integers(0, len(seen.users), 5)
        body = {"nodes": [f"user/{seen.users[place]}" for place in asked], "overlay": overlay}
        return OverlayRequest(body, typed_tensors_of(seen, schema), asked)


GRAPHS: dict[str, tuple[Callable[[Path], ChangingGraph], frozenset[Convolution]]] = {
    "undirected": (lambda folder: OneType(folder, Direction.UNDIRECTED), frozenset({Convolution.GINE})),
    "directed": (
        lambda folder: OneType(folder, Direction.DIRECTED), frozenset({Convolution.GINE, Convolution.CHEBYSHEV}),
    ),
    "several types": (SeveralTypes, frozenset({Convolution.CHEBYSHEV})),
}  # fmt: skip
"""How each graph is made, and convolutions that it may not have: without columns of edges, or edges both ways."""
CASES = [(name, kind) for name, (_, without) in GRAPHS.items() for kind in Convolution if kind not in without]


def drawn_module(draw: np.random.Generator, schema: GraphSchema, kind: Convolution) -> LayersModule:
    """A network with random weights whose head tells the classes."""
    while (layers := draw_layers(draw, schema, kind)) is None:
        pass
    layers = msgspec.structs.replace(layers, head=layers.head or products(draw, [CLASSES]))
    module = LayersModule(layers, schema, columns_of(schema)).eval()
    load_canonical(module, draw_tensors(draw, module))
    return module


def model_of(layers: LayersManifest, schema: GraphSchema, weights: Path) -> dict[str, Any]:
    relations = [RelationKey(one.source, one.name, one.target) for one in schema.relations]
    fields = layer_fields(layers, [kind.name for kind in schema.types], relations)
    return {"checkpoint": {"uri": weights.as_uri()}, **fields, "fanouts": [-1] * layers.hops}


@torch.no_grad()
def expected_scores(module: LayersModule, graph: GraphTensors) -> tuple[np.ndarray, float]:
    """Scores in float64, and by how much an answer may differ: 1e-5 of the largest, or what torch_geometric itself is
    off in float32."""
    single = module.float()(graph).numpy()
    wide = GraphTensors(
        [rows.double() for rows in graph.features], graph.edges,
        [{name: one.double() for name, one in named.items()} for named in graph.edge_columns],
    )  # fmt: skip
    double = module.double()(wide).numpy()
    return double, max(1e-5 * float(np.abs(double).max()), 4 * float(np.abs(single - double).max()))


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_changes_and_overlays_are_answered_over_as_the_graph_built_anew(
    tmp_path: Path, name: str, kind: Convolution, seed: int
) -> None:
    graph, draw = GRAPHS[name][0](tmp_path), np.random.default_rng([list(Convolution).index(kind), seed])
    schema = load_source(service_over(graph.source, {}, {}).spec.graph.source, tmp_path).schema
    module = drawn_module(draw, schema, kind)
    layers, weights = module.described, tmp_path / "weights.safetensors"
    save_file(canonical(module), weights)
    last = len(layers.layers)
    variants: dict[str, Any] = {"stored": [1]} if last == 1 else {"stored": [1, last], "storedFollowChanges": True}
    scene = ListedScene(tmp_path, graph.source, model_of(layers, schema, weights), variants=variants)
    for size in SIZES:
        scene.apply([graph.batch(draw, size, scene) for _ in range(2)])
        expected, close = expected_scores(module, graph.tensors(schema))
        nodes = graph.nodes(scene)
        for variant in scene.manifest.variants:
            found = scene.served.compute.infer(variant.name, nodes.copy(), 0).scores
            np.testing.assert_allclose(found, expected, rtol=0, atol=close, err_msg=f"{variant.name} of {layers}")
    for _ in range(2):
        asked = graph.request(draw, schema)
        expected, close = expected_scores(module, asked.seen)
        for variant in scene.manifest.variants:
            if point_of(variant).capabilities.overlay:
                found, told = (
                    answered(scene, variant.name, asked.body),
                    f"{variant.name} of {layers}, asked {asked.body}",
                )
                np.testing.assert_allclose(found, expected[asked.places], rtol=0, atol=close, err_msg=told)


def answered(scene: ListedScene, variant: str, body: dict[str, Any]) -> np.ndarray:
    question = question_of(JsonCodec(), json.dumps(body).encode(), scene.served)
    seeds = question.nodes.copy()
    part = Part(len(seeds), question.overlay, question.wishes.seed)
    view = view_of(scene.served.graph.first_new, [part], seeds)
    return scene.served.compute.infer(variant, seeds, 0, view=view).scores
