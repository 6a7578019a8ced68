"""Models over graphs of several types as users of torch_geometric write them: what served answers must equal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnserve_worker.generation import networks
from gnnserve_worker.graph.store import Graph, GraphData

pyg = networks.pyg  # imported there without its warnings
HIDDEN, CLASSES = 8, 2


class HeteroModel(nn.Module):
    """What a user of torch_geometric writes: embeddings where a type has no features, and a HeteroConv a layer."""

    def __init__(self, data: GraphData, layers: int = 2) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {kind.name: nn.Embedding(kind.nodes, HIDDEN) for kind in data.types if kind.features is None}
        )
        widths = [HIDDEN] * (layers - 1) + [CLASSES]
        self.convs = nn.ModuleList(
            pyg.HeteroConv(
                {(one.source, one.name, one.target): pyg.SAGEConv((-1, -1), width) for one in data.relations},
                aggr="sum",
            )
            for width in widths
        )

    def forward(self, data: GraphData) -> torch.Tensor:
        return self.outputs(data)[data.target.name]

    def outputs(self, data: GraphData) -> dict[str, torch.Tensor]:
        """What the last layer gives for all nodes, by type."""
        states = inputs_of(self, data)
        edges = {(one.source, one.name, one.target): edges_of(one.lists) for one in data.relations}
        for layer, conv in enumerate(self.convs):
            states = conv(states, edges)
            if layer < len(self.convs) - 1:
                states = {name: state.relu() for name, state in states.items()}
        return states


class AttentionModel(HeteroModel):
    """The same by attention: hidden layers have two heads beside each other, the last one the mean of three."""

    HEADS, OUTPUT_HEADS = 2, 3

    def __init__(self, data: GraphData, layers: int = 2) -> None:
        super().__init__(data, layers)
        heads = [(HIDDEN // self.HEADS, self.HEADS, True)] * (layers - 1) + [(CLASSES, self.OUTPUT_HEADS, False)]
        self.convs = nn.ModuleList(
            pyg.HeteroConv(
                {
                    (one.source, one.name, one.target): pyg.GATConv(
                        (-1, -1), columns, heads=count, concat=concat, add_self_loops=False
                    )
                    for one in data.relations
                },
                aggr="sum",
            )
            for columns, count, concat in heads
        )


def inputs_of(model: Any, data: GraphData) -> dict[str, torch.Tensor]:
    return {
        kind.name: model.embeddings[kind.name].weight
        if kind.features is None
        else torch.from_numpy(np.asarray(kind.features))
        for kind in data.types
    }


def edges_of(lists: Any) -> torch.Tensor:
    return torch.from_numpy(np.stack([lists.indices.astype(np.int64), lists.targets()]))


class RelationalModel(nn.Module):
    """RGCN as a user writes it: all nodes in one numbering, their features brought to one width."""

    def __init__(self, data: GraphData, bases: int | None, layers: int = 2) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {kind.name: nn.Embedding(kind.nodes, HIDDEN) for kind in data.types if kind.features is None}
        )
        self.encoders = nn.ModuleDict(
            {kind.name: nn.Linear(kind.features.shape[1], HIDDEN) for kind in data.types if kind.features is not None}
        )
        relations = len(data.relations)
        self.convs = nn.ModuleList(
            pyg.RGCNConv(HIDDEN, width, relations, num_bases=bases) for width in [HIDDEN] * (layers - 1) + [CLASSES]
        )

    def forward(self, data: GraphData) -> torch.Tensor:
        return self.outputs(data)[data.target.name]

    def outputs(self, data: GraphData) -> dict[str, torch.Tensor]:
        states = {
            name: self.encoders[name](rows) if name in self.encoders else rows
            for name, rows in inputs_of(self, data).items()
        }
        hidden = torch.cat([states[kind.name] for kind in data.types])
        firsts = dict(zip([kind.name for kind in data.types], data.schema.first_nodes, strict=False))
        edges, numbers = [], []
        for number, one in enumerate(data.relations):
            own = edges_of(one.lists)
            edges.append(torch.stack([own[0] + firsts[one.source], own[1] + firsts[one.target]]))
            numbers.append(torch.full((own.shape[1],), number))
        for layer, conv in enumerate(self.convs):
            hidden = conv(hidden, torch.cat(edges, dim=1), torch.cat(numbers))
            hidden = hidden.relu() if layer < len(self.convs) - 1 else hidden
        return {kind.name: hidden[firsts[kind.name] : firsts[kind.name] + kind.nodes] for kind in data.types}


def with_overlay(
    data: GraphData, features: dict[str, np.ndarray], edges: dict[tuple[str, str, str], np.ndarray]
) -> GraphData:
    """The graph with more nodes and edges, as if its source had them. `features`: all rows of each type, new ones
    behind; `edges`: those that relations of the source gain, int64 [edges, 2]: positions of source and target."""
    types = tuple(
        replace(kind, nodes=len(features[kind.name]), features=None if kind.features is None else features[kind.name])
        for kind in data.types
    )
    counts = {kind.name: kind.nodes for kind in types}
    relations = []
    for one in data.relations:
        pairs = [np.stack([one.lists.indices, one.lists.targets()], axis=1)]
        named = one.reverse_of or one.name
        key = (one.source, named, one.target) if one.reverse_of is None else (one.target, named, one.source)
        gained = edges.get(key)
        if gained is not None:
            pairs.append(gained if one.reverse_of is None else gained[:, ::-1])
            if one.both_ways:
                pairs.append(gained[gained[:, 0] != gained[:, 1]][:, ::-1])
        found = np.concatenate(pairs)
        if one.merges:
            found = np.unique(found, axis=0)
        found = found[np.lexsort((found[:, 0], found[:, 1]))]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(found[:, 1], minlength=counts[one.target]))])
        relations.append(replace(one, lists=Graph(indptr.astype(np.int64), found[:, 0].astype(np.int32))))
    return replace(data, types=types, relations=tuple(relations))
