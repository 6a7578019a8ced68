"""Counts of a program's runs: how long they took, and how often its process was given up."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gnnserve_worker.programs.messages import Failure

RUN_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histogram of runs, in seconds."""


@dataclass(frozen=True, slots=True)
class ProgramStats:
    """State of one program, or of all that a revision has."""

    runs: tuple[int, ...]
    """Runs up to each of `RUN_BOUNDS_S`, each counted once; the last number counts longer ones."""
    run_s: float
    """Sum of their times."""
    restarts: Mapping[Failure, int]
    """How often a process was given up, by reason; and failed starts."""
    problem: str
    """Why its last run gave no answer, as a sentence; empty: it gave one."""


def total_stats(programs: Sequence[ProgramStats]) -> ProgramStats | None:
    """Stats of several programs as one; None: there are none."""
    if not programs:
        return None
    restarts = Counter[Failure]()
    for one in programs:
        restarts.update(one.restarts)
    return ProgramStats(
        tuple(map(sum, zip(*(one.runs for one in programs), strict=True))),
        sum(one.run_s for one in programs),
        restarts,
        next((one.problem for one in programs if one.problem), ""),
    )


@dataclass(slots=True)
class RunCounts:
    """Counts that threads add to."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _runs: list[int] = field(default_factory=lambda: [0] * (len(RUN_BOUNDS_S) + 1))
    _run_s: float = 0.0
    _restarts: Counter[Failure] = field(default_factory=Counter)
    _problem: str = ""

    def note_answer(self, took_s: float) -> None:
        with self._lock:
            self._count(took_s)
            self._problem = ""

    def note_failure(self, problem: str, took_s: float | None) -> None:
        """`took_s`: None where nothing ran."""
        with self._lock:
            if took_s is not None:
                self._count(took_s)
            self._problem = problem

    def note_restart(self, failure: Failure) -> None:
        with self._lock:
            self._restarts[failure] += 1

    def seen(self) -> ProgramStats:
        with self._lock:
            return ProgramStats(tuple(self._runs), self._run_s, dict(self._restarts), self._problem)

    def _count(self, took_s: float) -> None:
        self._runs[bisect_left(RUN_BOUNDS_S, took_s)] += 1
        self._run_s += took_s
