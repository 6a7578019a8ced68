"""A lane: everything that one chunk of a batch is computed in, from its seeds to its scores.

Lanes run side by side, and all that a lane touches lies still: so what it does for a variant and a bucket of seeds can
be captured once and replayed. Seeds are padded up to a bucket; padding draws nothing, reads nothing and is cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.arrays import (
    PADDING,
    CacheView,
    DeviceGraph,
    DeviceTable,
    DistinctRoom,
    DistinctRows,
    PaddedTree,
    Shares,
)
from gnnserve_worker.gpu.behind import RoomBehind
from gnnserve_worker.gpu.buffers import DeviceActivations, LaneSizes, bucket_of, trees_of
from gnnserve_worker.gpu.kernels.sample import sample_tree
from gnnserve_worker.gpu.networks import AnyDeviceNetwork
from gnnserve_worker.gpu.viewed import RowsRead, ViewedChunk
from gnnserve_worker.inference.batch import StageTimes
from gnnserve_worker.sampling.padded import TreeArrays, TreeShares
from gnnserve_worker.tables.table import Table

Stages = tuple[Callable[[], None], Callable[[], None], Callable[[], None]]
"""Sample, gather, infer."""
_SEEDS_FROM = 2
"""Position of the seeds in the inbox: after the key, and one value that aligns them to 16 bytes."""


@dataclass(frozen=True, slots=True)
class DeviceVariant:
    name: str
    fanouts: tuple[int, ...]
    """The seed's draw first."""
    table: DeviceTable
    cache: CacheView | None
    network: AnyDeviceNetwork
    row_bytes: int
    """Bytes of one gathered row of the table."""
    behind: Table | None
    """The table, where rows can be made that stand behind its own."""
    shared_from: int | None
    """Seeds of the smallest chunk whose rows are gathered once where they are read several times; None: they never
    are."""

    def shares_rows(self, bucket: int) -> bool:
        return self.shared_from is not None and bucket >= self.shared_from


class StageKey(NamedTuple):
    """Key that stages are captured for."""

    variant: str
    bucket: int
    viewed: bool
    """Whether the CPU sampled."""
    shares_rows: bool


@dataclass(frozen=True, slots=True)
class FinishedChunk:
    """Times and counts of a finished chunk."""

    times: StageTimes
    """The device's own, after those of the CPU where it sampled."""
    read: RowsRead


class _Inbox:
    """Pinned memory for chunks that the CPU sampled: their trees, what neighbours weigh there, and rows behind the
    table's."""

    def __init__(self, accelerator: Accelerator, trees: Iterable[PaddedTree], sizes: LaneSizes) -> None:
        """`trees`: the largest."""
        self._numbers = accelerator.pinned(max(len(tree.ids) + tree.rows for tree in trees), torch.int32)
        self._shares = accelerator.pinned(sizes.share_numbers, torch.float32)
        self._behind = accelerator.pinned(sizes.behind_bytes, torch.uint8)
        self._arrays: dict[tuple[tuple[int, ...], int, bool], TreeArrays] = {}
        """The same for Python, by fan-outs, seeds and whether neighbours are weighed."""
        self._rooms: dict[str, RoomBehind] = {}
        """Rooms by variant, all in the same place."""

    def room(self, variant: DeviceVariant) -> RoomBehind | None:
        """The room for rows behind the variant's table; None: it makes none."""
        room = self._rooms.get(variant.name)
        if room is None and variant.behind is not None:
            room = self._rooms[variant.name] = RoomBehind(variant.behind, variant.table, self._behind)
        return room

    def tree(self, tree: PaddedTree) -> tuple[Tensor, Tensor]:
        """Nodes of places, and counts of rows, of a chunk for that tree."""
        ids, counts = self._numbers[: len(tree.ids) + tree.rows].split([len(tree.ids), tree.rows])
        return ids, counts

    def shares(self, tree: PaddedTree) -> Shares:
        return Shares.over(self._shares, tree.rows, len(tree.ids), heads=1)

    def write(self, variant: DeviceVariant, chunk: ViewedChunk, tree: PaddedTree) -> RowsRead:
        place = tree.fanouts, tree.seeds, variant.network.weighs_neighbours
        arrays = self._arrays.get(place)
        if arrays is None:
            arrays = self._arrays[place] = self._arrays_of(tree, is_weighed=variant.network.weighs_neighbours)
        return chunk.write(arrays, self.room(variant), len(variant.table.rows.values))

    def _arrays_of(self, tree: PaddedTree, *, is_weighed: bool) -> TreeArrays:
        ids, counts = self.tree(tree)
        shares = None
        if is_weighed:
            sent = self.shares(tree)
            shares = TreeShares(sent.of_neighbours.view(-1).numpy(), sent.of_itself.view(-1).numpy())
        return TreeArrays.over(tree.fanouts, tree.seeds, ids.numpy(), counts.numpy(), shares)


