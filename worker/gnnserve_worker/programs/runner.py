"""Runs a program in a process of its own, and starts another one where that ends, hangs, or takes too much memory.

What a program does harms its own service alone: requests meanwhile get `ProgramFailedError`. A process that ends while
nothing is asked is replaced at once, so that no request waits for it.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from gnnserve_api.files.programs import ProgramLimits, ProgramOutput
from gnnserve_worker.programs.failure import ProgramFailedError, ProgramFailure
from gnnserve_worker.programs.forking import ForkServer, fork_server
from gnnserve_worker.programs.messages import NotReadError
from gnnserve_worker.programs.providers import ON_CPU, ProgramDevice
from gnnserve_worker.programs.started import GivenUpError, ProgramFile, StartedProcess, with_status
from gnnserve_worker.programs.stats import ProgramRun, ProgramStats, RunCounts

_DEFAULT_LIMITS = ProgramLimits()


@dataclass(frozen=True, slots=True)
class _Delays:
    """Times between starts of processes that give no answer, which double from the second one on."""

    first_s: float
    most_s: float

    def after(self, in_a_row: int) -> float:
        """Delay after so many processes."""
        return min(self.most_s, self.first_s * 2.0 ** (in_a_row - 2)) if in_a_row > 1 else 0.0


_AFTER_START = _Delays(1.0, 30.0)
"""A program that could not be read most likely cannot be read again."""
_AFTER_RUN = _Delays(0.1, 2.0)
"""Other requests may not fail, and a start takes hundredths of a second."""
_HUNG_SHARE = 0.1
"""Share of a core that a run must have had to be taken for one that hangs: with less, it was others that kept it."""


class ProgramRunner:
    """One program; asked from any thread, as many at a time as `lanes`."""

    def __init__(
        self,
        file: Path,
        lanes: int,
        limits: ProgramLimits = _DEFAULT_LIMITS,
        clock_s: Callable[[], float] = time.monotonic,
        server: ForkServer | None = None,
    ) -> None:
        """`clock_s`: what waiting before another start goes by. `server`: None: the worker's."""
        self._limits = limits
        self._program = ProgramFile(file)
        self._server = fork_server() if server is None else server
        self._lanes = lanes
        self._device = ON_CPU
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._has_started = False
        """Whether a process was ready once. Before, a server is made ready by runs in several threads, each of which
        waits as long as a start may take; afterwards requests wait no longer than for a run."""
        self._held = _RunnerProcess()
        # A revision that is not served any more is let go, and not closed.
        weakref.finalize(self, self._held.end)
        self._counts = RunCounts()
        self._starts = _Starts(clock_s)
        self._is_closed = False

    @property
    def stats(self) -> ProgramStats:
        return self._counts.seen()

    def runs_between(self, began_ms: float, ended_ms: float) -> list[ProgramRun]:
        """Runs that gave scores within that time, by `time.perf_counter`, as far as they are remembered."""
        return self._counts.runs_between(began_ms, ended_ms)

    @property
    def is_running(self) -> bool:
        with self._lock:
            return self._held.process is not None

    def run(
        self, inputs: Mapping[str, np.ndarray], outputs: Sequence[ProgramOutput], rows: int | Sequence[int]
    ) -> tuple[np.ndarray, ...]:
        """The first rows of each output, float32 [rows, columns]: as many of all, or of each its own. `inputs`: in C
        order. ProgramFailedError."""
        rows = [rows] * len(outputs) if isinstance(rows, int) else rows
        try:
            return self._run_once(inputs, outputs, rows)
        except GivenUpError:
            # Because of what another request did, or something outside; a second time is enough, since that is over.
            try:
                return self._run_once(inputs, outputs, rows)
            except GivenUpError as error:
                problem = "was ended twice, by what other requests did or from outside"
                raise ProgramFailedError(ProgramFailure.CRASH, problem) from error

    def move(self, device: ProgramDevice) -> str:
        """Run it there from now on, by a new process; the name of the execution provider that this has.
        ProgramFailedError: it does not run there, and is still moved."""
        with self._starting, self._lock:
            self._device = device
            moved, self._held.process = self._held.process, None
            # What it could not do elsewhere says nothing of this device, and it may be moved back at once.
            self._starts.begin_anew()
        if moved is not None:
            moved.end()
        return self._started().provider

    def limit(self, limits: ProgramLimits) -> None:
        """Have other limits from now on. Quick: where they are of memory, the next run is by a new process."""
        if limits == self._limits:
            return
        self._limits = limits
        # What the program lacked it may have now.
        self._starts.begin_anew()

    def close(self) -> None:
        with self._starting, self._lock:
            self._is_closed = True
        self._held.end()

    def _run_once(
        self, inputs: Mapping[str, np.ndarray], outputs: Sequence[ProgramOutput], rows: Sequence[int]
    ) -> tuple[np.ndarray, ...]:
        began_s = math.inf
        try:
            process = self._started()
            began_s = time.monotonic()
            found, run = self._ask(process, inputs, outputs, rows, began_s + self._limits.seconds)
        except ProgramFailedError as error:
            self._counts.note_failure(str(error), max(0.0, time.monotonic() - began_s))
            raise
        self._counts.note_answer(time.monotonic() - began_s, run)
        self._starts.note_answer()
        return found

    def _ask(
        self,
        process: StartedProcess,
        inputs: Mapping[str, np.ndarray],
        outputs: Sequence[ProgramOutput],
        rows: Sequence[int],
        deadline: float,
    ) -> tuple[tuple[np.ndarray, ...], ProgramRun | None]:
        lane = process.take_lane(deadline)
        began_s, computed_s = time.monotonic(), process.computed_s
        try:
            answer, found = lane.ask(inputs, outputs, rows, deadline, is_suspect=self._starts.has_hung)
        except TimeoutError as error:
            lane.close()
            share = (process.computed_s - computed_s) / (time.monotonic() - began_s)
            self._give_up(process, ProgramFailure.TIME_OUT, has_hung=share > _HUNG_SHARE)
            problem = f"took longer than {self._limits.seconds:g} s"
            raise ProgramFailedError(ProgramFailure.TIME_OUT, problem) from error
        except (EOFError, OSError) as error:
            lane.close()
            code = self._give_up(process, ProgramFailure.CRASH)
            if process.is_ended_here or isinstance(error, NotReadError):
                raise GivenUpError from error
            raise ProgramFailedError(ProgramFailure.CRASH, f"ended its process{with_status(code)}") from error
        if answer.failure is ProgramFailure.MEMORY:
            # What a failed allocation leaves behind is nothing to go on with.
            self._give_up(process, ProgramFailure.MEMORY)
        process.return_lane(lane)
        if answer.failure is not None:
            raise ProgramFailedError(answer.failure, f"failed: {answer.reason}")
        return found, answer.run

    def _started(self) -> StartedProcess:
        patience_s = self._limits.seconds if self._has_started else self._limits.start_seconds
        if not self._starting.acquire(timeout=patience_s):
            raise ProgramFailedError(ProgramFailure.TIME_OUT, f"is being started for longer than {patience_s:g} s")
        try:
            with self._lock:
                if self._is_closed:
                    raise ProgramFailedError(ProgramFailure.CRASH, "is not served any more")
                held, limits = self._held.process, self._limits
                if held is not None and held.memory_bytes == limits.memory_bytes:
                    return held
                self._held.process = None
            if held is not None:
                # Runs that it still has are begun again by the next one.
                held.end()
            self._starts.require_due()
            try:
                process = StartedProcess(self._server, self._program, self._lanes, limits, self._device)
            except ProgramFailedError as error:
                self._note_given_up(error.failure, _AFTER_START)
                raise
            self._has_started = True
            with self._lock:
                self._held.process = process
            process.when_ended(partial(_replace, weakref.ref(self), process))
            return process
        finally:
            self._starting.release()

    def replace(self, process: StartedProcess) -> None:
        """Start another process, once this one has ended, for whatever reason; later, if that is not due yet."""
        self._give_up(process, ProgramFailure.CRASH)
        with suppress(ProgramFailedError):
            self._started()

    def _give_up(self, process: StartedProcess, failure: ProgramFailure, *, has_hung: bool = False) -> int | None:
        with self._lock:
            is_first = self._held.process is process
            if is_first:
                self._held.process = None
        if is_first:
            self._note_given_up(failure, _AFTER_RUN, has_hung=has_hung)
        return process.end(has_ended=failure is ProgramFailure.CRASH)

    def _note_given_up(self, failure: ProgramFailure, delays: _Delays, *, has_hung: bool = False) -> None:
        self._counts.note_restart(failure)
        self._starts.note_given_up(failure, delays, has_hung=has_hung)


