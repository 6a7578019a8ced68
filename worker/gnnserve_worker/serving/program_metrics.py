"""Metrics of the programs that a revision runs."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gnnserve_worker.programs.failure import Failure
from gnnserve_worker.programs.stats import ProgramStats


def collect_programs(stats: ProgramStats, service: str, shown_s: float) -> Iterator[Metric]:
    """`shown_s`: since when the revision answers, in seconds since 1970; counters begin anew with each revision, whose
    processes are its own."""
    healthy = GaugeMetricFamily(
        "gnnserve_program_healthy", "1 where the last run of the program gave scores.", labels=("service",)
    )
    healthy.add_metric((service,), 0 if stats.problem else 1)
    yield healthy
    runs = CounterMetricFamily(
        "gnnserve_program_runs", "Runs of the program, by whether they gave scores.", labels=("service", "outcome")
    )
    for outcome, count in (("answered", stats.answered), ("failed", stats.failed)):
        runs.add_metric((service, outcome), count, created=shown_s)
    yield runs
    seconds = CounterMetricFamily("gnnserve_program_seconds", "Time of all runs of the program.", labels=("service",))
    seconds.add_metric((service,), stats.run_s, created=shown_s)
    yield seconds
    restarts = CounterMetricFamily(
        "gnnserve_program_restarts", "Processes of the program that were given up, by reason.",
        labels=("service", "reason"),
    )  # fmt: skip
    for failure in Failure:
        restarts.add_metric((service, failure.value), stats.restarts.get(failure, 0), created=shown_s)
    yield restarts
