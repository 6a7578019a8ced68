"""Counts of a program's runs: how long they took, how many failed, and how often its process was given up."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from gnnserve_worker.programs.failure import ProgramFailure

_MOST_RUNS = 256
"""Runs that are remembered: more than one batch has."""


class ProgramRun(msgspec.Struct, frozen=True):
    """A run of ONNX Runtime in the program's process, by `time.perf_counter`, which Linux has in common for all
    processes."""

    began_ms: float
    ended_ms: float


@dataclass(frozen=True, slots=True)
class ProgramStats:
    """State of one program, or of all that a revision has."""

    answered: int
    """Runs that gave scores."""
    failed: int
    """Runs that gave none, or that there was no process for."""
    run_s: float
    """Time of all runs."""
    restarts: Mapping[ProgramFailure, int]
    """How often a process was given up, by reason; and failed starts."""
    problem: str
    """Why the last run gave no scores, as a sentence; empty: it gave them."""


def total_stats(programs: Sequence[ProgramStats]) -> ProgramStats | None:
    """Stats of several programs as one; None: there are none."""
    if not programs:
        return None
    restarts = Counter[ProgramFailure]()
    for one in programs:
        restarts.update(one.restarts)
    return ProgramStats(
        sum(one.answered for one in programs),
        sum(one.failed for one in programs),
        sum(one.run_s for one in programs),
        restarts,
        next((one.problem for one in programs if one.problem), ""),
    )


@dataclass(slots=True)
class RunCounts:
    """Counts that threads add to."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _answered: int = 0
    _failed: int = 0
    _run_s: float = 0.0
    _restarts: Counter[ProgramFailure] = field(default_factory=Counter)
    _problem: str = ""
    _runs: deque[ProgramRun] = field(default_factory=lambda: deque(maxlen=_MOST_RUNS))

    def note_answer(self, took_s: float, run: ProgramRun | None) -> None:
        """`run`: the part of that time in the program's process; None: it was not told."""
        with self._lock:
            if run is not None:
                self._runs.append(run)
            self._answered += 1
            self._run_s += took_s
            self._problem = ""

    def note_failure(self, problem: str, took_s: float) -> None:
        """`took_s`: 0 where nothing ran."""
        with self._lock:
            self._failed += 1
            self._run_s += took_s
            self._problem = problem

    def note_restart(self, failure: ProgramFailure) -> None:
        with self._lock:
            self._restarts[failure] += 1

    def runs_between(self, began_ms: float, ended_ms: float) -> list[ProgramRun]:
        """Runs that gave scores within that time, as far as they are remembered."""
        with self._lock:
            return [run for run in self._runs if began_ms <= run.began_ms and run.ended_ms <= ended_ms]

    def seen(self) -> ProgramStats:
        with self._lock:
            return ProgramStats(self._answered, self._failed, self._run_s, dict(self._restarts), self._problem)
