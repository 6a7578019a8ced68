"""A network of listed layers on a GPU: `layers/network.py` over a tree, whose rows lie in the lane's memory.

A row of every place is gathered first, since what these networks read of a node is seldom a sum alone: products of
neighbours, the node itself, or its features once more at the head. Whatever a node's place, its list is the one that
was drawn where it stands first, as on the CPU (`kernels/first_places.py`). A node is one within a chunk, as there
within a sample: what a batch is cut into may differ, and with it which list of a node is the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from msgspec import UNSET
from torch import Tensor

from gnnserve_api.files.layers import JumpingKnowledge, LayersManifest, Residual, StoredRowsManifest
from gnnserve_worker.gpu.arrays import (
    MEASURED,
    CacheView,
    DeviceAggregation,
    DeviceTable,
    DeviceWeights,
    DistinctRoom,
    DistinctRows,
    PaddedTree,
    Shares,
)
from gnnserve_worker.gpu.kernels.distinct import share_rows
from gnnserve_worker.gpu.kernels.first_places import by_first_places, every_place
from gnnserve_worker.gpu.kernels.gather import gather_rows
from gnnserve_worker.gpu.listed.convolutions import TWINS, DeviceConvolution, DeviceStep
from gnnserve_worker.gpu.listed.rows import DeviceChange, DeviceDense, DeviceRowsOf, WeightsOnDevice, run_dense
from gnnserve_worker.gpu.room import DeviceRoom, HasRoom
from gnnserve_worker.layers.combined import CombinedLayer, RelationConvolution, TypeTail
from gnnserve_worker.layers.network import LayersNetwork
from gnnserve_worker.layers.products import NOTHING
from gnnserve_worker.layers.runner import LayersRunner
from gnnserve_worker.models.network import VariantNetwork
from gnnserve_worker.models.program import ProgramNetwork
from gnnserve_worker.tables.table import Aggregator, Own

_OF_ITSELF: Final = DeviceAggregation(Aggregator.SUM, Own.ADDED, 1.0, None, relu=False)
"""Aggregation by which `gather_rows` gives a place without neighbours its row."""
_ONLY_TYPE: Final = 0


@dataclass(frozen=True, slots=True)
class ListedNetwork:
    """A network of listed layers over one type, with its weights, as the CPU has it."""

    layers: LayersManifest
    built: LayersNetwork
    columns: int
    """Columns of a row of the table that it reads."""
    classes: int
    embedding_columns: int
    weighs_neighbours: bool


def listed_network(network: VariantNetwork) -> ListedNetwork | None:
    """The listed layers of a variant; None: its network is of an architecture, or another program."""
    if not isinstance(network, ProgramNetwork) or not isinstance(network.runner, LayersRunner):
        return None
    layers = network.program.layers
    assert layers is not UNSET  # noqa: S101 - its runner is one of layers
    return ListedNetwork(
        layers, network.runner.network, network.columns[_ONLY_TYPE], network.classes, network.hidden,
        network.weighs_neighbours,
    )  # fmt: skip


# --- layers


def _add_nothing(tail: _Tail, rows: Tensor, added: Tensor, room: DeviceRoom) -> None:
    del tail, rows, added, room


def _add_input(tail: _Tail, rows: Tensor, added: Tensor, room: DeviceRoom) -> None:
    del tail, room
    rows.add_(added)


def _average(tail: _Tail, rows: Tensor, added: Tensor, room: DeviceRoom) -> None:
    del tail, room
    rows.add_(added).mul_(0.5)


def _add_product(tail: _Tail, rows: Tensor, added: Tensor, room: DeviceRoom) -> None:
    if tail.projected is not None:
        rows.add_(tail.projected(added, room))


def _share_with_input(tail: _Tail, rows: Tensor, added: Tensor, room: DeviceRoom) -> None:
    del room
    if tail.gate is not None:
        rows.mul_(tail.gate).add_(added, alpha=1.0 - tail.gate)


RESIDUALS: Final[Mapping[Residual, Callable[[_Tail, Tensor, Tensor, DeviceRoom], None]]] = {
    Residual.NONE: _add_nothing,
    Residual.ADDED: _add_input,
    Residual.AVERAGED: _average,
    Residual.PROJECTED: _add_product,
    Residual.GATED: _share_with_input,
}


@dataclass(frozen=True, slots=True)
class _Tail:
    """`layers.combined.TypeTail`."""

    own: DeviceRowsOf | None
    residual: Residual
    projected: DeviceRowsOf | None
    gate: float | None
    output_product: DeviceDense | None
    before_added: tuple[DeviceChange, ...]
    behind_added: tuple[DeviceChange, ...]

    @staticmethod
    def of(tail: TypeTail, weights: WeightsOnDevice) -> _Tail:
        return _Tail(
            None if tail.own is None else weights.rows_of(tail.own),
            tail.residual,
            None if tail.projected is None else weights.rows_of(tail.projected),
            None if tail.gate is None else float(tail.gate),
            None if tail.output_product is None else weights.dense(tail.output_product),
            weights.changes(tail.before_added),
            weights.changes(tail.behind_added),
        )

    def finish(self, rows: Tensor, read: Tensor, added: Tensor, room: DeviceRoom) -> Tensor:
        count = len(rows)
        if self.own is not None:
            rows.add_(self.own(read[:count], room))
        for change in self.before_added:
            change(rows, room)
        if self.output_product is not None:
            rows = self.output_product(rows, room)
        RESIDUALS[self.residual](self, rows, added[:count], room)
        for change in self.behind_added:
            change(rows, room)
        return rows


@dataclass(frozen=True, slots=True)
class _Layer:
    """`layers.combined.CombinedLayer` of one convolution over one type."""

    hops: int
    convolution: DeviceConvolution
    products: tuple[slice, slice] | None
    reads_input: bool
    """Whether what is added is of the network's input."""
    reads_network_input: bool
    """Whether the convolution reads it."""
    before: tuple[DeviceChange, ...]
    tail: _Tail

    @staticmethod
    def of(layer: CombinedLayer, weights: WeightsOnDevice) -> _Layer:
        (one,) = layer.convolutions
        return _Layer(
            layer.hops,
            _twin_of(one, weights),
            one.products,
            layer.manifest.reads_input,
            one.reads_network_input,
            weights.changes(layer.before.get(_ONLY_TYPE, ())),
            _Tail.of(layer.tails[_ONLY_TYPE], weights),
        )

    def run(self, rows: Tensor, network_input: Tensor, run: _Run, behind: int) -> Tensor:
        """Rows within `behind` hops. `rows`: within as many more as the layer reads."""
        room, ends = run.room, run.tree.ends
        read = rows
        if self.before:
            read = room.rows(*rows.shape).copy_(rows)
            for change in self.before:
                change(read, room)
        sources, targets = read, read
        if self.products is not None:
            of_neighbour, of_own = self.products
            sources, targets = read[:, of_neighbour], read[:, of_own if of_own != NOTHING else of_neighbour]
        step = DeviceStep(
            sources, targets, tuple(ends[behind + left] for left in reversed(range(self.hops))), run.tree, run.weights,
            network_input if self.reads_network_input else None, room,
        )  # fmt: skip
        added = network_input if self.reads_input else rows
        return self.tail.finish(self.convolution.run(step), read, added, room)


