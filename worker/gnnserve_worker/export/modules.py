"""A variant's network as a torch module over explicit inputs: rows, and for each layer its edges and targets.

The layers are those of `models/network.py`, a module each, whatever the architecture: what architectures compute is
said once, in `models/`. All is float32. Sizes may differ from call to call, and no step depends on what an input holds,
so that one traced program serves every batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import assert_never

import numpy as np
import torch
from torch import Tensor, nn

from gnnserve_worker.models.network import Layer, Linear, Network, PerHead, Product
from gnnserve_worker.programs.layered import (
    EDGE_WEIGHTS,
    EDGES,
    EMBEDDINGS,
    OWN_ROWS,
    OWN_WEIGHTS,
    ROWS,
    SCORES,
    TARGETS,
)
from gnnserve_worker.tables.table import Aggregator, AttentionVectors


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """Inputs that a layer reads beside the rows; None: it does not read that."""

    edges: Tensor | None
    """int64 [2, edges]: the row of each edge's source, and the number of its target. An edge whose target is the number
    of targets counts for nothing."""
    edge_weights: Tensor | None
    """float32 [edges]"""
    own_weights: Tensor | None
    """float32 [targets]"""


class VariantModule(nn.Module):
    """The whole network. Inputs are given by name, those that its layers read (`contract.py`)."""

    def __init__(self, network: Network[Layer], *, gives_embeddings: bool) -> None:
        """`gives_embeddings`: the last hidden layer is an output too; of a network that has one."""
        super().__init__()
        self.layers = nn.ModuleList(LayerModule(layer) for layer in network.layers)
        self.gives_embeddings = gives_embeddings

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        rows = inputs[ROWS]
        own = inputs.get(OWN_ROWS, rows)
        read = own
        for number, layer in enumerate(self.layers, start=1):
            edges, targets, edge_weights, own_weights = (
                inputs.get(f"{name}_{number}") for name in (EDGES, TARGETS, EDGE_WEIGHTS, OWN_WEIGHTS)
            )
            read = own if targets is None else own.index_select(0, targets)
            rows = own = layer(rows, read, LayerInputs(edges, edge_weights, own_weights))
        return {SCORES: rows, EMBEDDINGS: read} if self.gives_embeddings else {SCORES: rows}


class LayerModule(nn.Module):
    """The aggregation over edges, and the products behind it."""

    bias: Tensor

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        bias = layer.aggregation.bias
        self.register_buffer("bias", torch.tensor(bias) if len(bias) else torch.zeros(layer.aggregated))
        self.relu = layer.aggregation.relu
        self.aggregate = _AGGREGATES[layer.aggregation.aggregator](layer)
        self.products = nn.ModuleList(_product_of(product) for product in layer.products)

    def forward(self, rows: Tensor, own: Tensor, inputs: LayerInputs) -> Tensor:
        """`rows`: float32 [rows, columns]. `own`: those of the targets themselves, float32 [targets, columns]. The
        result is float32 [targets, outputs]."""
        hidden: Tensor = self.aggregate(rows, own, inputs) + self.bias
        if self.relu:
            hidden = hidden.relu()
        for product in self.products:
            hidden = product(hidden)
        return hidden


class _Plain(nn.Module):
    """Neighbours without weights: their mean or their sum, beside the own row or with it added."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        aggregation = layer.aggregation
        self.mean, self.stacked, self.own_factor = aggregation.mean, aggregation.stacked, aggregation.own_factor

    def forward(self, rows: Tensor, own: Tensor, inputs: LayerInputs) -> Tensor:
        sources, targets = _ends(inputs)
        total = segment_sum(rows.index_select(0, sources), targets, own)
        if self.mean:
            count = segment_sum(own.new_ones(targets.shape[0], 1), targets, own)
            total = total / count.clamp(min=1.0)
        return torch.cat([total, own], dim=1) if self.stacked else total + self.own_factor * own


class _WeightedSum(nn.Module):
    """A sum of neighbours and the own row, by weights that are inputs."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()

    def forward(self, rows: Tensor, own: Tensor, inputs: LayerInputs) -> Tensor:
        sources, targets = _ends(inputs)
        assert inputs.edge_weights is not None and inputs.own_weights is not None  # noqa: S101
        total = weighted_segment_sum(rows, inputs.edge_weights.unsqueeze(1), sources, targets, own)[:, 0]
        return total + own * inputs.own_weights[:, None]


class _Alone(nn.Module):
    """The own row as it is."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.own_factor = layer.aggregation.own_factor

    def forward(self, rows: Tensor, own: Tensor, inputs: LayerInputs) -> Tensor:
        return own * self.own_factor


