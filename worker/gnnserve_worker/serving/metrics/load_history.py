"""Counters of a service's requests over the last minutes. A page that opens draws them at once, where it would have to
wait for what a scrape tells: differences of counters need two moments."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gnnserve_api.http.load_history import HistoryAnswer, LoadSample
from gnnserve_worker.serving.metrics.counters import LATENCY_BUCKETS_S, RequestCounters

INTERVAL_S = 4.0
KEPT_S = 300.0


@dataclass(frozen=True, slots=True)
class _Taken:
    at_s: float
    answers: dict[str, int]
    latencies: array[int]
    """Answers of all variants by bucket: int64, one more than `LATENCY_BUCKETS_S`. 200 bytes, where a list takes a
    thousand: a pool of workers keeps 64 histories."""
    outcomes: dict[str, int]
    offered_seeds: int


class LoadHistory:
    """Belongs to the event loop's thread."""

    def __init__(self, counters: RequestCounters, now_s: Callable[[], float] = time.monotonic) -> None:
        self._counters = counters
        self._now_s = now_s
        self._taken: deque[_Taken] = deque(maxlen=round(KEPT_S / INTERVAL_S) + 1)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Take a sample now, and one every `INTERVAL_S` until `stop`. To be called on the event loop."""
        self.take()
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self.start)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def take(self) -> None:
        variants = self._counters.variants
        counts = [of.request.counts for of in variants.values()]
        self._taken.append(
            _Taken(
                at_s=self._now_s(),
                answers={name: sum(of.request.counts) for name, of in variants.items()},
                latencies=array("q", map(sum, zip(*counts, strict=True)) if counts else [0] * _BUCKETS),
                outcomes=dict(self._counters.outcomes.counts()),
                offered_seeds=self._counters.offered_seeds,
            )
        )

    def describe(self, service: str) -> HistoryAnswer:
        now_s = self._now_s()
        return HistoryAnswer(
            service=service,
            interval_ms=1000 * INTERVAL_S,
            latency_ends_ms=[1000 * end_s for end_s in LATENCY_BUCKETS_S],
            samples=[
                LoadSample(
                    age_ms=1000 * (now_s - taken.at_s),
                    answers=taken.answers,
                    latency_counts=taken.latencies.tolist(),
                    outcomes=taken.outcomes,
                    offered_seeds=taken.offered_seeds,
                )
                for taken in self._taken
            ],
        )


_BUCKETS = len(LATENCY_BUCKETS_S) + 1
