"""Metrics of changes: what clients sent to this worker, and how far it is behind the log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gnnserve_worker.changes.worker_log import Updates
from gnnserve_worker.serving.metrics.counters import Durations, add_histogram


class BatchOutcome(StrEnum):
    """Outcome of a batch of changes that a client sent."""

    APPLIED = "applied"
    """Changes that last, and that this worker has applied."""
    REPEATED = "repeated"
    """The log had them already, under the same client and sequence."""
    REFUSED = "refused"
    """Changes that could not be applied."""
    FAILED = "failed"
    """The log could not be written."""


@dataclass(slots=True)
class ChangeCounters:
    """Belongs to the event loop's thread."""

    changes: dict[BatchOutcome, int] = field(default_factory=lambda: dict.fromkeys(BatchOutcome, 0))
    durable: Durations = field(default_factory=Durations)
    """From the end of a batch's body until it was durable and applied."""
    created_s: float = field(default_factory=time.time)

    def count(self, outcome: BatchOutcome, changes: int) -> None:
        self.changes[outcome] += changes


def collect_changes(updates: Updates, counters: ChangeCounters, service: str) -> Iterator[Metric]:
    changes = CounterMetricFamily(
        "gnnserve_changes", "Changes that clients sent to this worker, by outcome.", labels=("service", "outcome")
    )
    for outcome, count in counters.changes.items():
        changes.add_metric((service, outcome), count, created=counters.created_s)
    durable = HistogramMetricFamily(
        "gnnserve_changes_durable_seconds",
        "From a batch of changes being read until it was durable and applied.",
        labels=("service",),
    )
    add_histogram(durable, {"service": service}, counters.durable, counters.created_s)
    yield from (changes, durable)
    for name, text, value in (
        ("gnnserve_log_offset", "The last offset of the log of changes, as this worker knows it.", updates.last),
        ("gnnserve_applied_offset", "The offset of the log that this worker has applied.", updates.applied),
        ("gnnserve_changes_behind", "Changes of the log that are not applied yet.", updates.changes_behind),
        ("gnnserve_staleness_seconds", "Age of the oldest change that is not applied yet.", updates.staleness_s),
        ("gnnserve_log_usable", "0 where the log cannot be followed or written now.", updates.problem is None),
    ):
        gauge = GaugeMetricFamily(name, text, labels=("service",))
        gauge.add_metric((service,), float(value))
        yield gauge
