"""A Prometheus that scrapes what a test says: constant rates of workers, and everything that goes wrong with one.

Each answer carries three scrapes of constant rates up to now, so a rate that a test sets holds from the next question
on, whatever was before, and no test waits for scrapes.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.machine.fake_server import Asked, FakeServer, Told, fake_server


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of one worker, per second."""

    offered_seeds: float = 0.0
    met: float = 0.0
    late: float = 0.0
    refused: float = 0.0
    batches: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    """For each variant: batches per second, seeds of each, seconds of each."""

    def counters(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Metric, labels and rate."""
        yield "offered_seeds", {}, self.offered_seeds
        for outcome, rate in (("met", self.met), ("late", self.late), ("refused", self.refused), ("unbounded", 0.0)):
            yield "requests", {"outcome": outcome}, rate
        for variant, (rate, seeds, seconds) in self.batches.items():
            for metric, of_one in (
                ("batches", 1.0),
                ("batch_seeds", seeds),
                ("batch_seconds", seconds),
                ("batch_seeds_squared", seeds**2),
                ("batch_seed_seconds", seeds * seconds),
            ):
                yield metric, {"variant": variant}, rate * of_one


@dataclass(slots=True)
class FakePrometheus:
    pods: Callable[[], list[str]]
    """Pods that it scrapes."""
    rates: Rates = field(default_factory=Rates)
    """Rates of each worker."""
    fault: Callable[[Asked], Told] | None = None
    """Answers in its place."""
    gap_s: float = 1.0
    """Seconds between two scrapes."""
    age_s: float = 0.0
    """Age of the newest sample."""
    value: str | None = None
    """Text that takes the place of every value."""
    queries: list[str] = field(default_factory=list)

    def answer(self, asked: Asked) -> Told:
        url = urlsplit(asked.path)
        assert url.path == "/api/v1/query", asked.path
        query = parse_qs(url.query)["query"][0]
        self.queries.append(query)
        if self.fault is not None:
            return self.fault(asked)
        matched = dict(re.findall(r'(\w+)="([^"]*)"', query))
        return answer_with([found for pod in self.pods() for found in self._series(pod, matched)])

    def _series(self, pod: str, labels: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        now_s = time.time() - self.age_s
        for metric, own, rate in self.rates.counters():
            metric_labels = {
                "__name__": f"gnnserve_{metric}_total", "pod": pod, "instance": f"{pod}:8080", **labels, **own,
            }  # fmt: skip
            scrapes_s = (-2 * self.gap_s, -self.gap_s, 0.0)
            values = [[now_s + at_s, self.value or str(1e6 + rate * (10 + at_s))] for at_s in scrapes_s]
            yield {"metric": metric_labels, "values": values}


def answer_with(result: list[dict[str, Any]], **changes: Any) -> Told:
    body = {"status": "success", "data": {"resultType": "matrix", "result": result}} | changes
    return Told(body=json.dumps(body).encode(), headers={"Date": formatdate(usegmt=True)})


@contextmanager
def serving(prometheus: FakePrometheus) -> Iterator[FakeServer]:
    with fake_server(prometheus.answer) as server:
        yield server
