"""A program that reads features and times of edges answers about what requests bring of them, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from tests.support.changes.living import batch_of, stored_ids
from tests.support.generation.repository import RANKING, TABLE, repository_in, tiny_profile, write_features
from tests.support.graphs.graphs import random_graph
from tests.support.overlays.overlays import FEATURES, revision_over, scaling_of
from tests.support.programs.programs import export, manifest_of

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.graph_schema import one_type
from gnnserve_api.files.programs import InputRole, ProgramInput
from gnnserve_api.files.repository import RowSource, VariantManifest, program_network
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD
from gnnserve_api.variants import Storage
from gnnserve_worker.graph.change_batch import BatchEffect
from gnnserve_worker.graph.overlay import EdgeRows, overlay_arranger
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.relation_lists import places_of
from gnnserve_worker.graph.store import Graph, GraphData, Splits
from gnnserve_worker.inference.batch import infer_batch, warm_up
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.models.program import ProgramNetwork
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.programs.runner import ProgramRunner
from gnnserve_worker.sampling.batch_view import Part, view_of

NODES = 60
INPUTS = (
    ProgramInput("x", InputRole.FEATURES),
    ProgramInput("edge_index", InputRole.EDGES),
    ProgramInput("edge_attr", InputRole.EDGE_FEATURES),
    ProgramInput("edge_time", InputRole.EDGE_TIMES),
)


PROGRAM = manifest_of(INPUTS, hops=1, columns=2)


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
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    example = {
        "x": np.ones((7, FEATURES), np.float32), "edge_index": np.zeros((2, 9), np.int64),
        "edge_attr": np.ones((9, 2), np.float32), "edge_time": np.ones(9, np.int64),
    }  # fmt: skip
    free = {"x": {0: "nodes"}, "edge_index": {1: "edges"}, "edge_attr": {0: "edges"}, "edge_time": {0: "edges"}}
    return export(Model(), example, free, tmp_path_factory.mktemp("payload") / "model.onnx")


@pytest.fixture(scope="module")
def revision(exported: Path) -> Iterator[LoadedRevision]:
    runner = ProgramRunner(exported, 2)
    made = revision_over(
        "GraphSAGE", GRAPH, X, scaling_of(X, Normalization.DISABLED), Storage.FLOAT32, np.arange(FEATURES)
    )
    network = ProgramNetwork(PROGRAM, SCHEMA, runner, (FEATURES,))
    variant = replace(made.variants["x1"], name="program", network=network, fanouts=(FULL_NEIGHBOURHOOD,))
    yield replace(made, variants={"program": variant}, reading=replace(made.reading, payloads=(PAYLOAD,)))
    runner.close()


def score(node: int, features: np.ndarray = X) -> np.ndarray:
    """The score of a stored node, edge by edge."""
    begin, end = GRAPH.indptr[node : node + 2]
    rows = ROWS[begin:end]
    messages = features[GRAPH.indices[begin:end], :2] * ATTR[rows] * (TIME[rows, None] / 100)
    found: np.ndarray = features[node, :2] + messages.sum(0)
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


def test_changes_of_the_graph_reach_the_program(tmp_path: Path, exported: Path) -> None:
    """A new node, edges with payload to it and from it, other features of a node that it reads, and an edge that
    leaves."""
    repository = repository_in(tmp_path)
    data = GraphData.of_one_type(
        "a test", "abcd", replace(GRAPH), X, np.arange(NODES) % 2, (0, 1),
        Splits(np.arange(20), np.arange(20, 40), np.arange(40, NODES)), RULES, ids=stored_ids(list(range(NODES))),
        payload=PAYLOAD,
    )  # fmt: skip
    with repository.locked(None):
        repository.put_graph(data)
        with repository.stage("recipe", data.digest) as staged:
            write_features(staged, X, range(FEATURES))
            network = program_network(staged.write_program("x1", exported.parent, PROGRAM))
            assert network.program
            variant = VariantManifest(
                name="x1", family="pruned", table=TABLE, columns=FEATURES, fanouts=network.fanouts,
                network=network, compute="float32", weights=network.program.file,
            )  # fmt: skip
            ranking = msgspec.structs.replace(RANKING, columns=tuple(range(FEATURES)))
            manifest = staged.commit(
                scope="Inductive", ranking=ranking, variants=[variant], profile=tiny_profile({"x1": FEATURES}),
                row_source=RowSource((), Normalization.DISABLED, None), edge_rules=RULES, generator="a test",
                created_at="2026-01-01T00:00:00Z",
            )  # fmt: skip
    loaded = load_revision(repository, manifest.revision, 1 << 26)
    living = LivingRevision(loaded, 1 << 26)
    warm_up(loaded)
    new, reader, read = 1000, 7, 3
    rows = RANDOM.normal(size=(2, FEATURES)).astype(np.float32)
    left = int(np.flatnonzero(np.diff(GRAPH.indptr) == 1)[-1])
    assert left not in (reader, read, 9)
    leaving = int(GRAPH.indices[GRAPH.indptr[left]])
    attr, time = RANDOM.normal(size=(2, 2)).astype(np.float32), np.array([50, 90])
    batch = batch_of(rows, [new], [read], [(read, new), (new, reader)], [(leaving, left)])
    (said,) = living.apply(1, [msgspec.structs.replace(batch, edge_features=attr, edge_times=time)])
    assert isinstance(said, BatchEffect)
    found = infer_batch(loaded, "x1", np.array([NODES, reader, left, 9], np.int64), key=0)
    worth = attr * (time[:, None] / 100)
    features = X.copy()
    features[read] = rows[1]
    expected = [
        rows[0, :2] + features[read, :2] * worth[0],
        score(reader, features) + rows[0, :2] * worth[1],
        features[left, :2],
        score(9, features),
    ]
    np.testing.assert_allclose(found.scores, expected, rtol=1e-4, atol=1e-5)
    # Influences ask about a node without an edge, which a change may have brought.
    graph, stands_for = loaded.graph, served_revision(loaded, living).compute.overlays.stand_in(reader)
    assert not isinstance(stands_for, str)
    listed = np.sort(graph.list_of(reader)).astype(np.int64)
    assert NODES in listed
    without = [score(reader, features) + rows[0, :2] * worth[1], score(reader, features)]
    for read, scores in zip(([listed], [listed[listed != NODES]]), without, strict=True):
        overlay, seeds = stands_for(read)
        view = view_of(graph.nodes, [Part(1, overlay, seed=0)], seeds)
        np.testing.assert_allclose(
            infer_batch(loaded, "x1", seeds, key=0, view=view).scores, [scores], rtol=1e-4, atol=1e-5
        )
