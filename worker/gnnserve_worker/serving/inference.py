"""One batch through one variant: sample, gather, infer, each stage timed.

The same function serves requests, measures the profile and computes the accuracies in it, so that what is
promised is what is served.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from gnnserve_api.gnnservice import FULL_NEIGHBOURHOOD
from gnnserve_worker.graph.gather import GatheredBatch, gather_subgraph, gather_tree
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.graph.table import FeatureTable
from gnnserve_worker.models.network import Network
from gnnserve_worker.parallel import limit_blas_to_one_thread, map_parallel, thread_count
from gnnserve_worker.repository.loaded import LoadedRevision
from gnnserve_worker.sampling.subgraph import SampledSubgraph, SubgraphSampler
from gnnserve_worker.sampling.tree import SampledTree, sample_tree

_CHUNK_BYTES = 8 * 1024 * 1024
"""Gathered rows of one chunk: enough to keep the matrix products busy, little enough to stay in the cache."""
_FEWEST_SEEDS = 32
"""Below it per chunk, handing work to another thread costs more than it saves."""


@dataclass(frozen=True, slots=True)
class StageTimes:
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


@dataclass(frozen=True, slots=True)
class Inference:
    scores: np.ndarray
    """float32 [seeds, classes], before softmax or sigmoid."""
    embeddings: np.ndarray | None
    """float32 [seeds, hidden], the last hidden layer; None for one-layer networks."""
    times: StageTimes
    gathered_bytes: int


def infer_batch(revision: LoadedRevision, variant: str, seeds: np.ndarray, key: int) -> Inference:
    """Scores of `seeds` (node ids in range) by one variant. Equal keys draw equal neighbours, for every variant.

    Large batches go through in chunks, side by side on all processors. One thread at a time, but for one that warms up
    another revision.
    """
    served = revision.variants[variant]
    fanouts = revision.network.fanouts
    bounds = chunk_bounds(len(seeds), _most_seeds(fanouts, served.columns), thread_count())
    started = time.perf_counter()
    parts = map_parallel(
        lambda i: _infer_chunk(
            revision.graph, revision.table, served.network, served.columns, fanouts,
            seeds[bounds[i] : bounds[i + 1]], key, bounds[i],
        ),
        len(bounds) - 1,
    )  # fmt: skip
    if len(parts) == 1:
        return parts[0]
    return _join(parts, (time.perf_counter() - started) * 1e3)


def warm_up(revision: LoadedRevision) -> None:
    """Compile or load every kernel and touch every variant, so that no request pays for it."""
    limit_blas_to_one_thread()
    # Enough for two chunks, so that the threads are there too.
    seeds = np.resize(np.arange(revision.graph.nodes, dtype=np.int64), 2 * _FEWEST_SEEDS)
    for name in revision.variants:
        infer_batch(revision, name, seeds, key=0)


def chunk_bounds(seeds: int, most: int, threads: int) -> list[int]:
    """Chunks of about equal size: few enough seeds to stay in the cache, and one for each thread where it pays."""
    chunks = max(-(-seeds // most), min(threads, seeds // _FEWEST_SEEDS), 1)
    return [seeds * i // chunks for i in range(chunks + 1)]


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


def _infer_chunk(
    graph: Graph, table: FeatureTable, network: Network, columns: int, fanouts: tuple[int, ...],
    seeds: np.ndarray, key: int, first: int,
) -> Inference:  # fmt: skip
    mean = network.aggregation == "mean"
    start = time.perf_counter()
    sampled = _sample(graph, seeds, fanouts, key, first)
    sampled_at = time.perf_counter()
    batch = _gather(table, columns, sampled, mean=mean)
    gathered_at = time.perf_counter()
    scores, embeddings = network.infer(batch)
    end = time.perf_counter()
    times = StageTimes((sampled_at - start) * 1e3, (gathered_at - sampled_at) * 1e3, (end - gathered_at) * 1e3)
    return Inference(scores, embeddings, times, batch.gathered_bytes)


def _sample(
    graph: Graph, seeds: np.ndarray, fanouts: tuple[int, ...], key: int, first: int
) -> SampledTree | SampledSubgraph:
    if fanouts[0] == FULL_NEIGHBOURHOOD:
        return SubgraphSampler(graph.indptr, graph.indices).sample(seeds, fanouts, key)
    return sample_tree(graph.indptr, graph.indices, seeds, fanouts, key, first)


def _gather(table: FeatureTable, columns: int, sampled: SampledTree | SampledSubgraph, *, mean: bool) -> GatheredBatch:
    if isinstance(sampled, SampledTree):
        return gather_tree(table, columns, sampled, mean=mean)
    return gather_subgraph(table, columns, sampled, mean=mean)


def _most_seeds(fanouts: tuple[int, ...], columns: int) -> int:
    if fanouts[0] == FULL_NEIGHBOURHOOD:
        return 1024  # neighbourhoods overlap, so larger chunks read less
    rows, width = 1, 1
    for fanout in fanouts[:-1]:
        width *= fanout
        rows += width
    leaves = width * fanouts[-1]
    return max(1, _CHUNK_BYTES // (4 * (2 * columns * rows + leaves)))
