"""Background processes that outlive the command that started them, and that only we may end.

A pid alone is not an identity: it is used again. The record of a process holds its start time as well, and a process
with another start time is none of ours.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.harness.commands import say

# Popen warns when it is collected while its process runs; these are meant to run on.
_started: list[subprocess.Popen[bytes]] = []


def start_time(pid: int) -> str | None:
    """Start of the process in clock ticks since the machine's start; None when the process is gone or waits only to be
    reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def identity(pid: int) -> str:
    return f"{pid} {start_time(pid)}"


def still_runs(identity_: str) -> bool:
    pid, _, began = identity_.partition(" ")
    return pid.isdigit() and start_time(int(pid)) == began.strip()


@dataclass(frozen=True, slots=True)
class Background:
    name: str
    record: Path
    log: Path

    def pid(self) -> int | None:
        try:
            recorded = self.record.read_text()
        except FileNotFoundError:
            return None
        return int(recorded.split()[0]) if still_runs(recorded) else None

    def start(self, command: list[str]) -> None:
        if self.pid() is not None:
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.record.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists():
            # The log of the previous run may be needed; earlier ones are not kept.
            self.log.replace(self.log.with_suffix(".previous.log"))
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
            )
        _started.append(process)
        self.record.write_text(identity(process.pid))

    def signal(self, number: int) -> None:
        pid = self.pid()
        if pid is not None:
            os.kill(pid, number)

    def stop(self, patience_s: float = 20) -> None:
        self.signal(signal.SIGTERM)
        if not self._ended(patience_s):
            say(f"{self.name} did not end within {patience_s:.0f} s of SIGTERM; SIGKILL")
            self.signal(signal.SIGKILL)
            self._ended(5)
        self.record.unlink(missing_ok=True)

    def _ended(self, patience_s: float) -> bool:
        deadline = time.monotonic() + patience_s
        while self.pid() is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True
