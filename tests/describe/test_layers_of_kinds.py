"""Kinds of edges that a module tells apart are convolutions over some of the edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from tests.support.programs.described import CLASSES, COLUMNS, EDGE_COLUMNS, GRAPH
from tests.support.programs.read_layers import Read
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.utils import scatter

from gnnserve_api.files.layers import Aggregation, Combination, Convolution, EdgeFilter
from gnnserve_describe.layers.values import NotLayersError

KINDS, WIDTH = 5, 8


class OverKinds(nn.Module):
    """Two layers over kinds of edges."""

    def __init__(self, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.one, self.two = make(COLUMNS, WIDTH), make(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        x = self.one(x, edge_index, edge_type).relu()
        found: Tensor = self.two(x, edge_index, edge_type)
        return found


class Masked(nn.Module):
    """A convolution for each kind."""

    def __init__(self, make: Callable[[], nn.Module], own: nn.Module) -> None:
        super().__init__()
        self.convs, self.own = nn.ModuleList([make() for _ in range(KINDS)]), own

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        found: Tensor = self.own(x)
        for kind, conv in enumerate(self.convs):
            found = found + conv(x, edge_index[:, edge_type == kind])
        return found


class ByHand(nn.Module):
    """Means, or sums of rows that are chosen for each edge."""

    def __init__(self, columns: int, width: int, *, is_chosen: bool) -> None:
        super().__init__()
        self.lins = nn.ModuleList([nn.Linear(columns, width, bias=False) for _ in range(KINDS)])
        self.is_chosen = is_chosen

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        source, target = edge_index
        if self.is_chosen:
            rows = torch.zeros(len(source), 1)
            for kind, lin in enumerate(self.lins):
                rows = torch.where((edge_type == kind).unsqueeze(1), lin(x[source]), rows)
            return scatter(rows, target, dim=0, dim_size=len(x))
        found = torch.zeros(len(x), 1)
        for kind, lin in enumerate(self.lins):
            some = edge_type == kind
            found = found + lin(scatter(x[source[some]], target[some], dim=0, dim_size=len(x), reduce="mean"))
        return found


MODULES: Mapping[str, tuple[Callable[[int, int], nn.Module], Convolution]] = {
    "RGCN": (lambda i, o: pyg.RGCNConv(i, o, KINDS), Convolution.GRAPH_CONV),
    "RGCN, of bases, sums": (
        lambda i, o: pyg.RGCNConv(i, o, KINDS, num_bases=2, aggr="add", root_weight=False), Convolution.GRAPH_CONV
    ),
    "RGCN, of blocks, without a bias": (
        lambda i, o: pyg.RGCNConv(i, o, KINDS, num_blocks=2, bias=False), Convolution.GRAPH_CONV
    ),
    "RGCN, the fast one": (lambda i, o: pyg.FastRGCNConv(i, o, KINDS, num_bases=3), Convolution.GRAPH_CONV),
    "SAGE of each kind": (
        lambda i, o: Masked(lambda: pyg.SAGEConv(i, o, root_weight=False), nn.Linear(i, o)), Convolution.GRAPH_SAGE
    ),
    "GAT of each kind": (
        lambda i, o: Masked(lambda: pyg.GATConv(i, o // 2, 2, add_self_loops=False), nn.Linear(i, o)), Convolution.GAT
    ),
    "RGAT": (lambda i, o: pyg.RGATConv(i, o, KINDS), Convolution.RGAT),
    "RGAT, of bases, several heads": (
        lambda i, o: pyg.RGATConv(i, o // 2, KINDS, num_bases=2, heads=2), Convolution.RGAT
    ),
    "RGAT, of blocks, averaged, without a bias": (
        lambda i, o: pyg.RGATConv(i, o, KINDS, num_blocks=2, heads=2, concat=False, bias=False), Convolution.RGAT
    ),
    "RGAT, of each kind apart": (
        lambda i, o: pyg.RGATConv(i, o, KINDS, attention_mechanism="within-relation", heads=2, concat=False),
        Convolution.RGAT,
    ),
    "means by hand": (lambda i, o: ByHand(i, o, is_chosen=False), Convolution.GRAPH_CONV),
    "rows chosen by hand": (lambda i, o: ByHand(i, o, is_chosen=True), Convolution.GRAPH_CONV),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_each_kind_has_a_convolution(name: str) -> None:
    make, conv = MODULES[name]
    graph = Data(x=GRAPH.x, edge_index=GRAPH.edge_index, edge_type=GRAPH.edge_type, y=GRAPH.y)
    first, second = Read(OverKinds(make), graph).check().layers
    assert {each.conv for each in (*first.convs, *second.convs)} == {conv}
    assert [each.where for each in first.convs] == [EdgeFilter("0", float(kind)) for kind in range(KINDS)]


@pytest.mark.parametrize(("mechanism", "combination"), [
    ("across-relation", Combination.ATTENTION), ("within-relation", Combination.SUM),
])  # fmt: skip
def test_attention_over_kinds_reads_columns_of_edges(mechanism: str, combination: Combination) -> None:
    class WithColumns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.RGATConv(COLUMNS, 4, KINDS, attention_mechanism=mechanism, heads=2, edge_dim=EDGE_COLUMNS)
            self.lin, self.skip = nn.Linear(WIDTH, CLASSES), nn.Linear(COLUMNS, WIDTH)

        def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor, edge_attr: Tensor) -> Tensor:
            found: Tensor = self.lin((self.conv(x, edge_index, edge_type, edge_attr) + self.skip(x)).relu())
            return found

    graph = Data(
        x=GRAPH.x, edge_index=GRAPH.edge_index, edge_type=GRAPH.edge_type, edge_attr=GRAPH.edge_attr, y=GRAPH.y
    )
    (layer,) = Read(WithColumns(), graph).check().layers
    assert (layer.combination, layer.own) == (combination, True)
    assert {len(each.edge_columns) for each in layer.convs} == {EDGE_COLUMNS}


@pytest.mark.parametrize("options", [{"mod": "additive"}, {"attention_mode": "multiplicative-self-attention"}])
def test_attention_over_kinds_that_no_layer_has_is_told(options: dict[str, str]) -> None:
    module = OverKinds(lambda i, o: pyg.RGATConv(i, o, KINDS, **options))
    graph = Data(x=GRAPH.x, edge_index=GRAPH.edge_index, edge_type=GRAPH.edge_type, y=GRAPH.y)
    ((name, value),) = options.items()
    with pytest.raises(NotLayersError, match=f"RGATConv has {name}={value!r}, which no layer has"):
        Read(module, graph)


def test_weights_with_a_row_for_each_node_are_features_of_a_network_over_kinds() -> None:
    """RGCN without features, as `describe` calls it once its weights are features of the nodes."""
    nodes, bases = len(GRAPH.x), 3
    torch.manual_seed(4)
    conv = pyg.RGCNConv(nodes, CLASSES, KINDS, num_bases=bases)

    class Rows(nn.Module):
        def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Any:
            weight, root = torch.unflatten(x[:, : bases * CLASSES], 1, (bases, CLASSES)), x[:, bases * CLASSES :]
            given = {"weight": weight.movedim(0, 1).contiguous(), "root": root, "comp": comp, "bias": bias}
            conv.in_channels_l = len(x)
            return torch.func.functional_call(self.conv, given, (None, edge_index, edge_type))

        def __init__(self) -> None:
            super().__init__()
            self.conv = conv

    comp, bias = conv.comp.detach(), conv.bias.detach()
    x = torch.cat([conv.weight.detach().movedim(1, 0).flatten(1), conv.root.detach()], dim=1)
    graph = Data(x=x, edge_index=GRAPH.edge_index, edge_type=GRAPH.edge_type, y=GRAPH.y)
    (layer,) = Read(Rows(), graph).check().layers
    assert [each.aggregations for each in layer.convs] == [(Aggregation.MEAN,)] * KINDS
    assert layer.own


REFUSED: Mapping[str, tuple[Callable[..., Tensor], str]] = {
    "kinds as numbers": (lambda conv, x, edges, kinds: conv(x, edges) * kinds.float().mean(), "is no part of a layer"),
    "attention over some edges by hand": (
        lambda conv, x, edges, kinds: functional.relu(
            torch.zeros(len(x), COLUMNS).index_add(
                0, edges[1][kinds == 1], x[edges[0][kinds == 1]] * x[edges[1][kinds == 1]]
            )
        ), "is no part of a layer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_layer_is_told(name: str) -> None:
    function, words = REFUSED[name]

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.SAGEConv(COLUMNS, COLUMNS)

        def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
            return function(self.conv, x, edge_index, edge_type)

    graph = Data(x=GRAPH.x, edge_index=GRAPH.edge_index, edge_type=GRAPH.edge_type, y=GRAPH.y)
    with pytest.raises(Exception, match=words):
        Read(Module(), graph)