def _twin_of(one: RelationConvolution, weights: WeightsOnDevice) -> DeviceConvolution:
    return TWINS[type(one.built)](one.built, weights)


# --- jumping knowledge


def _last(written: Sequence[Tensor], room: DeviceRoom) -> Tensor:
    del room
    return written[-1]


def _beside(written: Sequence[Tensor], room: DeviceRoom) -> Tensor:
    out = room.rows(len(written[0]), sum(each.shape[1] for each in written))
    return torch.cat([*written], dim=1, out=out)


def _largest(written: Sequence[Tensor], room: DeviceRoom) -> Tensor:
    out = room.rows(*written[0].shape).copy_(written[0])
    for each in written[1:]:
        torch.maximum(out, each, out=out)
    return out


JUMPS: Final[Mapping[JumpingKnowledge, Callable[[Sequence[Tensor], DeviceRoom], Tensor]]] = {
    JumpingKnowledge.LAST: _last,
    JumpingKnowledge.CAT: _beside,
    JumpingKnowledge.MAX: _largest,
}


# --- the network


@dataclass(frozen=True, slots=True)
class _Run:
    tree: PaddedTree
    """With each row's list from the first row of its node."""
    weights: DeviceWeights | None
    room: DeviceRoom


@dataclass(frozen=True, slots=True)
class _Begun:
    """Rows that the first layer reads, and what those behind it read beside."""

    rows: Tensor
    network_input: Tensor
    written: tuple[Tensor, ...]
    features: Tensor


