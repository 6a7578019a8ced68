"""A server in a process of its own."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.support.machine import fork_server


@dataclass(frozen=True, slots=True)
class Worker:
    process: fork_server.Process
    port: int
    open_until_the_end: ExitStack

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        self.open_until_the_end.callback(connection.close)
        connection.connect()
        return connection

    def wait_until_held(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "held\n"

    def release(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextmanager
def started() -> Iterator[Worker]:
    with (
        fork_server.started("tests.support.serving.serving", stdin=True, stdout=True, stderr=True) as process,
        ExitStack() as connections,
    ):
        assert process.stdout is not None
        try:
            yield Worker(process, int(process.stdout.readline()), connections)
        finally:
            process.kill()
