"""A program that reads features and times of edges answers about what requests bring of them, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support.graphs import random_graph
from tests.support.overlays import FEATURES, revision_over, scaling_of
from tests.support.programs import export, manifest_of

from gnnserve_api.edges import Direction, EdgeRules
from gnnserve_api.graph_schema import one_type
from gnnserve_api.programs import InputRole, ProgramInput
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD
from gnnserve_api.variants import Storage
from gnnserve_worker.graph.overlay import EdgeRows, overlay_arranger
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.places import places_of
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.inference.batch import infer_batch, warm_up
from gnnserve_worker.models.program import ProgramNetwork
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.programs.runner import ProgramRunner
from gnnserve_worker.sampling.batch_view import Part, view_of

NODES = 60
INPUTS = (
    ProgramInput("x", InputRole.FEATURES),
    ProgramInput("edge_index", InputRole.EDGES),
    ProgramInput("edge_attr", InputRole.EDGE_FEATURES),
    ProgramInput("edge_time", InputRole.EDGE_TIMES),
)


class Model(torch.nn.Module):
    """Two columns of a node, and of its neighbours by what the edges to them have."""

    def forward(
        self, x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor, edge_time: torch.Tensor
    ) -> torch.Tensor:
        messages = x[:, :2][edge_index[0]] * edge_attr * (edge_time[:, None].to(x.dtype) / 100)
        return x[:, :2] + torch.zeros_like(x[:, :2]).index_add(0, edge_index[1], messages)


RANDOM = np.random.default_rng(6)
STORED = random_graph(NODES, seed=6, mean_degree=3)
EDGES = len(STORED.indices)
ATTR, TIME = RANDOM.normal(size=(EDGES, 2)).astype(np.float32), RANDOM.integers(0, 100, EDGES)
ROWS = RANDOM.permutation(EDGES).astype(np.int32)
PAYLOAD = EdgePayload(("price", "stars"), ATTR, "at", TIME)
RULES = EdgeRules(Direction.DIRECTED)
SCHEMA = one_type(NODES, EDGES, FEATURES, edge_rules=RULES, payload=PAYLOAD.manifest)
GRAPH = Graph(STORED.indptr, STORED.indices, SCHEMA, ROWS)
X = RANDOM.normal(size=(NODES, FEATURES)).astype(np.float32)


@pytest.fixture(scope="module")
def revision(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedRevision]:
    example = {
        "x": np.ones((7, FEATURES), np.float32), "edge_index": np.zeros((2, 9), np.int64),
        "edge_attr": np.ones((9, 2), np.float32), "edge_time": np.ones(9, np.int64),
    }  # fmt: skip
    free = {"x": {0: "nodes"}, "edge_index": {1: "edges"}, "edge_attr": {0: "edges"}, "edge_time": {0: "edges"}}
    path = export(Model(), example, free, tmp_path_factory.mktemp("payload") / "model.onnx")
    runner = ProgramRunner(path, 2)
    made = revision_over(
        "GraphSAGE", GRAPH, X, scaling_of(X, Normalization.DISABLED), Storage.FLOAT32, np.arange(FEATURES)
    )
    network = ProgramNetwork(manifest_of(INPUTS, hops=1, columns=2), SCHEMA, runner, (FEATURES,))
    variant = replace(made.variants["x1"], name="program", network=network, fanouts=(FULL_NEIGHBOURHOOD,))
    yield replace(made, variants={"program": variant}, payloads=(PAYLOAD,))
    runner.close()


def score(node: int) -> np.ndarray:
    """The score of a stored node, edge by edge."""
    begin, end = GRAPH.indptr[node : node + 2]
    rows = ROWS[begin:end]
    messages = X[GRAPH.indices[begin:end], :2] * ATTR[rows] * (TIME[rows, None] / 100)
    found: np.ndarray = X[node, :2] + messages.sum(0)
    return found


def test_payload_of_stored_edges_reaches_the_program(revision: LoadedRevision) -> None:
    warm_up(revision)
    seeds = np.array([5, 0, 5, NODES - 1], np.int64)
    found = infer_batch(revision, "program", seeds, key=0)
    np.testing.assert_allclose(found.scores, [score(node) for node in seeds], rtol=1e-4, atol=1e-5)


def test_payload_of_edges_that_a_request_brings_reaches_the_program(revision: LoadedRevision) -> None:
    """A new node reads two stored ones, and a stored node reads the new one."""
    new, reader = NODES, 7
    features = RANDOM.normal(size=(1, FEATURES)).astype(np.float32)
    edges = np.array([[3, new], [4, new], [new, reader]], np.int64)
    brought = EdgeRows(RANDOM.normal(size=(3, 2)).astype(np.float32), np.array([50, 20, 90]))
    arranger = overlay_arranger(GRAPH, places_of(SCHEMA))
    overlay, seeds = arranger.arrange(
        features, np.zeros(0, np.int64), edges, np.array([new, reader, 9]), payload=brought
    )
    view = view_of(NODES, [Part(len(seeds), overlay, seed=0)], seeds)
    found = infer_batch(revision, "program", seeds, key=0, view=view)
    worth = brought.features * (brought.times[:, None] / 100)
    expected = [
        features[0, :2] + X[3, :2] * worth[0] + X[4, :2] * worth[1], score(reader) + features[0, :2] * worth[2],
        score(9),
    ]  # fmt: skip
    np.testing.assert_allclose(found.scores, expected, rtol=1e-4, atol=1e-5)
