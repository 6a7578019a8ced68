"""Models of public code: the first 40 graph networks that a search for five strings returned, in its order.

The search was a full-text one over a public index of source files of GitHub, on 29 November 2026, without regard to
case: `GNN(torch.nn.Module)`, `class GCN(nn.Module)`, `class GAT(nn.Module)`, `GraphSAGE(torch.nn.Module)`,
`HeteroGNN(torch.nn.Module)`, of each the eight or nine files that the answer showed. Of a file the class at the hit was
taken, with its default arguments; where that is a base class, the first that derives of it. Two hits are no graph
network and were passed over: a document that only asks for one, and a segmentation of images called GCN (Global
Convolutional Network). The index does not tell names of repositories, so entries are called by string and place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import scatter

from benchmarks.model_table.dgl_layers import GatConv, GraphConv, SageConv
from benchmarks.model_table.entries import Entry, Made, Task
from benchmarks.model_table.frameworks import FraudSage
from benchmarks.model_table.graphs import (
    CLASSES,
    COLUMNS,
    EDGE_COLUMNS,
    NODES,
    WIDTH,
    Key,
    SeveralTypes,
    normalised_weights,
    one_type,
    over_nodes,
    over_types,
    over_weights,
    several_types,
)
from benchmarks.model_table.outcomes import Reason
from benchmarks.model_table.parts import Stack, log_softmax

FAMILY = "public code"

Rows = Mapping[str, Tensor]
Edges = Mapping[Key, Tensor]


def over_data(module: nn.Module, **more: Tensor) -> Made:
    """forward(data)"""
    graph = one_type()
    return Made(module, (Data(x=graph.x, edge_index=graph.edges, **more),))


def chain(make: Callable[..., nn.Module], *widths: int) -> list[nn.Module]:
    return [make(*pair) for pair in pairwise(widths)]


# GNN(torch.nn.Module)


class Pooled(nn.Module):
    """Convolutions over nodes, a mean over each graph, a head: several of these classify whole graphs."""

    def __init__(self, convs: list[nn.Module], norms: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.convs, self.norms, self.head = nn.ModuleList(convs), nn.ModuleList(norms), head

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for place, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            x = self.norms[place](x) if place < len(self.norms) else x
            x = functional.dropout(functional.relu(x), p=0.2, training=self.training)
        found: Tensor = self.head(x.mean(dim=0, keepdim=True))
        return found


def pooled_sage() -> Made:
    convs: list[nn.Module] = [
        pyg.SAGEConv(COLUMNS, WIDTH, aggr="add"), pyg.SAGEConv(WIDTH, WIDTH), pyg.SAGEConv(WIDTH, WIDTH, aggr="add"),
    ]  # fmt: skip
    return over_nodes(Pooled(convs, [pyg.BatchNorm(WIDTH) for _ in range(2)], nn.Linear(WIDTH, CLASSES)))


class Dagnn(nn.Module):
    def __init__(self, hops: int) -> None:
        super().__init__()
        self.lin1, self.lin2, self.proj = nn.Linear(COLUMNS, WIDTH), nn.Linear(WIDTH, CLASSES), nn.Linear(CLASSES, 1)
        self.prop = pyg.LGConv()
        self.hops = hops
        self.norm: Tensor | None = None
        self.edge_index: Tensor | None = None

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin2(functional.relu(self.lin1(x)))
        if self.edge_index is None or self.norm is None:  # cached=True, its default: those of the first graph
            self.edge_index, self.norm = normalised_weights(edge_index, x.size(0))
        rows = [x]
        for _ in range(self.hops):
            x = scatter(x[self.edge_index[0]] * self.norm.unsqueeze(1), self.edge_index[1], dim=0, dim_size=x.size(0))
            rows.append(x)
        stacked = torch.stack(rows, dim=1)
        retained = torch.sigmoid(self.proj(stacked).squeeze()).unsqueeze(1)
        return log_softmax(torch.matmul(retained, stacked).squeeze())


class TopKGcn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.pool1 = pyg.GCNConv(COLUMNS, 64), pyg.TopKPooling(64, ratio=0.5)
        self.conv2, self.pool2 = pyg.GCNConv(64, 32), pyg.TopKPooling(32, ratio=0.5)
        self.fc1, self.bn1, self.fc2 = nn.Linear(96, 32), nn.LayerNorm(32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, edge_index, _, _, _, _ = self.pool1(functional.relu(self.conv1(x, edge_index)), edge_index)
        first = x.mean(dim=0, keepdim=True)
        x, edge_index, _, _, _, _ = self.pool2(functional.relu(self.conv2(x, edge_index)), edge_index)
        found: Tensor = self.fc2(functional.relu(self.bn1(self.fc1(torch.cat([first, x.mean(0, keepdim=True)], 1)))))
        return found


class Hybrid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sage1, self.sage2 = pyg.SAGEConv(COLUMNS, WIDTH), pyg.SAGEConv(WIDTH, WIDTH // 2)
        self.proj, self.clf = nn.Linear(WIDTH // 2, WIDTH // 2), nn.Linear(WIDTH // 2, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        h = functional.relu(self.sage2(functional.relu(self.sage1(x, edge_index)), edge_index))
        z = self.proj(h)
        return self.clf(z), z


class Hamiltonian(nn.Module):
    """A leapfrog over the dense adjacency of each graph; here of one, as there."""

    def __init__(self) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(COLUMNS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bn1, self.bn2, self.clf = nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, CLASSES)
        self.strength = nn.Parameter(torch.tensor(0.1))

    def evolve(self, q: Tensor, edge_index: Tensor) -> Tensor:
        adjacency = torch.zeros(q.size(0), q.size(0)).index_put((edge_index[0], edge_index[1]), torch.ones(()))
        coupling, p = self.strength * (adjacency + adjacency.T) / 2, torch.zeros_like(q)
        for _ in range(2):
            p = p - 0.05 * (coupling @ q)
            q = q + 0.1 * p
            p = p - 0.05 * (coupling @ q)
        return functional.relu(q)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.bn1(self.evolve(self.lin1(x), edge_index))
        x = self.bn2(self.evolve(self.lin2(x), edge_index))
        found: Tensor = self.clf(x.mean(dim=0, keepdim=True))
        return found


class DirGcnConv(nn.Module):
    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.lin_src_to_dst, self.lin_dst_to_src = nn.Linear(columns, width), nn.Linear(columns, width)
        self.norms: tuple[Tensor, Tensor, Tensor] | None = None

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        if self.norms is None:  # as there: of the first graph that it is called with
            ones = torch.ones(edge_index.size(1))
            leaving = scatter(ones, edge_index[0], dim_size=x.size(0)).pow(-0.5)
            entering = scatter(ones, edge_index[1], dim_size=x.size(0)).pow(-0.5)
            self.norms = (edge_index, *(each.masked_fill(each.isinf(), 0.0) for each in (leaving, entering)))
        edges, leaving, entering = self.norms
        weights = (leaving[edges[0]] * entering[edges[1]]).unsqueeze(1)
        forth = scatter(x[edges[1]] * weights, edges[0], dim=0, dim_size=x.size(0))
        back = scatter(x[edges[0]] * weights, edges[1], dim=0, dim_size=x.size(0))
        found: Tensor = 0.5 * self.lin_src_to_dst(forth) + 0.5 * self.lin_dst_to_src(back)
        return found


# class GCN(nn.Module)


class MeanOfNodes(nn.Module):
    """Molecules: the mean over all nodes behind the convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.convs, self.fc = nn.ModuleList(chain(pyg.GCNConv, COLUMNS, WIDTH, WIDTH, WIDTH)), nn.Linear(WIDTH, 6)

    def forward(self, data: Any) -> Tensor:
        x = data.x
        for conv in self.convs:
            x = functional.relu(conv(x, data.edge_index))
        found: Tensor = self.fc(torch.mean(x, dim=0))
        return found


