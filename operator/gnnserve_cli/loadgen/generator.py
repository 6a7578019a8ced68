"""Runs a plan against a server: closed loop (each connection asks again once answered) or open loop (requests are
due on a schedule, whether or not the server keeps up).

Open-loop latency counts from the moment a request was *due*: whatever kept it from being sent, a busy server or
this generator, is in it, so a stall cannot hide behind requests that were never made (coordinated omission).
Every run ends by itself: each exchange has a timeout, and nothing is begun after the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec

from gnnserve_cli.client import Endpoint
from gnnserve_cli.loadgen.requests import Requests
from gnnserve_cli.loadgen.statistics import Plan, Record
from gnnserve_cli.loadgen.transport import Answer, Connection, TransportError, connect

RECONNECT_PAUSE_S = 0.1
"""A dead server is asked ten times a second and connection, not as often as the processor can."""


class _Prediction(msgspec.Struct, rename="camel"):
    variant: str
    objective_met: bool


class _Detail(msgspec.Struct):
    code: str


class _Refusal(msgspec.Struct):
    error: _Detail


_decode_prediction = msgspec.json.Decoder(_Prediction).decode
_decode_refusal = msgspec.json.Decoder(_Refusal).decode


def generate_load(
    endpoint: Endpoint, requests: Requests, plan: Plan, schedule: Iterable[float] | None, timeout_s: float
) -> Record:
    """`schedule` is given for an open loop: seconds after the start, ascending."""
    generator = Generator(endpoint, requests, timeout_s)
    run = generator.run_closed(plan) if schedule is None else generator.run_open(plan, schedule)
    with asyncio.Runner(loop_factory=_fastest_event_loop()) as runner:
        return runner.run(run)


def _fastest_event_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415 - not everywhere

        new_event_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
        return new_event_loop
    return None


class Generator:
    """One run: its connections, its clock and its record."""

    def __init__(self, endpoint: Endpoint, requests: Requests, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._requests = requests
        self._timeout_s = timeout_s
        self._record = Record()
        self._started_at_s = 0.0
        self._end_s = 0.0

    async def run_closed(self, plan: Plan) -> Record:
        connections = await self._open(plan)
        async with asyncio.TaskGroup() as group:
            for connection in connections:
                group.create_task(self._ask_until_end(connection))
        return self._record

    async def _ask_until_end(self, connection: Connection | None) -> None:
        while time.perf_counter() < self._end_s:
            if connection is None or not connection.is_open:
                connection = await self._reconnect()
                if connection is None:
                    continue
            await self._exchange(connection)
        if connection is not None:
            connection.close()

    async def _reconnect(self) -> Connection | None:
        try:
            return await connect(self._endpoint.host, self._endpoint.port)
        except TransportError as error:
            self._record.started += 1
            self._record.errors[str(error)] += 1
            await asyncio.sleep(min(RECONNECT_PAUSE_S, max(0.0, self._end_s - time.perf_counter())))
            return None

    async def run_open(self, plan: Plan, schedule: Iterable[float]) -> Record:
        idle = await self._open(plan)
        dues: deque[float] = deque()
        busy: set[asyncio.Task[None]] = set()
        finished = asyncio.Event()

        def release(due_s: float) -> None:
            if not idle:
                self._record.held_back += 1
                dues.append(due_s)
                return
            # The last one used is the first one taken: a server closes connections that stay idle.
            task = asyncio.create_task(self._carry(idle.pop(), due_s, dues, idle))
            busy.add(task)
            task.add_done_callback(busy.discard)

        pacer = Pacer(self._started_at_s, schedule, asyncio.get_running_loop(), release, finished.set)
        pacer.start()
        try:
            await finished.wait()
            # Tasks empty the backlog themselves, and give up on what is too old to be sent.
            while busy:
                await asyncio.gather(*busy)
        finally:
            pacer.stop()
            for connection in idle:
                if connection is not None:
                    connection.close()
        return self._record

    async def _carry(
        self, connection: Connection | None, due_s: float, dues: deque[float], idle: list[Connection | None]
    ) -> None:
        """Carries one request, then those that wait because every connection was busy."""
        while True:
            if time.perf_counter() > self._end_s + self._timeout_s:
                self._record.started += 1
                self._record.errors["never sent: every connection stayed busy"] += 1
            else:
                connection = await self._send_due(connection, due_s)
            if not dues:
                idle.append(connection)
                return
            due_s = dues.popleft()

    async def _send_due(self, connection: Connection | None, due_s: float) -> Connection | None:
        if connection is None or not connection.is_open:
            try:
                connection = await connect(self._endpoint.host, self._endpoint.port)
            except TransportError as error:
                self._record.started += 1
                self._record.errors[str(error)] += 1
                return None
        await self._exchange(connection, due_s)
        return connection

    async def _open(self, plan: Plan) -> list[Connection | None]:
        """Every connection before the clock starts; those that fail are tried again during the run."""
        attempts: list[Coroutine[Any, Any, Connection]] = [
            connect(self._endpoint.host, self._endpoint.port) for _ in range(plan.connections)
        ]
        opened = await asyncio.gather(*attempts, return_exceptions=True)
        for failure in opened:
            if isinstance(failure, BaseException) and not isinstance(failure, TransportError):
                raise failure
        self._started_at_s = time.perf_counter()
        self._end_s = self._started_at_s + plan.duration_s
        return [connection if isinstance(connection, Connection) else None for connection in opened]

    async def _exchange(self, connection: Connection, due_s: float | None = None) -> None:
        record = self._record
        payload = self._requests[record.started]
        record.started += 1
        try:
            answer = await connection.exchange(payload, self._timeout_s)
        except TransportError as error:
            record.errors[str(error)] += 1
            return
        began_s = answer.sent_at_s if due_s is None else due_s
        if due_s is not None:
            record.lags_ms.append((answer.sent_at_s - due_s) * 1000)
        record.statuses[answer.status] += 1
        record.last_answer_s = max(record.last_answer_s, answer.answered_at_s - self._started_at_s)
        if answer.status == 200:
            record.latencies_ms.append((answer.answered_at_s - began_s) * 1000)
            if self._requests.seeds_each:
                _count_prediction(record, answer)
        else:
            record.errors[_reason(answer)] += 1


def _count_prediction(record: Record, answer: Answer) -> None:
    if variant := answer.told.get(b"gnnserve-variant"):  # the binary form says it in the head
        record.variants[variant.decode("latin-1")] += 1
        record.objectives_met += answer.told.get(b"gnnserve-objective-met") == b"true"
        return
    try:
        prediction = _decode_prediction(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        record.errors["answer without variant and objectiveMet"] += 1
        return
    record.variants[prediction.variant] += 1
    record.objectives_met += prediction.objective_met


def _reason(answer: Answer) -> str:
    try:
        return f"{answer.status} {_decode_refusal(answer.body).error.code}"
    except (msgspec.DecodeError, UnicodeDecodeError):
        return str(answer.status)


class Pacer(threading.Thread):
    """Wakes the event loop when a request is due.

    A thread, because event loops round timers up to whole milliseconds, which is as long as an answer takes.
    """

    def __init__(
        self,
        started_at_s: float,
        schedule: Iterable[float],
        loop: asyncio.AbstractEventLoop,
        release: Callable[[float], None],
        finish: Callable[[], None],
    ) -> None:
        super().__init__(name="pacer", daemon=True)
        self._started_at_s = started_at_s
        self._schedule = schedule
        self._loop = loop
        self._release = release
        self._finish = finish
        self._stopped = threading.Event()

    def run(self) -> None:
        for offset_s in self._schedule:
            due_s = self._started_at_s + offset_s
            wait_s = due_s - time.perf_counter()
            if wait_s > 0:
                self._stopped.wait(wait_s)
            if self._stopped.is_set():
                return
            self._loop.call_soon_threadsafe(self._release, due_s)
        self._loop.call_soon_threadsafe(self._finish)

    def stop(self) -> None:
        self._stopped.set()
        self.join()