class _AttentionSum(nn.Module):
    """A sum for each head, of neighbours and the own row, by a softmax of scores of the two rows."""

    vectors: Tensor

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        attention = _attention_of(layer)
        self.heads, self.slope, self.width = attention.heads, attention.negative_slope, layer.aggregated
        self.is_stored = attention.stored
        if not attention.stored:
            vectors = attention.vectors.reshape(2 * self.heads, -1)
            self.register_buffer("vectors", torch.tensor(np.ascontiguousarray(vectors.T)))

    def forward(self, rows: Tensor, own: Tensor, inputs: LayerInputs) -> Tensor:
        sources, targets = _ends(inputs)
        of_rows, of_own = self._scores(rows), self._scores(own)
        as_target = of_own[:, self.heads :]
        of_itself = nn.functional.leaky_relu(of_own[:, : self.heads] + as_target, self.slope)
        of_edges = of_rows[:, : self.heads].index_select(0, sources) + _padded(as_target).index_select(0, targets)
        of_edges = nn.functional.leaky_relu(of_edges, self.slope)
        # As in any softmax, so that no exponential overflows.
        largest = _padded(of_itself).scatter_reduce(0, targets[:, None].expand_as(of_edges), of_edges, "amax")
        of_edges = (of_edges - largest.index_select(0, targets)).exp()
        of_itself = (of_itself - largest[:-1]).exp()
        total = segment_sum(of_edges, targets, own) + of_itself
        sums = torch.cat([
            weighted_segment_sum(part, weights, sources, targets, own) + own_part[:, None] * own_weights[:, :, None]
            for part, own_part, weights, own_weights in zip(
                *map(self._parts, (rows, own)), *map(self._weights, (of_edges, of_itself)), strict=True
            )
        ], dim=1)  # fmt: skip
        return (sums / total[:, :, None]).flatten(1)

    def _scores(self, rows: Tensor) -> Tensor:
        """What every head scores rows by, as neighbours, then as nodes themselves: float32 [rows, 2 · heads]."""
        return rows[:, self.width :] if self.is_stored else rows @ self.vectors

    def _parts(self, rows: Tensor) -> tuple[Tensor, ...]:
        """What is summed of the rows: a part for each head, or whole rows for all of them."""
        return rows[:, : self.width].chunk(self.heads, dim=1) if self.is_stored else (rows,)

    def _weights(self, weights: Tensor) -> tuple[Tensor, ...]:
        """Weights that each part of the rows is summed by, [edges, heads] each."""
        return weights.chunk(self.heads, dim=1) if self.is_stored else (weights,)


def _attention_of(layer: Layer) -> AttentionVectors:
    if layer.aggregation.attention is None:
        raise ValueError("a layer that attends, without heads")
    return layer.aggregation.attention


_AGGREGATES: Mapping[Aggregator, type[_Plain | _WeightedSum | _Alone | _AttentionSum]] = {
    Aggregator.MEAN: _Plain,
    Aggregator.SUM: _Plain,
    Aggregator.NORMALISED_SUM: _WeightedSum,
    Aggregator.NONE: _Alone,
    Aggregator.ATTENTION: _AttentionSum,
}


def _ends(inputs: LayerInputs) -> tuple[Tensor, Tensor]:
    assert inputs.edges is not None  # noqa: S101
    return inputs.edges[0], inputs.edges[1]


def segment_sum(values: Tensor, targets: Tensor, own: Tensor) -> Tensor:
    """The sum of each target's values, float32 [targets, columns]. What belongs to no target is left out."""
    room = own.new_zeros(own.shape[0] + 1, values.shape[1])
    return room.index_add(0, targets, values)[:-1]


def weighted_segment_sum(rows: Tensor, weights: Tensor, sources: Tensor, targets: Tensor, own: Tensor) -> Tensor:
    """The sums of each target's sources for each column of weights, float32 [targets, heads, columns]."""
    room = own.new_zeros(own.shape[0] + 1, weights.shape[1], rows.shape[1])
    return room.index_add(0, targets, rows.index_select(0, sources).unsqueeze(1) * weights.unsqueeze(2))[:-1]


def _padded(values: Tensor) -> Tensor:
    """With a row of zeros for edges without a target."""
    return nn.functional.pad(values, (0, 0, 0, 1))


class _Linear(nn.Module):
    weight: Tensor
    bias: Tensor

    def __init__(self, product: Linear) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor(product.dense))
        self.register_buffer("bias", torch.tensor(product.bias))
        self.relu = product.relu

    def forward(self, rows: Tensor) -> Tensor:
        out = rows @ self.weight + self.bias
        return out.relu() if self.relu else out


class _PerHead(nn.Module):
    """A product for each head, of its part of a row."""

    def __init__(self, product: PerHead) -> None:
        super().__init__()
        self.heads = nn.ModuleList(map(_Linear, product.heads))
        self.ends = [0, *accumulate(head.inputs for head in product.heads)]

    def forward(self, rows: Tensor) -> Tensor:
        parts = [rows[:, start:end] for start, end in pairwise(self.ends)]
        return torch.cat([head(part) for head, part in zip(self.heads, parts, strict=True)], dim=1)


def _product_of(product: Product) -> _Linear | _PerHead:
    match product:
        case Linear():
            return _Linear(product)
        case PerHead():
            return _PerHead(product)
        case _:
            assert_never(product)
