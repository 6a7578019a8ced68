"""Processes of programs, started by the fork server of this worker, which is started itself with the first of them."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import msgspec

from gnnserve_worker.programs.messages import STATUS, Start

_DESCRIPTORS_AT_ONCE = 200
_PATIENCE_S = 60.0
"""Longest time until the fork server has imported ONNX Runtime, and forks."""
_MOST_ATTEMPTS = 2
"""The fork server may have ended since the last start; another one has not."""


class Fork:
    """A process that the fork server has started."""

    def __init__(self, pid: int, descriptor: int, status: int) -> None:
        """`descriptor`: readable once the process has ended. `status`: gives its exit status then."""
        self.pid = pid
        self._lock = threading.Lock()
        self._descriptor, self._status = descriptor, status
        self._code: int | None = None
        self._is_over = False

    def when_ended(self, act: Callable[[], object]) -> None:
        """Do something once, in a thread of its own."""
        with self._lock:
            # Its own: the other one is closed as soon as the status is read.
            awaited = None if self._is_over else os.dup(self._descriptor)
        threading.Thread(target=_wait_and_act, args=(awaited, act), daemon=True).start()

    def kill(self) -> None:
        with self._lock:
            if not self._is_over:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def code(self) -> int | None:
        """Wait until it ends; its exit status; negative: the signal that ended it. None: the fork server ended before,
        and it is not known."""
        with self._lock:
            if not self._is_over:
                told = os.read(self._status, STATUS.size)
                self._code = STATUS.unpack(told)[0] if told else None
                self._is_over = True
                os.close(self._status)
                os.close(self._descriptor)
            return self._code


def _wait_and_act(awaited: int | None, act: Callable[[], object]) -> None:
    if awaited is not None:
        ended = select.poll()
        ended.register(awaited, select.POLLIN)
        ended.poll()
        os.close(awaited)
    act()


class ForkServer:
    """Starts processes of programs; from any thread. OSError: no process can be started at all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = _ServerProcess()
        weakref.finalize(self, self._held.end)

    @property
    def pid(self) -> int | None:
        process = self._held.process
        return None if process is None else process.pid

    def fork(self, start: Start, descriptors: list[int]) -> Fork:
        """`start`: without the number of descriptors. `descriptors`: those of `process.main`; this process may close
        them afterwards."""
        status, told = os.pipe()
        message = msgspec.json.encode(msgspec.structs.replace(start, descriptors=len(descriptors) + 1))
        try:
            with self._lock:
                pid, descriptor = self._ask(message, [told, *descriptors])
        except BaseException:
            os.close(status)
            raise
        finally:
            os.close(told)
        return Fork(pid, descriptor, status)

    def end(self) -> None:
        with self._lock:
            self._held.end()

    def _ask(self, message: bytes, descriptors: list[int]) -> tuple[int, int]:
        problem: OSError | None = None
        for _ in range(_MOST_ATTEMPTS):
            connection = self._held.started()
            try:
                for first in range(0, len(descriptors), _DESCRIPTORS_AT_ONCE):
                    part = descriptors[first : first + _DESCRIPTORS_AT_ONCE]
                    socket.send_fds(connection, [b"+" if first else message], part)
                answer, received, _, _ = socket.recv_fds(connection, STATUS.size, 1)
                if answer:
                    return STATUS.unpack(answer)[0], received[0]
            except OSError as error:
                problem = error
            self._held.end()
        raise OSError("the process that starts those of programs ended at once; the log says why") from problem


class _ServerProcess:
    """The process of the fork server, apart from it, so that it is ended once that is gone."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None

    def started(self) -> socket.socket:
        if self._connection is None:
            # Messages keep their bounds, and each its descriptors.
            self._connection, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._connection.settimeout(_PATIENCE_S)
            with other_end:
                self.process = subprocess.Popen(  # noqa: S603 - our own module
                    [sys.executable, "-m", "gnnserve_worker.programs.fork_server", str(other_end.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[other_end.fileno()],
                    # Each arena of malloc takes address space, which is limited, whether anything is in it or not.
                    # Libraries that start threads of their own cannot be forked.
                    env={**os.environ, "MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                )
        return self._connection

    def end(self) -> None:
        connection, self._connection = self._connection, None
        process, self.process = self.process, None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.wait()


@cache
def fork_server() -> ForkServer:
    """The one of this worker."""
    return ForkServer()
