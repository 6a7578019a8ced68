"""Hops and degrees are measured, over graphs whose edges go both ways and over others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch_geometric.nn as pyg
from tests.support.programs.described import COLUMNS, GRAPH, ONE_WAY, Net
from torch_geometric.data import Data
from torch_geometric.utils import degree

from gnnserve_api.errors import InputError
from gnnserve_describe import describe
from gnnserve_describe.example import example_of
from gnnserve_describe.findings import Findings
from gnnserve_describe.probe import make_probe, shape_of
from gnnserve_describe.reach import Reach, measure_reach
from gnnserve_describe.scored import nodes_of
from gnnserve_describe.scoring import Scorer, outputs_of


class Propagating(torch.nn.Module):
    def __init__(self, hops: int) -> None:
        super().__init__()
        self.propagate = pyg.APPNP(hops, 0.1)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.propagate(x, edge_index)


class CountingOut(torch.nn.Module):
    """Reads how many edges leave each neighbour."""

    def __init__(self) -> None:
        super().__init__()
        self.first = pyg.SimpleConv("sum")

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.first(x / (1 + degree(edge_index[0], len(x), dtype=x.dtype)).unsqueeze(1), edge_index)


class Numbering(torch.nn.Module):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(len(x), dtype=x.dtype).unsqueeze(1)


class Counted(torch.nn.Module):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        if len(x) < 40:
            raise IndexError("fewer rows than the layer was made for")
        rows: torch.Tensor = x.index_add(0, edge_index[1], x[edge_index[0]])
        return rows


class Alone(torch.nn.Module):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return x.relu()


def reach_of(module: torch.nn.Module, graph: Data, hops: int | None = None) -> Reach:
    module = module.eval()
    example = example_of(module, graph, nodes_of(None))
    probe = make_probe(example.graph, shape_of(example.graph), 0)
    outputs = outputs_of(module, example.call, probe.graph, "", None)
    return measure_reach(Scorer(module, example.call, outputs), probe, hops, Findings())


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("make", "graph", "reach"),
    [
        (lambda: Net(pyg.SAGEConv), GRAPH, Reach(2, reads_degrees=False)),
        (lambda: Net(pyg.SAGEConv), ONE_WAY, Reach(2, reads_degrees=False)),
        (lambda: Net(pyg.GATv2Conv), GRAPH, Reach(2, reads_degrees=False)),
        (lambda: Net(pyg.GCNConv), GRAPH, Reach(2, reads_degrees=True)),
        (lambda: Net(pyg.GCNConv), ONE_WAY, Reach(2, reads_degrees=True)),
        (lambda: Propagating(7), GRAPH, Reach(7, reads_degrees=True)),
        # Edges that leave are seen two hops further where each has a reverse.
        (CountingOut, GRAPH, Reach(2, reads_degrees=True)),
        (Alone, GRAPH, Reach(0, reads_degrees=False)),
    ],
    ids=["SAGE", "SAGE one way", "GATv2", "GCN", "GCN one way", "APPNP", "out-degrees", "no neighbours"],
)
def test_hops_and_degrees(make: Callable[[], torch.nn.Module], graph: Data, reach: Reach) -> None:
    assert reach_of(make(), graph) == reach


def test_more_hops_may_be_asked_for() -> None:
    assert reach_of(Net(pyg.SAGEConv), GRAPH, hops=3) == Reach(3, reads_degrees=False)


@pytest.mark.parametrize(
    ("make", "graph", "words"),
    [
        (lambda: Propagating(20), GRAPH, "more than 8 hops away"),
        (CountingOut, ONE_WAY, "count edges that leave a node"),
        (Numbering, GRAPH, "look at the numbers of nodes"),
        (Counted, ONE_WAY, "fails over a sample of neighbours: IndexError: fewer rows"),
        (lambda: Net(pyg.SAGEConv, pyg.GraphNorm(8)), GRAPH, r"norm \(GraphNorm, a norm over all nodes\)"),
        (lambda: Net(pyg.SAGEConv, pyg.PairNorm()), GRAPH, "PairNorm"),
        (
            lambda: Net(pyg.SAGEConv, torch.nn.BatchNorm1d(8, track_running_stats=False)), GRAPH,
            "track_running_stats=False",
        ),
    ],
    ids=["20 hops", "out-degrees one way", "numbers of nodes", "an error", "GraphNorm", "PairNorm", "its batch"],
)  # fmt: skip
def test_what_no_sample_gives_is_refused(make: Callable[[], torch.nn.Module], graph: Data, words: str) -> None:
    with pytest.raises(InputError, match=words):
        reach_of(make(), graph)


def test_features_that_are_all_equal_tell_no_hops_but_samples_do() -> None:
    """Degrees alone are read then."""
    graph = Data(x=torch.ones(len(GRAPH.x), COLUMNS), edge_index=GRAPH.edge_index)
    found = reach_of(Net(pyg.GCNConv), graph)
    assert found.sampled_hops == 3


def test_a_module_that_reads_many_hops_is_measured_over_a_graph_of_more_levels(tmp_path: Path) -> None:
    made = describe(Propagating(12).eval(), GRAPH, tmp_path / "described")
    assert (made.program.hops, made.program.reads_degrees) == (12, True)
    assert made.check.difference <= 1e-5
