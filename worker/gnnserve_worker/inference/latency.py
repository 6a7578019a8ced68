"""Measuring what batches of variants take: for the profile of a revision, and again by a worker on another device.

By the function that answers requests, but that seeds which are drawn twice, out of a small split, are computed twice:
what is promised holds for different ones. Variants take turns, so that a machine whose speed drifts is unfair to none
of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import numpy as np

from gnnserve_api.profile import LatencyProfile
from gnnserve_worker.inference.batch import Inference


def measure_latencies(
    infer: Callable[[str, np.ndarray, int], Inference],
    variants: Collection[str],
    nodes: np.ndarray,
    seeds: int,
    *,
    budget_s: float,
    rounds: tuple[int, int],
) -> dict[str, LatencyProfile]:
    """By variant; of batches of `seeds` out of `nodes` (int64 ids). `infer`: of variant, seeds and key.

    For `budget_s`, over all variants; but `rounds` at least and at most.
    """
    draw = np.random.default_rng(seeds)
    runs: dict[str, list[Inference]] = {name: [] for name in variants}
    started = time.perf_counter()
    fewest, most = rounds
    for round_number in range(most):
        if round_number >= fewest and time.perf_counter() - started > budget_s:
            break
        batch = draw.choice(nodes, seeds, replace=len(nodes) < seeds)
        for name in variants:
            runs[name].append(infer(name, batch, round_number))
    return {name: _summarize(seeds, measured) for name, measured in runs.items()}


def _summarize(seeds: int, runs: list[Inference]) -> LatencyProfile:
    total = np.array([run.times.total_ms for run in runs])
    window = np.array([run.times.gather_ms + run.times.compute_ms for run in runs])
    return LatencyProfile(
        seeds=seeds,
        runs=len(runs),
        p50_ms=rounded_ms(np.percentile(total, 50)),
        p99_ms=rounded_ms(np.percentile(total, 99)),
        mean_ms=rounded_ms(total.mean()),
        std_ms=rounded_ms(total.std()),
        sample_ms=rounded_ms(np.median([run.times.sample_ms for run in runs])),
        gather_ms=rounded_ms(np.median([run.times.gather_ms for run in runs])),
        compute_ms=rounded_ms(np.median([run.times.compute_ms for run in runs])),
        gathered_bytes=round(np.mean([run.gathered_bytes for run in runs])),
        window_p50_ms=rounded_ms(np.percentile(window, 50)),
        window_mean_ms=rounded_ms(window.mean()),
        window_std_ms=rounded_ms(window.std()),
    )


def rounded_ms(duration_ms: float | np.floating) -> float:
    """Round to 0.1 µs: no clock here is finer."""
    return round(float(duration_ms), 4)
