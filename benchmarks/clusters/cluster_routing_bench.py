"""Parts of the routing benchmark in a cluster: a service under load, watched as its routing follows."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.harness.prometheus import Prometheus
from tests.cluster.harness.services import Service

from benchmarks.load.communities import Communities
from gnnserve_cli.client import fetch_variants
from gnnserve_cli.loadgen.generator import generate_load
from gnnserve_cli.loadgen.record import LoadRecord
from gnnserve_cli.loadgen.requests import Sizes, build_predictions
from gnnserve_cli.loadgen.scenario import RateCurve, build_arrivals
from gnnserve_cli.loadgen.statistics import LoadPlan
from gnnserve_client.address import parse_url

SEEDS = 48
CONNECTIONS = 256
ANSWER_TIMEOUT_S = 10.0
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Extent:
    interval_s: int
    scrape_s: float
    warm: int
    """Intervals of load before anything counts, in which the operator learns what batches really take."""
    quiet: int
    """Intervals of low load before the rise, of high load, and of low load again."""
    high: int
    back: int
    outage_s: float
    around_s: float
    """Seconds before and after the outage."""
    graph: Communities


FULL = Extent(15, 5.0, warm=5, quiet=6, high=6, back=11, outage_s=300, around_s=30, graph=Communities())
QUICK = Extent(
    2, 1.0, warm=8, quiet=5, high=8, back=14, outage_s=20, around_s=5, graph=Communities(nodes=20_000, links=300_000)
)


@dataclass(frozen=True, slots=True)
class Bench:
    extent: Extent
    service: Service
    prometheus: Prometheus
    variants: tuple[str, ...]
    """The most accurate first."""
    capacities: Mapping[str, float]
    """Seeds/s."""
    objective_ms: float


@dataclass(slots=True)
class Log:
    """Events, in seconds after the start of the load."""

    started_at_s: float = field(default_factory=time.monotonic)
    events: list[dict[str, Any]] = field(default_factory=list)

    def now_s(self) -> float:
        return time.monotonic() - self.started_at_s

    def note(self, what: str, at_s: float | None = None, **more: Any) -> None:
        event = {"at_s": round(self.now_s() if at_s is None else at_s, 2), "event": what, **more}
        self.events.append(event)
        print(f"{event['at_s']:8.2f} s  {what}", flush=True)


class Load(threading.Thread):
    def __init__(self, bench: Bench, curve: RateCurve, log: Log) -> None:
        super().__init__(name="load", daemon=True)
        self._endpoint = parse_url(f"http://{bench.service.address()}:80")
        nodes = fetch_variants(self._endpoint).nodes
        self._requests = build_predictions(
            self._endpoint, nodes, SEEDS, None, seed=0, binary=True, sizes=Sizes.LOGNORMAL
        )
        self._curve = curve
        self._log = log
        self.record = LoadRecord()

    def run(self) -> None:
        curve = self._curve
        plan = LoadPlan(CONNECTIONS, len(curve.rates_per_s) * curve.step_s, SEEDS, max(curve.rates_per_s), binary=True)
        self._log.started_at_s = time.monotonic()
        self.record = generate_load(self._endpoint, self._requests, plan, build_arrivals(curve, 0), ANSWER_TIMEOUT_S)


class Watch:
    """Asks the worker for its route, and the service for its condition, and notes what changes."""

    def __init__(self, bench: Bench) -> None:
        self.log = Log()
        self._service = bench.service
        self._host = bench.service.address()
        # A program of its own each time, on a machine that is being measured.
        self._every_s = bench.extent.interval_s / 2
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=look, daemon=True) for look in (self._look_route, self._look_condition)
        ]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_until(self, at_s: float) -> None:
        time.sleep(max(0.0, at_s - self.log.now_s()))

    def _look_route(self) -> None:
        base: str | None = None
        while not self._stop.wait(POLL_S):
            with suppress(OSError, ValueError):
                route = self._service.ask("GET", "/v1/route", host=self._host)[1]
                if route["mode"] == "Metrics" and route["baseVariant"] != base:
                    what = f"base {base} → {route['baseVariant']}" if base else f"base {route['baseVariant']}"
                    base = route["baseVariant"]
                    self.log.note(what, base=base, reason=route["reason"])

    def _look_condition(self) -> None:
        reason: str | None = None
        while not self._stop.wait(self._every_s):
            found = self._service.condition("MetricsAvailable").get("reason")
            if found and found != reason:
                reason = found
                self.log.note(f"MetricsAvailable says {reason}")
