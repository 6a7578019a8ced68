"""A lane: everything that one chunk of a batch is computed in, from its seeds to its scores.

Lanes run side by side, and all that a lane touches lies still: so what it does for a variant and a bucket of seeds can
be captured once and replayed. Seeds are padded up to a bucket; padding draws nothing, reads nothing and is cut off.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch

from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.arrays import PADDING, CacheView, DeviceGraph
from gnnserve_worker.gpu.buffers import DeviceActivations, LaneSizes, bucket_of, trees_of
from gnnserve_worker.gpu.kernels.sample import sample_tree
from gnnserve_worker.gpu.network import DeviceNetwork, DeviceTable
from gnnserve_worker.inference.batch import StageTimes

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
    network: DeviceNetwork
    row_bytes: int
    """Bytes of one gathered row of the table."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Times and counts of a finished chunk."""

    times: StageTimes
    """The device's own."""
    own_rows: int
    """Gathered for themselves: seeds, and the neighbours that draw some in turn."""
    neighbour_rows: int
    """Rows gathered as neighbours."""

    @property
    def rows(self) -> int:
        return self.own_rows + self.neighbour_rows


class GpuLane:
    """Does one thing at a time: `start`, then `finish`."""

    def __init__(self, accelerator: Accelerator, graph: DeviceGraph, sizes: LaneSizes) -> None:
        device = accelerator.device
        self._graph = graph
        self._runner = accelerator.runner()
        self._trees = {fanouts: trees_of(sizes, fanouts, device) for fanouts in sizes.fanouts}
        self._scratch = DeviceActivations(sizes, device)
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
        self._stages: dict[tuple[str, int], Stages] = {}
        """Captured stages by variant and bucket."""
        self._started: tuple[DeviceVariant, int] | None = None

    @property
    def busy(self) -> bool:
        return self._started is not None

    def start(self, variant: DeviceVariant, seeds: np.ndarray, key: int) -> None:
        """`seeds`: int64, at most as many as the lane is for. Returns before anything is computed."""
        bucket = bucket_of(len(seeds))
        self._inbox_array[0] = key
        self._inbox_array[_SEEDS_FROM : _SEEDS_FROM + len(seeds)] = seeds
        self._inbox_array[_SEEDS_FROM + len(seeds) : _SEEDS_FROM + bucket] = PADDING
        self._started = variant, len(seeds)
        place = variant.name, bucket
        stages = self._stages.get(place)
        if stages is None:
            stages = self._stages[place] = self._build_stages(variant, bucket)
        self._runner.run(place, stages)

    def finish(self, scores: np.ndarray, embeddings: np.ndarray | None) -> Finished:
        """Waits, then fills in `scores`, float32 [seeds, classes], and `embeddings`, float32 [seeds, hidden], where
        they are wanted."""
        if self._started is None:
            raise RuntimeError("nothing was started")
        (variant, seeds), self._started = self._started, None
        times = self._runner.wait()
        tree = self._trees[variant.fanouts][bucket_of(seeds)]
        classes, hidden = variant.network.classes, variant.network.embedding_columns
        counts = self._counts_array[: tree.rows]
        drawing = tree.ends[-3] if len(tree.fanouts) > 1 else 0
        scores[...] = self._scores_array[: seeds * classes].reshape(seeds, classes)
        if embeddings is not None:
            embeddings[...] = self._embeddings_array[: seeds * hidden].reshape(seeds, hidden)
        return Finished(StageTimes(*times), seeds + int(counts[:drawing].sum()), int(counts.sum()))

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

    def _build_stages(self, variant: DeviceVariant, bucket: int) -> Stages:
        """Fetch the seeds and sample → gather → infer and send the scores."""
        tree, network, scratch = self._trees[variant.fanouts][bucket], variant.network, self._scratch
        classes, hidden = network.classes, network.embedding_columns
        length = _SEEDS_FROM + bucket
        inbox, arrived = self._inbox[:length], self._inbox_on_device[:length]
        key, seeds = arrived[:1], arrived[_SEEDS_FROM:]
        scores = self._scores[: bucket * classes].view(bucket, classes)
        embeddings = self._embeddings[: bucket * hidden].view(bucket, hidden)
        counts = self._counts[: tree.rows]
        aggregated = torch.empty(0)

        def sample() -> None:
            arrived.copy_(inbox, non_blocking=True)
            sample_tree(self._graph, seeds, key, tree)

        def gather() -> None:
            nonlocal aggregated
            scratch.begin()
            aggregated = network.gather(variant.table, tree, variant.cache, scratch)

        def infer() -> None:
            network.infer(aggregated, tree, scratch, scores, embeddings)
            counts.copy_(tree.counts, non_blocking=True)

        return sample, gather, infer
