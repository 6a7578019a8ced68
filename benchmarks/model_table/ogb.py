"""Reference models of the Open Graph Benchmark's leaderboards of nodes: GCN and SAGE of arxiv, products and proteins,
and mag's RGCN. They take sparse matrices (`adj_t`); edges stand for them here, which convolutions take as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.utils import scatter

from benchmarks.model_table.entries import Entry, Made, Task
from benchmarks.model_table.graphs import CLASSES, COLUMNS, NODES, WIDTH, Key, normalised_weights, one_type, over_nodes
from benchmarks.model_table.parts import Stack, log_softmax
from benchmarks.model_table.pyg_several_types import mag

FAMILY = "Open Graph Benchmark"
_LINK = "https://github.com/snap-stanford/ogb/blob/master/examples/nodeproppred/"


def _convs(make: Callable[..., nn.Module], **settings: Any) -> list[nn.Module]:
    widths = [COLUMNS, WIDTH, WIDTH, CLASSES]
    return [make(*pair, **settings) for pair in pairwise(widths)]


def arxiv(make: Callable[..., nn.Module], **settings: Any) -> Made:
    norms = [nn.BatchNorm1d(WIDTH) for _ in range(2)]
    return over_nodes(Stack(_convs(make, **settings), norms=norms, end=log_softmax))


def sage(end: Callable[[Tensor], Tensor] | None) -> Made:
    return over_nodes(Stack(_convs(pyg.SAGEConv), end=end))


class WeightedGcn(nn.Module):
    def __init__(self, end: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self.convs, self.end = nn.ModuleList(_convs(pyg.GCNConv, normalize=False)), end

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        for conv in self.convs[:-1]:
            x = functional.relu(conv(x, edge_index, edge_weight))
            x = functional.dropout(x, p=0.5, training=self.training)
        x = self.convs[-1](x, edge_index, edge_weight)
        return x if self.end is None else self.end(x)


def weighted(end: Callable[[Tensor], Tensor] | None) -> Made:
    graph = one_type()
    return Made(WeightedGcn(end), (graph.x, *normalised_weights(graph.edges, NODES)))


class MagConv(nn.Module):
    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        types, keys = mag().metadata
        self.rel_lins = nn.ModuleDict({"_".join(key): nn.Linear(columns, width, bias=False) for key in keys})
        self.root_lins = nn.ModuleDict({kind: nn.Linear(columns, width) for kind in types})

    def forward(self, x_dict: Mapping[str, Tensor], edge_index_dict: Mapping[Key, Tensor]) -> dict[str, Tensor]:
        out = {kind: self.root_lins[kind](x) for kind, x in x_dict.items()}
        for key, (source, target) in edge_index_dict.items():
            rows = x_dict[key[2]].size(0)
            mean = scatter(x_dict[key[0]][source], target, dim=0, dim_size=rows, reduce="mean")
            out[key[2]].add_(self.rel_lins["_".join(key)](mean))
        return out


class MagRgcn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([MagConv(COLUMNS, WIDTH), MagConv(WIDTH, CLASSES)])

    def forward(self, x_dict: Mapping[str, Tensor], edge_index_dict: Mapping[Key, Tensor]) -> dict[str, Tensor]:
        for conv in self.convs[:-1]:
            x_dict = conv(x_dict, edge_index_dict)
            x_dict = {
                kind: functional.dropout(functional.relu(x), p=0.5, training=self.training)
                for kind, x in x_dict.items()
            }
        found: dict[str, Tensor] = self.convs[-1](x_dict, edge_index_dict)
        return found


def mag_rgcn() -> Made:
    graph = mag()
    return Made(MagRgcn(), (dict(graph.x), dict(graph.edges)), "paper")


def _entry(name: str, make: Callable[[], Made], note: str = "") -> Entry:
    return Entry(name, FAMILY, f"{_LINK}{name.partition(':')[0]}", Task.CLASSES, make, (), note)


_WEIGHTS = "its normalised adjacency is a column of edges"
ENTRIES = (
    _entry("arxiv/gnn.py: GCN", lambda: arxiv(pyg.GCNConv, cached=True)),
    _entry("arxiv/gnn.py: SAGE", lambda: arxiv(pyg.SAGEConv)),
    _entry("products/gnn.py: GCN", lambda: weighted(log_softmax), _WEIGHTS),
    _entry("products/gnn.py: SAGE", lambda: sage(log_softmax)),
    _entry("proteins/gnn.py: GCN", lambda: weighted(None), _WEIGHTS),
    _entry("proteins/gnn.py: SAGE", lambda: sage(None), "means of its edges' features are given as features"),
    _entry("mag/rgcn.py", mag_rgcn, "embeddings of nodes are given as features"),
)
