"""A server's processes: started, waited for, looked at, and ended with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_END_S = 15.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Running:
    pid: int
    port: int
    boot_s: float

    def pss_mib(self) -> int:
        """Memory of all its processes; shared pages count once."""
        kib = 0
        for pid in descendants(self.pid):
            with suppress(OSError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        kib += int(line.split()[1])
        return kib // 1024


@contextmanager
def running(
    command: list[str], variables: dict[str, str], log: Path, port: int, answers: Callable[[], object], limit_s: float
) -> Iterator[Running]:
    """RuntimeError where `answers` goes on raising OSError or ValueError for `limit_s`, or the process ends."""
    began_s = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(command, env=variables, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent)
    try:
        _wait(process, answers, began_s + limit_s, log)
        yield Running(process.pid, port, round(time.monotonic() - began_s, 1))
    finally:
        _end(process)


def _wait(process: subprocess.Popen[bytes], answers: Callable[[], object], give_up_at_s: float, log: Path) -> None:
    while True:
        try:
            answers()
        except (OSError, ValueError) as error:
            problem = error
        else:
            return
        if process.poll() is not None:
            raise RuntimeError(f"ended with {process.returncode}; its last words are in {log}: {_tail(log)}")
        if time.monotonic() > give_up_at_s:
            raise RuntimeError(f"does not answer ({problem}); see {log}: {_tail(log)}")
        time.sleep(_POLL_S)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-400:].strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    started = {pid: _start_time(pid) for pid in descendants(process.pid)}
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    # Processes that it left behind, and none that got the same id since.
    while left := [pid for pid, since in started.items() if since is not None and _start_time(pid) == since]:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        time.sleep(_POLL_S)
    process.wait()


def descendants(pid: int) -> list[int]:
    """The process and all below it."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := _stat(int(folder.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


def _start_time(pid: int) -> str | None:
    fields = _stat(pid)
    return None if fields is None or fields[0] == "Z" else fields[19]


def _stat(pid: int) -> list[str] | None:
    """Fields from the third on (state, parent, …): the second may have spaces in it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def busy_cores(during: Callable[[], object]) -> float:
    """Number of the machine's processors that were busy meanwhile, by any process."""
    before_ticks, began_s = _busy_ticks(), time.monotonic()
    during()
    elapsed_s = time.monotonic() - began_s
    return round((_busy_ticks() - before_ticks) / os.sysconf("SC_CLK_TCK") / elapsed_s, 2)


def _busy_ticks() -> int:
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4]
