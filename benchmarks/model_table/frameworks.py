"""Models of DGL's examples and of GraphStorm, over DGL's convolutions as `dgl_layers.py` computes them; and NVIDIA's
model of fraud."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.utils import scatter, softmax

from benchmarks.model_table.dgl_layers import GatConv, GraphConv, RelGraphConv, SageConv
from benchmarks.model_table.entries import Entry, Made, Task
from benchmarks.model_table.graphs import (
    CLASSES,
    COLUMNS,
    NODES,
    RELATIONS,
    WIDTH,
    Key,
    one_type,
    over_nodes,
    over_types,
)
from benchmarks.model_table.pyg_several_types import mag

DGL, GRAPHSTORM, NVIDIA = "DGL's examples", "GraphStorm", "NVIDIA's blueprint"
_DGL_LINK = "https://github.com/dmlc/dgl/blob/master/examples/pytorch/"
_NVIDIA_LINK = "https://github.com/NVIDIA-AI-Blueprints/financial-fraud-detection"
_STORM_LINK = "https://github.com/awslabs/graphstorm/blob/main/python/graphstorm/model/"

Rows = Mapping[str, Tensor]
Edges = Mapping[Key, Tensor]


class Sage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([SageConv(COLUMNS, WIDTH), SageConv(WIDTH, WIDTH), SageConv(WIDTH, CLASSES)])
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for place, layer in enumerate(self.layers):
            x = layer(edge_index, x)
            x = self.dropout(functional.relu(x)) if place < len(self.layers) - 1 else x
        return x


class Gat(nn.Module):
    """Edges have one from each node to itself, which the example adds to the graph."""

    def __init__(self) -> None:
        super().__init__()
        make = partial(GatConv, feat_drop=0.6, attn_drop=0.6)
        self.gat_layers = nn.ModuleList([make(COLUMNS, 8, 8, activation=functional.elu), make(64, CLASSES, 1)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.gat_layers[0](edge_index, x).flatten(1)
        found: Tensor = self.gat_layers[1](edge_index, x).mean(1)
        return found


def gat() -> Made:
    graph = one_type()
    loops = torch.arange(NODES).repeat(2, 1)
    return Made(Gat(), (graph.x, torch.cat([graph.edges, loops], dim=1)))


class Rgcn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = RelGraphConv(COLUMNS, COLUMNS, RELATIONS, RELATIONS)
        self.conv2 = RelGraphConv(COLUMNS, CLASSES, RELATIONS, RELATIONS)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor, norm: Tensor) -> Tensor:
        x = functional.relu(self.conv1(edge_index, x, edge_type, norm))
        found: Tensor = self.conv2(edge_index, x, edge_type, norm)
        return found


def rgcn() -> Made:
    graph = one_type()
    groups = graph.edges[1] * RELATIONS + graph.kinds
    norm = 1.0 / torch.bincount(groups, minlength=NODES * RELATIONS)[groups].float()
    return Made(Rgcn(), (graph.x, graph.edges, graph.kinds, norm))


# GraphStorm: projections of each type's features, two layers over all relations, and a decoder


class RelGraphConvLayer(nn.Module):
    def __init__(self, columns: int, width: int, keys: list[Key], act: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self.keys, self.act, self.width = keys, act, width
        self.convs = nn.ModuleList([GraphConv(columns, width, "right", weight=False, bias=False) for _ in keys])
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(len(keys), columns, width)))
        self.h_bias = nn.Parameter(torch.zeros(width))
        self.loop_weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(columns, width)))

    def forward(self, edges: Edges, n_h: Rows) -> dict[str, Tensor]:
        found = {kind: h.new_zeros(h.size(0), self.width) for kind, h in n_h.items()}
        for place, key in enumerate(self.keys):
            made = self.convs[place](edges[key], (n_h[key[0]], n_h[key[2]]), self.weight[place])
            found[key[2]] = found[key[2]] + made
        done = {kind: h + n_h[kind] @ self.loop_weight + self.h_bias for kind, h in found.items()}
        return done if self.act is None else {kind: self.act(h) for kind, h in done.items()}


class HeteroGraphConv(nn.Module):
    """A module of each relation, under the names that GraphStorm gives them."""

    def __init__(self, mods: Mapping[Key, nn.Module]) -> None:
        super().__init__()
        self.mods = nn.ModuleDict({str(key): module for key, module in mods.items()})

    def __getitem__(self, key: Key) -> nn.Module:
        return self.mods[str(key)]


class RelationalAttLayer(nn.Module):
    def __init__(self, columns: int, width: int, keys: list[Key], act: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        heads = 4
        self.keys, self.act, self.width = keys, act, width
        self.conv = HeteroGraphConv({key: GatConv(columns, width // heads, heads, bias=False) for key in keys})
        self.h_bias = nn.Parameter(torch.zeros(width))
        self.loop_weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(columns, width)))

    def forward(self, edges: Edges, n_h: Rows) -> dict[str, Tensor]:
        found = {kind: h.new_zeros(h.size(0), self.width) for kind, h in n_h.items()}
        for key in self.keys:
            found[key[2]] = found[key[2]] + self.conv[key](edges[key], (n_h[key[0]], n_h[key[2]])).flatten(1)
        done = {kind: h + n_h[kind] @ self.loop_weight + self.h_bias for kind, h in found.items()}
        return done if self.act is None else {kind: self.act(h) for kind, h in done.items()}


class HgtLayer(nn.Module):
    def __init__(self, columns: int, width: int, keys: list[Key], act: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        del act  # its encoder gives it a ReLU in all layers
        self.keys, self.heads, self.width = keys, 4, width
        each, kinds = width // self.heads, list(mag().x)
        self.k_linears, self.q_linears, self.v_linears, self.a_linears = (
            nn.ModuleDict({kind: nn.Linear(columns, width) for kind in kinds}) for _ in range(4)
        )
        self.norms = nn.ModuleDict({kind: nn.LayerNorm(width) for kind in kinds})
        self.skip = nn.ParameterDict({kind: nn.Parameter(torch.ones(1)) for kind in kinds})
        names = ["_".join(key) for key in keys]
        self.relation_pri = nn.ParameterDict({name: nn.Parameter(torch.ones(self.heads)) for name in names})
        self.relation_att, self.relation_msg = (
            nn.ParameterDict({name: nn.Parameter(torch.randn(self.heads, each, each) / each) for name in names})
            for _ in range(2)
        )

    def forward(self, edges: Edges, h: Rows) -> dict[str, Tensor]:
        each, read = self.width // self.heads, dict[str, list[Tensor]]()
        for key in self.keys:
            name, (source, target), rows = "_".join(key), edges[key], h[key[2]].size(0)
            k = torch.einsum(
                "bij,ijk->bik", self.k_linears[key[0]](h[key[0]]).view(-1, self.heads, each), self.relation_att[name]
            )
            v = torch.einsum(
                "bij,ijk->bik", self.v_linears[key[0]](h[key[0]]).view(-1, self.heads, each), self.relation_msg[name]
            )
            q = self.q_linears[key[2]](h[key[2]]).view(-1, self.heads, each)
            score = (q[target] * k[source]).sum(-1) * self.relation_pri[name] / math.sqrt(each)
            share = softmax(score, target, num_nodes=rows)
            read.setdefault(key[2], []).append(
                scatter(v[source] * share.unsqueeze(-1), target, dim=0, dim_size=rows).view(-1, self.width)
            )
        found = {}
        for kind, own in h.items():
            alpha, mixed = torch.sigmoid(self.skip[kind]), self.a_linears[kind](own)
            passed = torch.stack(read[kind]).mean(dim=0) if kind in read else mixed
            found[kind] = functional.relu(self.norms[kind](passed * alpha + mixed * (1 - alpha)))
        return found


class FraudSage(nn.Module):
    """NVIDIA's blueprint of fraud in payments: XGBoost reads what its convolutions give, `return_hidden=True`."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([pyg.SAGEConv(COLUMNS, WIDTH), pyg.SAGEConv(WIDTH, WIDTH)])
        self.fc = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, edge_index: Tensor, return_hidden: bool = False) -> Tensor:
        for conv in self.convs:
            x = functional.dropout(functional.relu(conv(x, edge_index)), p=0.25, training=self.training)
        return x if return_hidden else self.fc(x)


