"""Networks as layers in torch: torch_geometric's own modules, made of a description, called as their users call them.

It is what `worker/gnnserve_worker/layers/` is compared with, what is trained where no weights are given, and the one
place of the worker that knows which class of torch_geometric a convolution is. Modules are named so that their
parameters and buffers have the keys of `gnnserve_api/files/layers.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from msgspec import UNSET
from torch import nn

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import (
    Activation,
    Aggregation,
    Combination,
    Convolution,
    ConvolutionManifest,
    DegreeScaler,
    DenseManifest,
    JumpingKnowledge,
    LayerManifest,
    LayersManifest,
    Norm,
    Residual,
    ResidualPlace,
)
from gnnserve_api.files.programs import InputRole, ProgramManifest, RelationKey
from gnnserve_worker.layers.convolutions.kind import Ends
from gnnserve_worker.layers.shapes import Columns, LayerWidths, widths_of
from gnnserve_worker.models.registry import Tensors

with warnings.catch_warnings():
    # torch_geometric 2.8 calls torch.jit.script while it is imported, which torch 2.15 deprecates.
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=FutureWarning)
    import torch_geometric.nn as pyg
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

_NOT_KEPT = "num_batches_tracked"
"""BatchNorm's count of batches, which no output depends on."""
_ANY_DEGREES = (1, 1)
_MOMENTUM = 0.1
"""Share of a batch in running statistics, torch's default."""


@dataclass(frozen=True, slots=True)
class GraphTensors:
    """A graph, or a sample of one, as networks read it; floats are of the module's dtype."""

    features: Sequence[torch.Tensor]
    """float [nodes, columns], by type"""
    edges: Sequence[torch.Tensor]
    """int64 [2, edges], by relation: the nodes that are read, and those that read them"""
    edge_columns: Sequence[Mapping[str, torch.Tensor]]
    """float [edges], by relation and the column's name"""

    def to(self, device: torch.device) -> GraphTensors:
        columns = [{name: one.to(device) for name, one in named.items()} for named in self.edge_columns]
        return GraphTensors([one.to(device) for one in self.features], [one.to(device) for one in self.edges], columns)


def tensors_of(program: ProgramManifest, schema: GraphSchema, arrays: Mapping[str, np.ndarray]) -> GraphTensors:
    """A sample as it is laid out for a program of layers. What that does not read has no edges, and no columns."""
    nodes = {each.type: int(arrays[each.name].sum()) for each in program.inputs if each.role is InputRole.NODES_PER_HOP}
    of_types = {each.type: arrays[each.name] for each in program.inputs if each.role is InputRole.FEATURES}
    features = [of_types.get(one.name, np.zeros((nodes.get(one.name, 0), 0), np.float32)) for one in schema.types]
    edges, columns = [], []
    for one in schema.relations:
        key = RelationKey(one.source, one.name, one.target)
        read = {each.role: arrays[each.name] for each in program.inputs if each.relation == key}
        edges.append(torch.from_numpy(read.get(InputRole.EDGES, np.zeros((2, 0), np.int64))))
        rows = read.get(InputRole.EDGE_FEATURES)
        names = () if rows is None or one.payload is UNSET else one.payload.columns
        columns.append({} if rows is None else dict(zip(names, torch.from_numpy(rows).unbind(1), strict=True)))
    return GraphTensors([torch.from_numpy(rows) for rows in features], edges, columns)


# --- rows


class BatchNorm(nn.BatchNorm1d):
    """One that takes a lone row in training, too: a batch may be one node without neighbours."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training and len(rows) < 2:
            mean, variance = self.running_mean, self.running_var
            return nn.functional.batch_norm(rows, mean, variance, self.weight, self.bias, eps=self.eps)
        return super().forward(rows)


class GraphNorm(nn.Module):
    """torch_geometric's GraphNorm by running statistics, which it has none of itself."""

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, columns: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(columns)), nn.Parameter(torch.zeros(columns))
        self.mean_scale = nn.Parameter(torch.ones(columns))
        self.register_buffer("running_mean", torch.zeros(columns))
        self.register_buffer("running_var", torch.ones(columns))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        mean, variance = self.running_mean, self.running_var
        if self.training:
            mean = rows.mean(dim=0)
            variance = (rows - mean * self.mean_scale).square().mean(dim=0)
            self.running_mean.lerp_(mean.detach(), _MOMENTUM)
            self.running_var.lerp_(variance.detach(), _MOMENTUM)
        return self.weight * (rows - mean * self.mean_scale) / (variance + self.eps).sqrt() + self.bias


