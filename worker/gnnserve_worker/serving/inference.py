"""One batch through one variant: sample, gather, infer, each stage timed.

The same function serves requests, measures the profile and computes the accuracies in it, so that what is
promised is what is served.
"""

from __future__ import annotations

import math
import threading
import time
from functools import lru_cache

import msgspec
import numpy as np

from gnnserve_api.gnnservice import FULL_NEIGHBOURHOOD
from gnnserve_worker.graph.gather import gathered_bytes
from gnnserve_worker.models.network import Activations
from gnnserve_worker.parallel import limit_blas_to_one_thread, map_parallel, thread_count
from gnnserve_worker.repository.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.sampling.neighbours import Scratch, distinct_share, sample_neighbours

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
    """float32 [seeds, hidden], the last hidden layer; None for one-layer networks."""
    times: StageTimes
    gathered_bytes: int


class _Workspace(threading.local):
    """All that a thread computes in: it is used again from batch to batch, and nothing is allocated but the answer."""

    def __init__(self) -> None:
        self.scratch = Scratch()
        self.activations = Activations()


_workspace = _Workspace()


def infer_batch(revision: LoadedRevision, variant: str, seeds: np.ndarray, key: int) -> Inference:
    """Scores of `seeds` (int64 node ids in range) by one variant. Equal keys draw equal neighbours, for every variant.

    Large batches go through in chunks, side by side on all processors. From one thread at a time, but for one that
    warms up another revision.
    """
    loaded = revision.variants[variant]
    chunks = plan_chunks(
        len(seeds), revision.network.fanouts, loaded.network.bytes_per_row, revision.effective_nodes, thread_count()
    )
    if chunks.count == 1:
        return _infer_chunk(revision, loaded, seeds, key, share=chunks.share)
    started = time.perf_counter()
    bounds = [len(seeds) * i // chunks.count for i in range(chunks.count + 1)]
    parts = map_parallel(
        lambda i: _infer_chunk(revision, loaded, seeds[bounds[i] : bounds[i + 1]], key, share=chunks.share),
        chunks.count,
    )
    return _join(parts, (time.perf_counter() - started) * 1e3)


def warm_up(revision: LoadedRevision) -> None:
    """Compile or load every kernel and touch every variant, so that no request pays for it."""
    limit_blas_to_one_thread()
    # Enough for two chunks, so that the threads are there too.
    seeds = np.resize(np.arange(revision.graph.nodes, dtype=np.int64), 2 * _FEWEST_SEEDS)
    for name in revision.variants:
        infer_batch(revision, name, seeds, key=0)


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
    revision: LoadedRevision, variant: LoadedVariant, seeds: np.ndarray, key: int, *, share: bool
) -> Inference:
    graph, network, activations = revision.graph, variant.network, _workspace.activations
    start = time.perf_counter()
    sample = sample_neighbours(
        graph.indptr, graph.indices, seeds, revision.network.fanouts, key, _workspace.scratch, share=share
    )
    sampled = time.perf_counter()
    combined = network.gather(variant.table, sample, activations)
    gathered = time.perf_counter()
    scores, embeddings = network.infer(combined, sample, activations)
    end = time.perf_counter()
    times = StageTimes((sampled - start) * 1e3, (gathered - sampled) * 1e3, (end - gathered) * 1e3)
    return Inference(scores, embeddings, times, gathered_bytes(variant.table, variant.columns, sample))


def _join(parts: list[Inference], wall_ms: float) -> Inference:
    """Stage times are those of all threads together, scaled to the time that passed."""
    embeddings = [part.embeddings for part in parts if part.embeddings is not None]
    busy = [np.array([p.times.sample_ms, p.times.gather_ms, p.times.compute_ms]) for p in parts]
    total = np.sum(busy, axis=0)
    return Inference(
        np.concatenate([part.scores for part in parts]),
        np.concatenate(embeddings) if embeddings else None,
        StageTimes(*(total * (wall_ms / total.sum())).tolist()),
        sum(part.gathered_bytes for part in parts),
    )
