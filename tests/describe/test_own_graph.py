"""Modules that hold something of one graph (a row of weights for each node, edges that were normalised once) run over
others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from safetensors.numpy import load_file
from tests.support.programs.described import CLASSES, COLUMNS, GRAPH, NODES, TYPED_GRAPH, Net
from torch_geometric.data import Data
from torch_geometric.utils import degree, scatter

from gnnserve_describe import Wishes, describe
from gnnserve_describe.graph_file import GRAPH as GRAPH_FILE
from gnnserve_describe.write import WEIGHTS


class OwnTable(Net):
    def __init__(self) -> None:
        super().__init__(pyg.SAGEConv)
        self.table = torch.nn.Embedding(NODES, COLUMNS)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return super().forward(x + self.table.weight, edge_index)


class RowsAlone(torch.nn.Module):
    """Scores nodes by its rows, and reads no graph."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Parameter(torch.randn(NODES, CLASSES))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        del x, edge_index
        return self.rows


@pytest.mark.parametrize(("make", "name", "hops"), [(OwnTable, "table.weight", 2), (RowsAlone, "rows", 0)])
def test_weights_with_a_row_for_each_node_become_features(
    make: type[torch.nn.Module], name: str, hops: int, tmp_path: Path
) -> None:
    module = make().eval()
    made = describe(module, GRAPH, tmp_path / "described")
    assert made.check.difference <= 1e-5 and made.program.hops == hops
    assert any(f"{name} has a row for each node of this graph" in told for told in made.findings)
    features = np.load(made.folder / GRAPH_FILE)["features"]
    rows = dict(module.named_parameters())[name].detach().numpy()
    np.testing.assert_array_equal(features, np.concatenate([GRAPH.x.numpy(), rows], axis=1))
    np.testing.assert_array_equal(load_file(made.folder / WEIGHTS)[name], rows)


class OwnProducts(torch.nn.Module):
    """RGCN without features: a row of weights for each node and base, and the number of nodes in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.FastRGCNConv(NODES, CLASSES, 5, num_bases=2)

    def forward(self, edge_index: torch.Tensor, edge_type: torch.Tensor) -> torch.Tensor:
        return self.conv(None, edge_index, edge_type)


class PartOfTable(torch.nn.Module):
    """One table for all types, of which a part is returned, as MetaPath2Vec does."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(300, CLASSES)

    def forward(self) -> torch.Tensor:
        return self.embedding.weight[40 : 40 + NODES]


@pytest.mark.parametrize(("make", "hops"), [(OwnProducts, 1), (PartOfTable, 0)])
def test_rows_in_other_places_become_features_of_nodes_that_have_none(
    make: type[torch.nn.Module], hops: int, tmp_path: Path
) -> None:
    graph = Data(edge_index=GRAPH.edge_index, edge_type=GRAPH.edge_type, y=GRAPH.y, num_nodes=NODES)
    made = describe(make().eval(), graph, tmp_path / "described")
    assert (made.program.hops, made.program.reads_degrees) == (hops, False)
    assert made.check.difference <= 1e-5


class OwnTypedTable(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.authors = torch.nn.Embedding(80, 3)
        self.conv = pyg.SAGEConv((8, 7), CLASSES)

    def forward(self, x_dict: dict[str, torch.Tensor], edge_index_dict: dict[tuple[str, ...], torch.Tensor]) -> object:
        authors = torch.cat([x_dict["author"], self.authors.weight], dim=1)
        return self.conv((authors, x_dict["paper"]), edge_index_dict["author", "writes", "paper"])


def test_rows_of_one_of_several_types_become_its_features(tmp_path: Path) -> None:
    made = describe(OwnTypedTable().eval(), TYPED_GRAPH, tmp_path / "described", Wishes(target="paper"))
    assert made.check.difference <= 1e-5
    assert any("authors.weight has a row for each node" in told for told in made.findings)


class KeepsNorm(torch.nn.Module):
    """Divides by degrees that it counts once."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(COLUMNS, CLASSES)
        self.kept: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        if self.kept is None:
            self.kept = (edge_index, degree(edge_index[1], x.size(0)).clamp(min=1))
        edges, degrees = self.kept
        read = scatter(self.lin(x)[edges[0]], edges[1], dim=0, dim_size=x.size(0))
        return read / degrees.unsqueeze(1)


@pytest.mark.parametrize("was_called", [False, True])
def test_what_a_module_keeps_of_a_graph_is_made_anew_in_each_call(was_called: bool, tmp_path: Path) -> None:
    module = KeepsNorm().eval()
    if was_called:
        module(GRAPH.x, GRAPH.edge_index)
    made = describe(module, GRAPH, tmp_path / "described")
    assert made.check.difference <= 1e-5
    assert any("kept keeps what was made of one graph" in told for told in made.findings) is was_called
    assert (module.kept is not None) is was_called, "the user's module stays as it is"
