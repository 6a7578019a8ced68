"""Results of the measurements: medians over the repetitions, and ratios of which more than 1 is better.

Pure functions of the observations.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.wrk import Load

ONE_SEED, MANY_CONNECTIONS, MANY_SEEDS = "one_seed", "throughput_32", "seeds_1024"


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    label: str
    connections: int
    seeds: int


WORKLOADS = (
    Workload(ONE_SEED, "one seed, one connection", connections=1, seeds=1),
    Workload(MANY_CONNECTIONS, "one seed, 32 connections", connections=32, seeds=1),
    Workload(MANY_SEEDS, "1024 seeds, one connection", connections=1, seeds=1024),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians over the repetitions of one workload."""

    p50_ms: float
    p99_ms: float
    requests_per_s: float


def median_of(loads: Sequence[Load]) -> Figures:
    return Figures(
        p50_ms=statistics.median(load.p50_ms for load in loads),
        p99_ms=statistics.median(load.p99_ms for load in loads),
        requests_per_s=statistics.median(load.requests_per_s for load in loads),
    )


Measured = Mapping[str, Figures]
"""Figures by workload."""


@dataclass(frozen=True, slots=True)
class Ratios:
    ratios: dict[str, float]
    """Above 1: better than the best peer."""
    against: dict[str, str]
    """The best peer by each measure."""
    throughput_32_p99: float
    """p99 of the peer with the best throughput over ours, under the same load."""


def compute_ratios(ours: Measured, peers: Mapping[str, Measured]) -> Ratios:
    """Each measure against whichever peer is best by it."""
    one = min(peers, key=lambda name: peers[name][ONE_SEED].p50_ms)
    busy = max(peers, key=lambda name: peers[name][MANY_CONNECTIONS].requests_per_s)
    many = min(peers, key=lambda name: peers[name][MANY_SEEDS].p50_ms)
    return Ratios(
        ratios={
            "one_seed_p50": _rounded(peers[one][ONE_SEED].p50_ms / ours[ONE_SEED].p50_ms),
            "throughput_32": _rounded(
                ours[MANY_CONNECTIONS].requests_per_s / peers[busy][MANY_CONNECTIONS].requests_per_s
            ),
            "seeds_1024": _rounded(peers[many][MANY_SEEDS].p50_ms / ours[MANY_SEEDS].p50_ms),
        },
        against={"one_seed_p50": one, "throughput_32": busy, "seeds_1024": many},
        throughput_32_p99=_rounded(peers[busy][MANY_CONNECTIONS].p99_ms / ours[MANY_CONNECTIONS].p99_ms),
    )


def lowest_of(groups: Sequence[Ratios]) -> Ratios:
    """The ratios over several groups: each measure from the group in which a peer comes nearest to us."""
    nearest = {measure: _lowest(groups, measure) for measure in groups[0].ratios}
    return Ratios(
        ratios={measure: group.ratios[measure] for measure, group in nearest.items()},
        against={measure: group.against[measure] for measure, group in nearest.items()},
        throughput_32_p99=nearest["throughput_32"].throughput_32_p99,
    )


def _lowest(groups: Sequence[Ratios], measure: str) -> Ratios:
    return min(groups, key=lambda group: group.ratios[measure])


def compute_echo_ratios(ours: Measured, echo: Measured) -> dict[str, float]:
    """What the graph adds to HTTP: latency over the floor, and throughput as a share of the ceiling."""
    return {
        "one_seed_p50_over_echo": _rounded(ours[ONE_SEED].p50_ms / echo[ONE_SEED].p50_ms),
        "throughput_32_of_echo": _rounded(
            ours[MANY_CONNECTIONS].requests_per_s / echo[MANY_CONNECTIONS].requests_per_s
        ),
    }


def _rounded(ratio: float) -> float:
    return round(ratio, 3)
