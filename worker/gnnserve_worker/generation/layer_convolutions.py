"""Convolutions of networks as layers in torch: torch_geometric's own modules, made of a description, called as their
users call them.

It is the one place of the worker that knows which class of torch_geometric a convolution is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gnnserve_api.files.layers import Aggregation, Convolution, ConvolutionManifest, DegreeScaler
from gnnserve_worker.generation.layer_rows import products_of
from gnnserve_worker.layers.convolutions.kind import Ends

with warnings.catch_warnings():
    # torch_geometric 2.8 calls torch.jit.script while it is imported, which torch 2.15 deprecates.
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=FutureWarning)
    import torch_geometric.nn as pyg
    from torch_geometric.nn.conv.gcn_conv import gcn_norm
    from torch_geometric.utils import softmax

_ANY_DEGREES = (1, 1)


class Zero(nn.Module):
    """Stands for a product that a convolution of torch_geometric has, and the description has not."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.new_zeros(())


@dataclass(frozen=True, slots=True)
class Learning:
    """How a network is trained, as far as its modules know it."""

    dropout: float = 0.0
    """Share of what layers give, and of attention, that is left out in training."""
    degrees: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """How many nodes have a list of 0, 1, … entries, by the place of the relation: of these PNA's averages are made.
    Empty: weights are loaded."""


NOT_TRAINED = Learning()


@dataclass(frozen=True, slots=True)
class Reading:
    """Part of a graph that a convolution reads."""

    rows: Any
    """float [nodes, columns]; between two types a pair of the source's and the target's."""
    edges: torch.Tensor
    features: torch.Tensor | None
    """float [edges, columns]; None: it reads none."""
    weights: torch.Tensor | None
    """float [edges]; None: each edge counts 1."""
    inputs: torch.Tensor | None
    """Rows of the target's type that the network's first layer reads; None: it has none."""


_AGGREGATORS: Mapping[Aggregation, Callable[[int], Any]] = {
    Aggregation.MEAN: lambda columns: "mean",
    Aggregation.SUM: lambda columns: "sum",
    Aggregation.MAX: lambda columns: "max",
    Aggregation.MIN: lambda columns: "min",
    Aggregation.STD: lambda columns: "std",
    Aggregation.VAR: lambda columns: "var",
    Aggregation.SOFTMAX: lambda columns: pyg.SoftmaxAggregation(learn=True, channels=columns),
}
_SCALERS: Mapping[DegreeScaler, str] = {
    DegreeScaler.IDENTITY: "identity",
    DegreeScaler.AMPLIFICATION: "amplification",
    DegreeScaler.ATTENUATION: "attenuation",
    DegreeScaler.LINEAR: "linear",
    DegreeScaler.INVERSE_LINEAR: "inverse_linear",
}


def columns_of(ends: Ends) -> int | tuple[int, int]:
    """Columns as torch_geometric takes them."""
    return ends.source if ends.is_same_type else (ends.source, ends.target)


def _aggregator(conv: ConvolutionManifest, ends: Ends) -> Any:
    """One, or a list of several."""
    found = [_AGGREGATORS[one](ends.source) for one in conv.aggregations]
    return found if len(found) > 1 else found[0]


def _of_heads(conv: ConvolutionManifest) -> dict[str, Any]:
    width = conv.width if conv.averages_heads else conv.width // conv.heads
    return {
        "out_channels": width, "heads": conv.heads, "concat": not conv.averages_heads, "bias": conv.bias,
        "edge_dim": len(conv.edge_columns) or None,
    }  # fmt: skip


def _of_attention(conv: ConvolutionManifest, learning: Learning) -> dict[str, Any]:
    return {
        "negative_slope": conv.negative_slope, "add_self_loops": conv.self_loops, "dropout": learning.dropout,
        **_of_heads(conv),
    }  # fmt: skip


def _sage(conv: ConvolutionManifest, ends: Ends, learning: Learning) -> Any:
    return pyg.SAGEConv(
        columns_of(ends), conv.width, aggr=_aggregator(conv, ends), normalize=conv.has_unit_rows, root_weight=conv.root,
        project=conv.projects, bias=conv.bias,
    )  # fmt: skip


