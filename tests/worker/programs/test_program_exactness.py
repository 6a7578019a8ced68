"""Programs over samples of whole neighbourhoods score nodes as the module does over the whole graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from tests.support.graphs.graphs import dense_features, random_graph, table_of
from tests.support.programs.programs import check_program_file, export_over_graph, manifest_of

from gnnserve_api.files.graph_schema import one_type
from gnnserve_api.files.programs import ProgramManifest, ProgramOutput
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD
from gnnserve_api.variants import Storage
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.models.network import Activations
from gnnserve_worker.models.program import ProgramNetwork
from gnnserve_worker.programs.race import check_repeats
from gnnserve_worker.programs.runner import ProgramRunner
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch, sample_neighbours

pytestmark = pytest.mark.campaign("served")

NODES, COLUMNS, CLASSES, HIDDEN = 120, 6, 3, 8
GRAPH = random_graph(NODES, seed=4, mean_degree=3)
FEATURES = dense_features(NODES, COLUMNS, seed=5)
SCHEMA = one_type(NODES, len(GRAPH.indices), COLUMNS)
TABLE = table_of(FEATURES)
EDGES = np.stack([GRAPH.indices.astype(np.int64), np.repeat(np.arange(NODES), np.diff(GRAPH.indptr))])
SEEDS = np.array([5, 80, 2, 119, 7, int(np.flatnonzero(np.diff(GRAPH.indptr) == 0)[0])], np.int64)


class Headed(torch.nn.Module):
    """Two convolutions with what people put around them: a norm, ELU, a residual, a head."""

    def __init__(self, convolution: Callable[[int, int], torch.nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = convolution(COLUMNS, HIDDEN), convolution(HIDDEN, HIDDEN)
        self.norm = torch.nn.BatchNorm1d(HIDDEN)
        self.norm.running_mean = torch.randn(HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.nn.functional.elu(self.norm(self.first(x, edge_index)))
        hidden = hidden + self.second(hidden, edge_index)
        return self.head(hidden), hidden


CONVOLUTIONS = {
    "SAGE": (pyg.SAGEConv, False),
    "GATv2": (pyg.GATv2Conv, False),
    "GCN": (pyg.GCNConv, True),
}


def sample_of(program: ProgramManifest, seeds: np.ndarray, *, share: bool, graph: Graph = GRAPH) -> NeighbourSample:
    fanouts = (FULL_NEIGHBOURHOOD,) * program.sampled_hops
    return sample_neighbours(graph.indptr, graph.indices, seeds, fanouts, 0, Scratch(), share=share, names_leaves=True)


class Served:
    def __init__(self, name: str, folder: Path) -> None:
        convolution, reads_degrees = CONVOLUTIONS[name]
        self.module = Headed(convolution)
        path = export_over_graph(self.module, COLUMNS, folder / f"{name}.onnx", ("scores", "hidden"))
        embeddings = ProgramOutput("hidden", HIDDEN)
        self.program = manifest_of(columns=CLASSES, embeddings=embeddings, reads_degrees=reads_degrees)
        check_program_file(path, self.program)
        self.runner = ProgramRunner(path, 2)
        self.network = ProgramNetwork(self.program, SCHEMA, self.runner, (COLUMNS,))
        with torch.no_grad():
            found = self.module(torch.tensor(FEATURES), torch.tensor(EDGES))
        self.scores, self.embeddings = (each.numpy() for each in found)

    def infer(self, seeds: np.ndarray, *, share: bool) -> tuple[np.ndarray, np.ndarray]:
        sample = sample_of(self.program, seeds, share=share)
        scores, embeddings = (np.empty((len(seeds), size), np.float32) for size in (CLASSES, HIDDEN))
        gathered = self.network.gather(TABLE, sample, Activations())
        self.network.infer(gathered, sample, Activations(), scores, embeddings)
        return scores, embeddings


@pytest.fixture(scope="module", params=CONVOLUTIONS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(request.param, tmp_path_factory.mktemp("programs"))
    yield made
    made.runner.close()


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


@pytest.mark.parametrize("share", [True, False], ids=["shared", "apart"])
@pytest.mark.parametrize(
    "seeds", [SEEDS, SEEDS[:1], np.arange(NODES), np.array([4, 9, 4])], ids=["several", "one", "all", "repeated"]
)
def test_scores_are_those_of_the_whole_graph(served: Served, seeds: np.ndarray, share: bool) -> None:
    scores, embeddings = served.infer(seeds.astype(np.int64), share=share)
    assert_close(scores, served.scores[seeds])
    assert_close(embeddings, served.embeddings[seeds])


def test_twenty_runs_over_a_large_sample_are_equal(served: Served) -> None:
    """Thousands of rows: the graph many times beside itself."""
    times = 40
    x = np.tile(FEATURES, (times, 1))
    edges = np.concatenate([EDGES + NODES * copy for copy in range(times)], axis=1)
    (scores,) = check_repeats(served.runner, {"x": x, "edge_index": edges}, (served.program.scores,), len(x))
    assert_close(scores, np.tile(served.scores, (times, 1)))


def test_degrees_are_wrong_without_one_hop_more(tmp_path: Path) -> None:
    """Why such a program is sampled deeper."""
    served = Served("GCN", tmp_path)
    served.program = manifest_of(columns=CLASSES, embeddings=served.program.embeddings)
    scores, _ = served.infer(SEEDS, share=True)
    assert np.abs(scores - served.scores[SEEDS]).max() > 1e-3
    served.runner.close()


def test_rows_of_any_storage_are_read(served: Served) -> None:
    sample = sample_of(served.program, SEEDS, share=True)
    for storage, most in ((Storage.BFLOAT16, 0.05), (Storage.INT8, 0.1)):
        scores = np.empty((len(SEEDS), CLASSES), np.float32)
        gathered = served.network.gather(table_of(FEATURES, storage), sample, Activations())
        served.network.infer(gathered, sample, Activations(), scores)
        assert 0 < np.abs(scores - served.scores[SEEDS]).max() < most * np.abs(served.scores).max()
