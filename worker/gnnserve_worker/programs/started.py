"""A process of a program, as the worker sees it: asked over lanes, one question at a time over each."""

from __future__ import annotations

import mmap
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np

from gnnserve_api import decoding
from gnnserve_api.files.programs import ProgramLimits, ProgramOutput
from gnnserve_worker.kernels.primitives import room_for
from gnnserve_worker.programs.failure import NotReadyError, ProgramFailedError, ProgramFailure
from gnnserve_worker.programs.forking import ForkServer
from gnnserve_worker.programs.messages import ProgramAnswer, ProgramQuestion, Start, end_of, place, receive, send
from gnnserve_worker.programs.priority import yield_always, yield_to_others
from gnnserve_worker.programs.providers import ProgramDevice

_SLOW_S = 0.1
"""Time from which on a run goes on at a lower priority: most requests are answered in less."""


class GivenUpError(Exception):
    """The process has ended, or was ended, and not because of this question."""


class ProgramFile:
    """A program, and the form that ONNX Runtime runs it in where that is another one (`rewriting.py`): the first
    process makes it, and the others read it, from memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept = os.memfd_create("gnnserve-program-file")
        self.kept_bytes = 0
        weakref.finalize(self, os.close, self.kept)


class ProgramLane:
    """One question at a time: a socket, and memory that grows to the largest question."""

    def __init__(self) -> None:
        self.connection, self.other_end = socket.socketpair()
        self.descriptor = os.memfd_create("gnnserve-program")
        self._memory = memoryview(b"")
        self._thread = 0
        self._answered = select.poll()
        self._answered.register(self.connection, select.POLLIN)

    def ask(
        self, inputs: Mapping[str, np.ndarray], outputs: Sequence[ProgramOutput], rows: Sequence[int], deadline: float,
        *, is_suspect: bool = False,
    ) -> tuple[ProgramAnswer, tuple[np.ndarray, ...]]:  # fmt: skip
        """`is_suspect`: run only where a core is free. TimeoutError; NotReadError, EOFError or OSError: the process has
        ended."""
        given = place([(name, array.dtype.str, array.shape) for name, array in inputs.items()])
        behind = end_of(given)
        wanted = place(
            [(each.name, "<f4", (count, each.columns)) for each, count in zip(outputs, rows, strict=True)], behind
        )
        self._reserve(end_of(wanted, behind))
        for each in given:
            each.of(self._memory)[...] = inputs[each.name]
        self.connection.settimeout(max(1e-3, deadline - time.monotonic()))
        if is_suspect:
            with suppress(OSError):
                yield_always(self._thread)
        send(self.connection, ProgramQuestion(len(self._memory), given, wanted))
        self._slow_down_after(min(_SLOW_S, deadline - time.monotonic()))
        answer = self.receive(deadline)
        # Copies: the memory is the next question's.
        found = () if answer.failure else tuple(each.of(self._memory).copy() for each in wanted)
        return answer, found

    def receive(self, deadline: float) -> ProgramAnswer:
        self.connection.settimeout(max(1e-3, deadline - time.monotonic()))
        answer = decoding.decode(receive(self.connection), ProgramAnswer)
        self._thread = answer.thread
        return answer

    def close(self) -> None:
        self.connection.close()
        os.close(self.descriptor)

    def _slow_down_after(self, seconds: float) -> None:
        if not self._answered.poll(max(1.0, seconds * 1e3)):
            # It may have ended meanwhile.
            with suppress(OSError):
                yield_to_others(self._thread)

    def _reserve(self, size: int) -> None:
        if len(self._memory) < size:
            wanted = room_for(max(size, 1 << 16))
            os.ftruncate(self.descriptor, wanted)
            self._memory = memoryview(mmap.mmap(self.descriptor, wanted))


class StartedProcess:
    """A started process, ready to be asked. NotReadyError: it does not get that far."""

    def __init__(
        self, server: ForkServer, program: ProgramFile, lanes: int, limits: ProgramLimits, device: ProgramDevice
    ) -> None:
        self._lock = threading.Lock()
        self.memory_bytes = limits.memory_bytes
        """Most memory that it takes, beyond what ONNX Runtime itself does."""
        self.is_given_up = False
        self.is_ended_here = False
        """Whether the worker ended it."""
        made = [ProgramLane() for _ in range(lanes)]
        self._free = SimpleQueue[ProgramLane | None]()
        self._control, control = socket.socketpair()
        passed = [number for lane in made for number in (lane.other_end.fileno(), lane.descriptor)]
        deadline = time.monotonic() + limits.start_seconds
        try:
            start = Start(str(program.path), limits.memory_bytes, program.kept_bytes, device=device)
            self._fork = server.fork(start, [control.fileno(), program.kept, *passed])
        except OSError as error:
            self._control.close()
            for lane in made:
                lane.close()
            raise NotReadyError(ProgramFailure.CRASH, f"has no process: {error}") from error
        finally:
            for end in (control, *(lane.other_end for lane in made)):
                end.close()
        for lane in made:
            self._free.put(lane)
        read = self._ready(limits, made, deadline)
        program.kept_bytes = read.kept_bytes
        self.provider = read.provider
        """Execution provider of ONNX Runtime that it runs by."""

    def _ready(self, limits: ProgramLimits, lanes: Sequence[ProgramLane], deadline: float) -> ProgramAnswer:
        """The answer that the program is read, once all lanes can be asked."""
        self._control.settimeout(max(1e-3, deadline - time.monotonic()))
        try:
            answer = decoding.decode(receive(self._control), ProgramAnswer)
            told = [answer]
            if answer.failure is None:
                told += [lane.receive(deadline) for lane in lanes]
        except TimeoutError as error:
            self.end()
            raise NotReadyError(
                ProgramFailure.TIME_OUT, f"took longer than {limits.start_seconds:g} s to be read"
            ) from error
        except (EOFError, OSError) as error:
            code = self.end(has_ended=True)
            problem = f"ended its process while it was read{with_status(code)}"
            raise NotReadyError(ProgramFailure.CRASH, problem) from error
        for each in told:
            if each.failure is not None:
                self.end()
                within = (
                    f" within {limits.memory_bytes / 2**20:,g} MiB" if each.failure is ProgramFailure.MEMORY else ""
                )
                raise NotReadyError(each.failure, f"cannot be read{within}: {each.reason}")
        return answer

    @property
    def pid(self) -> int:
        return self._fork.pid

    @property
    def computed_s(self) -> float:
        """Processor time that it has had so far; 0: it has ended."""
        try:
            # The number of a process's clock, as clock_getcpuclockid of the C library makes it.
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:
            return 0.0

    @property
    def free_lanes(self) -> int:
        """Lanes that have no question now."""
        return self._free.qsize()

    def when_ended(self, act: Callable[[], object]) -> None:
        """Do something once it has ended, in a thread of its own."""
        self._fork.when_ended(act)

    def take_lane(self, deadline: float) -> ProgramLane:
        """GivenUpError; ProgramFailedError: none was free in time."""
        try:
            lane = self._free.get(timeout=max(1e-3, deadline - time.monotonic()))
        except Empty as error:
            raise ProgramFailedError(ProgramFailure.TIME_OUT, "was busy with other requests all the time") from error
        if lane is None:
            self._free.put(None)
            raise GivenUpError
        return lane

    def return_lane(self, lane: ProgramLane) -> None:
        with self._lock:
            if self.is_given_up:
                lane.close()
            else:
                self._free.put(lane)

    def end(self, *, has_ended: bool = False) -> int | None:
        """Its exit status; negative: the signal that ended it. None: it is not known. `has_ended`: by itself."""
        with self._lock:
            if not self.is_given_up:
                self.is_given_up, self.is_ended_here = True, not has_ended
                # Where it has ended its sockets are closed, and its status is what it was.
                self._fork.kill()
                self._fork.code()
                self._control.close()
                self._close_free_lanes()
            return self._fork.code()

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


def with_status(code: int | None) -> str:
    return "" if code is None else f", with status {code}"