@dataclass(frozen=True, slots=True)
class _StartedChunk:
    variant: DeviceVariant
    seeds: int
    from_cpu: FinishedChunk | None
    """What the chunk reads, and what it took before, where the CPU sampled it."""


class GpuLane:
    """Does one thing at a time: `start`, then `finish`."""

    def __init__(
        self, accelerator: Accelerator, graph: DeviceGraph, sizes: LaneSizes, *, has_distinct_room: bool = False
    ) -> None:
        """`has_distinct_room`: for variants that share rows."""
        device = accelerator.device
        self._graph = graph
        self._runner = accelerator.runner()
        self._trees = {fanouts: trees_of(sizes, fanouts, device) for fanouts in sizes.fanouts}
        self._scratch = DeviceActivations(sizes, device)
        self._from_cpu: _Inbox | None = None
        if sizes.behind_bytes:
            self._from_cpu = _Inbox(accelerator, [trees[sizes.seeds] for trees in self._trees.values()], sizes)
        rows = max(trees[sizes.seeds].rows for trees in self._trees.values())
        self._inbox = accelerator.pinned(_SEEDS_FROM + sizes.seeds, torch.int64)
        self._inbox_on_device = torch.zeros(_SEEDS_FROM + sizes.seeds, dtype=torch.int64, device=device)
        self._scores = accelerator.pinned(sizes.seeds * sizes.classes, torch.float32)
        self._embeddings = accelerator.pinned(sizes.seeds * sizes.embedding_columns, torch.float32)
        self._counts = accelerator.pinned(rows, torch.int32)
        # The same memory for Python: indexing a tensor costs microseconds.
        self._inbox_array = self._inbox.numpy()
        self._scores_array = self._scores.numpy()
        self._embeddings_array = self._embeddings.numpy()
        self._counts_array = self._counts.numpy()
        self._distinct: DistinctRoom | None = None
        self._distinct_counts = accelerator.pinned(2, torch.int32)
        self._distinct_counts_array = self._distinct_counts.numpy()
        if has_distinct_room:
            self._distinct = DistinctRoom.allocate(sizes.places, sizes.distinct_value_bytes, device)
        self._stages: dict[StageKey, Stages] = {}
        """Captured stages."""
        self._started: _StartedChunk | None = None

    @property
    def busy(self) -> bool:
        return self._started is not None

    def start(self, variant: DeviceVariant, seeds: np.ndarray, key: int) -> None:
        """`seeds`: int64, at most as many as the lane is for. Returns before anything is computed."""
        bucket = bucket_of(len(seeds))
        self._inbox_array[0] = key
        self._inbox_array[_SEEDS_FROM : _SEEDS_FROM + len(seeds)] = seeds
        self._inbox_array[_SEEDS_FROM + len(seeds) : _SEEDS_FROM + bucket] = PADDING
        self._started = _StartedChunk(variant, len(seeds), None)
        place = StageKey(variant.name, bucket, viewed=False, shares_rows=variant.shares_rows(bucket))
        stages = self._stages.get(place)
        if stages is None:
            stages = self._stages[place] = self._build_stages(variant, bucket)
        self._runner.run(place, stages)

    def has_room(self, variant: DeviceVariant, chunk: ViewedChunk) -> bool:
        """Whether the lane can take a chunk's rows behind the table's."""
        room = None if self._from_cpu is None else self._from_cpu.room(variant)
        return room is not None and chunk.rows_behind <= room.capacity

    def start_viewed(self, variant: DeviceVariant, chunk: ViewedChunk) -> None:
        """`start` a chunk that the CPU sampled, for which there is room. What it says is copied."""
        if self._from_cpu is None:
            raise RuntimeError("no variant of the lane makes rows, so that it has no room for chunks of the CPU's")
        seeds, bucket = chunk.seeds, bucket_of(chunk.seeds)
        read = self._from_cpu.write(variant, chunk, self._trees[variant.fanouts][bucket])
        self._started = _StartedChunk(variant, seeds, FinishedChunk(chunk.times, read))
        place = StageKey(variant.name, bucket, viewed=True, shares_rows=False)
        stages = self._stages.get(place)
        if stages is None:
            stages = self._stages[place] = self._build_viewed_stages(self._from_cpu, variant, bucket)
        self._runner.run(place, stages)

    def finish(self, scores: np.ndarray, embeddings: np.ndarray | None) -> FinishedChunk:
        """Waits, then fills in `scores`, float32 [seeds, classes], and `embeddings`, float32 [seeds, hidden], where
        they are wanted."""
        if self._started is None:
            raise RuntimeError("nothing was started")
        started, self._started = self._started, None
        variant, seeds = started.variant, started.seeds
        times = self._runner.wait()
        tree = self._trees[variant.fanouts][bucket_of(seeds)]
        classes, hidden = variant.network.classes, variant.network.embedding_columns
        scores[...] = self._scores_array[: seeds * classes].reshape(seeds, classes)
        if embeddings is not None:
            embeddings[...] = self._embeddings_array[: seeds * hidden].reshape(seeds, hidden)
        if started.from_cpu is not None:
            return FinishedChunk(started.from_cpu.times + StageTimes(*times), started.from_cpu.read)
        counts = self._counts_array[: tree.rows]
        drawing = tree.ends[-3] if len(tree.fanouts) > 1 and variant.network.reads_own_rows else 0
        repeated = 0
        if variant.shares_rows(tree.seeds):
            copied, read_there = self._distinct_counts_array.tolist()
            repeated = max(0, read_there - copied)
        read = RowsRead(seeds + int(counts[:drawing].sum()), int(counts.sum()), repeated=repeated)
        return FinishedChunk(StageTimes(*times), read)

    def abandon(self) -> None:
        """What was started, if anything was: wait, and look at nothing. Where the device is lost, there is nothing to
        wait for."""
        self._started = None
        with suppress(Exception):
            self._runner.abandon()

    def forget(self) -> None:
        """Drop captured stages, since the variants change."""
        self._stages.clear()
        self._runner.forget()

    def drop_distinct_room(self) -> None:
        """Drop the room for shared rows, and what was captured with it."""
        self._distinct = None
        shared = [key for key in self._stages if key.shares_rows]
        for key in shared:
            del self._stages[key]
        self._runner.forget(shared)

    def _build_stages(self, variant: DeviceVariant, bucket: int) -> Stages:
        """Fetch the seeds and sample → gather → infer and send the scores."""
        tree, network, scratch = self._trees[variant.fanouts][bucket], variant.network, self._scratch
        scores, embeddings = self._outbox(network, bucket)
        length = _SEEDS_FROM + bucket
        inbox, arrived = self._inbox[:length], self._inbox_on_device[:length]
        key, seeds = arrived[:1], arrived[_SEEDS_FROM:]
        counts = self._counts[: tree.rows]
        aggregated = torch.empty(0)
        room = self._distinct if variant.shares_rows(bucket) else None

        def sample() -> None:
            arrived.copy_(inbox, non_blocking=True)
            sample_tree(self._graph, seeds, key, tree)

        def gather() -> None:
            nonlocal aggregated
            scratch.begin()
            distinct: DistinctRows | None = None
            if room is not None:
                distinct = network.share(variant.table, tree, variant.cache, room)
                self._distinct_counts.copy_(room.counts, non_blocking=True)
            aggregated = network.gather(variant.table, tree, variant.cache, scratch, distinct=distinct)

        def infer() -> None:
            network.infer(aggregated, tree, scratch, scores, embeddings)
            counts.copy_(tree.counts, non_blocking=True)

        return sample, gather, infer

    def _build_viewed_stages(self, inbox: _Inbox, variant: DeviceVariant, bucket: int) -> Stages:
        """Fetch the sample → gather, from behind the table too → infer and send the scores."""
        tree, network, scratch = self._trees[variant.fanouts][bucket], variant.network, self._scratch
        scores, embeddings = self._outbox(network, bucket)
        ids, counts = inbox.tree(tree)
        room = inbox.room(variant)
        behind = None if room is None else room.table
        shares = scratch.shares(tree.rows, len(tree.ids)) if network.weighs_neighbours else None
        aggregated = torch.empty(0)

        def fetch() -> None:
            tree.ids.copy_(ids, non_blocking=True)
            tree.counts.copy_(counts, non_blocking=True)
            if shares is not None:
                sent = inbox.shares(tree)
                shares.of_neighbours.copy_(sent.of_neighbours, non_blocking=True)
                shares.of_itself.copy_(sent.of_itself, non_blocking=True)

        def gather() -> None:
            nonlocal aggregated
            scratch.begin()
            aggregated = network.gather(variant.table, tree, variant.cache, scratch, behind, shares)

        def infer() -> None:
            network.infer(aggregated, tree, scratch, scores, embeddings, shares)

        return fetch, gather, infer

    def _outbox(self, network: AnyDeviceNetwork, bucket: int) -> tuple[Tensor, Tensor]:
        """Pinned memory for a bucket's scores and embeddings."""
        classes, hidden = network.classes, network.embedding_columns
        return (
            self._scores[: bucket * classes].view(bucket, classes),
            self._embeddings[: bucket * hidden].view(bucket, hidden),
        )
