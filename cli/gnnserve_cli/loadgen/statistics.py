"""The report of a run, from its record.

Pure functions of the record. Percentiles are nearest-rank: every one is a time that happened.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Literal

import msgspec

from gnnserve_cli.loadgen.parts import MeanParts, mean_parts
from gnnserve_cli.loadgen.record import FAILED, NO_VARIANT, REFUSED, LoadRecord, RequestRows
from gnnserve_cli.loadgen.requests import Sizes
from gnnserve_cli.loadgen.scenario import Scenario

LAG_SHARE = 0.1
"""A generator's own p99 lag above this share of the median latency is part of the result, and is warned about."""
LATE_MS = 1.0
LATE_SHARE = 0.01
"""Share of requests sent over `LATE_MS` late by the generator itself, above which the report warns."""
SLICES = 10
_LEAST_S = 0.001
"""Shortest duration that figures are divided by."""


class StatedObjective(msgspec.Struct, frozen=True, rename="camel"):
    """The objective that answers are compared with."""

    latency_ms: float | None
    accuracy_tolerance_permille: float | None
    stated_by: Literal["requests", "service"]


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Parameters of a run."""

    connections: int
    duration_s: float
    seeds_per_request: int
    """The mean, where sizes differ."""
    rate_per_s: float | None = None
    """Rate of requests; of a scenario the peak. None: closed loop."""
    scenario: Scenario | None = None
    sizes: Sizes = Sizes.FIXED
    binary: bool = False
    retries: int = 0
    objective: StatedObjective | None = None
    new_nodes: int = 0
    """New nodes that each request brings and asks for."""
    new_edges: int = 0
    """Edges of each new node."""


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Accuracies by variant, in percent."""

    split: Literal["test", "validation"] | None = None
    """The split that the accuracies were measured on; None: unknown."""
    percent: Mapping[str, float] = field(default_factory=dict)


class Percentiles(msgspec.Struct, frozen=True):
    p50: float
    p90: float
    p99: float
    max: float


class Slice(msgspec.Struct, frozen=True, rename="camel"):
    """The requests that were due within one part of the run."""

    start_s: float
    end_s: float
    offered_per_second: float
    on_time_per_second: float | None
    """Answers per second that came in time; None where no latency is known to hold them against."""
    attained_percent: float | None
    """Share of the requests answered in time; None also where no request was due."""
    accuracy_percent: float | None
    refused: int
    variants: dict[str, float]
    """Shares of the answers."""
    p50_ms: float | None
    """Median latency of the answers."""
    p99_ms: float | None


class LoadReport(msgspec.Struct, frozen=True, rename="camel"):
    mode: str
    """`closed` or `open`."""
    scenario: Scenario | None
    binary: bool
    objective: StatedObjective | None
    """The objective; None: neither the requests nor the service state one."""
    connections: int
    seeds_per_request: int
    """The mean asked for, where sizes differ."""
    sizes: Sizes
    new_nodes: int
    """New nodes that each request brought and asked for."""
    new_edges: int
    """Edges of each new node."""
    offered_per_second: float | None
    """Requests per second that were asked for; for a scenario its peak."""
    duration_s: float
    """Seconds from the start to the last answer, and never less than what was asked."""
    requests: int
    answers: int
    """Answers with status 200."""
    answers_per_second: float
    seeds_per_second: float
    latency_ms: Percentiles | None
    """Closed loop: sent to answered. Open loop: due to answered. None without an answer."""
    parts: MeanParts | None
    """Where the time of the answers went; None: there were none, or the server does not tell."""
    lag_ms: Percentiles | None
    """Open loop: due to sent."""
    held_back: int
    late: int
    """Requests that the generator itself came to over `LATE_MS` after they were due."""
    variants: dict[str, float]
    """Shares of the answers."""
    attained_percent: float | None
    """Requests answered within the objective's latency; one that was refused is a miss."""
    accuracy_percent: float | None
    """Mean over the answers on time (over all, where no latency is asked) of the answering variant's accuracy."""
    accuracy_split: Literal["test", "validation"] | None
    goodput_per_second: float | None
    """Answers within the latency, counted from when the last try was due."""
    refused: int
    """Requests that were refused for good: 429 or 503."""
    tries: int
    """Requests and their retries."""
    objective_met_share: float | None
    """Share of the answers, as the server reports it: counted from arrival, without what happens before."""
    statuses: dict[str, int]
    errors: dict[str, int]
    sentences: dict[str, str]
    """Messages of the server: that of the first error of each kind."""
    slices: list[Slice]
    """Open loop: the course of the run in equal parts."""
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


def _shortened(plan: LoadPlan, record: LoadRecord) -> LoadPlan:
    """The plan as far as it was run: shorter where the run was interrupted."""
    interrupted_s = record.interrupted_s
    if interrupted_s is None or interrupted_s >= plan.duration_s:
        return plan
    return replace(plan, duration_s=max(interrupted_s, _LEAST_S))


