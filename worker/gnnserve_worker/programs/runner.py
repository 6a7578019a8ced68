"""Runs a program in a process of its own, and starts another one where that ends, hangs, or takes too much memory.

What a program does harms its own service alone: requests meanwhile get `ProgramFailedError`.
"""

from __future__ import annotations

import math
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np

from gnnserve_api import decoding
from gnnserve_api.errors import GnnserveError
from gnnserve_api.programs import ProgramLimits, ProgramOutput
from gnnserve_worker.growth import room_for
from gnnserve_worker.programs.messages import Answer, Failure, Question, end_of, place, receive, send
from gnnserve_worker.programs.stats import ProgramStats, RunCounts

_REMEDIES: Mapping[Failure, str] = {
    Failure.CRASH: "a new process is started; if it happens again, run the program by ONNX Runtime alone",
    Failure.TIME_OUT: "a new process is started; ask for fewer nodes at once, or give the program more time",
    Failure.MEMORY: "a new process is started; ask for fewer nodes at once, or give the program more memory",
    Failure.REFUSED: "describe the model again, and compare the contract with the program",
}


_DEFAULT_LIMITS = ProgramLimits()
_MOST_DELAY_S = 30.0


class ProgramFailedError(GnnserveError):
    """The program of one service gave no answer; asked again, it may."""

    def __init__(self, failure: Failure, problem: str, retry_after_s: float = 0.0) -> None:
        self.failure = failure
        self.retry_after_s = retry_after_s
        """Earliest time at which asking again can help, from now on."""
        super().__init__(f"the program of this service {problem}; {_REMEDIES[failure]}")


