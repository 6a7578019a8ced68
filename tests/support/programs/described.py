"""Models as people have them, for `gnnserve-describe`, and the graphs that they run over."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch_geometric.nn as pyg
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToUndirected

NODES, COLUMNS, CLASSES, EDGE_COLUMNS = 160, 6, 4, 3


def _random_graph() -> Data:
    """Symmetric; its last nodes are isolated."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(0, NODES - 8, (2, 300), generator=generator)
    edges = torch.cat([ends, ends.flip(0)], dim=1)
    return Data(
        x=torch.randn(NODES, COLUMNS, generator=generator),
        edge_index=edges,
        edge_attr=torch.rand(edges.shape[1], EDGE_COLUMNS, generator=generator),
        edge_type=torch.randint(0, 5, (edges.shape[1],), generator=generator),
        y=torch.randint(0, CLASSES, (NODES,), generator=generator),
        train_mask=torch.ones(NODES, dtype=torch.bool),
    )


def _random_typed_graph() -> HeteroData:
    generator = torch.Generator().manual_seed(1)

    def ends(sources: int, targets: int, edges: int) -> torch.Tensor:
        return torch.stack([torch.randint(0, count, (edges,), generator=generator) for count in (sources, targets - 5)])

    data = HeteroData()
    data["paper"].x = torch.randn(120, 7, generator=generator)
    data["paper"].y = torch.randint(0, CLASSES, (120,), generator=generator)
    data["author"].x = torch.randn(80, 5, generator=generator)
    data["author", "writes", "paper"].edge_index = ends(80, 120, 240)
    data["author", "writes", "paper"].edge_attr = torch.rand(240, EDGE_COLUMNS, generator=generator)
    data["paper", "cites", "paper"].edge_index = ends(120, 120, 200)
    return ToUndirected()(data)


GRAPH = _random_graph()
ONE_WAY = Data(x=GRAPH.x, edge_index=GRAPH.edge_index[:, : GRAPH.edge_index.shape[1] // 2], y=GRAPH.y)
TYPED_GRAPH = _random_typed_graph()


class Net(torch.nn.Module):
    """Two convolutions with a norm, dropout and a head."""

    def __init__(self, convolution: Callable[[int, int], torch.nn.Module], norm: torch.nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second = convolution(COLUMNS, 8), convolution(8, 8)
        self.norm = norm or torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.elu(self.norm(self.first(x, edge_index)))
        hidden = torch.nn.functional.dropout(hidden, training=self.training)
        return self.head(self.second(hidden, edge_index))


class EdgeNet(torch.nn.Module):
    """Attention over columns of edges."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = pyg.GATv2Conv(COLUMNS, 4, heads=2, edge_dim=EDGE_COLUMNS)
        self.second = pyg.GINEConv(torch.nn.Linear(8, CLASSES), edge_dim=EDGE_COLUMNS)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, edge_index, edge_attr).relu(), edge_index, edge_attr)


class TypedNet(torch.nn.Module):
    """Convolutions of different kinds by relation, with columns of edges, and a head."""

    def __init__(self, graph: HeteroData = TYPED_GRAPH) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first = pyg.HeteroConv(
            {
                key: pyg.GATv2Conv((-1, -1), 8, add_self_loops=False, edge_dim=EDGE_COLUMNS)
                if "edge_attr" in graph[key]
                else pyg.SAGEConv((-1, -1), 8)
                for key in graph.edge_types
            },
            aggr="mean",
        )
        self.second = pyg.HeteroConv({key: pyg.SAGEConv((-1, -1), 8) for key in graph.edge_types})
        self.head = torch.nn.Linear(8, CLASSES)
        with torch.no_grad():
            self(graph.x_dict, graph.edge_index_dict, graph.edge_attr_dict)

    def forward(self, x_dict: dict, edge_index_dict: dict, edge_attr_dict: dict) -> torch.Tensor:
        hidden = self.first(x_dict, edge_index_dict, edge_attr_dict)
        hidden = {kind: each.relu() for kind, each in hidden.items()}
        return self.head(self.second(hidden, edge_index_dict)["paper"])
