"""Sends batches of changes at a steady rate, in a process of its own: an open loop over a few connections.

Run as a program, it takes the port, a file of whole requests (`wrk.write_requests`) and a rate in requests per second.
For each line of standard input, a number of seconds, it goes on where it stopped in the file, and answers with what
came of them as a line of JSON. No request is sent twice: new nodes come once.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from benchmarks.changes.updates_connection import Connection

CONNECTIONS = 8


class Sent(msgspec.Struct, frozen=True):
    requests: int
    failed: int
    """Requests that were not answered by 200."""
    p50_ms: float
    """From when a request was due to its answer."""
    p99_ms: float
    seconds: float
    """From the first one due to the last answer."""
    in_time: int
    """Requests that were answered before the round's last one was due."""


class Sender:
    """The other side of such a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, seconds: float) -> None:
        assert self._process.stdin is not None  # noqa: S101
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()

    def end(self) -> Sent:
        assert self._process.stdout is not None  # noqa: S101
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the sender of changes has ended; its last words are above")
        sent = msgspec.json.decode(line, type=Sent)
        if sent.failed:
            raise SystemExit(f"{sent.failed:,} of {sent.requests:,} batches of changes were not applied")
        return sent


@contextmanager
def sending(port: int, requests: Path, rate_per_s: float) -> Iterator[Sender]:
    command = [sys.executable, "-m", "benchmarks.changes.updates_sender", str(port), str(requests), str(rate_per_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Sender(process)
        finally:
            process.terminate()


class _Round:
    """Requests that are due at equal distances, taken by whichever connection is free."""

    def __init__(self, file: BinaryIO, rate_per_s: float, seconds: float) -> None:
        self._file = file
        self._rate_per_s = rate_per_s
        self._most = max(1, round(rate_per_s * seconds))
        self._taken = 0
        self._lock = threading.Lock()
        self._began_s = time.perf_counter()
        self._answered_s = self._began_s
        self._latencies_ms: list[float] = []
        self._failed = 0
        self._ends_s = self._began_s + seconds
        self._in_time = 0

    def send_all(self, connection: Connection) -> None:
        while (taken := self._take()) is not None:
            due_s, request = taken
            if (wait_s := due_s - time.perf_counter()) > 0:
                time.sleep(wait_s)
            try:
                is_applied = connection.send(request).status == 200
            except OSError:
                is_applied = False
            answered_s = time.perf_counter()
            with self._lock:
                self._latencies_ms.append(1e3 * (answered_s - due_s))
                self._failed += not is_applied
                self._in_time += answered_s <= self._ends_s
                self._answered_s = max(self._answered_s, answered_s)

    def _take(self) -> tuple[float, bytes] | None:
        with self._lock:
            if self._taken == self._most:
                return None
            length = self._file.readline()
            if not length:
                print("there are no more requests to send", file=sys.stderr)
                self._failed += 1
                return None
            due_s = self._began_s + self._taken / self._rate_per_s
            self._taken += 1
            return due_s, self._file.read(int(length))

    def sent(self) -> Sent:
        p50_ms, p99_ms = np.percentile(self._latencies_ms, (50, 99)).round(3).tolist()
        seconds = round(self._answered_s - self._began_s, 3)
        return Sent(len(self._latencies_ms), self._failed, p50_ms, p99_ms, seconds, self._in_time)


def _main(port: int, requests: Path, rate_per_s: float) -> None:
    sys.setswitchinterval(0.0005)  # Python's own 5 ms are as long as an answer takes
    connections = [Connection(port) for _ in range(CONNECTIONS)]
    with requests.open("rb") as file:
        for line in sys.stdin:
            of_round = _Round(file, rate_per_s, float(line))
            threads = [threading.Thread(target=of_round.send_all, args=(each,)) for each in connections]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            print(msgspec.json.encode(of_round.sent()).decode(), flush=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