class UnitRows(nn.Module):
    def __init__(self, power: float) -> None:
        super().__init__()
        self.power = power

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(rows, p=self.power, dim=-1)


class Zero(nn.Module):
    """Stands for a product that a convolution of torch_geometric has, and the description has not."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.new_zeros(())


NORMS: Mapping[Norm, Callable[[int, float], nn.Module]] = {
    Norm.NONE: lambda columns, eps: nn.Identity(),
    Norm.BATCH: BatchNorm,
    Norm.LAYER: nn.LayerNorm,
    Norm.GRAPH: GraphNorm,
    Norm.L2: lambda columns, eps: UnitRows(2.0),
    Norm.L1: lambda columns, eps: UnitRows(1.0),
}
"""From columns and epsilon."""

ACTIVATIONS: Mapping[Activation, Callable[[int, float | None], nn.Module]] = {
    Activation.NONE: lambda columns, slope: nn.Identity(),
    Activation.RELU: lambda columns, slope: nn.ReLU(),
    Activation.LEAKY_RELU: lambda columns, slope: nn.LeakyReLU(0.01 if slope is None else slope),
    Activation.ELU: lambda columns, slope: nn.ELU(1.0 if slope is None else slope),
    Activation.SELU: lambda columns, slope: nn.SELU(),
    Activation.GELU: lambda columns, slope: nn.GELU(),
    Activation.SILU: lambda columns, slope: nn.SiLU(),
    Activation.PRELU: lambda columns, slope: nn.PReLU(columns),
    Activation.TANH: lambda columns, slope: nn.Tanh(),
    Activation.SIGMOID: lambda columns, slope: nn.Sigmoid(),
}
"""From columns and the slope."""


class Product(nn.Linear):
    """A product of rows, with its norm and activation."""

    def __init__(self, columns: int, dense: DenseManifest) -> None:
        super().__init__(columns, dense.width, bias=dense.bias)
        self.norm = NORMS[dense.norm](dense.width, dense.norm_epsilon)
        self.activation = ACTIVATIONS[dense.activation](dense.width, dense.slope)
        self.is_norm_behind = dense.is_norm_behind

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rows = super().forward(rows)
        first, second = (self.activation, self.norm) if self.is_norm_behind else (self.norm, self.activation)
        finished: torch.Tensor = second(first(rows))
        return finished


def products_of(columns: int, described: Sequence[DenseManifest]) -> nn.Sequential:
    widths = [columns, *(one.width for one in described)]
    return nn.Sequential(*(Product(width, one) for width, one in zip(widths, described, strict=False)))


# --- convolutions


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
        edges, weights = gcn_norm(edge_index, edge_weight, len(x), add_self_loops=True, dtype=x.dtype)
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


@dataclass(frozen=True, slots=True)
class TorchConvolution:
    """The torch side of a convolution."""

    make: Callable[[ConvolutionManifest, Ends, Learning], Any]
    """torch_geometric's module of a description."""
    call: Callable[[Any, Reading], torch.Tensor]
    """From the module to its outputs, float [nodes of the target's type, columns]."""


CONVOLUTIONS: Mapping[Convolution, TorchConvolution] = {
    Convolution.GRAPH_SAGE: TorchConvolution(_sage, _by_edges),
    Convolution.GCN: TorchConvolution(_gcn, _by_weights),
    Convolution.GRAPH_CONV: TorchConvolution(_graph_conv, _by_weights),
    # Both ends have a matrix each, even within a type.
    Convolution.GAT: TorchConvolution(
        lambda conv, ends, learning: pyg.GATConv((ends.source, ends.target), **_of_attention(conv, learning)),
        _by_features,
    ),
    Convolution.GATV2: TorchConvolution(
        lambda conv, ends, learning: pyg.GATv2Conv(
            columns_of(ends), share_weights=conv.shares_weights, **_of_attention(conv, learning)
        ), _by_features,
    ),
    Convolution.TRANSFORMER: TorchConvolution(_transformer, _by_features),
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
}  # fmt: skip
"""The torch side of each kind, beside `worker/gnnserve_worker/layers/convolutions/`, which is free of torch."""


# --- layers

_COMBINED: Mapping[Combination, Callable[[list[torch.Tensor]], torch.Tensor]] = {
    Combination.SUM: lambda parts: torch.stack(parts).sum(dim=0),
    Combination.MEAN: lambda parts: torch.stack(parts).mean(dim=0),
    Combination.MAX: lambda parts: torch.stack(parts).amax(dim=0),
    Combination.MIN: lambda parts: torch.stack(parts).amin(dim=0),
    Combination.CAT: lambda parts: torch.cat(parts, dim=-1),
}

