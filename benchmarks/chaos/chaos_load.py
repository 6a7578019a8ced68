"""Requests on a schedule to one Service's address; of each that failed: why, when, on a connection to which pod.

A client as careful as Envoy or urllib3 are by default: connections are kept alive; one that cannot be made is made
again, since nothing was sent on it, by which kube-proxy gets another chance to choose a pod that is there; a request
that was sent is never sent again.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType

import msgspec
from tests.cluster.harness.client import wait_for
from tests.cluster.harness.services import Service

from gnnserve_cli.client import fetch_variants
from gnnserve_cli.loadgen.requests import Requests, build_predictions
from gnnserve_cli.loadgen.transport import LoadConnection, TransportError
from gnnserve_client.address import parse_url

REQUESTS_PER_CONNECTION = 50
"""Requests before a connection is replaced by a new one: both old connections and new ones must survive."""
ANSWER_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 1.0
CONNECT_PATIENCE_S = 10.0
CONNECT_PAUSE_S = 0.02


class Cause(StrEnum):
    LOST = "connection lost after the request was sent"
    SILENT = f"no answer within {ANSWER_TIMEOUT_S:.0f} s"
    UNCONNECTED = f"no connection within {CONNECT_PATIENCE_S:.0f} s"
    STATUS = "an HTTP status that is no success"


@dataclass(frozen=True, slots=True)
class Failure:
    service: str
    cause: Cause
    detail: str
    sent_at_s: float
    """When the request was sent, on `time.monotonic`; when it was due if it was never sent."""
    failed_at_s: float
    pod_ip: str
    """Pod that the connection led to; empty: not known."""


class _Answer(msgspec.Struct):
    revision: str


@dataclass(slots=True)
class Tally:
    requests: int = 0
    answered: int = 0
    longest_s: float = 0.0
    """Longest time from due to answered."""
    connections: int = 0
    failed_connections: Counter[str] = field(default_factory=Counter)
    """Connections that were tried again, by what went wrong."""
    failures: list[Failure] = field(default_factory=list)
    revisions: Counter[str] = field(default_factory=Counter)


class Load:
    """Open loop, evenly spaced; in a thread of its own, as a context manager."""

    def __init__(self, service: Service, rate_per_s: float) -> None:
        self.tally = Tally()
        self._name = service.name
        self._host = service.address()
        endpoint = parse_url(f"http://{self._host}:80")
        nodes = fetch_variants(endpoint).nodes
        self._requests: Requests = build_predictions(endpoint, nodes, 1, None, seed=0)
        self._every_s = 1 / rate_per_s
        self._stopping = threading.Event()
        self._idle: list[_Kept] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name=f"load {self._name}", daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        wait_for("requests to flow", lambda: self.tally.answered > 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    async def _run(self) -> None:
        due_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while not self._stopping.is_set():
                group.create_task(self._ask(due_s))
                due_s += self._every_s
                await asyncio.sleep(max(due_s - time.monotonic(), 0))
        for kept in self._idle:
            kept.connection.close()

    async def _ask(self, due_s: float) -> None:
        tally = self.tally
        number, tally.requests = tally.requests, tally.requests + 1
        kept = await self._connected(due_s)
        if kept is None:
            return
        sent_s = time.monotonic()
        try:
            answer = await kept.connection.exchange(self._requests[number], ANSWER_TIMEOUT_S)
        except TransportError as error:
            cause = Cause.SILENT if "no answer" in str(error) else Cause.LOST
            await self._fail(cause, str(error), sent_s, kept)
            return
        if answer.status == 200:
            tally.answered += 1
            tally.longest_s = max(tally.longest_s, time.monotonic() - due_s)
            tally.revisions[msgspec.json.decode(answer.body, type=_Answer).revision] += 1
        else:
            await self._fail(Cause.STATUS, f"{answer.status} {answer.body[:200]!r}", sent_s, kept)
        kept.left -= 1
        if kept.left > 0 and kept.connection.is_open:
            self._idle.append(kept)
        else:
            kept.connection.close()

    async def _connected(self, due_s: float) -> _Kept | None:
        """A kept connection that is still open, else a new one; None, and noted, where there is none to be had."""
        while self._idle:
            kept = self._idle.pop()
            if kept.connection.is_open:
                return kept
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    transport, connection = await loop.create_connection(LoadConnection, self._host, 80)
            except OSError as error:  # also a TimeoutError
                problem = os.strerror(error.errno) if error.errno else type(error).__name__
                self.tally.failed_connections[problem] += 1
                if time.monotonic() - due_s > CONNECT_PATIENCE_S:
                    await self._fail(Cause.UNCONNECTED, problem, due_s, None)
                    return None
                await asyncio.sleep(CONNECT_PAUSE_S)
            else:
                self.tally.connections += 1
                return _Kept(connection, transport.get_extra_info("sockname")[1])

    async def _fail(self, cause: Cause, detail: str, sent_s: float, kept: _Kept | None) -> None:
        failed_s = time.monotonic()
        pod_ip = "" if kept is None else await pod_behind(self._host, kept.port)
        self.tally.failures.append(Failure(self._name, cause, detail, sent_s, failed_s, pod_ip))


@dataclass(slots=True)
class _Kept:
    connection: LoadConnection
    port: int
    left: int = REQUESTS_PER_CONNECTION


async def pod_behind(service_ip: str, port: int) -> str:
    """The pod to which kube-proxy led a connection from that port of ours, by the kernel's table, which forgets it
    late."""
    process = await asyncio.create_subprocess_exec(
        *("conntrack", "-L", "-p", "tcp", "--orig-dst", service_ip, "--orig-port-src", str(port)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    printed, _ = await process.communicate()
    return answering_address(printed.decode())


def answering_address(entry: str) -> str:
    """The answering address of `tcp 6 431999 ESTABLISHED src=… dst=… sport=… dport=… src=… …`, the second `src`; empty
    without an entry."""
    sources = re.findall(r"\bsrc=(\S+)", entry)
    return str(sources[1]) if len(sources) > 1 else ""