@dataclass(frozen=True, slots=True)
class DeviceListedNetwork:
    """`layers.network.LayersNetwork` over one type, as `network.DeviceNetwork`."""

    columns: int
    before: tuple[DeviceDense, ...]
    layers: tuple[_Layer, ...]
    jump: Callable[[Sequence[Tensor], DeviceRoom], Tensor]
    jumped: int
    head: tuple[DeviceDense, ...]
    head_reads_input: bool
    stored: StoredRowsManifest | None
    classes: int
    embedding_columns: int
    weighs_neighbours: bool
    weights: DeviceWeights | None
    weights_bytes: int

    @staticmethod
    def of(network: ListedNetwork, device: torch.device, weights: DeviceWeights | None) -> DeviceListedNetwork:
        """`weights`: of the graph, where it has any; taken where the network weighs neighbours."""
        built, there = network.built, WeightsOnDevice(device)
        before, head = built.before.get(_ONLY_TYPE, ()), built.heads[_ONLY_TYPE]
        return DeviceListedNetwork(
            network.columns,
            tuple(map(there.dense, before)),
            tuple(_Layer.of(layer, there) for layer in built.layers),
            JUMPS[network.layers.jumping_knowledge],
            built.jumped,
            tuple(map(there.dense, head)),
            built.head_reads_input,
            None if built.stored is None else built.stored[_ONLY_TYPE],
            network.classes,
            network.embedding_columns,
            network.weighs_neighbours,
            weights if network.weighs_neighbours else None,
            there.size_bytes,
        )

    @property
    def reads_own_rows(self) -> bool:
        """See `network.DeviceNetwork.reads_own_rows`: the row of a place is read once."""
        return False

    def share(self, table: DeviceTable, tree: PaddedTree, cache: CacheView | None, room: DistinctRoom) -> DistinctRows:
        """See `network.DeviceNetwork.share`; a place reads one row."""
        places = PaddedTree((0,), (len(tree.ids), len(tree.ids)), tree.ids, tree.counts, tree.starts)
        return share_rows(table.rows, self.columns, places, cache, room, reads_own=True, reads_scores=False)

    def gather(
        self,
        table: DeviceTable,
        tree: PaddedTree,
        cache: CacheView | None,
        scratch: HasRoom,
        behind: DeviceTable | None = None,
        shares: Shares | None = None,
        distinct: DistinctRows | None = None,
    ) -> Tensor:
        """Rows of every place, float32 [places, columns]."""
        del shares
        places = every_place(tree, scratch.room)
        out = scratch.room.rows(len(tree.ids), self.columns)
        gather_rows(table.rows, table.rows, self.columns, places, _OF_ITSELF, out, cache, None, behind, distinct)
        return out

    def infer(
        self,
        aggregated: Tensor,
        tree: PaddedTree,
        scratch: HasRoom,
        scores: Tensor,
        embeddings: Tensor,
        shares: Shares | None = None,
    ) -> None:
        """See `network.DeviceNetwork.infer`; `aggregated` is what `gather` returned."""
        del shares
        room, seeds = scratch.room, tree.seeds
        run = _Run(by_first_places(tree, room), self.weights, room)
        begun = self._begin(aggregated, room)
        rows, written = begun.rows, [*begun.written, begun.rows]
        behind = sum(layer.hops for layer in self.layers)
        for layer in self.layers:
            behind -= layer.hops
            rows = layer.run(rows, begun.network_input, run, behind)
            written.append(rows)
        of_seeds = [each[:seeds] for each in written if each.shape[1]]
        given = self.jump(of_seeds[-self.jumped :], room)
        found = given
        if self.head:
            read = given
            if self.head_reads_input:
                read = _beside([begun.features[:seeds], given], room)
            found = run_dense(self.head, read, room)
        scores.copy_(found, non_blocking=True)
        if self.embedding_columns:
            embedded = given if self.head or len(of_seeds) == 1 else of_seeds[-2]
            embeddings.copy_(embedded, non_blocking=True)

    def _begin(self, gathered: Tensor, room: DeviceRoom) -> _Begun:
        if self.stored is None:
            rows = run_dense(self.before, gathered, room)
            return _Begun(rows, rows, (), gathered)
        output, *written, network_input, features = gathered.split([*self.stored.parts], dim=1)
        rows = output if output.is_contiguous() else room.rows(*output.shape).copy_(output)
        return _Begun(rows, network_input if network_input.shape[1] else rows, tuple(written), features)


@dataclass(frozen=True, slots=True)
class _Measuring:
    room: DeviceRoom


def room_bytes(network: ListedNetwork, fanouts: tuple[int, ...], seeds: int) -> int:
    """Bytes of the room that a chunk of so many seeds takes: those that it asks for."""
    weights = DeviceWeights(torch.empty(0, device=MEASURED), torch.empty(1, dtype=torch.int64, device=MEASURED))
    on_device = DeviceListedNetwork.of(network, MEASURED, weights)
    tree = PaddedTree.allocate(seeds, fanouts, MEASURED)
    scratch = _Measuring(DeviceRoom(0, MEASURED))
    every_place(tree, scratch.room)
    gathered = scratch.room.rows(len(tree.ids), network.columns)
    scores = torch.empty(seeds, network.classes, device=MEASURED)
    on_device.infer(gathered, tree, scratch, scores, torch.empty(seeds, network.embedding_columns, device=MEASURED))
    return scratch.room.used_bytes


def weights_bytes(network: ListedNetwork) -> int:
    """Bytes of its weights in a GPU's memory."""
    return DeviceListedNetwork.of(network, MEASURED, None).weights_bytes