States: TypeAlias = Mapping[int, torch.Tensor]
"""Rows by the place of their type, float [nodes, columns]."""


class Layer(nn.Module):
    """A layer, over the types and relations of a graph."""

    def __init__(
        self, layer: LayerManifest, widths: LayerWidths, inputs: Columns, schema: GraphSchema, learning: Learning
    ) -> None:
        """`inputs`: columns of the rows that the network's first layer reads."""
        super().__init__()
        self.described = layer
        ends = [(schema.place_of(one.source), schema.place_of(one.target)) for one in schema.relations]
        self.ends = {one.relation: ends[one.relation] for one in layer.convs}
        self.convs = nn.ModuleDict({
            key: CONVOLUTIONS[one.conv].make(one, joined, learning)
            for key, one, joined in zip(layer.keys, layer.convs, widths.ends, strict=True)
        })  # fmt: skip
        self.written = sorted(widths.outputs)
        outputs = {str(kind): columns for kind, columns in widths.outputs.items()}
        normed = {str(kind): one for kind, one in widths.inputs.items()} if layer.is_pre_activated else outputs
        self.norms = nn.ModuleDict({kind: NORMS[layer.norm](one, layer.norm_epsilon) for kind, one in normed.items()})
        self.activations = nn.ModuleDict({
            kind: ACTIVATIONS[layer.activation](one, layer.slope) for kind, one in normed.items()
        })  # fmt: skip
        self.own = nn.ModuleDict({
            kind: nn.Linear(widths.inputs[int(kind)], one) for kind, one in outputs.items() if layer.own
        })  # fmt: skip
        added = inputs if layer.reads_input else widths.inputs
        is_projected = layer.residual is Residual.PROJECTED
        self.residuals = nn.ModuleDict({
            kind: nn.Linear(added[int(kind)], one) for kind, one in outputs.items() if is_projected
        })  # fmt: skip

    def forward(self, states: States, inputs: States, graph: GraphTensors) -> States:
        layer, read = self.described, states
        if layer.is_pre_activated:
            read = {kind: self._activated(rows, kind) for kind, rows in states.items()}
        parts: dict[int, list[torch.Tensor]] = {kind: [] for kind in self.written}
        for conv, module in zip(layer.convs, self.convs.values(), strict=True):
            parts[self.ends[conv.relation][1]].append(self._convolved(conv, module, read, inputs, graph))
        written = {}
        for kind, found in parts.items():
            own = [self.own[str(kind)](read[kind])] if layer.own else []
            rows = sum(own, _COMBINED[layer.combination](found)) if found else own[0]
            written[kind] = self._finished(rows, inputs if layer.reads_input else states, kind)
        return written

    def _convolved(
        self, conv: ConvolutionManifest, module: nn.Module, states: States, inputs: States, graph: GraphTensors
    ) -> torch.Tensor:
        source, target = self.ends[conv.relation]
        edges, columns = graph.edges[conv.relation], graph.edge_columns[conv.relation]
        if conv.where is not None:
            kept = torch.nonzero(columns[conv.where.column] == conv.where.equals)[:, 0]
            edges, columns = edges[:, kept], {name: one[kept] for name, one in columns.items()}
        reading = Reading(
            states[target] if source == target else (states[source], states.get(target, graph.features[target][:, :0])),
            edges,
            torch.stack([columns[name] for name in conv.edge_columns], dim=1) if conv.edge_columns else None,
            columns[conv.edge_weight] if conv.edge_weight else None,
            inputs.get(target),
        )
        return CONVOLUTIONS[conv.conv].call(module, reading)

    def _activated(self, rows: torch.Tensor, kind: int) -> torch.Tensor:
        for _, step in self._steps(kind):
            rows = step(rows)
        return rows

    def _finished(self, rows: torch.Tensor, added: States, kind: int) -> torch.Tensor:
        """Norm and activation, unless these stand before, and what is added of the input in its place."""
        layer = self.described
        steps = [] if layer.is_pre_activated else self._steps(kind)
        for place, step in [*steps, (ResidualPlace.BEHIND_ACTIVATION, nn.Identity())]:
            if place is layer.residual_place and layer.residual is not Residual.NONE:
                own = added[kind]
                own = self.residuals[str(kind)](own) if self.residuals else own
                rows = (rows + own) / 2 if layer.residual is Residual.AVERAGED else rows + own
            rows = step(rows)
        return rows

    def _steps(self, kind: int) -> list[tuple[ResidualPlace, nn.Module]]:
        """Norm and activation in their order, and the place before each."""
        steps = [
            (ResidualPlace.BEFORE_NORM, self.norms[str(kind)]),
            (ResidualPlace.BEFORE_ACTIVATION, self.activations[str(kind)]),
        ]
        return steps[::-1] if self.described.is_norm_behind else steps


