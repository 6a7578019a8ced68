"""A live module is read into layers whose scores are its own, or a sentence says what in it is no layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from tests.support.programs.described import CLASSES, COLUMNS, EDGE_COLUMNS, GRAPH, TYPED_GRAPH, EdgeNet, Net, TypedNet
from tests.support.programs.read_layers import Forward, Read, read
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import scatter, softmax

from gnnserve_api.files.layers import (
    Activation,
    Combination,
    Convolution,
    JumpingKnowledge,
    LayersManifest,
    Norm,
    Residual,
    ResidualPlace,
)
from gnnserve_api.manifest import load_manifest
from gnnserve_api.spec.layers import layers_manifest
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD, NO_NEIGHBOURS
from gnnserve_describe import Description, describe, links_of
from gnnserve_describe.layers.values import NotLayersError
from gnnserve_describe.write import LAYERS_MANIFEST, MANIFEST
from gnnserve_worker.graph.sources.load import load_source

WIDTH = 8


# Convolutions


def _mlp(columns: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(columns, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, width))


_DEGREES = torch.bincount(torch.bincount(GRAPH.edge_index[1], minlength=len(GRAPH.x)))
ONE_TYPE: Mapping[str, Callable[[int, int], nn.Module]] = {
    "SAGE": pyg.SAGEConv,
    "SAGE, max, projected, without its own row": lambda i, o: pyg.SAGEConv(
        i, o, "max", project=True, root_weight=False, bias=False
    ),
    "SAGE, of several aggregations, unit rows": lambda i, o: pyg.SAGEConv(
        i, o, ["mean", "std", "softmax"], normalize=True
    ),
    "GCN": pyg.GCNConv,
    "GCN without self-loops": lambda i, o: pyg.GCNConv(i, o, add_self_loops=False, bias=False),
    "GraphConv": pyg.GraphConv,
    "GAT, heads beside each other, a residual": lambda i, o: pyg.GATConv(i, o // 4, 4, residual=True),
    "GAT, means of heads": lambda i, o: pyg.GATConv(i, o, 2, concat=False, negative_slope=0.1, add_self_loops=False),
    "GATv2, shared": lambda i, o: pyg.GATv2Conv(i, o // 2, 2, share_weights=True),
    "Transformer with a gate": lambda i, o: pyg.TransformerConv(i, o // 2, 2, beta=True),
    "Transformer without its own row": lambda i, o: pyg.TransformerConv(i, o, root_weight=False),
    "GIN": lambda i, o: pyg.GINConv(_mlp(i, o), train_eps=True, eps=0.3),
    "PNA": lambda i, o: pyg.PNAConv(
        i, o, ["mean", "max", "std"], ["identity", "amplification", "linear"], _DEGREES, towers=2, post_layers=2
    ),
    "TAG": lambda i, o: pyg.TAGConv(i, o, K=2),
    "Chebyshev": lambda i, o: pyg.ChebConv(i, o, K=3),
    "SGC": lambda i, o: pyg.SGConv(i, o, K=2),
    "GEN": lambda i, o: pyg.GENConv(i, o, t=0.7, num_layers=2, norm="batch"),
    "GEN of as many columns": lambda i, o: pyg.GENConv(i, o, learn_t=True, norm="layer", num_layers=3),
    "FiLM": pyg.FiLMConv,
    "FiLM without an activation": lambda i, o: pyg.FiLMConv(i, o, act=None),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_TYPE)
def test_a_convolution_is_read_with_its_options(name: str) -> None:
    layers = read(Net(ONE_TYPE[name]))
    first = layers.layers[0]
    assert (first.norm, first.activation) == (Norm.BATCH, Activation.ELU)
    assert [each.width for each in layers.head] == [CLASSES]


def test_columns_of_edges_are_read_by_attention_and_by_products() -> None:
    first, second = read(EdgeNet()).layers
    assert [each.convs[0].edge_columns for each in (first, second)] == [("0", "1", "2")] * 2


def test_products_of_columns_of_edges_are_part_of_a_convolution() -> None:
    def forward(parts: Any, x: Tensor, edges: Tensor, columns: Tensor) -> Tensor:
        x = parts["agnn"](parts["lin"](x).relu(), edges)
        return parts["out"](parts["gen"](x, edges, parts["encoder"](columns)).relu())

    layers = read(
        Forward(
            forward, lin=nn.Linear(COLUMNS, WIDTH), agnn=pyg.AGNNConv(), encoder=nn.Linear(EDGE_COLUMNS, WIDTH),
            gen=pyg.GENConv(WIDTH, WIDTH), out=nn.Linear(WIDTH, CLASSES),
        )
    )  # fmt: skip
    assert [each.convs[0].conv for each in layers.layers] == [Convolution.AGNN, Convolution.GEN]
    assert layers.layers[1].convs[0].edge_columns == ("0", "1", "2")


def test_a_column_of_edges_weighs_sums() -> None:
    conv = pyg.GCNConv(COLUMNS, CLASSES)
    layers = read(Forward(lambda parts, x, edges, columns: parts["conv"](x, edges, columns[:, 1]), conv=conv))
    assert layers.layers[0].convs[0].edge_weight == "1"


def test_several_hops_keep_a_share_of_the_input() -> None:
    def forward(parts: Any, x: Tensor, edges: Tensor, _: Tensor) -> Tensor:
        x = first = parts["lin"](x).relu()
        for name in ("one", "two"):
            x = parts[name](x, first, edges).relu()
        return parts["prop"](parts["out"](x), edges)

    layers = read(
        Forward(
            forward, lin=nn.Linear(COLUMNS, WIDTH), one=pyg.GCN2Conv(WIDTH, 0.1, 0.5, 1),
            two=pyg.GCN2Conv(WIDTH, 0.1, 0.5, 2, shared_weights=False), out=nn.Identity(), prop=pyg.APPNP(2, 0.2),
        )
    )  # fmt: skip
    assert [each.convs[0].conv for each in layers.layers] == [Convolution.GCNII] * 2 + [Convolution.APPNP]
    assert layers.layers[1].convs[0].theta == pytest.approx(0.5)


# What stands around convolutions


def _convs(*widths: int) -> dict[str, nn.Module]:
    return {f"conv{place}": pyg.SAGEConv(*pair) for place, pair in enumerate(pairwise(widths))}


def test_residuals_are_told_apart_by_where_they_are_added() -> None:
    def forward(parts: Any, x: Tensor, edges: Tensor, _: Tensor) -> Tensor:
        first = parts["lin"](x)
        x = functional.gelu(parts["norm"](parts["conv0"](first, edges))) + first
        x = functional.gelu(parts["norm"](parts["conv1"](x, edges)) + parts["skip"](x))
        x = functional.gelu(parts["norm"](parts["conv2"](x, edges) + x))
        x = (parts["conv3"](x, edges).tanh() + x) / 2
        x = parts["norm"](functional.silu(parts["conv4"](x, edges))) + first
        return parts["out"](x)

    layers = read(
        Forward(
            forward, lin=nn.Linear(COLUMNS, WIDTH), norm=nn.LayerNorm(WIDTH), skip=nn.Linear(WIDTH, WIDTH),
            out=nn.Linear(WIDTH, CLASSES), **_convs(*[WIDTH] * 6),
        )
    )  # fmt: skip
    assert [(each.residual, each.residual_place) for each in layers.layers] == [
        (Residual.ADDED, ResidualPlace.BEHIND_ACTIVATION),
        (Residual.PROJECTED, ResidualPlace.BEFORE_ACTIVATION),
        (Residual.ADDED, ResidualPlace.BEFORE_NORM),
        (Residual.AVERAGED, ResidualPlace.BEHIND_ACTIVATION),
        (Residual.ADDED, ResidualPlace.BEHIND_ACTIVATION),
    ]
    assert [each.reads_input for each in layers.layers] == [False] * 4 + [True]
    assert [each.is_norm_behind for each in layers.layers] == [False] * 4 + [True]


@pytest.mark.parametrize(("power", "norm"), [(1, Norm.L1), (2, Norm.L2)])
def test_rows_are_divided_by_sums_or_lengths(power: int, norm: Norm) -> None:
    def forward(parts: Any, x: Tensor, edges: Tensor, _: Tensor) -> Tensor:
        return parts["out"](functional.normalize(parts["conv0"](x, edges), p=power, dim=-1).relu())

    layers = read(Forward(forward, out=nn.Linear(WIDTH, CLASSES), **_convs(COLUMNS, WIDTH)))
    assert layers.layers[0].norm is norm


def test_norms_and_activations_may_stand_before_convolutions() -> None:
    convs = {
        f"layer{place}": pyg.DeepGCNLayer(pyg.SAGEConv(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU())
        for place in (1, 2)
    }

    def forward(parts: Any, x: Tensor, edges: Tensor, _: Tensor) -> Tensor:
        x = parts["first"](x, edges)
        for place in (1, 2):
            x = parts[f"layer{place}"](x, edges)
        return parts["out"](parts["norm"](x).relu())

    layers = read(
        Forward(
            forward,
            first=pyg.SAGEConv(COLUMNS, WIDTH),
            norm=nn.LayerNorm(WIDTH),
            out=nn.Linear(WIDTH, CLASSES),
            **convs,
        )
    )
    assert [each.is_pre_activated for each in layers.layers] == [False, True, True]


JUMPS = [
    ("cat", JumpingKnowledge.CAT), ("max", JumpingKnowledge.MAX), ("lstm", JumpingKnowledge.LSTM),
    (None, JumpingKnowledge.LAST),
]  # fmt: skip


@pytest.mark.parametrize(("jk", "wanted"), JUMPS, ids=[str(jk) for jk, _ in JUMPS])
def test_models_of_torch_geometric_are_read_with_their_arguments(jk: str | None, wanted: JumpingKnowledge) -> None:
    module = pyg.GraphSAGE(COLUMNS, WIDTH, 3, CLASSES, norm="batch_norm", act="leaky_relu", act_first=True, jk=jk)
    layers = read(module)
    assert layers.jumping_knowledge is wanted
    assert layers.layers[0].is_norm_behind


def test_a_head_reads_features_and_some_of_the_layers() -> None:
    def forward(parts: Any, x: Tensor, edges: Tensor, _: Tensor) -> Tensor:
        one = parts["conv0"](x, edges).relu()
        two = parts["act"](parts["conv1"](one, edges))
        three = parts["conv2"](two, edges).relu()
        return parts["out"](functional.elu(parts["hidden"](torch.cat([x, one, three], dim=-1)), 0.5))

    layers = read(
        Forward(
            forward, hidden=nn.Linear(COLUMNS + 2 * WIDTH, WIDTH), out=nn.Linear(WIDTH, CLASSES), act=nn.PReLU(WIDTH),
            **_convs(COLUMNS, WIDTH, WIDTH, WIDTH),
        )
    )  # fmt: skip
    assert (layers.jumping_knowledge, layers.head_reads_input) == (JumpingKnowledge.CAT, True)
    assert [each.slope for each in layers.head] == [0.5, None]


def test_sums_of_layers_are_a_product_over_all_of_them() -> None:
    def forward(parts: Any, x: Tensor, edges: Tensor, _: Tensor) -> Tensor:
        found = x / 3
        for _hop in range(2):
            x = parts["conv"](x, edges)
            found = found + x / 3
        return found

    layers = read(Forward(forward, conv=pyg.LGConv()))
    assert [each.convs[0].conv for each in layers.layers] == [Convolution.APPNP] * 2
    assert layers.head_reads_input


def test_sums_and_means_that_are_written_by_hand_are_convolutions() -> None:
    def forward(parts: Any, x: Tensor, edges: Tensor, columns: Tensor) -> Tensor:
        source, target = edges
        mean = scatter(x[source], target, dim=0, dim_size=x.size(0), reduce="mean")
        x = (parts["own"](x) + parts["neighbour"](mean)).relu()
        rows = parts["message"](x).index_select(0, source) * columns[:, 2].unsqueeze(-1)
        return torch.zeros(len(x), CLASSES).index_add(0, target, rows) + parts["bias"].bias

    layers = read(
        Forward(
            forward, own=nn.Linear(COLUMNS, WIDTH), neighbour=nn.Linear(COLUMNS, WIDTH),
            message=nn.Linear(WIDTH, CLASSES, bias=False), bias=nn.Linear(1, CLASSES),
        )
    )  # fmt: skip
    first, second = layers.layers
    assert first.own
    assert second.convs[0].edge_weight == "2"


HEADS = 2


def _shares(scores: Tensor, target: Tensor, nodes: int) -> Tensor:
    return softmax(scores, target, num_nodes=nodes).unsqueeze(-1)


@pytest.mark.parametrize("is_averaged", [False, True], ids=["heads beside each other", "means of heads"])
def test_additive_attention_that_is_written_by_hand_is_a_convolution(*, is_averaged: bool) -> None:
    def forward(parts: Any, x: Tensor, edges: Tensor, _: Tensor) -> Tensor:
        (source, target), nodes = edges, x.size(0)
        rows = parts["fc"](x).view(-1, HEADS, WIDTH)
        left, right = ((rows * each.weight.view(1, HEADS, WIDTH)).sum(-1) for each in (parts["left"], parts["right"]))
        shares = _shares(functional.leaky_relu(left[source] + right[target], 0.2), target, nodes)
        found = scatter(rows[source] * shares, target, dim=0, dim_size=nodes) + parts["bias"].bias.view(1, HEADS, WIDTH)
        found = functional.elu(found)
        return parts["out"](found.mean(1) if is_averaged else found.flatten(1))

    width = HEADS * WIDTH
    layers = read(
        Forward(
            forward, fc=nn.Linear(COLUMNS, width, bias=False), left=nn.Linear(width, 1), right=nn.Linear(width, 1),
            bias=nn.Linear(1, width), out=nn.Linear(WIDTH if is_averaged else width, CLASSES),
        )
    )  # fmt: skip
    (conv,) = layers.layers[0].convs
    assert (conv.conv, conv.heads, conv.width, conv.self_loops) == (Convolution.GAT, HEADS, width, False)
    assert layers.layers[0].activation is Activation.ELU


def test_heads_that_are_computed_one_by_one_are_one_convolution() -> None:
    def head(parts: Any, number: int, x: Tensor, edges: Tensor) -> Tensor:
        (source, target), rows = edges, parts[f"fc{number}"](x)
        scores = parts[f"left{number}"](rows)[source] + parts[f"right{number}"](rows)[target]
        weights = torch.exp(functional.leaky_relu(scores, 0.1))
        total = torch.zeros(len(x), 1).index_add(0, target, weights)
        return torch.zeros(len(x), WIDTH).index_add(0, target, rows[source] * (weights / total[target]))

    def forward(parts: Any, x: Tensor, edges: Tensor, _: Tensor) -> Tensor:
        x = torch.cat([head(parts, number, x, edges) for number in range(HEADS)], dim=1)
        return parts["out"](x.relu())

    parts = {f"fc{number}": nn.Linear(COLUMNS, WIDTH, bias=False) for number in range(HEADS)}
    parts |= {f"{end}{number}": nn.Linear(WIDTH, 1, bias=False) for end in ("left", "right") for number in range(HEADS)}
    layers = read(Forward(forward, out=nn.Linear(HEADS * WIDTH, CLASSES), **parts))
    (conv,) = layers.layers[0].convs
    assert (conv.heads, conv.width, conv.negative_slope) == (HEADS, HEADS * WIDTH, 0.1)


def test_attention_by_products_that_is_written_by_hand_is_a_convolution() -> None:
    def forward(parts: Any, x: Tensor, edges: Tensor, _: Tensor) -> Tensor:
        (source, target), nodes = edges, x.size(0)
        key, query, value = (parts[name](x).view(-1, HEADS, WIDTH) for name in ("key", "query", "value"))
        key = torch.einsum("bij,ijk->bik", key, parts["relation"].weight.view(HEADS, WIDTH, WIDTH))
        scores = (query[target] * key[source]).sum(-1) * parts["prior"].bias / WIDTH**0.5
        found = scatter(value[source] * _shares(scores, target, nodes), target, dim=0, dim_size=nodes)
        return parts["out"](0.3 * found.view(nodes, -1) + 0.7 * parts["own"](x))

    width = HEADS * WIDTH
    lins = {name: nn.Linear(COLUMNS, width) for name in ("key", "query", "value", "own")}
    layers = read(
        Forward(
            forward, relation=nn.Linear(width, WIDTH), prior=nn.Linear(1, HEADS), out=nn.Linear(width, CLASSES), **lins
        )
    )
    (conv,) = layers.layers[0].convs
    assert (conv.conv, conv.heads, conv.root) == (Convolution.TRANSFORMER, HEADS, False)
    assert layers.layers[0].own


def test_other_rows_that_are_returned_beside_are_told() -> None:
    def forward(parts: Any, x: Tensor, edges: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        rows = parts["project"](parts["conv"](x, edges).relu())
        return parts["out"](rows), rows

    parts = {"project": nn.Linear(WIDTH, WIDTH), "out": nn.Linear(WIDTH, CLASSES), "conv": pyg.SAGEConv(COLUMNS, WIDTH)}
    made = Read(Forward(forward, **parts), GRAPH)
    made.check()
    assert made.found.has_other_embeddings


def test_features_alone_are_a_perceptron() -> None:
    def forward(parts: Any, x: Tensor, _edges: Tensor, _columns: Tensor) -> Tensor:
        parts_of_x = [parts[f"lin{place}"](part).relu() for place, part in enumerate(x.tensor_split(2, dim=-1))]
        return functional.log_softmax(parts["out"](torch.cat(parts_of_x, dim=-1)), dim=-1)

    module = Forward(forward, lin0=nn.Linear(3, 5), lin1=nn.Linear(3, 5), out=nn.Linear(10, CLASSES))
    layers = read(module)
    assert (layers.layers, [each.width for each in layers.head]) == ((), [10, CLASSES])


def test_one_logit_of_two_classes_is_two_columns() -> None:
    graph = Data(x=GRAPH.x, edge_index=GRAPH.edge_index, edge_attr=GRAPH.edge_attr, y=GRAPH.y % 2)
    module = Forward(lambda parts, x, edges, _: parts["conv"](x, edges).squeeze(-1), conv=pyg.SAGEConv(COLUMNS, 1))
    assert read(module, graph).head[-1].width == 2


# Several types


class OverTypes(nn.Module):
    def __init__(self, convs: list[nn.Module], norm: bool) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        kinds = TYPED_GRAPH.node_types
        self.lins = nn.ModuleDict({kind: nn.Linear(TYPED_GRAPH[kind].num_features, WIDTH) for kind in kinds})
        self.norms = nn.ModuleDict({kind: nn.LayerNorm(WIDTH) for kind in kinds} if norm else {})

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        x_dict = {kind: self.lins[kind](x).relu() for kind, x in x_dict.items()}
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
            x_dict = {kind: self.norms[kind](x).relu() if self.norms else x for kind, x in x_dict.items()}
        return x_dict["paper"]


def _convolved(aggr: str, make: Callable[[], nn.Module]) -> nn.Module:
    made: nn.Module = pyg.HeteroConv({key: make() for key in TYPED_GRAPH.edge_types}, aggr=aggr)
    return made


@pytest.mark.parametrize("aggr", ["sum", "mean", "max", "min"])
def test_relations_are_combined_as_in_the_module(aggr: str) -> None:
    def make() -> nn.Module:
        return pyg.GraphConv((WIDTH, WIDTH), WIDTH)

    torch.manual_seed(1)
    layers = read(OverTypes([_convolved(aggr, make), _convolved(aggr, make)], norm=True), TYPED_GRAPH)
    assert {each.combination for each in layers.layers} == {Combination[aggr.upper()]}
    assert len(layers.before) == len(TYPED_GRAPH.node_types)


def test_attention_over_all_relations_that_reach_a_type_is_one_softmax() -> None:
    """HGT, whose first layer reads rows of other widths in the second network: only some types have a gate there."""
    torch.manual_seed(2)
    metadata, wide = TYPED_GRAPH.metadata(), {kind: TYPED_GRAPH[kind].num_features for kind in TYPED_GRAPH.node_types}
    convs = [pyg.HGTConv(WIDTH, WIDTH, metadata, 2) for _ in range(2)]
    first, second = read(OverTypes(_drawn(convs), norm=False), TYPED_GRAPH).layers
    assert {conv.conv for conv in (*first.convs, *second.convs)} == {Convolution.TRANSFORMER}
    assert (first.combination, first.activation) == (Combination.ATTENTION, Activation.GELU)
    assert (first.residual, first.output_product) == (Residual.GATED, True)

    class OfFeatures(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.convs = nn.ModuleList(_drawn([pyg.HGTConv(wide, width, metadata, 1)]))
            self.lin = nn.Linear(width, CLASSES)

        def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
            found: Tensor = self.lin(self.convs[0](x_dict, edge_index_dict)["paper"].relu())
            return found

    layers = [read(OfFeatures(width), TYPED_GRAPH).layers[0] for width in (wide["paper"], 3)]
    assert [each.residual for each in layers] == [Residual.GATED, Residual.NONE]


def _drawn(convs: list[Any]) -> list[Any]:
    """Gates and shares of relations that are not what they are initialised as."""
    with torch.no_grad():
        for each in (one for conv in convs for one in (*conv.skip.values(), *conv.p_rel.values())):
            each.normal_()
    return convs


def test_an_activation_between_layers_of_hgt_is_told() -> None:
    convs = [pyg.HGTConv(WIDTH, WIDTH, TYPED_GRAPH.metadata(), 2) for _ in range(2)]
    with pytest.raises(NotLayersError, match="stands behind HGTConv, which has its own"):
        Read(OverTypes(convs, norm=True), TYPED_GRAPH)


def test_relations_have_convolutions_of_their_own() -> None:
    layers = read(TypedNet(), TYPED_GRAPH)
    assert {each.conv for each in layers.layers[0].convs} == {Convolution.GATV2, Convolution.GRAPH_SAGE}


def test_a_module_that_was_made_for_types_by_to_hetero_is_read() -> None:
    module = pyg.to_hetero(pyg.GraphSAGE((-1, -1), WIDTH, 2, CLASSES, norm="batch_norm"), TYPED_GRAPH.metadata())
    with torch.no_grad():
        module(TYPED_GRAPH.x_dict, TYPED_GRAPH.edge_index_dict)
    graph = HeteroData({kind: dict(TYPED_GRAPH[kind].items()) for kind in TYPED_GRAPH.node_types})
    for key in TYPED_GRAPH.edge_types:
        graph[key].edge_index = TYPED_GRAPH[key].edge_index
    assert len(read(module, graph).layers) == 2


class Towers(nn.Module):
    """Rows of authors and papers, by layers of their own over papers and products of their own behind."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.read, self.one, self.two = (pyg.SAGEConv((-1, -1), WIDTH) for _ in range(3))
        self.first, self.second = pyg.SAGEConv((-1, -1), WIDTH), pyg.SAGEConv(WIDTH, WIDTH)
        self.author, self.paper = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> dict[str, Tensor]:
        author, paper = x_dict["author"], x_dict["paper"]
        cites = edge_index_dict["paper", "cites", "paper"]
        to_author = edge_index_dict["paper", "rev_writes", "author"]
        read = self.read((paper, paper), cites).relu()
        author = self.one((paper, author), to_author).relu()
        author = self.two((read, author), to_author).relu()
        paper = self.second(self.first((paper, paper), cites).relu(), cites).relu()
        return {"author": self.author(author), "paper": self.paper(paper)}


