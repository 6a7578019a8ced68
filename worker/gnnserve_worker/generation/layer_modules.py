"""Networks as layers in torch, made of a description.

It is what `worker/gnnserve_worker/layers/` is compared with, and what is trained where no weights are given. Modules
are named so that their parameters and buffers have the keys of `gnnserve_api/files/layers.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from msgspec import UNSET
from torch import nn

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import (
    Combination,
    ConvolutionManifest,
    JumpingKnowledge,
    LayerManifest,
    LayersManifest,
    Residual,
    ResidualPlace,
)
from gnnserve_api.files.programs import InputRole, ProgramManifest, RelationKey
from gnnserve_worker.generation.layer_convolutions import (
    CONVOLUTIONS,
    NOT_TRAINED,
    Learning,
    Reading,
    TorchConvolution,
    attend_together,
)
from gnnserve_worker.generation.layer_rows import ACTIVATIONS, NORMS, products_of
from gnnserve_worker.layers.shapes import Columns, LayerWidths, widths_of
from gnnserve_worker.models.registry import Tensors

with warnings.catch_warnings():
    # torch_geometric 2.8 calls torch.jit.script while it is imported, which torch 2.15 deprecates.
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=FutureWarning)
    from torch_geometric.nn import JumpingKnowledge as Jumping

_NOT_KEPT = "num_batches_tracked"
"""BatchNorm's count of batches, which no output depends on."""


@dataclass(frozen=True, slots=True)
class GraphTensors:
    """A graph, or a sample of one, as networks read it; floats are of the module's dtype."""

    features: Sequence[torch.Tensor]
    """float [nodes, columns], by type"""
    edges: Sequence[torch.Tensor]
    """int64 [2, edges], by relation: the nodes that are read, and those that read them"""
    edge_columns: Sequence[Mapping[str, torch.Tensor]]
    """float [edges], by relation and the column's name"""
    spare_ends: Sequence[torch.Tensor] = ()
    """int64 [2, 1], by relation: nodes that edges are moved to which a convolution does not read, so that no size
    depends on what edges have. Empty: these edges are left out."""

    def to(self, device: torch.device) -> GraphTensors:
        columns = [{name: one.to(device) for name, one in named.items()} for named in self.edge_columns]
        spare = [one.to(device) for one in self.spare_ends]
        features, edges = [one.to(device) for one in self.features], [one.to(device) for one in self.edges]
        return GraphTensors(features, edges, columns, spare)


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


# --- layers

Part: TypeAlias = tuple[TorchConvolution, nn.Module, Reading]
"""A convolution of a type, and what it reads."""


def _outputs(parts: Sequence[Part]) -> list[torch.Tensor]:
    return [convolution.call(module, read) for convolution, module, read in parts]


def _attended(parts: Sequence[Part]) -> torch.Tensor:
    return attend_together([
        (convolution.attend, module, read) for convolution, module, read in parts if convolution.attend is not None
    ])  # fmt: skip


_COMBINED: Mapping[Combination, Callable[[Sequence[Part]], torch.Tensor]] = {
    Combination.SUM: lambda parts: torch.stack(_outputs(parts)).sum(dim=0),
    Combination.MEAN: lambda parts: torch.stack(_outputs(parts)).mean(dim=0),
    Combination.MAX: lambda parts: torch.stack(_outputs(parts)).amax(dim=0),
    Combination.MIN: lambda parts: torch.stack(_outputs(parts)).amin(dim=0),
    Combination.CAT: lambda parts: torch.cat(_outputs(parts), dim=-1),
    Combination.ATTENTION: _attended,
}