class Propagated(nn.Module):
    """Layers of pygcn: the adjacency, which is given, times rows times a matrix."""

    def __init__(self, *, layers: int, is_first: bool, bias: bool) -> None:
        super().__init__()
        widths = [COLUMNS, *[WIDTH] * (layers - 1), CLASSES]
        self.lins = nn.ModuleList([nn.Linear(*pair, bias=bias) for pair in pairwise(widths)])
        self.is_first = is_first

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        for place, lin in enumerate(self.lins):
            x = x if self.is_first else lin(x)
            x = scatter(x[edge_index[0]] * edge_weight.unsqueeze(1), edge_index[1], dim=0, dim_size=x.size(0))
            x = lin(x) if self.is_first else x
            x = functional.relu(x) if place < len(self.lins) - 1 else x
        return x


def propagated(**settings: Any) -> Made:
    graph = one_type()
    return Made(Propagated(**settings), (graph.x, *normalised_weights(graph.edges, NODES)))


class DglHetero(nn.Module):
    def __init__(self, keys: list[Key]) -> None:
        super().__init__()
        self.keys = keys
        self.conv1 = nn.ModuleList([GraphConv(COLUMNS, WIDTH) for _ in keys])
        self.conv2 = nn.ModuleList([GraphConv(WIDTH, CLASSES) for _ in keys])

    def forward(self, x_dict: Rows, edge_index_dict: Edges) -> dict[str, Tensor]:
        h = self._summed(self.conv1, x_dict, edge_index_dict)
        return self._summed(self.conv2, {kind: functional.relu(x) for kind, x in h.items()}, edge_index_dict)

    def _summed(self, convs: nn.ModuleList, h: Rows, edges: Edges) -> dict[str, Tensor]:
        found = dict[str, Tensor]()
        for conv, key in zip(convs, self.keys, strict=True):
            made = conv(edges[key], (h[key[0]], h[key[2]]))
            found[key[2]] = found[key[2]] + made if key[2] in found else made
        return found