class ProgramRunner:
    """One program; asked from any thread, as many at a time as `lanes`."""

    def __init__(
        self,
        file: Path,
        lanes: int,
        limits: ProgramLimits = _DEFAULT_LIMITS,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock_s`: what waiting before another start goes by."""
        self.limits = limits
        self._file = file
        self._lanes = lanes
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._held = _Held()
        # A revision that is not served any more is let go, and not closed.
        weakref.finalize(self, self._held.end)
        self._counts = RunCounts()
        self._starts = _Starts(clock_s)
        self._is_closed = False

    @property
    def stats(self) -> ProgramStats:
        return self._counts.seen()

    @property
    def is_running(self) -> bool:
        with self._lock:
            return self._held.process is not None

    def run(
        self, inputs: Mapping[str, np.ndarray], outputs: Sequence[ProgramOutput], rows: int
    ) -> tuple[np.ndarray, ...]:
        """The first `rows` rows of each output, float32 [rows, columns]. `inputs`: in C order. ProgramFailedError."""
        try:
            return self._run_once(inputs, outputs, rows)
        except _GivenUpError:
            # Because of what another request did; a second time is enough, since that one is over.
            try:
                return self._run_once(inputs, outputs, rows)
            except _GivenUpError as error:
                raise ProgramFailedError(Failure.CRASH, "was ended twice by what other requests did") from error

    def close(self) -> None:
        with self._starting, self._lock:
            self._is_closed = True
        self._held.end()

    def _run_once(
        self, inputs: Mapping[str, np.ndarray], outputs: Sequence[ProgramOutput], rows: int
    ) -> tuple[np.ndarray, ...]:
        began_s = math.inf
        try:
            process = self._started()
            began_s = time.monotonic()
            found = self._ask(process, inputs, outputs, rows, began_s + self.limits.seconds)
        except ProgramFailedError as error:
            self._counts.note_failure(str(error), max(0.0, time.monotonic() - began_s))
            raise
        self._counts.note_answer(time.monotonic() - began_s)
        self._starts.note_answer()
        return found

    def _ask(
        self,
        process: _Process,
        inputs: Mapping[str, np.ndarray],
        outputs: Sequence[ProgramOutput],
        rows: int,
        deadline: float,
    ) -> tuple[np.ndarray, ...]:
        lane = process.take_lane(deadline)
        try:
            answer, found = lane.ask(inputs, outputs, rows, deadline)
        except TimeoutError as error:
            lane.close()
            self._give_up(process, Failure.TIME_OUT)
            problem = f"took longer than {self.limits.seconds:g} s"
            raise ProgramFailedError(Failure.TIME_OUT, problem) from error
        except (EOFError, OSError) as error:
            lane.close()
            if process.is_given_up:
                raise _GivenUpError from error
            code = self._give_up(process, Failure.CRASH)
            raise ProgramFailedError(Failure.CRASH, f"ended its process, with status {code}") from error
        if answer.failure is Failure.MEMORY:
            # What a failed allocation leaves behind is nothing to go on with.
            self._give_up(process, Failure.MEMORY)
        process.return_lane(lane)
        if answer.failure is not None:
            raise ProgramFailedError(answer.failure, f"failed: {answer.reason}")
        return found

    def _started(self) -> _Process:
        if not self._starting.acquire(timeout=self.limits.seconds):
            raise ProgramFailedError(Failure.TIME_OUT, f"is being started for longer than {self.limits.seconds:g} s")
        try:
            with self._lock:
                if self._is_closed:
                    raise ProgramFailedError(Failure.CRASH, "is not served any more")
                if self._held.process is not None:
                    return self._held.process
            self._starts.require_due()
            try:
                process = _Process(self._file, self._lanes, self.limits)
            except ProgramFailedError as error:
                self._note_given_up(error.failure)
                raise
            with self._lock:
                self._held.process = process
            return process
        finally:
            self._starting.release()

    def _give_up(self, process: _Process, failure: Failure) -> int:
        with self._lock:
            is_first = self._held.process is process
            if is_first:
                self._held.process = None
        if is_first:
            self._note_given_up(failure)
        return process.end()

    def _note_given_up(self, failure: Failure) -> None:
        self._counts.note_restart(failure)
        self._starts.note_given_up(failure)


class _Held:
    """The process of a runner, apart from it, so that it is ended once the runner is gone."""

    def __init__(self) -> None:
        self.process: _Process | None = None

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
        self._failure = Failure.CRASH

    def note_answer(self) -> None:
        with self._lock:
            self._in_a_row = 0

    def note_given_up(self, failure: Failure) -> None:
        with self._lock:
            self._failure = failure
            delay_s = min(_MOST_DELAY_S, 2.0 ** (self._in_a_row - 1)) if self._in_a_row else 0.0
            self._in_a_row += 1
            self._due_s = self._clock_s() + delay_s

    def require_due(self) -> None:
        with self._lock:
            left_s = self._due_s - self._clock_s()
            if left_s > 0:
                problem = f"gave no answer in {self._in_a_row} processes, and is started again in {left_s:.1f} s"
                raise ProgramFailedError(self._failure, problem, left_s)


class _GivenUpError(Exception):
    """The process was ended because of what another request did."""


class _Lane:
    """One question at a time: a socket, and memory that grows to the largest question."""

    def __init__(self) -> None:
        self.connection, self.other_end = socket.socketpair()
        self.descriptor = os.memfd_create("gnnserve-program")
        self._memory = memoryview(b"")

    def ask(
        self, inputs: Mapping[str, np.ndarray], outputs: Sequence[ProgramOutput], rows: int, deadline: float
    ) -> tuple[Answer, tuple[np.ndarray, ...]]:
        """TimeoutError; EOFError or OSError: the process has ended."""
        given = place([(name, array.dtype.str, array.shape) for name, array in inputs.items()])
        behind = end_of(given)
        wanted = place([(each.name, "<f4", (rows, each.columns)) for each in outputs], behind)
        self._reserve(end_of(wanted, behind))
        for each in given:
            each.of(self._memory)[...] = inputs[each.name]
        self.connection.settimeout(max(1e-3, deadline - time.monotonic()))
        send(self.connection, Question(len(self._memory), given, wanted))
        answer = decoding.decode(receive(self.connection), Answer)
        # Copies: the memory is the next question's.
        found = () if answer.failure else tuple(each.of(self._memory).copy() for each in wanted)
        return answer, found

    def close(self) -> None:
        self.connection.close()
        os.close(self.descriptor)

    def _reserve(self, size: int) -> None:
        if len(self._memory) < size:
            wanted = room_for(max(size, 1 << 16))
            os.ftruncate(self.descriptor, wanted)
            self._memory = memoryview(mmap.mmap(self.descriptor, wanted))


class _Process:
    """A started process, ready to be asked. ProgramFailedError: it does not get that far."""

    def __init__(self, file: Path, lanes: int, limits: ProgramLimits) -> None:
        self._lock = threading.Lock()
        self.is_given_up = False
        made = [_Lane() for _ in range(lanes)]
        self._free = SimpleQueue[_Lane | None]()
        self._control, control = socket.socketpair()
        passed = [(lane.other_end.fileno(), lane.descriptor) for lane in made]
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [
                sys.executable, "-m", "gnnserve_worker.programs.process", str(file), str(limits.memory_bytes),
                str(control.fileno()), ",".join(f"{asked}:{memory}" for asked, memory in passed),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=[control.fileno(), *(number for pair in passed for number in pair)],
            # Each arena of malloc takes address space, which is limited, whether anything is in it or not.
            env={**os.environ, "MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        for end in (control, *(lane.other_end for lane in made)):
            end.close()
        for lane in made:
            self._free.put(lane)
        self._wait_until_ready(limits.start_seconds)

    def _wait_until_ready(self, start_s: float) -> None:
        self._control.settimeout(start_s)
        try:
            answer = decoding.decode(receive(self._control), Answer)
        except TimeoutError as error:
            self.end()
            raise ProgramFailedError(Failure.TIME_OUT, f"took longer than {start_s:g} s to be read") from error
        except EOFError as error:
            code = self.end()
            raise ProgramFailedError(
                Failure.CRASH, f"ended its process while it was read, with status {code}"
            ) from error
        if answer.failure is not None:
            self.end()
            raise ProgramFailedError(answer.failure, f"cannot be read: {answer.reason}")

    def take_lane(self, deadline: float) -> _Lane:
        try:
            lane = self._free.get(timeout=max(1e-3, deadline - time.monotonic()))
        except Empty as error:
            raise ProgramFailedError(Failure.TIME_OUT, "was busy with other requests all the time") from error
        if lane is None:
            self._free.put(None)
            raise _GivenUpError
        return lane

    def return_lane(self, lane: _Lane) -> None:
        with self._lock:
            if self.is_given_up:
                lane.close()
            else:
                self._free.put(lane)

    def end(self) -> int:
        """Its exit status; negative: the signal that ended it."""
        with self._lock:
            if not self.is_given_up:
                if self._has_ended_itself():
                    self._process.wait()
                self.is_given_up = True
                self._process.kill()
                self._process.wait()
                self._control.close()
                self._close_free_lanes()
            return self._process.returncode

    def _close_free_lanes(self) -> None:
        """The others are closed by the threads that ask there, once they read that the process is gone."""
        while True:
            try:
                lane = self._free.get_nowait()
            except Empty:
                break
            if lane is not None:
                lane.close()
        self._free.put(None)

    def _has_ended_itself(self) -> bool:
        """Its own status is worth knowing, and comes a moment after its sockets close."""
        self._control.settimeout(0)
        try:
            return self._control.recv(1) == b""
        except (OSError, ValueError):
            return False
