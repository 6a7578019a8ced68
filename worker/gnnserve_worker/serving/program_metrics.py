"""What is told of the programs that a revision runs: metrics, and their state in `GET /v1/route`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import UNSET, UnsetType
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gnnserve_api.routing import ProgramState, RoutingTable
from gnnserve_worker.programs.failure import Failure
from gnnserve_worker.programs.stats import ProgramStats

FIRST, SECOND = "gnnserve_program", "gnnserve_canary_program"
"""Beginning of the names: of a service's revision, and of its second one, which must not be mixed with it."""


def program_state(stats: ProgramStats | None, table: RoutingTable | None) -> ProgramState | UnsetType:
    """`table`: the one in effect."""
    if stats is None:
        return UNSET
    limits = None if table is None else table.program_limits
    return ProgramState(stats.problem, sum(stats.restarts.values()), UNSET if limits is None else limits)


def collect_programs(stats: ProgramStats, of: Mapping[str, str], since_s: float, prefix: str) -> Iterator[Metric]:
    """`of`: labels of all. `since_s`: since when the revision answers, in seconds since 1970; counters begin anew with
    each revision, whose processes are its own."""
    labels, values = tuple(of), tuple(of.values())
    healthy = GaugeMetricFamily(f"{prefix}_healthy", "1 where the last run of the program gave scores.", labels=labels)
    healthy.add_metric(values, 0 if stats.problem else 1)
    yield healthy
    runs = CounterMetricFamily(
        f"{prefix}_runs", "Runs of the program, by whether they gave scores.", labels=(*labels, "outcome")
    )
    for outcome, count in (("answered", stats.answered), ("failed", stats.failed)):
        runs.add_metric((*values, outcome), count, created=since_s)
    yield runs
    seconds = CounterMetricFamily(f"{prefix}_seconds", "Time of all runs of the program.", labels=labels)
    seconds.add_metric(values, stats.run_s, created=since_s)
    yield seconds
    restarts = CounterMetricFamily(
        f"{prefix}_restarts", "Processes of the program that were given up, by reason.", labels=(*labels, "reason")
    )
    for failure in Failure:
        restarts.add_metric((*values, failure.value), stats.restarts.get(failure, 0), created=since_s)
    yield restarts