def _gcn(conv: ConvolutionManifest, ends: Ends, learning: Learning) -> Any:
    loops = conv.self_loops and conv.is_normalised
    return pyg.GCNConv(
        ends.source, conv.width, improved=conv.improved, add_self_loops=loops, normalize=conv.is_normalised,
        bias=conv.bias,
    )  # fmt: skip


def _graph_conv(conv: ConvolutionManifest, ends: Ends, learning: Learning) -> Any:
    made = pyg.GraphConv(columns_of(ends), conv.width, aggr=_aggregator(conv, ends), bias=conv.bias)
    if not conv.root:
        made.lin_root = Zero()
    return made


def _transformer(conv: ConvolutionManifest, ends: Ends, learning: Learning) -> Any:
    made = pyg.TransformerConv(
        columns_of(ends), beta=conv.has_beta, root_weight=conv.root, dropout=learning.dropout, **_of_heads(conv)
    )
    if not conv.root:
        made.lin_skip = Zero()
    return made


def _pna(conv: ConvolutionManifest, ends: Ends, learning: Learning) -> Any:
    return pyg.PNAConv(
        ends.source, conv.width, [_AGGREGATORS[one](ends.source) for one in conv.aggregations],
        [_SCALERS[one] for one in conv.scalers], torch.tensor(learning.degrees.get(conv.relation, _ANY_DEGREES)),
        edge_dim=len(conv.edge_columns) or None,
        towers=conv.towers, pre_layers=conv.pre_layers, post_layers=conv.post_layers, divide_input=conv.divides_input,
    )  # fmt: skip


class LoopedTAGConv(pyg.TAGConv):  # type: ignore[misc]
    """TAGConv whose nodes read themselves, too, as those of MixHopConv do."""

    def __init__(self, columns: int, width: int, hops: int, *, bias: bool) -> None:
        super().__init__(columns, width, K=hops, bias=bias, normalize=False)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor | None) -> torch.Tensor:
        edges, weights = gcn_norm(edge_index, edge_weight, x.shape[0], add_self_loops=True, dtype=x.dtype)
        found: torch.Tensor = super().forward(x, edges, weights)
        return found


def _tag(conv: ConvolutionManifest, ends: Ends, learning: Learning) -> Any:
    if conv.self_loops and conv.is_normalised:
        return LoopedTAGConv(ends.source, conv.width, conv.hops, bias=conv.bias)
    return pyg.TAGConv(ends.source, conv.width, K=conv.hops, bias=conv.bias, normalize=conv.is_normalised)


def _appnp(conv: ConvolutionManifest, ends: Ends, learning: Learning) -> Any:
    return pyg.APPNP(conv.hops, conv.alpha, add_self_loops=conv.self_loops, normalize=conv.is_normalised)


def _gcnii(conv: ConvolutionManifest, ends: Ends, learning: Learning) -> Any:
    return pyg.GCN2Conv(
        ends.source, conv.alpha, conv.theta, None if conv.theta is None else ends.layer, conv.shares_weights,
        add_self_loops=conv.self_loops, normalize=conv.is_normalised,
    )  # fmt: skip


def _gen(conv: ConvolutionManifest, ends: Ends, learning: Learning) -> Any:
    aggregation = pyg.SoftmaxAggregation(learn=True, channels=conv.width)
    made = pyg.GENConv((ends.source, ends.target), conv.width, aggr=aggregation)
    made.mlp = products_of(conv.width, conv.mlp)
    if conv.edge_columns:
        made.lin_edge = nn.Linear(len(conv.edge_columns), conv.width)
    return made


def _given(*names: str) -> Callable[[Any, Reading], torch.Tensor]:
    """Call of a module with these parts of a graph."""

    def call(module: Any, read: Reading) -> torch.Tensor:
        found: torch.Tensor = module(*(getattr(read, name) for name in names))
        return found

    return call


_by_edges, _by_weights = _given("rows", "edges"), _given("rows", "edges", "weights")
_by_features, _by_inputs = _given("rows", "edges", "features"), _given("rows", "inputs", "edges", "weights")


# --- softmax of attention, of one relation or of several together


@dataclass(frozen=True, slots=True)
class EdgeAttention:
    """Scores that a softmax is of, and the values that its shares weigh."""

    scores: torch.Tensor
    """float [edges, heads]"""
    values: torch.Tensor
    """float [edges, heads, columns of a head]"""


Attend = Callable[[Any, Reading], EdgeAttention]


