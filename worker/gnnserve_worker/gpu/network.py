"""A variant's network on a GPU: the layers of `models/network.py`, with their weights where the GPU has them.

The same steps in the same order as on the CPU, and each product in the same precision, so that the two agree within
rounding: what architectures compute is said once, in `models/`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnnserve_worker.gpu.arrays import (
    CacheView,
    DeviceAggregation,
    DeviceTable,
    DeviceWeights,
    DistinctRoom,
    DistinctRows,
    PaddedTree,
    Shares,
)
from gnnserve_worker.gpu.buffers import DeviceActivations
from gnnserve_worker.gpu.kernels.aggregate import aggregate_hidden
from gnnserve_worker.gpu.kernels.attention import score_hidden, score_rows, share_out
from gnnserve_worker.gpu.kernels.distinct import share_rows
from gnnserve_worker.gpu.kernels.gather import gather_rows
from gnnserve_worker.gpu.products import DevicePerHead, DeviceProduct, product_on
from gnnserve_worker.models.network import Layer, Network


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    inputs: int
    aggregated: int
    """Columns of a row once it is aggregated."""
    outputs: int
    aggregation: DeviceAggregation
    products: tuple[DeviceProduct | DevicePerHead, ...]

    @staticmethod
    def of(layer: Layer, device: torch.device, weights: DeviceWeights | None = None) -> DeviceLayer:
        return DeviceLayer(
            layer.inputs,
            layer.aggregated,
            layer.outputs,
            DeviceAggregation.of(layer.aggregation, device, weights),
            tuple(product_on(device, product) for product in layer.products),
        )

    def room(self, rows: int, scratch: DeviceActivations) -> Tensor:
        """Buffer for what the layer aggregates, which is its output where nothing multiplies it."""
        if self.products:
            return scratch.aggregated(rows, self.aggregated, self.products[0].dtype)
        return scratch.hidden(rows, self.aggregated)

    def multiply(self, rows: Tensor, scratch: DeviceActivations) -> Tensor:
        """float32 [rows, outputs]. A later product reads what an earlier one wrote."""
        for product in self.products:
            out = scratch.hidden(len(rows), product.outputs)
            product.apply(rows, out)
            rows = out
        return rows


@dataclass(frozen=True, slots=True)
class DeviceNetwork:
    layers: tuple[DeviceLayer, ...]
    classes: int
    embedding_columns: int
    """Width of the last hidden layer; 0 for a one-layer network."""
    weighs_neighbours: bool

    @staticmethod
    def of(network: Network[Layer], device: torch.device, weights: DeviceWeights | None = None) -> DeviceNetwork:
        layers = tuple(DeviceLayer.of(layer, device, weights) for layer in network.layers)
        return DeviceNetwork(layers, network.classes, network.hidden, network.weighs_neighbours)

    @property
    def reads_own_rows(self) -> bool:
        """Whether a node's own row is read beside what is read of it as a neighbour."""
        return True

    def share(self, table: DeviceTable, tree: PaddedTree, cache: CacheView | None, room: DistinctRoom) -> DistinctRows:
        """Gather the rows that the first layer reads several times, once."""
        first = self.layers[0]
        aggregation = first.aggregation
        reads_own = table.own is table.rows and (aggregation.stacked or aggregation.own_factor != 0)
        return share_rows(
            table.rows, first.inputs, tree, cache, room,
            reads_own=reads_own, reads_scores=aggregation.attention is not None,
        )  # fmt: skip

    def gather(
        self,
        table: DeviceTable,
        tree: PaddedTree,
        cache: CacheView | None,
        scratch: DeviceActivations,
        behind: DeviceTable | None = None,
        shares: Shares | None = None,
        distinct: DistinctRows | None = None,
    ) -> Tensor:
        """What the first layer aggregates, for every row of the tree: [rows, aggregated columns]. `behind`: rows that
        are read as if they stood behind the table's. `shares`: what neighbours weigh, where that is known already.
        `distinct`: what `share` returned."""
        first = self.layers[0]
        out = first.room(tree.rows, scratch)
        attention = first.aggregation.attention
        if attention is not None:
            room = scratch.attention(tree.rows, tree.ends[-1], attention.heads)
            of_behind = None if behind is None else behind.rows
            score_rows(table.rows, first.inputs, tree, attention, room, cache, of_behind, distinct)
            share_out(tree, tree.rows, attention, room)
            shares = room.shares
        gather_rows(table.rows, table.own, first.inputs, tree, first.aggregation, out, cache, shares, behind, distinct)
        return out

    def infer(
        self,
        aggregated: Tensor,
        tree: PaddedTree,
        scratch: DeviceActivations,
        scores: Tensor,
        embeddings: Tensor,
        shares: Shares | None = None,
    ) -> None:
        """Into pinned memory, in the order of the stream: scores before softmax or sigmoid, float32 [seeds, classes],
        and the seeds' last hidden layer, float32 [seeds, hidden]; nothing of a one-layer network. `shares`: as for
        `gather`."""
        hidden = self.layers[0].multiply(aggregated, scratch)
        for depth, layer in enumerate(self.layers[1:], start=1):
            rows = tree.ends[len(self.layers) - 1 - depth]
            if depth == len(self.layers) - 1:
                # Now: the last layer's products may need its place.
                embeddings.copy_(hidden[:rows], non_blocking=True)
            aggregated = layer.room(rows, scratch)
            attention = layer.aggregation.attention
            if attention is not None:
                room = scratch.attention(rows, tree.ends[tree.ends.index(rows) + 1], attention.heads)
                score_hidden(hidden, attention, room)
                share_out(tree, rows, attention, room)
                shares = room.shares
            aggregate_hidden(hidden, tree, rows, layer.aggregation, aggregated, shares)
            hidden = layer.multiply(aggregated, scratch)
        scores.copy_(hidden, non_blocking=True)