def _replace(runner: weakref.ref[ProgramRunner], process: StartedProcess) -> None:
    """Have the process replaced, unless its runner was let go meanwhile."""
    if (held := runner()) is not None:
        held.replace(process)


class _RunnerProcess:
    """The process of a runner, apart from it, so that it is ended once the runner is gone."""

    def __init__(self) -> None:
        self.process: StartedProcess | None = None

    def end(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.end()


class _Starts:
    """When another process may be started: at once after the first that gave no answer, and later and later after
    others in a row. A program that cannot be read, or ends with every run, would start processes all the time."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._in_a_row = 0
        """Processes that gave no answer, since one gave one."""
        self._due_s = -math.inf
        self._failure = ProgramFailure.CRASH
        self.has_hung = False
        """Whether the last of these computed all the time. Until there is an answer, runs then leave the cores to
        whatever else wants them: what hangs once mostly hangs again, in a third of the time."""

    def note_answer(self) -> None:
        with self._lock:
            self._in_a_row = 0
            self.has_hung = False

    def note_given_up(self, failure: ProgramFailure, delays: _Delays, *, has_hung: bool) -> None:
        with self._lock:
            self._failure = failure
            self.has_hung = has_hung
            self._in_a_row += 1
            self._due_s = self._clock_s() + delays.after(self._in_a_row)

    def begin_anew(self) -> None:
        """Forget the processes that gave no answer: what comes now is run in another way."""
        with self._lock:
            self._in_a_row = 0
            self._due_s = -math.inf

    def require_due(self) -> None:
        with self._lock:
            left_s = self._due_s - self._clock_s()
            if left_s > 0:
                problem = f"gave no answer in {self._in_a_row} processes, and is started again in {left_s:.1f} s"
                raise ProgramFailedError(self._failure, problem, left_s)