class LayersModule(nn.Module):
    """A network, whose outputs are scores of all nodes of one type."""

    def __init__(
        self, layers: LayersManifest, schema: GraphSchema, columns: Sequence[int], scored: int = 0,
        learning: Learning = NOT_TRAINED,
    ) -> None:  # fmt: skip
        """`columns`: features of each type. `scored`: place of the type."""
        super().__init__()
        self.described, self.scored, self.dropout = layers, scored, learning.dropout
        widths = widths_of(layers, schema, columns)
        self.before = nn.ModuleDict({
            str(one.type): products_of(columns[one.type], one.products) for one in layers.before
        })  # fmt: skip
        self.layers = nn.ModuleList(
            Layer(layer, of_layer, widths.inputs, schema, learning)
            for layer, of_layer in zip(layers.layers, widths.layers, strict=True)
        )
        written = [one[scored] for one in widths.written if scored in one]
        self.jumping = _JUMPING[layers.jumping_knowledge](written)
        is_cat = layers.jumping_knowledge is JumpingKnowledge.CAT
        heads = nn.ModuleDict()
        for kind in widths.written[-1] if layers.head_by_type else [scored]:
            read = sum(one[kind] for one in widths.written if kind in one) if is_cat else widths.written[-1][kind]
            heads[str(kind)] = products_of(read + (columns[kind] if layers.head_reads_input else 0), layers.head)
        if layers.head_by_type:
            self.heads = heads
        else:
            self.head = heads[str(scored)]

    def forward(self, graph: GraphTensors) -> torch.Tensor:
        """float [nodes of the type that is scored, outputs]"""
        inputs = {
            kind: self.before[str(kind)](rows) if str(kind) in self.before else rows
            for kind, rows in enumerate(graph.features)
            if rows.shape[1]
        }
        states: States = inputs
        found = []
        for number, layer in enumerate(self.layers, 1):
            states = layer(states, inputs, graph)
            if number < len(self.layers) or self.described.head:
                states = {kind: self._dropped(rows) for kind, rows in states.items()}
            if self.scored in states:
                found.append(states[self.scored])
        rows = self.jumping(found or [states[self.scored]])
        if self.described.head_reads_input:
            rows = torch.cat([graph.features[self.scored], rows], dim=-1)
        head = self.heads[str(self.scored)] if self.described.head_by_type else self.head
        scores: torch.Tensor = head(rows)
        return scores

    def _dropped(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(rows, self.dropout, self.training)


class _Last(nn.Module):
    def forward(self, layers: Sequence[torch.Tensor]) -> torch.Tensor:
        return layers[-1]


_JUMPING: Mapping[JumpingKnowledge, Callable[[Sequence[int]], nn.Module]] = {
    JumpingKnowledge.LAST: lambda widths: _Last(),
    JumpingKnowledge.CAT: lambda widths: pyg.JumpingKnowledge("cat"),
    JumpingKnowledge.MAX: lambda widths: pyg.JumpingKnowledge("max"),
    JumpingKnowledge.LSTM: lambda widths: pyg.JumpingKnowledge("lstm", widths[0], len(widths)),
}
"""From the columns of each layer."""


# --- weights


def kept(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers that outputs depend on, under the canonical keys; one that is shared stands once."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {key: tensor for key, tensor in named if not key.endswith(_NOT_KEPT)}


def canonical(module: nn.Module) -> Tensors:
    """Copies of a module's weights under the canonical keys, float32."""
    return {key: tensor.detach().cpu().numpy().astype(np.float32) for key, tensor in kept(module).items()}


@torch.no_grad()
def load_canonical(module: nn.Module, tensors: Mapping[str, np.ndarray]) -> None:
    """Give a module weights under the canonical keys. KeyError: keys differ; ValueError: a shape does."""
    own = kept(module)
    if different := own.keys() ^ tensors.keys():
        raise KeyError(f"the module and the weights do not both have {', '.join(sorted(different))}")
    for key, tensor in tensors.items():
        if own[key].shape != tensor.shape:
            raise ValueError(f"{key} is {list(tensor.shape)}, and the module has {list(own[key].shape)}")
        own[key].copy_(torch.from_numpy(tensor))
