"""Programs that tests start often, forked from a process that has imported already what they need.

`started(MODULE, …)` is `python -m MODULE …` with arguments, environment, standard streams and a process id of its own,
as a child of the test, which signals it and waits for it. What it lacks is a second or two of imports. So each kind of
program has a test that starts it for real as well: variables that are read as a module is imported (NUMBA_…) come too
late here.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, NoReturn

ROOT = Path(__file__).resolve().parents[3]
IMPORTED = (
    "gnnserve_worker.pods.generate",
    "tests.support.pods.worker_pod",
    "tests.support.pods.pool_pod",
    "tests.support.serving.slow_worker",
    "tests.support.serving.routed_server",
)
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER
_POLL_S = 0.002
_MOST_BYTES = 1 << 20
_PREPARED = b"prepared"


@dataclass(slots=True)
class Process:
    """A process with as much of `subprocess.Popen` as tests use."""

    pid: int
    stdin: IO[str] | None
    stdout: IO[str] | None
    stderr: IO[str] | None
    returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


def started(
    module: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    stdin: bool = False,
    stdout: bool = False,
    stderr: bool = False,
) -> Process:
    """Runs a program in the repository's folder; a wanted stream is a pipe, the others are those of the test."""
    ours: list[IO[str] | None] = []
    with ExitStack() as theirs:
        streams = []
        for number, is_wanted in enumerate((stdin, stdout, stderr)):
            if is_wanted:
                reading, writing = os.pipe()
                theirs.callback(os.close, reading if number == 0 else writing)
                streams.append(reading if number == 0 else writing)
                ours.append(open(writing, "w") if number == 0 else open(reading))  # noqa: SIM115, PTH123 - a descriptor
            else:
                streams.append(number)
                ours.append(None)
        asked = json.dumps({"module": module, "arguments": arguments, "env": dict(os.environ if env is None else env)})
        server = _server()
        socket.send_fds(server, [asked.encode()], streams)
        return Process(int(server.recv(64)), *ours)


def prepare(module: str, *arguments: str) -> None:
    """Run `prepare(*arguments)` of a module in the server, so that what is started later has it behind itself, as
    kernels that are loaded. It must leave no threads."""
    server = _server()
    server.send(json.dumps({"prepared": module, "arguments": arguments}).encode())
    assert server.recv(64) == _PREPARED, f"{module} was not prepared: the server's standard error says why"


def completed(module: str, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The result after its end, with what it wrote to its standard error, as these programs do."""
    with started(module, *arguments, env=env, stderr=True) as process:
        assert process.stderr is not None
        written = process.stderr.read()
        return subprocess.CompletedProcess((module, *arguments), process.wait(), "", written)


@cache
def _server() -> socket.socket:
    """One for the process that runs the tests; it ends with the socket."""
    # What the server forks is the server's grandchild: it becomes ours as soon as the child between them has ended.
    if ctypes.CDLL(None, use_errno=True).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.support.machine.fork_server", str(its.fileno())]
    # numpy's OpenBLAS has a thread for each core from the start otherwise.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    server = subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=(its.fileno(),))
    its.close()

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


# In the server


def main() -> None:
    asked_by = socket.socket(fileno=int(sys.argv[1]))
    for name in IMPORTED:
        importlib.import_module(name)
    while True:
        assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot be forked safely"  # noqa: PTH208
        message, streams, _, _ = socket.recv_fds(asked_by, _MOST_BYTES, 3)
        if not message:
            return
        asked = json.loads(message)
        if (prepared := asked.pop("prepared", None)) is not None:
            importlib.import_module(prepared).prepare(*asked["arguments"])
            asked_by.send(_PREPARED)
            continue
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                asked_by.close()
                os.close(reading)
                os.close(writing)
                _become(streams, **asked)
            os.write(writing, str(child).encode())
            os._exit(0)
        os.close(writing)
        os.waitpid(between, 0)
        pid = os.read(reading, 64)
        for descriptor in (reading, *streams):
            os.close(descriptor)
        asked_by.send(pid)


def _become(streams: Sequence[int], module: str, arguments: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    code = 1
    try:
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        for descriptor in streams:
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(env)
        sys.argv = [module, *arguments]
        # What a shell runs in the background ignores it, and so does all that it starts.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
