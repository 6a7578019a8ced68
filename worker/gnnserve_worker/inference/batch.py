"""One batch through one variant: sample, gather, infer, each stage timed.

The same function serves requests, measures the profile and computes the accuracies in it, so that what is
promised is what is served.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import msgspec
import numpy as np

from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD
from gnnserve_worker.models.network import Activations, copy_rows
from gnnserve_worker.parallel import limit_blas_to_one_thread, map_parallel, thread_count
from gnnserve_worker.repository.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.sampling.distinct import DistinctScratch, find_distinct
from gnnserve_worker.sampling.neighbours import Scratch, distinct_share, sample_neighbours
from gnnserve_worker.sampling.normalised import WeightScratch, weigh
from gnnserve_worker.tables.gather import gathered_bytes

_CHUNK_BYTES = 1024 * 1024
"""What one chunk gathers and computes: as much as stays in a core's own cache."""
_FEWEST_SEEDS = 32
"""Below it per chunk, handing work to another thread costs more than it saves."""
_SHARE_BELOW = 0.95
"""Expected share of distinct nodes among a chunk's draws, below which looking each of them up pays. Measured: at 0.82
sharing is faster for every table, at 0.94 for wide ones by 5 to 10 % while it costs narrow ones as much."""


# What is made per batch is a msgspec struct: it costs a sixth of a frozen dataclass.


class StageTimes(msgspec.Struct, frozen=True):
    sample_ms: float
    gather_ms: float
    compute_ms: float

    @property
    def total_ms(self) -> float:
        return self.sample_ms + self.gather_ms + self.compute_ms

    def __add__(self, other: StageTimes) -> StageTimes:
        return StageTimes(
            self.sample_ms + other.sample_ms, self.gather_ms + other.gather_ms, self.compute_ms + other.compute_ms
        )


class Inference(msgspec.Struct, frozen=True):
    scores: np.ndarray
    """float32 [seeds, classes], before softmax or sigmoid."""
    embeddings: np.ndarray | None
    """float32 [seeds, hidden], the last hidden layer; None for one-layer networks, and where no request wants them."""
    times: StageTimes
    gathered_bytes: int

    def repeated(self, places: np.ndarray) -> Inference:
        """The answers of repeated seeds: each takes the answer at its place here (int32)."""
        embeddings = None if self.embeddings is None else _rows_of(self.embeddings, places)
        return Inference(_rows_of(self.scores, places), embeddings, self.times, self.gathered_bytes)


class Infer(Protocol):
    """`infer_batch` of a revision, on whatever device."""

    def __call__(
        self, variant: str, seeds: np.ndarray, key: int, *, with_embeddings: bool = True
    ) -> Inference: ...  # pragma: no cover


class _Workspace(threading.local):
    """All that a thread computes in: it is used again from batch to batch, and nothing is allocated but the answer."""

    def __init__(self) -> None:
        self.scratch = Scratch()
        self.distinct = DistinctScratch()
        self.weights = WeightScratch()
        self.activations = Activations()


_workspace = _Workspace()


def infer_batch(
    revision: LoadedRevision, variant: str, seeds: np.ndarray, key: int, *, with_embeddings: bool = True
) -> Inference:
    """Scores of `seeds` (int64 node ids in range) by one variant. Equal keys draw equal neighbours, for every variant.

    Of seeds that come several times one is computed. Large batches go through in chunks, side by side on all
    processors. From one thread at a time, but for one that warms up another revision.
    """
    distinct = find_distinct(seeds, _workspace.distinct)
    if distinct is None:
        return infer_each(revision, variant, seeds, key, with_embeddings=with_embeddings)
    return infer_each(revision, variant, distinct.seeds, key, with_embeddings=with_embeddings).repeated(distinct.places)


