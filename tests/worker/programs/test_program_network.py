"""Programs answer batches as described networks do: in chunks beside each other, with overlays, with repeated seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from tests.support.graphs.graphs import random_graph, read_only
from tests.support.overlays.overlays import FEATURES, NODES, RULES, World, revision_over, scaling_of
from tests.support.programs.programs import export_over_graph, manifest_of

from gnnserve_api.files.edges import EdgeRules
from gnnserve_api.files.graph_schema import one_type
from gnnserve_api.files.programs import ProgramOutput
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD
from gnnserve_api.variants import Storage
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.inference.batch import infer_batch, infer_each, warm_up
from gnnserve_worker.models.program import ProgramNetwork
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.programs.runner import ProgramRunner

CLASSES, HIDDEN = 3, 8


class Model(torch.nn.Module):
    def __init__(self, kind: type[torch.nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = kind(FEATURES, HIDDEN), kind(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.nn.functional.elu(self.first(x, edge_index))
        return self.second(hidden, edge_index), hidden

    def over(self, graph: Graph, features: np.ndarray) -> np.ndarray:
        targets = np.repeat(np.arange(len(graph.indptr) - 1), np.diff(graph.indptr))
        with torch.no_grad():
            scores = self(torch.tensor(features), torch.tensor(np.stack([graph.indices.astype(np.int64), targets])))[0]
        found: np.ndarray = scores.numpy()
        return found


class Programs:
    def __init__(self, folder: Path) -> None:
        self.models = {"SAGE": Model(pyg.SAGEConv), "GCN": Model(pyg.GCNConv)}
        self.runners = {
            name: ProgramRunner(export_over_graph(model, FEATURES, folder / f"{name}.onnx", ("scores", "hidden")), 2)
            for name, model in self.models.items()
        }

    def revision(self, name: str, graph: Graph, features: np.ndarray) -> LoadedRevision:
        scaling, order = scaling_of(features, Normalization.DISABLED), np.arange(FEATURES)
        made = revision_over("GraphSAGE", graph, features, scaling, Storage.FLOAT32, order)
        embeddings = ProgramOutput("hidden", HIDDEN)
        program = manifest_of(columns=CLASSES, embeddings=embeddings, reads_degrees=name == "GCN")
        schema = one_type(graph.nodes, len(graph.indices), FEATURES)
        network = ProgramNetwork(program, schema, self.runners[name], (FEATURES,))
        fanouts = (FULL_NEIGHBOURHOOD,) * program.sampled_hops
        variant = replace(made.variants["x1"], name="program", network=network, fanouts=fanouts)
        return replace(made, variants={"program": variant})


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    made = Programs(tmp_path_factory.mktemp("programs"))
    yield made
    for runner in made.runners.values():
        runner.close()


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["SAGE", "GCN"])
def test_batches_of_any_size_are_answered(programs: Programs, name: str) -> None:
    graph = read_only(random_graph(400, seed=2, mean_degree=4))
    features = np.random.default_rng(0).normal(size=(400, FEATURES)).astype(np.float32)
    revision = programs.revision(name, graph, features)
    expected = programs.models[name].over(graph, features)
    for seeds in (np.array([7]), np.array([3, 3, 9, 3]), np.arange(400)):
        for infer in (infer_batch, infer_each):
            found = infer(revision, "program", seeds.astype(np.int64), 1)
            assert_close(found.scores, expected[seeds])
            assert found.embeddings is not None
            assert found.embeddings.shape == (len(seeds), HIDDEN)
    warm_up(revision)


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: f"{rules.direction}-{rules.duplicates}")
@pytest.mark.parametrize("name", ["SAGE", "GCN"])
def test_overlays_are_answered_as_the_graph_that_has_them(programs: Programs, name: str, rules: EdgeRules) -> None:
    for seed in range(3):
        world = World(seed, rules)
        revision = programs.revision(name, world.graph, world.features)
        expected = programs.models[name].over(world.rebuilt, world.rebuilt_features)
        assert_close(world.answers(revision, "program"), expected[world.seeds])
    assert world.rebuilt.nodes > NODES