def _pair_of(read: Reading) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the nodes that are read, and of those that read them."""
    source, target = read.rows if isinstance(read.rows, tuple) else (read.rows, read.rows)
    return source, target


def _attend_apart(module: Any, read: Reading) -> EdgeAttention:
    """GATConv over a pair of rows."""
    (source, target), (sources, targets) = _pair_of(read), read.edges
    by_head = (-1, module.heads, module.out_channels)
    values, own = module.lin_src(source).view(by_head), module.lin_dst(target).view(by_head)
    scores = (values * module.att_src).sum(dim=-1)[sources] + (own * module.att_dst).sum(dim=-1)[targets]
    if read.features is not None:
        scores = scores + (module.lin_edge(read.features).view(by_head) * module.att_edge).sum(dim=-1)
    return EdgeAttention(nn.functional.leaky_relu(scores, module.negative_slope), values[sources])


def _attend_jointly(module: Any, read: Reading) -> EdgeAttention:
    """GATv2Conv."""
    (source, target), (sources, targets) = _pair_of(read), read.edges
    by_head = (-1, module.heads, module.out_channels)
    values = module.lin_l(source).view(by_head)[sources]
    both = values + module.lin_r(target).view(by_head)[targets]
    if read.features is not None:
        both = both + module.lin_edge(read.features).view(by_head)
    scores = (nn.functional.leaky_relu(both, module.negative_slope) * module.att).sum(dim=-1)
    return EdgeAttention(scores, values)


def _attend_by_products(module: Any, read: Reading) -> EdgeAttention:
    """TransformerConv."""
    (source, target), (sources, targets) = _pair_of(read), read.edges
    by_head = (-1, module.heads, module.out_channels)
    queries = module.lin_query(target).view(by_head)[targets]
    keys, values = module.lin_key(source).view(by_head)[sources], module.lin_value(source).view(by_head)[sources]
    if read.features is not None:
        of_edges = module.lin_edge(read.features).view(by_head)
        keys, values = keys + of_edges, values + of_edges
    return EdgeAttention((queries * keys).sum(dim=-1) / module.out_channels**0.5, values)


class RGATConv(nn.Module):
    """torch_geometric's RGATConv of one relation: one matrix of both ends, and vectors of the scores as columns."""

    def __init__(self, conv: ConvolutionManifest, ends: Ends, learning: Learning) -> None:
        super().__init__()
        self.heads, self.concat, self.dropout = conv.heads, not conv.averages_heads, learning.dropout
        self.out_channels = conv.width if conv.averages_heads else conv.width // conv.heads
        self.negative_slope = conv.negative_slope
        wide = self.heads * self.out_channels
        self.lin = nn.Linear(ends.source, wide, bias=False)
        self.q, self.k = (nn.Parameter(nn.init.xavier_uniform_(torch.empty(wide, self.heads))) for _ in range(2))
        if conv.edge_columns:
            self.lin_edge = nn.Linear(len(conv.edge_columns), wide, bias=False)
            self.e = nn.Parameter(nn.init.xavier_uniform_(torch.empty(wide, self.heads)))
        self.bias = nn.Parameter(torch.zeros(conv.width)) if conv.bias else None

    def forward(self, x: Any, edge_index: torch.Tensor, edge_attr: torch.Tensor | None) -> torch.Tensor:
        return attend_together([(_attend_by_all, self, Reading(x, edge_index, edge_attr, None, None))])


def _attend_by_all(module: Any, read: Reading) -> EdgeAttention:
    (source, target), (sources, targets) = _pair_of(read), read.edges
    values = module.lin(source)
    scores = (values @ module.k)[sources] + (module.lin(target) @ module.q)[targets]
    if read.features is not None:
        scores = scores + module.lin_edge(read.features) @ module.e
    by_head = (-1, module.heads, module.out_channels)
    return EdgeAttention(nn.functional.leaky_relu(scores, module.negative_slope), values.view(by_head)[sources])