def infer_each(
    revision: LoadedRevision, variant: str, seeds: np.ndarray, key: int, *, with_embeddings: bool = True
) -> Inference:
    """As `infer_batch`, without deduplication: the cost of that many different seeds."""
    loaded = revision.variants[variant]
    network, count = loaded.network, len(seeds)
    chunks = plan_chunks(count, loaded.fanouts, network.bytes_per_row, revision.effective_nodes, thread_count())
    scores = np.empty((count, network.classes), dtype=np.float32)
    embeddings = np.empty((count, network.hidden), dtype=np.float32) if with_embeddings and network.hidden else None
    if chunks.count == 1:
        times, read_bytes = _infer_chunk(revision, loaded, seeds, key, scores, embeddings, share=chunks.share)
        return Inference(scores, embeddings, times, read_bytes)
    started = time.perf_counter()
    bounds = [count * i // chunks.count for i in range(chunks.count + 1)]

    def infer_part(i: int) -> tuple[StageTimes, int]:
        part = slice(bounds[i], bounds[i + 1])
        rows = None if embeddings is None else embeddings[part]
        return _infer_chunk(revision, loaded, seeds[part], key, scores[part], rows, share=chunks.share)

    parts = map_parallel(infer_part, chunks.count)
    times = join_times([part for part, _ in parts], (time.perf_counter() - started) * 1e3)
    return Inference(scores, embeddings, times, sum(read_bytes for _, read_bytes in parts))


def warm_up(revision: LoadedRevision) -> None:
    """Compile or load every kernel and touch every variant, so that no request pays for it."""
    limit_blas_to_one_thread()
    # Enough for two chunks, so that the threads are there too.
    seeds = np.resize(np.arange(revision.graph.nodes, dtype=np.int64), 2 * _FEWEST_SEEDS)
    for name in revision.variants:
        infer_each(revision, name, seeds, key=0)
        infer_batch(revision, name, seeds[:2], key=0)


class Chunks(msgspec.Struct, frozen=True):
    count: int
    share: bool
    """A node that a chunk meets twice is computed once."""


@lru_cache(4096)
def plan_chunks(seeds: int, fanouts: tuple[int, ...], row_bytes: int, effective_nodes: float, threads: int) -> Chunks:
    """Chunks that stay in a core's cache; or, where nodes are met again and again, as few as there are threads."""
    fewest = max(1, min(threads, seeds // _FEWEST_SEEDS))
    if fanouts[0] == FULL_NEIGHBOURHOOD:
        return Chunks(fewest, share=True)
    rows_per_seed = sum(math.prod(fanouts[:depth]) for depth in range(len(fanouts)))
    if distinct_share(seeds * rows_per_seed // fewest, effective_nodes) < _SHARE_BELOW:
        return Chunks(fewest, share=True)
    most_seeds = max(1, _CHUNK_BYTES // (row_bytes * rows_per_seed))
    return Chunks(max(fewest, -(-seeds // most_seeds)), share=False)


def _infer_chunk(
    revision: LoadedRevision, variant: LoadedVariant, seeds: np.ndarray, key: int,
    scores: np.ndarray, embeddings: np.ndarray | None, *, share: bool,
) -> tuple[StageTimes, int]:  # fmt: skip
    """Fills in scores and embeddings; what it took, and the bytes that it gathered."""
    graph, network, activations = revision.graph, variant.network, _workspace.activations
    start = time.perf_counter()
    sample = sample_neighbours(
        graph.indptr, graph.indices, seeds, variant.fanouts, key, _workspace.scratch, share=share
    )
    if network.weighs_neighbours and revision.neighbour_roots is not None:
        sample = weigh(sample, graph.indptr, revision.neighbour_roots, _workspace.weights)
    sampled = time.perf_counter()
    aggregated = network.gather(variant.table, sample, activations)
    gathered = time.perf_counter()
    network.infer(aggregated, sample, activations, scores, embeddings)
    end = time.perf_counter()
    times = StageTimes((sampled - start) * 1e3, (gathered - sampled) * 1e3, (end - gathered) * 1e3)
    return times, gathered_bytes(variant.table, variant.columns, sample)


def join_times(parts: Sequence[StageTimes], wall_ms: float) -> StageTimes:
    """Times of chunks that ran side by side: their stages summed, scaled to the elapsed time."""
    busy = parts[0]
    for part in parts[1:]:
        busy = busy + part
    share = wall_ms / max(busy.total_ms, 1e-9)
    return StageTimes(busy.sample_ms * share, busy.gather_ms * share, busy.compute_ms * share)


def _rows_of(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    out = np.empty((len(places), rows.shape[1]), dtype=rows.dtype)
    copy_rows(rows, places, out)
    return out
