"""Reference models of the Open Graph Benchmark: all networks of nodes that differ (GCN, SAGE, MLP and SIGN of arxiv,
products and proteins, mag's RGCN), those of mag240m, and encoders of links. They take sparse matrices (`adj_t`); edges
stand for them here, which convolutions take as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.utils import scatter

from benchmarks.model_table.entries import Entry, Made, Task
from benchmarks.model_table.graphs import (
    CLASSES,
    COLUMNS,
    NODES,
    RELATIONS,
    WIDTH,
    Key,
    normalised_weights,
    one_type,
    over_kinds,
    over_nodes,
)
from benchmarks.model_table.outcomes import Reason
from benchmarks.model_table.parts import Stack, log_softmax
from benchmarks.model_table.pyg_one_type import WithoutEdges, sign
from benchmarks.model_table.pyg_several_types import mag
from benchmarks.model_table.pyg_tables import Walked

FAMILY = "Open Graph Benchmark"
_LINK = "https://github.com/snap-stanford/ogb/blob/master/examples/"


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


class LscGat(nn.Module):
    """lsc/mag240m/gnn.py with GAT: a Linear of each row beside each convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([pyg.GATConv(COLUMNS, 4, 4), pyg.GATConv(WIDTH, 4, 4)])
        self.skips = nn.ModuleList([nn.Linear(COLUMNS, WIDTH), nn.Linear(WIDTH, WIDTH)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(WIDTH) for _ in self.convs])
        self.mlp = _head()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv, skip, norm in zip(self.convs, self.skips, self.norms, strict=True):
            x = functional.elu(norm(conv(x, edge_index) + skip(x)))
            x = functional.dropout(x, p=0.5, training=self.training)
        found: Tensor = self.mlp(x)
        return found


def _head() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        nn.BatchNorm1d(WIDTH),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(WIDTH, CLASSES),
    )


def lsc_sage() -> Made:
    convs = [pyg.SAGEConv(COLUMNS, WIDTH), pyg.SAGEConv(WIDTH, WIDTH)]
    return over_nodes(Stack(convs, norms=[nn.BatchNorm1d(WIDTH) for _ in convs], head=_head(), acts_last=True))


class LscRelational(nn.Module):
    """lsc/mag240m/rgnn.py: a convolution for each kind of edges, which it picks by a mask, and a Linear of each row."""

    def __init__(self, make: Callable[[int], nn.Module], act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.act = act
        self.convs = nn.ModuleList(
            [nn.ModuleList([make(columns) for _ in range(RELATIONS)]) for columns in (COLUMNS, WIDTH)]
        )
        self.skips = nn.ModuleList([nn.Linear(COLUMNS, WIDTH), nn.Linear(WIDTH, WIDTH)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(WIDTH) for _ in self.skips])
        self.mlp = _head()

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        layers: Any = zip(self.convs, self.skips, self.norms, strict=True)
        for convs, skip, norm in layers:
            out = skip(x)
            for kind, conv in enumerate(convs):
                out = out + conv(x, edge_index[:, edge_type == kind])
            x = functional.dropout(self.act(norm(out)), p=0.5, training=self.training)
        found: Tensor = self.mlp(x)
        return found


def lsc_rgat() -> Made:
    return over_kinds(LscRelational(lambda columns: pyg.GATConv(columns, 4, 4, add_self_loops=False), functional.elu))


def lsc_rsage() -> Made:
    return over_kinds(LscRelational(lambda columns: pyg.SAGEConv(columns, WIDTH, root_weight=False), functional.relu))


def mlp(*, has_norms: bool) -> Made:
    widths = [COLUMNS, WIDTH, WIDTH, CLASSES]
    network = pyg.MLP(widths, dropout=0.5, norm="batch_norm" if has_norms else None)
    return over_nodes(WithoutEdges(nn.Sequential(network, nn.LogSoftmax(dim=-1))))


def links(make: Callable[..., nn.Module], **settings: Any) -> Made:
    """Encoder of linkproppred/*/gnn.py: its predictor reads the product of two rows."""
    widths = [COLUMNS, WIDTH, WIDTH, WIDTH]
    return over_nodes(Stack([make(*pair, **settings) for pair in pairwise(widths)]))


def _entry(name: str, make: Callable[[], Made], note: str = "") -> Entry:
    return _in(_NODES, name, make, note=note)


def _in(
    folder: str, name: str, make: Callable[[], Made], task: Task = Task.CLASSES, *reasons: Reason, note: str = ""
) -> Entry:
    return Entry(name, FAMILY, f"{_LINK}{folder}{name.partition(':')[0]}", task, make, reasons, note)


_NODES, _LINKS, _LARGE = "nodeproppred/", "linkproppred/", "lsc/"
_WEIGHTS = "its normalised adjacency is a column of edges"
_PRODUCT = "its predictor is an MLP over the product of two rows"
ENTRIES = (
    _entry("arxiv/gnn.py: GCN", lambda: arxiv(pyg.GCNConv, cached=True)),
    _entry("arxiv/gnn.py: SAGE", lambda: arxiv(pyg.SAGEConv)),
    _entry("products/gnn.py: GCN", lambda: weighted(log_softmax), _WEIGHTS),
    _entry("products/gnn.py: SAGE", lambda: sage(log_softmax)),
    _entry("proteins/gnn.py: GCN", lambda: weighted(None), _WEIGHTS),
    _entry("proteins/gnn.py: SAGE", lambda: sage(None), "means of its edges' features are given as features"),
    _entry("mag/rgcn.py", mag_rgcn, "embeddings of nodes are given as features"),
    _entry("arxiv/mlp.py", lambda: mlp(has_norms=True)),
    _entry("products/mlp.py", lambda: mlp(has_norms=False)),
    _entry("products/sign.py", sign, "propagated features are given as features"),
    _in(_LARGE, "mag240m/gnn.py: GraphSAGE", lsc_sage),
    _in(_LARGE, "mag240m/gnn.py: GAT", lambda: over_nodes(LscGat())),
    _in(_LARGE, "mag240m/rgnn.py: R-GraphSAGE", lsc_rsage),
    _in(_LARGE, "mag240m/rgnn.py: R-GAT", lsc_rgat),
    _in(_LINKS, "collab/gnn.py: GCN", lambda: links(pyg.GCNConv, cached=True), Task.OTHER_LINKS, note=_PRODUCT),
    _in(_LINKS, "collab/gnn.py: SAGE", lambda: links(pyg.SAGEConv), Task.OTHER_LINKS, note=_PRODUCT),
    _in(_LINKS, "citation2/cluster_gcn.py", lambda: links(pyg.GCNConv), Task.OTHER_LINKS, note=_PRODUCT),
    _in(_LINKS, "citation2/node2vec.py", lambda: over_nodes(Walked()), Task.OTHER_LINKS),
)
