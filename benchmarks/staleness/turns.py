"""Latency of predictions beside changes, by how applying takes turns with them: in one process, without HTTP.

A thread follows a log in memory, in which changes stand at half of the rate that it reaches when it has nothing else to
do. Predictions of 1,024 nodes by stored1, which is kept exact, come at 70 % of the capacity, at random times. Rounds
with changes and without take turns. Each way of taking turns is measured alike.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np

from benchmarks.accuracy.live_accuracy_shadows import compare
from benchmarks.changes.updates_graph import STORED, Subject, reach_all
from benchmarks.engine.engine import draw_batches
from gnnserve_worker.changes.follower import Follower, Turns
from gnnserve_worker.changes.lag import Lag
from gnnserve_worker.changes.log import ChangeLog, LogError, Position, Record
from gnnserve_worker.graph.change_batch import encode_batch
from gnnserve_worker.inference.batch import Infer
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.serving.process.server import SWITCH_INTERVAL_S

WAYS: Mapping[str, Turns] = {
    "the product's: 512 items, a tenth of the time": Turns(),
    "smaller turns: 64 items, no pause": Turns(items=64, rest=0.0),
    "a budget: 512 items, half of the time": Turns(rest=1.0),
    "smaller turns and a budget: 128 items, half of the time": Turns(items=128, rest=1.0),
    "beside: no pause, a thread of the lowest priority": Turns(rest=0.0, niceness=19),
    "a budget and a low priority: 512 items, half of the time": Turns(rest=1.0, niceness=5),
    "no care: 2,048 items, no pause": Turns(items=2048, rest=0.0),
}
LOAD, OF_POSSIBLE = 0.7, 0.5
_SEEDS, _BATCH = 1024, 100
_MOST_PER_S = 400_000
"""Changes that are prepared for a second in which as many as possible are applied."""


@dataclass(frozen=True, slots=True)
class TurnsEffort:
    rounds: int
    round_s: float
    fastest_s: float
    """For how long as many changes as possible are applied."""


@dataclass(frozen=True, slots=True)
class WayFigures:
    way: str
    predictions_per_s: float
    changes_per_s: int
    """Changes that came."""
    applied_per_s: int
    p99_without_ms: float
    p99_with_ms: float
    ratio: float
    low: float
    high: float
    """Between the two is the ratio, 19 times in 20."""

    @property
    def keeps_up(self) -> bool:
        """Whether nearly all changes were applied while they came."""
        return self.applied_per_s >= 0.95 * self.changes_per_s


class TimedLog:
    """A log in memory whose records come one after the other, at a rate that may be 0. A `ChangeLog` that is only
    read."""

    def __init__(self, bodies: Sequence[bytes]) -> None:
        self._records = [
            Record(number, "bench", number, 0, _BATCH, number * _BATCH, body, checksum=0)
            for number, body in enumerate(bodies, start=1)
        ]
        self._came, self._per_s, self._since_s = 0.0, 0.0, time.monotonic()

    def come(self, changes_per_s: float) -> None:
        """Let so many come from now on."""
        self._came, self._since_s = float(self._last()), time.monotonic()
        self._per_s = changes_per_s / _BATCH

    def position(self) -> Position:
        last = self._last()
        return Position(1, last, last * _BATCH)

    def read(self, after: int, most_bytes: int) -> list[Record]:
        found, left = list[Record](), most_bytes
        for record in self._records[after : self._last()]:
            found.append(record)
            if (left := left - len(record.body)) <= 0:
                break
        return found

    def wait(self, after: int, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        while self._last() <= after:
            due_s = min(until_s, self._since_s + (after + 1 - self._came) / self._per_s) if self._per_s else until_s
            time.sleep(max(0.0, due_s - time.monotonic()) + 1e-4)
            if time.monotonic() >= until_s:
                break
        return self._last() > after

    def _last(self) -> int:
        return min(len(self._records), int(self._came + self._per_s * (time.monotonic() - self._since_s)))


def possible_per_s(subject: Subject, effort: TurnsEffort) -> float:
    """Changes per second of a follower that has nothing else to do."""
    with _following(subject, Turns(), effort.fastest_s * _MOST_PER_S) as (_, living, log):
        log.come(_MOST_PER_S)
        began_s, before = time.monotonic(), living.changes_since_base
        time.sleep(effort.fastest_s)
        return (living.changes_since_base - before) / (time.monotonic() - began_s)


def measure_way(way: str, subject: Subject, possible: float, effort: TurnsEffort) -> WayFigures:
    """`possible`: changes per second, as of `possible_per_s`."""
    changes_per_s, applied, applying_s = OF_POSSIBLE * possible, 0, 0.0
    found: dict[bool, list[np.ndarray]] = {False: [], True: []}
    requests = draw_batches(subject.graph.nodes, _SEEDS, 32)
    seconds = 2 * (effort.rounds + 1) * effort.round_s
    with _following(subject, WAYS[way], seconds * changes_per_s) as (infer, living, log):
        rate_per_s = LOAD * _capacity(infer, requests, effort.round_s)
        for number in range(-1, effort.rounds):  # the first pair warms up
            for with_changes in (False, True) if number % 2 else (True, False):
                log.come(changes_per_s if with_changes else 0.0)
                began_s, before = time.monotonic(), living.changes_since_base
                latencies_ms = _predict(infer, requests, rate_per_s, effort.round_s, number + 1)
                if number >= 0:
                    found[with_changes].append(latencies_ms)
                if number >= 0 and with_changes:
                    applied += living.changes_since_base - before
                    applying_s += time.monotonic() - began_s
                _settle(log, living)
    told = compare(found[False], found[True], rate_per_s)
    figures = WayFigures(
        way, round(rate_per_s, 1), round(changes_per_s), round(applied / applying_s), round(told.p99_without_ms, 3),
        round(told.p99_with_ms, 3), round(told.ratio, 2), round(told.low, 2), round(told.high, 2),
    )  # fmt: skip
    print(f"{way}: p99 {figures.ratio} times, {figures.applied_per_s:,} of {figures.changes_per_s:,}/s", flush=True)
    return figures


@contextmanager
def _following(subject: Subject, turns: Turns, changes: float) -> Iterator[tuple[Infer, LivingRevision, TimedLog]]:
    """Function that computes predictions, the revision that changes beside them, and a log with so many changes, none
    of which have come. All rows have been written once."""
    loaded, living = subject.open()
    served = served_revision(loaded, living)
    served.compute.warm_up()
    reach_all(living)
    bodies = [encode_batch(one) for one in subject.stream(29).batches(_BATCH, math.ceil(changes / _BATCH))]
    # Nothing is appended, cut or dropped here.
    log = cast("ChangeLog", made := TimedLog(bodies))
    follower = Follower(log, Lag(time.monotonic), lambda _: None, _fail, turns=turns)
    follower.follow(living)
    before_s = sys.getswitchinterval()
    # As in a worker: a prediction waits that long for the interpreter.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield served.compute.infer, living, made
    finally:
        sys.setswitchinterval(before_s)
        follower.close()


def _settle(log: TimedLog, living: LivingRevision) -> None:
    """Let no further changes come, and wait until those that came are applied."""
    log.come(0.0)
    while living.offset < log.position().last:
        time.sleep(0.01)


def _fail(error: LogError) -> None:
    raise SystemExit(f"the log cannot be followed: {error}")


def _capacity(infer: Infer, requests: Sequence[np.ndarray], seconds: float) -> float:
    """Predictions per second, one after the other."""
    done, ends_s = 0, time.perf_counter() + seconds
    while time.perf_counter() < ends_s:
        infer(STORED, requests[done % len(requests)], done, with_embeddings=False)
        done += 1
    return done / seconds


def _predict(
    infer: Infer, requests: Sequence[np.ndarray], rate_per_s: float, seconds: float, seed: int
) -> np.ndarray:  # fmt: skip
    """Latencies in ms, from when each was due: float64."""
    gaps_s = np.random.default_rng(seed).exponential(1 / rate_per_s, max(1, int(rate_per_s * seconds)))
    due_s, found = time.perf_counter() + np.cumsum(gaps_s), np.empty(len(gaps_s))
    for number, due in enumerate(due_s.tolist()):
        if (wait_s := due - time.perf_counter()) > 0:
            time.sleep(wait_s)
        infer(STORED, requests[number % len(requests)], number, with_embeddings=False)
        found[number] = 1e3 * (time.perf_counter() - due)
    return found
