"""Simulation of cache policies: the hits of each request of a trace, by what it makes a worker read.

A round ends after a fixed number of requests, as the updater's round ends after a fixed time. Policies that admit every
miss do so at once here; a real cache is updated beside the requests and admits later, so these policies are shown at
their best.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

import numpy as np

from benchmarks.cache_simulation.belady import belady_hits
from benchmarks.cache_simulation.traces import TraceReads
from gnnserve_api.device import CachePolicy
from gnnserve_worker.caching.policies.build import build_policy
from gnnserve_worker.caching.policy import Policy
from gnnserve_worker.caching.weights import degree_weights, expected_weights, presampled_weights
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.progress import Progress, ProgressListener, silent

BELADY = "Belady"
"""Name of the upper bound, which is listed beside the policies."""
POLICIES = (*map(str, CachePolicy), BELADY)
_TRIAL_SEEDS = 100_000
"""Most training nodes that the trial run of Presampled begins from."""


@dataclass(frozen=True, slots=True)
class NodeWeights:
    """Weights of a graph's nodes for Degree, Presampled and Frequency, float32 [nodes] each."""

    degree: np.ndarray
    presampled: np.ndarray
    expected: np.ndarray

    def of(self, policy: CachePolicy) -> np.ndarray | None:
        match policy:
            case CachePolicy.DEGREE:
                return self.degree
            case CachePolicy.PRESAMPLED:
                return self.presampled
            case CachePolicy.FREQUENCY:
                return self.expected
            case _:
                return None


def weigh_nodes(graph: Graph, training_nodes: np.ndarray, fanouts: tuple[int, ...], seed: int) -> NodeWeights:
    trial = np.random.default_rng(seed).permutation(training_nodes)[:_TRIAL_SEEDS]
    return NodeWeights(
        degree_weights(graph.indices, graph.nodes),
        presampled_weights(graph.indptr, graph.indices, trial, fanouts, seed),
        expected_weights(graph.indptr, graph.indices, fanouts),
    )


@dataclass(frozen=True, slots=True)
class Replay:
    policy: str
    capacity: int
    """Items, here nodes, that the cache holds."""
    hits: np.ndarray
    """Reads of each request that hit, int64 [requests]."""
    reads: np.ndarray
    """All reads of each request, int64 [requests]."""
    admissions: int = 0
    round_ms: float = 0.0
    """Mean time that the policy's decision takes at the end of a round."""

    def hit_rate(self, first: int = 0) -> float:
        """Share of the reads that hit, from request `first` on."""
        reads = int(self.reads[first:].sum())
        return int(self.hits[first:].sum()) / reads if reads else 0.0

    def timeline(self, window: int) -> np.ndarray:
        """The hit rate of each window of requests, float64; an incomplete last window is left out."""
        whole = len(self.hits) // window * window
        hits = self.hits[:whole].reshape(-1, window).sum(axis=1)
        rates: np.ndarray = hits / np.maximum(self.reads[:whole].reshape(-1, window).sum(axis=1), 1)
        return rates


def replay(policy: Policy, reads: TraceReads, round_requests: int, stopped: threading.Event | None = None) -> Replay:
    """Replay `reads` through the policy. Setting `stopped` ends the replay after the current round."""
    policy.begin()
    count = len(reads.starts) - 1
    hits = np.zeros(count, dtype=np.int64)
    admissions = rounds = 0
    deciding_s = 0.0
    for begin in range(0, count, round_requests):
        if stopped is not None and stopped.is_set():
            break
        end = min(count, begin + round_requests)
        items = reads.nodes[reads.starts[begin] : reads.starts[end]].astype(np.int64)
        for request in range(begin, end):
            offset = reads.starts[begin]
            hits[request] = policy.access(items[reads.starts[request] - offset : reads.starts[request + 1] - offset])
        started = time.perf_counter()
        admissions += len(policy.end_round().admitted)
        deciding_s += time.perf_counter() - started
        rounds += 1
    return Replay(
        policy.name, policy.capacity, hits, np.diff(reads.starts), admissions, 1000 * deciding_s / max(1, rounds)
    )


def replay_belady(reads: TraceReads, nodes: int, capacity: int) -> Replay:
    hit = belady_hits(reads.nodes, nodes, capacity)
    hits = np.diff(np.concatenate([[0], np.cumsum(hit)])[reads.starts])
    return Replay(BELADY, capacity, hits, np.diff(reads.starts))


def replay_all(
    reads: TraceReads,
    weights: NodeWeights,
    capacities: Sequence[int],
    policies: Sequence[str],
    round_requests: int,
    listener: ProgressListener = silent,
    stage: str = "replay",
) -> dict[tuple[int, str], Replay]:
    """Replays by capacity (nodes) and policy, one thread per processor: kernels release the interpreter lock."""
    nodes = len(weights.degree)
    stopped = threading.Event()

    def run(case: tuple[int, str]) -> Replay:
        capacity, name = case
        if name == BELADY:
            return replay_belady(reads, nodes, capacity)
        policy = CachePolicy(name)
        return replay(build_policy(policy, nodes, capacity, weights.of(policy)), reads, round_requests, stopped)

    cases = [(capacity, name) for capacity in capacities for name in policies]
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        runs = [pool.submit(run, case) for case in cases]
        try:
            listener(Progress(stage, 0, len(cases)))
            for done, one in enumerate(as_completed(runs), start=1):
                one.result()
                listener(Progress(stage, done, len(cases)))
        except BaseException:
            # An interrupt must not wait for all replays that have begun.
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {case: one.result() for case, one in zip(cases, runs, strict=True)}


@dataclass(frozen=True, slots=True)
class Recovery:
    """Recovery of the hit rate after a move of the hot set, as the mean course over all moves."""

    settled: float
    """Hit rate in the last quarter of the phases."""
    lowest: float
    """Hit rate in the first window after a move."""
    requests: int | None
    """Requests until nine tenths of the loss is recovered; None where the rate fell by less than a point."""
    course: np.ndarray = field(repr=False)
    """Hit rate of each window of a phase, float64."""


def recovery_of(found: Replay, moves: Sequence[int], window: int) -> Recovery | None:
    """Requests until the hit rate recovers from a move; None where nothing moved, or phases are shorter than four
    windows."""
    if not moves:
        return None
    ends = [*moves[1:], len(found.hits)]
    windows = min(end - begin for begin, end in zip(moves, ends, strict=True)) // window
    if windows < 4:
        return None
    length = windows * window
    hits = sum(found.hits[move : move + length].reshape(windows, window).sum(axis=1) for move in moves)
    reads = sum(found.reads[move : move + length].reshape(windows, window).sum(axis=1) for move in moves)
    course = hits / np.maximum(reads, 1)
    settled, lowest = float(course[-(windows // 4) :].mean()), float(course[0])
    if settled - lowest < 0.01:
        return Recovery(settled, lowest, None, course)
    back = int(np.argmax(course >= lowest + 0.9 * (settled - lowest)))
    return Recovery(settled, lowest, back * window, course)
