"""Record of a run: raw observations, one row per request, grown while it lasts.

Columns of numbers and no objects: a row costs 34 bytes, and nothing that the collector of garbage would walk through
while the clock runs.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

REFUSED, FAILED = -1, -2
"""Stand for a variant: the request was refused (429, 503), or no usable answer came."""
NO_VARIANT = -3
"""Answered, and not by a variant: a request that is no prediction."""
MOST_TIMED = 65_536
"""Most rows of where the time went: beyond, every second one is dropped."""


@dataclass(slots=True)
class RequestRows:
    """One row per request that is over, in the order in which they ended."""

    dues_s: array[float] = field(default_factory=lambda: array("d"))
    """When each request was due, in seconds after the start; in a closed loop, when it was sent."""
    latencies_ms: array[float] = field(default_factory=lambda: array("d"))
    """Milliseconds from due to answered; NaN without an answer."""
    last_tries_ms: array[float] = field(default_factory=lambda: array("d"))
    """The same, from when the last try was due: without retries it is the latency."""
    answerers: array[int] = field(default_factory=lambda: array("b"))
    """Position in `LoadRecord.names`, or one of the constants above."""
    seeds: array[int] = field(default_factory=lambda: array("q"))
    tries: array[int] = field(default_factory=lambda: array("b"))

    def __len__(self) -> int:
        return len(self.dues_s)

    def add(
        self, due_s: float, latency_ms: float, answerer: int, seeds: int, *, last_try_ms: float, tries: int = 1
    ) -> None:
        self.dues_s.append(due_s)
        self.latencies_ms.append(latency_ms)
        self.last_tries_ms.append(last_try_ms)
        self.answerers.append(answerer)
        self.seeds.append(seeds)
        self.tries.append(tries)


@dataclass(slots=True)
class TimedRows:
    """Where the time of some answers went, a row each: every eighth, and fewer where there are very many."""

    every: int = 8
    """One request in so many is timed, the first one too."""
    totals_ms: array[float] = field(default_factory=lambda: array("d"))
    """From sent to answered."""
    sends_ms: array[float] = field(default_factory=lambda: array("d"))
    receives_ms: array[float] = field(default_factory=lambda: array("d"))
    told: list[bytes] = field(default_factory=list)
    """`Server-Timing` as it came: it is read when the clock has stopped."""

    def __len__(self) -> int:
        return len(self.told)

    def add(self, total_ms: float, send_ms: float, receive_ms: float, told: bytes) -> None:
        self.totals_ms.append(total_ms)
        self.sends_ms.append(send_ms)
        self.receives_ms.append(receive_ms)
        self.told.append(told)
        if len(self) >= MOST_TIMED:
            self.every *= 2
            for column in (self.totals_ms, self.sends_ms, self.receives_ms, self.told):
                del column[1::2]


@dataclass(slots=True)
class LoadRecord:
    """Statuses and errors count tries, the rows requests."""

    rows: RequestRows = field(default_factory=RequestRows)
    timed: TimedRows = field(default_factory=TimedRows)
    names: list[str] = field(default_factory=list)
    """Variants, in the order in which they were first met."""
    lags_ms: array[float] = field(default_factory=lambda: array("d"))
    """Open loop: sent minus due, of each try."""
    statuses: Counter[int] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    sentences: dict[str, str] = field(default_factory=dict)
    """Messages of the server: that of the first error of each kind."""
    objectives_met: int = 0
    """Answers of which the server said so."""
    started: int = 0
    """Requests that were sent, or were due and could not be."""
    held_back: int = 0
    """Open loop: requests that were due while every connection was busy."""
    late: int = 0
    """Open loop: requests that this program itself came to only well after they were due."""
    last_answer_s: float = 0.0
    """When the last answer came, in seconds after the start."""
    interrupted_s: float | None = None
    """When the run was interrupted, in seconds after the start; None: it was not."""

    @property
    def latencies_ms(self) -> Sequence[float]:
        """Latencies of the answers."""
        return [latency_ms for latency_ms in self.rows.latencies_ms if not math.isnan(latency_ms)]

    def position_of(self, variant: str) -> int:
        try:
            return self.names.index(variant)
        except ValueError:
            self.names.append(variant)
            return len(self.names) - 1