def test_two_towers_have_rows_beside_each_other_and_heads_of_their_own() -> None:
    graph = HeteroData({kind: {"x": TYPED_GRAPH[kind].x} for kind in ("author", "paper")})
    for key in TYPED_GRAPH.edge_types:
        graph[key].edge_index = TYPED_GRAPH[key].edge_index
    module = Towers()
    with torch.no_grad():
        module(graph.x_dict, graph.edge_index_dict)
    layers = Read(module, graph, links_of("writes")(None)).check()
    assert sorted(each.width for each in layers.layers[0].convs) == [WIDTH, 2 * WIDTH]
    assert (layers.head_by_type, [each.width for each in layers.head]) == (True, [WIDTH])


# What is no layer


class OwnConvolution(pyg.MessagePassing):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)


REFUSED: Mapping[str, tuple[nn.Module, str]] = {
    "a convolution that is none of ours": (
        Net(pyg.ARMAConv), "ARMAConv is none of the convolutions that can be listed"
    ),
    "a convolution of the user's": (
        Forward(lambda parts, x, edges, _: parts["conv"](x, edges), conv=OwnConvolution()),
        "OwnConvolution is none of the convolutions",
    ),
    "a norm over the graph": (Net(pyg.SAGEConv, pyg.LayerNorm(WIDTH)), "is no part of a layer"),
    "an activation that no layer has": (
        Forward(lambda parts, x, edges, _: functional.mish(parts["conv"](x, edges)),
                conv=pyg.SAGEConv(COLUMNS, CLASSES)),
        "mish is no part of a layer (tests/describe/test_layers.py:",
    ),
    "edges that are computed": (
        Forward(lambda parts, x, edges, _: parts["conv"](x, edges[:, edges[0] != edges[1]]),
                conv=pyg.SAGEConv(COLUMNS, CLASSES)),
        "SAGEConv reads other edges than the graph's",
    ),
    "columns of edges that are computed": (
        Forward(lambda parts, x, edges, columns: parts["conv"](x, edges, columns.exp()),
                conv=pyg.GATConv(COLUMNS, CLASSES, edge_dim=EDGE_COLUMNS)),
        "GATConv reads what was computed of columns of the edges",
    ),
    "an aggregation that is trained": (
        Net(lambda i, o: pyg.SAGEConv(i, o, aggr="powermean")), "aggregates by PowerMeanAggregation"
    ),
    "two branches": (
        Forward(lambda parts, x, edges, _: parts["one"](x, edges).relu() * parts["two"](x, edges),
                one=pyg.SAGEConv(COLUMNS, CLASSES), two=pyg.SAGEConv(COLUMNS, CLASSES)),
        "mul is no part of a layer",
    ),
    "two convolutions over one relation": (
        Forward(lambda parts, x, edges, _: parts["one"](x, edges) + parts["two"](x, edges),
                one=pyg.SAGEConv(COLUMNS, CLASSES), two=pyg.GCNConv(COLUMNS, CLASSES)),
        "layer 1 has two convolutions over one relation",
    ),
    "more hops than a manifest has": (
        Net(lambda i, o: pyg.SGConv(i, o, K=6)), "it reads 12 hops, and layers read 8 at most"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_layer_is_told(name: str) -> None:
    module, sentence = REFUSED[name]
    with pytest.raises(NotLayersError) as error:
        Read(module, GRAPH)
    assert sentence in str(error.value)


# The folder


def _as_generation_reads(made: Description) -> LayersManifest:
    """Layers of the manifest that was written, over the graph beside it."""
    spec = load_manifest(made.folder / LAYERS_MANIFEST).spec
    graph = load_source(spec.graph.source, Path("unused"))
    model, columns = spec.model, graph.schema.types[0].features
    assert model.layers is not None and columns is not None
    assert model.fanouts == ((FULL_NEIGHBOURHOOD,) * made.program.hops or NO_NEIGHBOURS)
    return layers_manifest(
        graph.schema, columns, len(graph.classes), model.before, model.layers, model.jumping_knowledge, model.head,
        head_reads_input=model.head_reads_input,
    )  # fmt: skip


WRITTEN: Mapping[str, Callable[[], tuple[nn.Module, Any]]] = {
    "one type": lambda: (Net(pyg.GATConv), GRAPH),
    "columns of edges": lambda: (EdgeNet(), GRAPH),
    "other aggregations": lambda: (pyg.GraphSAGE(COLUMNS, WIDTH, 2, CLASSES, jk="lstm", aggr=["max", "sum"]), GRAPH),
    "TAG": lambda: (Net(lambda i, o: pyg.TAGConv(i, o, K=1)), GRAPH),
    "several types": lambda: (TypedNet(), TYPED_GRAPH),
    "a perceptron": lambda: (
        Forward(lambda parts, x, *_: parts["out"](x), out=nn.Linear(COLUMNS, CLASSES, bias=False)), GRAPH
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_the_manifest_says_the_layers_and_the_file_has_their_tensors(name: str, tmp_path: Path) -> None:
    module, graph = WRITTEN[name]()
    made = describe(module.eval(), graph, tmp_path / "described")
    assert made.layers == _as_generation_reads(made)
    assert load_manifest(made.folder / MANIFEST).spec.model.program is not None


def test_the_program_is_written_where_layers_cannot_be_read(tmp_path: Path) -> None:
    made = describe(Net(pyg.ARMAConv), GRAPH, tmp_path / "described")
    assert made.layers is None
    assert not list((tmp_path / "described").glob("*layers*"))
    assert any("ARMAConv is none of the convolutions" in each for each in made.findings)