class NodeEncoder(nn.Module):
    def __init__(self, columns: Mapping[str, int]) -> None:
        super().__init__()
        self.input_projs = nn.ParameterDict({
            kind: nn.Parameter(nn.init.xavier_uniform_(torch.empty(count, WIDTH))) for kind, count in columns.items()
        })  # fmt: skip

    def forward(self, rows: Rows) -> dict[str, Tensor]:
        return {kind: x @ self.input_projs[kind] for kind, x in rows.items()}


class GraphConvEncoder(nn.Module):
    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self._layers = nn.ModuleList(layers)

    def forward(self, edges: Edges, h: Rows) -> Rows:
        for layer in self._layers:
            h = layer(edges, h)
        return h


class EntityClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.Parameter(nn.init.xavier_uniform_(torch.empty(WIDTH, CLASSES)))
        self.bias = nn.Parameter(torch.zeros(CLASSES))

    def forward(self, rows: Tensor) -> Tensor:
        return rows @ self.decoder + self.bias


class GraphStormModel(nn.Module):
    """Its parts have the names under which GraphStorm saves them."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        graph = mag()
        keys = graph.metadata[1]
        self.node_embed = NodeEncoder(graph.columns)
        self.gnn = GraphConvEncoder([layer(WIDTH, WIDTH, keys, functional.relu), layer(WIDTH, WIDTH, keys, None)])
        self.decoder = EntityClassifier()

    def forward(self, x_dict: Rows, edge_index_dict: Edges) -> tuple[Tensor, Tensor]:
        h = self.gnn(edge_index_dict, self.node_embed(x_dict))
        return self.decoder(h["paper"]), h["paper"]


def storm(layer: Any) -> Made:
    return over_types(GraphStormModel(layer), mag(), "paper")


def _dgl(name: str, make: Callable[[], Made], note: str) -> Entry:
    return Entry(name, DGL, f"{_DGL_LINK}{name}", Task.CLASSES, make, (), f"{_EMULATED}; {note}" if note else _EMULATED)


def _storm(name: str, layer: Any) -> Entry:
    return Entry(name, GRAPHSTORM, f"{_STORM_LINK}{name}", Task.CLASSES, lambda: storm(layer), (), _EMULATED)


def _hidden() -> Made:
    graph = one_type(directed=True)
    return Made(FraudSage(), (graph.x, graph.edges, True))


def _nvidia(what: str, task: Task, make: Callable[[], Made]) -> Entry:
    return Entry(f"financial-fraud-detection: {what}", NVIDIA, _NVIDIA_LINK, task, make)


_EMULATED = "DGL's layers by torch's operations"
ENTRIES = (
    _dgl("graphsage/node_classification.py", lambda: over_nodes(Sage(), directed=True), ""),
    _dgl("gat/train.py", gat, ""),
    _dgl("rgcn/entity.py", rgcn, "embeddings of nodes are given as features"),
    _nvidia("scores", Task.CLASSES, lambda: over_nodes(FraudSage(), directed=True)),
    _nvidia("rows that XGBoost reads", Task.ROWS, _hidden),
    _storm("rgcn_encoder.py", RelGraphConvLayer),
    _storm("rgat_encoder.py", RelationalAttLayer),
    _storm("hgt_encoder.py", HgtLayer),
)
