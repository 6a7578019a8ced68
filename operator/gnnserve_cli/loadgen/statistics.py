"""What came of a run: raw observations while it lasts, a report from them afterwards.

`summarize` is a pure function of the record. Percentiles are nearest-rank: every one is a time that happened.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

LAG_SHARE = 0.1
"""A generator's own p99 lag above this share of the median latency is part of the result, and is warned about."""


@dataclass(slots=True)
class Record:
    """Grows during a run; only what an answer or an error adds."""

    latencies_ms: array[float] = field(default_factory=lambda: array("d"))
    """Of answers with status 200."""
    lags_ms: array[float] = field(default_factory=lambda: array("d"))
    """Open loop: sent minus due."""
    statuses: Counter[int] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    variants: Counter[str] = field(default_factory=Counter)
    objectives_met: int = 0
    started: int = 0
    """Requests that were sent, or were due and could not be."""
    held_back: int = 0
    """Open loop: requests that were due while every connection was busy."""
    last_answer_s: float = 0.0
    """After the start."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the run was asked to be."""

    connections: int
    duration_s: float
    seeds_per_request: int
    rate_per_s: float | None = None
    """None: closed loop."""


class Percentiles(msgspec.Struct, frozen=True):
    p50: float
    p90: float
    p99: float
    max: float


class LoadReport(msgspec.Struct, frozen=True, rename="camel"):
    mode: str
    """`closed` or `open`."""
    connections: int
    seeds_per_request: int
    offered_per_second: float | None
    duration_s: float
    """From the start to the last answer, and never less than what was asked."""
    requests: int
    answers: int
    """With status 200."""
    answers_per_second: float
    seeds_per_second: float
    latency_ms: Percentiles | None
    """Closed loop: sent to answered. Open loop: due to answered. None without an answer."""
    lag_ms: Percentiles | None
    """Open loop: due to sent."""
    held_back: int
    variants: dict[str, float]
    """Shares of the answers."""
    objective_met_share: float | None
    statuses: dict[str, int]
    errors: dict[str, int]
    warnings: list[str]


def percentile(ascending: Sequence[float], percent: float) -> float:
    """Nearest rank: the smallest value that at least `percent` of all do not exceed."""
    rank = max(1, math.ceil(len(ascending) * percent / 100))
    return ascending[rank - 1]


def compute_percentiles(values: Sequence[float]) -> Percentiles | None:
    if not values:
        return None
    ascending = sorted(values)
    p50, p90, p99 = (percentile(ascending, percent) for percent in (50, 90, 99))
    return Percentiles(p50, p90, p99, ascending[-1])


def summarize(plan: Plan, record: Record) -> LoadReport:
    answers = len(record.latencies_ms)
    duration_s = max(plan.duration_s, record.last_answer_s)
    latency, lag = compute_percentiles(record.latencies_ms), compute_percentiles(record.lags_ms)
    known_variants = record.variants.total()
    return LoadReport(
        mode="closed" if plan.rate_per_s is None else "open",
        connections=plan.connections,
        seeds_per_request=plan.seeds_per_request,
        offered_per_second=plan.rate_per_s,
        duration_s=duration_s,
        requests=record.started,
        answers=answers,
        answers_per_second=answers / duration_s,
        seeds_per_second=answers * plan.seeds_per_request / duration_s,
        latency_ms=latency,
        lag_ms=lag,
        held_back=record.held_back,
        variants={name: count / known_variants for name, count in sorted(record.variants.items())},
        objective_met_share=record.objectives_met / known_variants if known_variants else None,
        statuses={str(status): count for status, count in sorted(record.statuses.items())},
        errors=dict(record.errors.most_common()),
        warnings=_warnings(latency, lag, record),
    )


def _warnings(latency: Percentiles | None, lag: Percentiles | None, record: Record) -> list[str]:
    warnings = []
    if record.held_back:
        warnings.append(
            f"{record.held_back:,} of {record.started:,} requests were due while every connection was busy; "
            "their wait is in the latency: "
            "server or generator are slower than the rate, or --concurrency is too small"
        )
    elif latency is not None and lag is not None and lag.p99 > LAG_SHARE * latency.p50:
        warnings.append(
            f"the generator itself sent late (p99 {lag.p99:,.3f} ms, median latency {latency.p50:,.3f} ms): "
            "part of the latency is its own; lower --rate, or run it on another machine"
        )
    return warnings