def dgl_hetero() -> Made:
    graph = several_types({"user": COLUMNS, "item": COLUMNS}, [("user", "likes", "item"), ("user", "knows", "user")])
    return replace(over_types(DglHetero(graph.metadata[1]), graph, "user"), relation="likes")


class DglSage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = SageConv(COLUMNS, WIDTH), SageConv(WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        found: Tensor = self.conv2(edge_index, functional.relu(self.conv1(edge_index, x)))
        return found


# class GAT(nn.Module)


class TimedGat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            [pyg.GATConv(COLUMNS, WIDTH, 2, edge_dim=WIDTH + EDGE_COLUMNS),
             pyg.GATConv(2 * WIDTH, WIDTH, 2, edge_dim=WIDTH + EDGE_COLUMNS)]
        )  # fmt: skip
        self.w, self.proj, self.drop = nn.Linear(1, WIDTH // 2), nn.Linear(2 * WIDTH, CLASSES), nn.Dropout(0.25)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, edge_ts: Tensor) -> Tensor:
        mask = torch.rand(edge_ts.size(0)) > 0.5  # as there, also while it scores
        edge_index, edge_attr, times = edge_index[:, mask], edge_attr[mask], edge_ts[mask].unsqueeze(-1)
        turned = self.w(times.max() - times)
        encoded = torch.stack([turned.sin(), turned.cos()], dim=2).view(times.size(0), WIDTH)
        for net in self.nets:
            x = self.drop(torch.relu(net(x, edge_index, edge_attr=torch.cat([encoded, edge_attr], dim=1))))
        found: Tensor = self.proj(x)
        return found


def timed_gat() -> Made:
    graph = one_type()
    return Made(TimedGat(), (graph.x, graph.edges, graph.attributes, graph.times.float()))


class HeadsApart(nn.Module):
    """DGL's tutorial on GAT: a layer for each head."""

    def __init__(self, columns: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList([GatConv(columns, width, 1, bias=False) for _ in range(heads)])

    def forward(self, edges: Tensor, h: Tensor) -> Tensor:
        return torch.cat([head(edges, h).flatten(1) for head in self.heads], dim=1)


class TutorialGat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.layer2 = HeadsApart(COLUMNS, WIDTH, 2), HeadsApart(2 * WIDTH, WIDTH, 2)
        self.layer3 = HeadsApart(2 * WIDTH, CLASSES, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = functional.elu(self.layer2(edge_index, functional.elu(self.layer1(edge_index, x))))
        found: Tensor = self.layer3(edge_index, h)
        return found


class HeadsOut(nn.Module):
    """It gives the heads of its last layer one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.gat_layers = nn.ModuleList(
            [
                GatConv(COLUMNS, WIDTH, 2, activation=functional.elu),
                GatConv(2 * WIDTH, WIDTH, 2, activation=functional.elu),
            ]
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> list[Tensor]:
        for layer in self.gat_layers:
            x = layer(edge_index, x.flatten(1))
        return [x[:, head] for head in range(x.shape[1])]


class ConcatenatedGat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_list = nn.ModuleList(
            [pyg.GATConv(each, WIDTH, heads=1, add_self_loops=False) for each in (COLUMNS, WIDTH, WIDTH)]
        )
        self.mlp = nn.Sequential(nn.Linear(COLUMNS + 3 * WIDTH, COLUMNS), nn.ReLU())

    def forward(self, data: Any) -> Tensor:
        x = data.x
        rows = [x]
        for conv in self.conv_list:
            x = functional.relu(conv(x, edge_index=data.edge_index))
            rows.append(x)
        found: Tensor = self.mlp(torch.cat(rows, dim=1))
        return found


class WeighedGat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([
            pyg.GATConv(COLUMNS, WIDTH, heads=4, dropout=0.6, edge_dim=1),
            pyg.GATConv(4 * WIDTH, WIDTH, heads=4, dropout=0.6, edge_dim=1),
            pyg.GATConv(4 * WIDTH, CLASSES, heads=1, concat=False, dropout=0.6, edge_dim=1),
        ])  # fmt: skip

    def forward(self, data: Any) -> Tensor:
        x, edge_index, edge_attr = data.x, data.edge_index, data.edge_weight.view(-1, 1)
        for conv in self.convs[:-1]:
            x = functional.elu(conv(x, edge_index, edge_attr=edge_attr))
            x = functional.dropout(x, p=0.6, training=self.training)
        found: Tensor = self.convs[-1](x, edge_index, edge_attr=edge_attr)
        return found


class DataModel(nn.Module):
    """A model whose forward takes a Data and has the structure of another one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, data: Any) -> Tensor:
        found: Tensor = self.module(data.x, data.edge_index)
        return found


class NormedGat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = GatConv(COLUMNS, WIDTH, 4)
        self.conv_hs = nn.ModuleList([GatConv(WIDTH, WIDTH, 4) for _ in range(3)])
        self.norm, self.out_ln = nn.LayerNorm(WIDTH, elementwise_affine=False), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.conv1(edge_index, x).mean(1)
        for layer in self.conv_hs[:-1]:
            h = layer(edge_index, h).mean(1)
        h = self.conv_hs[-1](edge_index, h)
        found: Tensor = self.norm(self.out_ln(h.view(x.shape[0], -1)))
        return found


# GraphSAGE(torch.nn.Module)


class StackedGraphConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([pyg.GraphConv(each, WIDTH, "mean") for each in (COLUMNS, WIDTH, WIDTH)])
        self.lin = nn.Linear(3 * WIDTH, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weights: Tensor) -> Tensor:
        rows = []
        for conv in self.convs:
            x = functional.relu(functional.dropout(conv(x, edge_index, edge_weights), training=self.training))
            rows.append(x)
        found: Tensor = self.lin(torch.cat(rows, dim=1))
        return found


def sage(**settings: Any) -> nn.Module:
    return Stack(chain(pyg.SAGEConv, COLUMNS, WIDTH, CLASSES), **settings)


# HeteroGNN(torch.nn.Module)


class Convolved(nn.Module):
    """HeteroConvs with an activation between, and a Linear for one type."""

    def __init__(self, convs: list[nn.Module], act: Callable[[Tensor], Tensor], lin: nn.Module, target: str) -> None:
        super().__init__()
        self.convs, self.act, self.lin, self.target = nn.ModuleList(convs), act, lin, target

    def forward(self, x_dict: Rows, edge_index_dict: Edges) -> Tensor:
        for conv in self.convs:
            x_dict = {key: self.act(x) for key, x in conv(x_dict, edge_index_dict).items()}
        found: Tensor = self.lin(x_dict[self.target])
        return found


def flows() -> Made:
    graph = several_types(
        {"flow": COLUMNS, "host": 5}, [("host", "to", "flow"), ("flow", "to", "host")], reverses=False
    )
    convs: list[nn.Module] = [
        pyg.HeteroConv({key: pyg.SAGEConv((-1, -1), WIDTH) for key in graph.edges}, aggr="sum") for _ in range(3)
    ]
    return over_types(Convolved(convs, functional.leaky_relu, pyg.Linear(WIDTH, 10), "flow"), graph, "flow")


class Programme(nn.Module):
    """Linear programs: values and constraints, GENConv between them, with weights of edges, an MLP behind."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({kind: pyg.MLP([3, WIDTH, WIDTH], norm="batch_norm") for kind in ("vals", "cons")})
        self.convs = nn.ModuleList([self._layer() for _ in range(2)])
        self.predictor = pyg.MLP([WIDTH, WIDTH, 1], norm=None)

    def _layer(self) -> nn.Module:
        keys = (("cons", "to", "vals"), ("vals", "to", "cons"))
        made: nn.Module = pyg.HeteroConv(
            {key: pyg.GENConv((WIDTH, WIDTH), WIDTH, aggr="softmax", edge_dim=1) for key in keys}
        )
        return made

    def forward(self, data: Any) -> Tensor:
        x_dict = {kind: self.encoder[kind](data[kind].x) for kind in ("vals", "cons")}
        weights = {key: data[key].edge_attr for key in data.edge_types}
        for conv in self.convs:
            x_dict = {kind: x.relu() for kind, x in conv(x_dict, data.edge_index_dict, weights).items()}
        found: Tensor = self.predictor(x_dict["vals"]).squeeze()
        return found


def programme() -> Made:
    graph = several_types({"vals": 3, "cons": 3}, [("cons", "to", "vals"), ("vals", "to", "cons")], reverses=False)
    data = HeteroData()
    for kind, x in graph.x.items():
        data[kind].x = x
    for key, edges in graph.edges.items():
        data[key].edge_index, data[key].edge_attr = edges, graph.attributes[key][:, :1]
    return Made(Programme(), (data,), "vals")


class LigandMean(nn.Module):
    def __init__(self, keys: list[Key]) -> None:
        super().__init__()
        self.conv1 = pyg.HeteroConv({key: pyg.SAGEConv((-1, -1), WIDTH) for key in keys})
        self.proj, self.lin = pyg.Linear(COLUMNS, WIDTH), pyg.Linear(WIDTH, 1)

    def forward(self, x_dict: Rows, edge_index_dict: Edges) -> Tensor:
        found: Tensor = self.lin(self.conv1(x_dict, edge_index_dict)["ligand"].relu().mean(dim=0))
        return found


def ligands() -> Made:
    keys = [("ligand", "interacts", "protein"), ("protein", "interacts", "protein"), ("ligand", "self", "ligand")]
    graph = several_types({"ligand": COLUMNS, "protein": COLUMNS}, keys, reverses=False)
    return over_types(LigandMean(keys), graph, "ligand")


class Reactions(nn.Module):
    """Features are numbers of nodes in tables of embeddings, which go over a type's nodes of one graph."""

    def __init__(self, graph: SeveralTypes) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict({kind: nn.Embedding(len(x), WIDTH) for kind, x in graph.x.items()})
        self.embeddings["reaction"] = nn.Embedding(1, WIDTH)
        self.convs = nn.ModuleList(
            [pyg.HeteroConv({key: pyg.SAGEConv(-1, WIDTH, normalize=True) for key in graph.edges}) for _ in range(2)]
        )
        self.lin_reaction = pyg.Linear(2 * WIDTH, CLASSES)

    def forward(self, x_dict: Rows, edge_index_dict: Edges) -> Tensor:
        rows = {
            kind: self.embeddings[kind](torch.zeros_like(x[:, 0]) if kind == "reaction" else x[:, 0])
            for kind, x in x_dict.items()
        }
        seen = []
        for conv in self.convs:
            rows = {kind: x.relu() for kind, x in conv(rows, edge_index_dict).items()}
            seen.append(rows["reaction"])
        found: Tensor = self.lin_reaction(torch.cat(seen, dim=-1))
        return found


def reactions() -> Made:
    graph = several_types({"reaction": 1, "molecule": 1, "protein": 1},
                          [("molecule", "to", "reaction"), ("protein", "to", "reaction")])  # fmt: skip
    numbers = {kind: torch.arange(len(x)).unsqueeze(1) for kind, x in graph.x.items()}
    return Made(Reactions(graph), (numbers, dict(graph.edges)), "reaction")


class WeighedHetero(nn.Module):
    def __init__(self, graph: SeveralTypes) -> None:
        super().__init__()
        columns = graph.columns
        self.conv1 = pyg.HeteroConv(
            {key: pyg.GraphConv((columns[key[0]], columns[key[2]]), WIDTH) for key in graph.edges}
        )
        self.conv2 = pyg.HeteroConv({key: pyg.GraphConv(WIDTH, 3) for key in graph.edges})

    def forward(self, x_dict: Rows, edge_index_dict: Edges, edge_weight_dict: Edges) -> Rows:
        x_dict = self.conv1(x_dict, edge_index_dict, edge_weight_dict)
        x_dict = {key: functional.relu(x) for key, x in x_dict.items()}
        found: Rows = self.conv2(x_dict, edge_index_dict, edge_weight_dict)
        return found


def weighed_hetero() -> Made:
    graph = several_types({"movie": COLUMNS, "director": COLUMNS, "actor": COLUMNS},
                          [("movie", "to", "director"), ("movie", "to", "actor")])  # fmt: skip
    weights = {
        key: 1.0 / torch.bincount(edges[1], minlength=len(graph.x[key[2]]))[edges[1]].float()
        for key, edges in graph.edges.items()
    }
    return Made(WeighedHetero(graph), (dict(graph.x), dict(graph.edges), weights), "movie")


class LinsByType(nn.Module):
    def __init__(self, graph: SeveralTypes) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [pyg.HeteroConv({key: pyg.SAGEConv((-1, -1), 32) for key in graph.edges})
             for _ in range(2)]
        )  # fmt: skip
        self.hidden = nn.ModuleDict({kind: pyg.Linear(32, 32) for kind in graph.x})
        self.last = nn.ModuleDict({kind: pyg.Linear(32, CLASSES) for kind in graph.x})

    def forward(self, x_dict: Rows, edge_index_dict: Edges) -> dict[str, Tensor]:
        for conv in self.convs:
            x_dict = {kind: x.relu() for kind, x in conv(x_dict, edge_index_dict).items()}
            x_dict = {kind: functional.dropout(x, p=0.1, training=self.training) for kind, x in x_dict.items()}
        return {kind: self.last[kind](self.hidden[kind](x.relu())) for kind, x in x_dict.items()}


def lins_by_type() -> Made:
    graph = several_types({"bus": COLUMNS, "line": 7}, [("bus", "feeds", "line"), ("bus", "near", "bus")])
    return over_types(LinsByType(graph), graph, "bus")


class Trajectories(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.region_lin, self.traj_lin = pyg.Linear(5, WIDTH), pyg.Linear(COLUMNS, WIDTH)
        self.convs = nn.ModuleList([pyg.HeteroConv({
            ("region", "neighbors", "region"): pyg.SAGEConv(WIDTH, WIDTH),
            ("region", "rev_visits", "trajectory"): pyg.SAGEConv((-1, WIDTH), WIDTH),
        }, aggr="mean") for _ in range(2)])  # fmt: skip
        self.classifier = pyg.Linear(WIDTH, CLASSES)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Edges) -> Tensor:
        x_dict["region"] = self.region_lin(x_dict["region"]).relu()
        x_dict["trajectory"] = self.traj_lin(x_dict["trajectory"]).relu()
        rows: Rows = x_dict
        for conv in self.convs:
            rows = {kind: x.relu() for kind, x in conv(rows, edge_index_dict).items()}
        found: Tensor = self.classifier(rows["trajectory"])
        return found


def trajectories() -> Made:
    keys = [("region", "neighbors", "region"), ("region", "rev_visits", "trajectory")]
    return over_types(Trajectories(), several_types({"trajectory": COLUMNS, "region": 5}, keys, reverses=False),
                      "trajectory")  # fmt: skip


_GNN, _GCN, _GAT = "GNN(torch.nn.Module)", "class GCN(nn.Module)", "class GAT(nn.Module)"
_SAGE, _HETERO = "GraphSAGE(torch.nn.Module)", "HeteroGNN(torch.nn.Module)"


def _entry(
    string: str, hit: int, what: str, make: Callable[[], Made], task: Task = Task.CLASSES, *reasons: Reason,
    note: str = "",
) -> Entry:  # fmt: skip
    return Entry(f"{string}, {hit}: {what}", FAMILY, "", task, make, reasons, note)


_ADJACENCY = "the adjacency matrix that it is given is edges with weights"
_DGL = "DGL's layers by torch's operations"
ENTRIES = (
    _entry(_GNN, 1, "SAGE, BatchNorm, mean over the graph", pooled_sage, Task.GRAPHS, Reason.SCORES_GRAPHS,
           Reason.WHOLE_GRAPH),
    _entry(_GNN, 2, "DAGNN of 10 hops", lambda: over_nodes(Dagnn(10)), Task.CLASSES,
           Reason.FAR),
    _entry(_GNN, 4, "GCN, TopKPooling", lambda: over_nodes(TopKGcn()), Task.GRAPHS, Reason.SCORES_GRAPHS,
           Reason.WHOLE_GRAPH),
    _entry(_GNN, 5, "GCN of 3 layers", lambda: over_data(DataModel(Stack(
        chain(pyg.GCNConv, COLUMNS, WIDTH, WIDTH, CLASSES))))),
    _entry(_GNN, 6, "SAGE, projection, classifier", lambda: over_nodes(Hybrid())),
    _entry(_GNN, 7, "GCN, log_softmax", lambda: over_nodes(Stack(
        chain(pyg.GCNConv, COLUMNS, WIDTH, CLASSES), end=log_softmax))),
    _entry(_GNN, 8, "Hamiltonian network", lambda: over_nodes(Hamiltonian()), Task.GRAPHS, Reason.SCORES_GRAPHS,
           Reason.WHOLE_GRAPH),
    _entry(_GNN, 9, "Dir-GCN", lambda: over_nodes(Stack(
        chain(DirGcnConv, COLUMNS, WIDTH, CLASSES), end=log_softmax), directed=True)),
    _entry(_GCN, 1, "GCN, mean over the graph", lambda: over_data(MeanOfNodes()), Task.GRAPHS,
           Reason.SCORES_GRAPHS, Reason.WHOLE_GRAPH),
    _entry(_GCN, 2, "two layers of pygcn", lambda: propagated(layers=2, is_first=True, bias=True), note=_ADJACENCY),
    _entry(_GCN, 3, "HeteroGraphConv of GraphConv, dot product", dgl_hetero, Task.LINKS, note=_DGL),
    _entry(_GCN, 5, "GCN of 3 layers, encoder of CCA-SSG", lambda: over_nodes(Stack(
        chain(pyg.GCNConv, COLUMNS, WIDTH, WIDTH, WIDTH), dropout=0.0)), Task.ROWS),
    _entry(_GCN, 6, "layers of pygcn without bias", lambda: propagated(layers=3, is_first=False, bias=False),
           note=_ADJACENCY),
    _entry(_GCN, 7, "SAGE, inner product", lambda: over_nodes(DglSage()), Task.LINKS, note=_DGL),
    _entry(_GCN, 8, "GCN, BatchNorm", lambda: over_nodes(Stack(
        chain(pyg.GCNConv, COLUMNS, WIDTH, CLASSES), norms=[nn.BatchNorm1d(WIDTH)])),
        note="it stands in a comment of its file"),
    _entry(_GAT, 1, "GAT over edge columns and times", timed_gat, Task.CLASSES, Reason.RANDOM,
           Reason.WHOLE_GRAPH),
    _entry(_GAT, 2, "GAT of DGL's tutorial", lambda: over_nodes(TutorialGat()), note=_DGL),
    _entry(_GAT, 3, "GATConv of DGL, heads apart", lambda: over_nodes(HeadsOut()), Task.ROWS, note=_DGL),
    _entry(_GAT, 4, "GAT, all layers beside each other", lambda: over_data(ConcatenatedGat()), Task.ROWS,
           note="the images before it, whose graphs it reads, are left out"),
    _entry(_GAT, 5, "GAT of 3 layers, edge weights", lambda: over_data(WeighedGat(), edge_weight=one_type().weights)),
    _entry(_GAT, 6, "GAT, ELU", lambda: over_data(DataModel(Stack(
        [pyg.GATConv(COLUMNS, 8, heads=8, dropout=0.6), pyg.GATConv(64, 2, concat=False, heads=1, dropout=0.6)],
        functional.elu, dropout=0.6, end=log_softmax))), note="its width is a tuple by a slip, which does not run"),
    _entry(_GAT, 7, "GAT, mean over the graph", lambda: over_nodes(Pooled(
        [pyg.GATConv(COLUMNS, WIDTH, heads=4), pyg.GATConv(4 * WIDTH, WIDTH, heads=4, concat=False)], [],
        nn.Linear(WIDTH, 1))), Task.GRAPHS, Reason.SCORES_GRAPHS, Reason.WHOLE_GRAPH),
    _entry(_GAT, 8, "GAT, classifier", lambda: over_data(DataModel(Stack(
        [pyg.GATConv(COLUMNS, WIDTH, heads=4, dropout=0.3), pyg.GATConv(4 * WIDTH, WIDTH, heads=1, dropout=0.3)],
        functional.elu, head=nn.Linear(WIDTH, 2), dropout=0.3, acts_last=True, end=log_softmax)))),
    _entry(_GAT, 9, "GATConv of DGL, means of heads, LayerNorm", lambda: over_nodes(NormedGat()), Task.ROWS, note=_DGL),
    _entry(_SAGE, 1, "NVIDIA's financial-fraud-detection", lambda: over_nodes(FraudSage()),
           note="as the network that XGBoost reads is trained"),
    _entry(_SAGE, 2, "GraphConv, all layers beside each other", lambda: over_weights(StackedGraphConv()), note=""),
    _entry(_SAGE, 3, "SAGE", lambda: over_nodes(sage())),
    _entry(_SAGE, 4, "SAGE, log_softmax", lambda: over_nodes(sage(end=log_softmax))),
    _entry(_SAGE, 5, "SAGE", lambda: over_nodes(sage())),
    _entry(_SAGE, 6, "SAGE over payments", lambda: over_nodes(sage(), directed=True)),
    _entry(_SAGE, 7, "SAGE, classifier", lambda: over_nodes(Stack(
        chain(pyg.SAGEConv, COLUMNS, WIDTH, WIDTH), head=nn.Linear(WIDTH, CLASSES)))),
    _entry(_SAGE, 8, "SAGE, outputs of length 1", lambda: over_data(DataModel(Stack(
        [pyg.SAGEConv(COLUMNS, WIDTH, normalize=True), pyg.SAGEConv(WIDTH, CLASSES, normalize=True)], dropout=0.6,
        end=log_softmax)))),
    _entry(_SAGE, 9, "SAGE, embeddings", lambda: over_nodes(sage(dropout=0.0)), Task.ROWS),
    _entry(_HETERO, 1, "hosts and flows", flows),
    _entry(_HETERO, 2, "linear programs by GENConv", programme, Task.REGRESSION,
           note="its encoder is in another file: GENConv, as a like file of the same index has it"),
    _entry(_HETERO, 3, "mean over ligands", ligands, Task.GRAPHS, Reason.SCORES_GRAPHS, Reason.WHOLE_GRAPH),
    _entry(_HETERO, 4, "embeddings of nodes by number", reactions, note="new ones have none"),
    _entry(_HETERO, 5, "GraphConv with weights over IMDB", weighed_hetero),
    _entry(_HETERO, 6, "SAGE, Linears for each type", lins_by_type,
           note="without an argument that SAGEConv no longer takes"),
    _entry(_HETERO, 7, "regions and trajectories", trajectories),
)  # fmt: skip