def attend_together(parts: Sequence[tuple[Attend, Any, Reading]]) -> torch.Tensor:
    """Sum of what convolutions give, float [targets, width], whose neighbours are weighed by one softmax over the edges
    of all of them. Their targets are the same nodes."""
    count = _pair_of(parts[0][2])[1].shape[0]
    found = [attend(module, read) for attend, module, read in parts]
    targets = torch.cat([read.edges[1] for _, _, read in parts])
    shares = softmax(torch.cat([one.scores for one in found]), targets, num_nodes=count)
    own_shares = shares.split([one.scores.shape[0] for one in found])
    rows = []
    for (_, module, read), one, own in zip(parts, found, own_shares, strict=True):
        weighed = nn.functional.dropout(own, module.dropout, module.training).unsqueeze(-1) * one.values
        summed = weighed.new_zeros(count, *weighed.shape[1:]).index_add(0, read.edges[1], weighed)
        rows.append(_behind_heads(module, summed, _pair_of(read)[1]))
    return torch.stack(rows).sum(dim=0)


def _behind_heads(module: Any, summed: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Heads beside each other or averaged, with the bias, or the node's own row, that a module adds."""
    rows = summed.flatten(1) if module.concat else summed.mean(dim=1)
    bias, skip = getattr(module, "bias", None), getattr(module, "lin_skip", None)
    rows = rows if bias is None else rows + bias
    return rows if skip is None else rows + skip(target)


@dataclass(frozen=True, slots=True)
class TorchConvolution:
    """The torch side of a convolution."""

    make: Callable[[ConvolutionManifest, Ends, Learning], Any]
    """torch_geometric's module of a description."""
    call: Callable[[Any, Reading], torch.Tensor]
    """From the module to its outputs, float [nodes of the target's type, columns]."""
    attend: Attend | None = None
    """From the module to what its softmax is of; None: it has none."""


CONVOLUTIONS: Mapping[Convolution, TorchConvolution] = {
    Convolution.GRAPH_SAGE: TorchConvolution(_sage, _by_edges),
    Convolution.GCN: TorchConvolution(_gcn, _by_weights),
    Convolution.GRAPH_CONV: TorchConvolution(_graph_conv, _by_weights),
    # Both ends have a matrix each, even within a type.
    Convolution.GAT: TorchConvolution(
        lambda conv, ends, learning: pyg.GATConv((ends.source, ends.target), **_of_attention(conv, learning)),
        _by_features, _attend_apart,
    ),
    Convolution.GATV2: TorchConvolution(
        lambda conv, ends, learning: pyg.GATv2Conv(
            columns_of(ends), share_weights=conv.shares_weights, **_of_attention(conv, learning)
        ), _by_features, _attend_jointly,
    ),
    Convolution.TRANSFORMER: TorchConvolution(_transformer, _by_features, _attend_by_products),
    Convolution.GIN: TorchConvolution(
        lambda conv, ends, learning: pyg.GINConv(products_of(ends.source, conv.mlp), train_eps=True), _by_edges
    ),
    Convolution.GINE: TorchConvolution(
        lambda conv, ends, learning: pyg.GINEConv(
            products_of(ends.source, conv.mlp), train_eps=True, edge_dim=len(conv.edge_columns)
        ), _by_features,
    ),
    Convolution.PNA: TorchConvolution(_pna, _by_features),
    Convolution.TAG: TorchConvolution(_tag, _by_weights),
    Convolution.CHEBYSHEV: TorchConvolution(
        lambda conv, ends, learning: pyg.ChebConv(ends.source, conv.width, K=conv.hops + 1, bias=conv.bias), _by_weights
    ),
    Convolution.SGC: TorchConvolution(
        lambda conv, ends, learning: pyg.SGConv(
            ends.source, conv.width, K=conv.hops, add_self_loops=conv.self_loops, bias=conv.bias
        ), _by_weights,
    ),
    Convolution.APPNP: TorchConvolution(_appnp, _by_weights),
    Convolution.GCNII: TorchConvolution(_gcnii, _by_inputs),
    Convolution.AGNN: TorchConvolution(lambda conv, *_: pyg.AGNNConv(add_self_loops=conv.self_loops), _by_edges),
    Convolution.GEN: TorchConvolution(_gen, _by_features),
    Convolution.FILM: TorchConvolution(
        lambda conv, ends, learning: pyg.FiLMConv(
            (ends.source, ends.target), conv.width, act=nn.LeakyReLU(conv.negative_slope)
        ), _by_edges,
    ),
    Convolution.RGAT: TorchConvolution(RGATConv, _by_features, _attend_by_all),
}  # fmt: skip
"""The torch side of each kind, beside `worker/gnnserve_worker/layers/convolutions/`, which is free of torch."""