class ResidualProduct(nn.Linear):
    """The input times a matrix, added."""

    def forward(self, rows: torch.Tensor, added: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        found: torch.Tensor = rows + super().forward(added)
        return found


class ResidualGate(nn.Module):
    """A learned share of the rows, and of the input the rest, as HGTConv has it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.ones(1))

    def forward(self, rows: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        share = self.gate.sigmoid()
        return share * rows + (1 - share) * added


_Residual: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_RESIDUALS: Mapping[Residual, Callable[[int, int], _Residual | None]] = {
    Residual.NONE: lambda read, written: None,
    Residual.ADDED: lambda read, written: torch.add,
    Residual.AVERAGED: lambda read, written: lambda rows, added: (rows + added) / 2,
    Residual.PROJECTED: ResidualProduct,
    Residual.GATED: lambda read, written: ResidualGate() if read == written else None,
}
"""From columns of the input and of the output to what is made of both; None: the output stays as it is."""

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
        self.adding = {
            kind: _RESIDUALS[layer.residual](added.get(kind, 0), one) for kind, one in widths.outputs.items()
        }
        self.residuals = nn.ModuleDict({
            str(kind): one for kind, one in self.adding.items() if isinstance(one, nn.Module)
        })  # fmt: skip
        self.outputs = nn.ModuleDict({
            kind: nn.Linear(one, one) for kind, one in outputs.items() if layer.output_product
        })  # fmt: skip

    def forward(self, states: States, inputs: States, graph: GraphTensors) -> States:
        layer, read = self.described, states
        if layer.is_pre_activated:
            read = {kind: self._activated(rows, kind) for kind, rows in states.items()}
        parts: dict[int, list[Part]] = {kind: [] for kind in self.written}
        for conv, module in zip(layer.convs, self.convs.values(), strict=True):
            part = CONVOLUTIONS[conv.conv], module, self._reading(conv, read, inputs, graph)
            parts[self.ends[conv.relation][1]].append(part)
        written = {}
        for kind, found in parts.items():
            own = [self.own[str(kind)](read[kind])] if layer.own else []
            rows = sum(own, _COMBINED[layer.combination](found)) if found else own[0]
            written[kind] = self._finished(rows, inputs if layer.reads_input else states, kind)
        return written

    def _reading(self, conv: ConvolutionManifest, states: States, inputs: States, graph: GraphTensors) -> Reading:
        source, target = self.ends[conv.relation]
        edges, columns = graph.edges[conv.relation], graph.edge_columns[conv.relation]
        if conv.where is not None:
            is_read = columns[conv.where.column] == conv.where.equals
            if graph.spare_ends:
                edges = torch.where(is_read, edges, graph.spare_ends[conv.relation])
            else:
                kept = torch.nonzero(is_read)[:, 0]
                edges, columns = edges[:, kept], {name: one[kept] for name, one in columns.items()}
        return Reading(
            states[target] if source == target else (states[source], states.get(target, graph.features[target][:, :0])),
            edges,
            torch.stack([columns[name] for name in conv.edge_columns], dim=1) if conv.edge_columns else None,
            columns[conv.edge_weight] if conv.edge_weight else None,
            inputs.get(target),
        )

    def _activated(self, rows: torch.Tensor, kind: int) -> torch.Tensor:
        for _, step in self._steps(kind):
            rows = step(rows)
        return rows

    def _finished(self, rows: torch.Tensor, added: States, kind: int) -> torch.Tensor:
        """Norm and activation, unless these stand before, and what is added of the input in its place."""
        layer = self.described
        steps = [] if layer.is_pre_activated else self._steps(kind)
        for place, step in steps:
            rows = step(self._with_input(rows, added, kind) if place is layer.residual_place else rows)
        if layer.output_product:
            rows = self.outputs[str(kind)](rows)
        is_last = layer.residual_place is ResidualPlace.BEHIND_ACTIVATION
        return self._with_input(rows, added, kind) if is_last else rows

    def _with_input(self, rows: torch.Tensor, added: States, kind: int) -> torch.Tensor:
        """Rows with what a residual adds of the input."""
        add = self.adding[kind]
        return rows if add is None else add(rows, added[kind])

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
        return self.outputs(graph)[0]

    def outputs(self, graph: GraphTensors) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores, as of `forward`, and embeddings: what the head reads of the layers, or, without a head, the last
        layer."""
        return self._finished(self._written(graph), graph, self.scored)

    def scores_of(self, graph: GraphTensors, kinds: Sequence[int]) -> list[torch.Tensor]:
        """Scores of all nodes of each of these types, float [nodes, outputs], where one head reads all of them."""
        written = self._written(graph)
        return [self._finished(written, graph, kind)[0] for kind in kinds]

    def _written(self, graph: GraphTensors) -> list[States]:
        """Rows before the first layer, and behind each."""
        inputs = {
            kind: self.before[str(kind)](rows) if str(kind) in self.before else rows
            for kind, rows in enumerate(graph.features)
            if rows.shape[1]
        }
        written: list[States] = [inputs]
        for number, layer in enumerate(self.layers, 1):
            states = layer(written[-1], inputs, graph)
            if number < len(self.layers) or self.described.head:
                states = {kind: self._dropped(rows) for kind, rows in states.items()}
            written.append(states)
        return written

    def _finished(self, written: Sequence[States], graph: GraphTensors, kind: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As `outputs`, of the nodes of a type."""
        rows = self.jumping([states[kind] for states in written[1:] if kind in states] or [written[-1][kind]])
        embedded = rows if self.described.head else written[-2 if self.layers else -1].get(kind, rows)
        if self.described.head_reads_input:
            rows = torch.cat([graph.features[kind], rows], dim=-1)
        head = self.heads[str(kind)] if self.described.head_by_type else self.head
        return head(rows), embedded

    def _dropped(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(rows, self.dropout, self.training)


class _Last(nn.Module):
    def forward(self, layers: Sequence[torch.Tensor]) -> torch.Tensor:
        return layers[-1]


_JUMPING: Mapping[JumpingKnowledge, Callable[[Sequence[int]], nn.Module]] = {
    JumpingKnowledge.LAST: lambda widths: _Last(),
    JumpingKnowledge.CAT: lambda widths: Jumping("cat"),
    JumpingKnowledge.MAX: lambda widths: Jumping("max"),
    JumpingKnowledge.LSTM: lambda widths: Jumping("lstm", widths[0], len(widths)),
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