def summarize(planned: LoadPlan, record: LoadRecord, accuracies: Accuracies | None = None) -> LoadReport:
    plan, accuracies = _shortened(planned, record), accuracies or Accuracies()
    rows, limit_ms = record.rows, _limit_ms(plan)
    latencies_ms = record.latencies_ms
    answers = len(latencies_ms)
    duration_s = max(plan.duration_s, record.last_answer_s)
    latency, lag = compute_percentiles(latencies_ms), compute_percentiles(record.lags_ms)
    answerers = Counter(rows.answerers)
    known_variants = sum(count for answerer, count in answerers.items() if answerer >= 0)
    on_time = Counter(
        answerer for answerer, latency_ms in zip(rows.answerers, rows.latencies_ms, strict=True)
        if latency_ms <= (math.inf if limit_ms is None else limit_ms)
    )  # fmt: skip
    last_try_on_time = None if limit_ms is None else sum(ms <= limit_ms for ms in rows.last_tries_ms)
    accuracy_percent = _mean_accuracy(on_time, record.names, accuracies)
    return LoadReport(
        mode="closed" if plan.rate_per_s is None else "open",
        scenario=plan.scenario,
        binary=plan.binary,
        objective=plan.objective,
        connections=plan.connections,
        seeds_per_request=plan.seeds_per_request,
        sizes=plan.sizes,
        new_nodes=plan.new_nodes,
        new_edges=plan.new_edges,
        offered_per_second=plan.rate_per_s,
        duration_s=duration_s,
        requests=record.started,
        answers=answers,
        answers_per_second=answers / duration_s,
        seeds_per_second=sum(compress(rows.seeds, (ms == ms for ms in rows.latencies_ms))) / duration_s,  # noqa: PLR0124 - NaN: no answer
        latency_ms=latency,
        parts=mean_parts(record.timed),
        lag_ms=lag,
        held_back=record.held_back,
        late=record.late,
        variants=_shares(answerers, record.names),
        attained_percent=None if limit_ms is None or not len(rows) else 100 * on_time.total() / len(rows),
        accuracy_percent=accuracy_percent,
        accuracy_split=None if accuracy_percent is None else accuracies.split,
        goodput_per_second=None if last_try_on_time is None else last_try_on_time / duration_s,
        refused=answerers[REFUSED],
        tries=sum(rows.tries),
        objective_met_share=record.objectives_met / known_variants if known_variants else None,
        statuses={str(status): count for status, count in sorted(record.statuses.items())},
        errors=dict(record.errors.most_common()),
        sentences=record.sentences,
        slices=[] if plan.rate_per_s is None else slice_up(plan, record, SLICES, accuracies),
        warnings=[*_interruption(planned, record), *_warnings(plan, latency, lag, record)],
    )


def slice_up(plan: LoadPlan, record: LoadRecord, parts: int, accuracies: Accuracies) -> list[Slice]:
    """The run in `parts` equal parts, requests sorted by when they were due."""
    rows, limit_ms = record.rows, _limit_ms(plan)
    members: list[list[int]] = [[] for _ in range(parts)]
    for row, due_s in enumerate(rows.dues_s):
        members[min(parts - 1, max(0, int(due_s / plan.duration_s * parts)))].append(row)
    length_s = plan.duration_s / parts
    return [
        _slice(number * length_s, length_s, of_part, rows, record.names, limit_ms, accuracies)
        for number, of_part in enumerate(members)
    ]


def _slice(
    start_s: float,
    length_s: float,
    members: Sequence[int],
    rows: RequestRows,
    names: Sequence[str],
    limit_ms: float | None,
    accuracies: Accuracies,
) -> Slice:
    answerers = Counter(rows.answerers[row] for row in members)
    most_ms = math.inf if limit_ms is None else limit_ms
    on_time = Counter(rows.answerers[row] for row in members if rows.latencies_ms[row] <= most_ms)
    ascending = sorted(rows.latencies_ms[row] for row in members if rows.answerers[row] not in {REFUSED, FAILED})
    return Slice(
        start_s=start_s,
        end_s=start_s + length_s,
        offered_per_second=len(members) / length_s,
        on_time_per_second=None if limit_ms is None else on_time.total() / length_s,
        attained_percent=None if limit_ms is None or not members else 100 * on_time.total() / len(members),
        accuracy_percent=_mean_accuracy(on_time, names, accuracies),
        refused=answerers[REFUSED],
        variants=_shares(answerers, names),
        p50_ms=percentile(ascending, 50) if ascending else None,
        p99_ms=percentile(ascending, 99) if ascending else None,
    )


def _limit_ms(plan: LoadPlan) -> float | None:
    return None if plan.objective is None else plan.objective.latency_ms


def _shares(answerers: Counter[int], names: Sequence[str]) -> dict[str, float]:
    counts = {names[answerer]: count for answerer, count in answerers.items() if answerer >= 0}
    total = sum(counts.values())
    return {name: count / total for name, count in sorted(counts.items())}


def _mean_accuracy(on_time: Counter[int], names: Sequence[str], accuracies: Accuracies) -> float | None:
    """Mean accuracy; None where no answer was on time, or a variant's accuracy is unknown."""
    counts = {names[answerer]: count for answerer, count in on_time.items() if answerer != NO_VARIANT}
    if not counts or not counts.keys() <= accuracies.percent.keys():
        return None
    return math.fsum(accuracies.percent[name] * count for name, count in counts.items()) / sum(counts.values())


def _interruption(planned: LoadPlan, record: LoadRecord) -> list[str]:
    if record.interrupted_s is None:
        return []
    return [
        f"interrupted after {record.interrupted_s:,.2f} of {planned.duration_s:,.10g} s: the figures are of what was "
        "measured until then"
    ]


def _warnings(plan: LoadPlan, latency: Percentiles | None, lag: Percentiles | None, record: LoadRecord) -> list[str]:
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
    if plan.rate_per_s is not None and record.late > LATE_SHARE * record.started:
        warnings.append(
            f"the generator came to {record.late:,} of {record.started:,} requests over {LATE_MS:g} ms after they were "
            f"due: it is slower than the rate; lower --rate{', give --binary' * (not plan.binary)}, or run it on "
            "another machine"
        )
    return warnings
