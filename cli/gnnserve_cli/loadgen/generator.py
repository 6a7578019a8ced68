"""Runs a plan against a server: closed loop (each connection asks again once answered) or open loop (requests are
due on a schedule, whether or not the server keeps up).

Open-loop latency counts from the moment a request was *due*: whatever kept it from being sent, a busy server or
this generator, is in it, so a stall cannot hide behind requests that were never made (coordinated omission).
Every run ends by itself: each exchange has a timeout, and nothing is begun after the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from gnnserve_api import decoding
from gnnserve_cli.loadgen.record import FAILED, NO_VARIANT, REFUSED, LoadRecord
from gnnserve_cli.loadgen.requests import Requests, asking_for_times
from gnnserve_cli.loadgen.statistics import LATE_MS, LoadPlan
from gnnserve_cli.loadgen.transport import LoadConnection, TimedAnswer, TransportError, connect
from gnnserve_client.address import Endpoint

RECONNECT_PAUSE_S = 0.1
"""A dead server is asked ten times a second and connection, not as often as the processor can."""
_SWITCH_INTERVAL_S = 0.0005
"""How long the event loop may keep the pacer from the interpreter: Python's own 5 ms are as long as an answer takes."""


class _Prediction(msgspec.Struct, rename="camel"):
    variant: str
    objective_met: bool


class _Detail(msgspec.Struct):
    code: str
    message: str = ""


class _RefusalBody(msgspec.Struct):
    error: _Detail


_decode_prediction = decoding.decoder(_Prediction).decode
_decode_refusal = decoding.decoder(_RefusalBody).decode


def generate_load(
    endpoint: Endpoint, requests: Requests, plan: LoadPlan, schedule: Iterable[float] | None, timeout_s: float
) -> LoadRecord:
    """`schedule` is given for an open loop: seconds after the start, ascending. A run that is interrupted (SIGINT) ends
    there, and its record has what was measured until then."""
    generator = Generator(endpoint, requests, timeout_s)
    run = generator.run_closed(plan) if schedule is None else generator.run_open(plan, schedule)
    with _short_switches(), asyncio.Runner(loop_factory=_fastest_event_loop()) as runner:
        try:
            return runner.run(run)
        except KeyboardInterrupt:
            if not generator.has_begun:
                raise
            return generator.interrupted()


@contextlib.contextmanager
def _short_switches() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


def _fastest_event_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415 - not everywhere

        new_event_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
        return new_event_loop
    return None


@dataclass(slots=True)
class _Ask:
    """One request, through all of its tries."""

    number: int
    due_s: float
    """When the request is due, on `time.perf_counter`."""
    try_due_s: float
    tries: int = 1


class Generator:
    """One run: its connections, its clock and its record."""

    def __init__(self, endpoint: Endpoint, requests: Requests, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._requests = requests
        self._timeout_s = timeout_s
        self._record = LoadRecord()
        self._retries = 0
        self._started_at_s = 0.0
        self._end_s = 0.0
        # Of an open loop.
        self._idle: list[LoadConnection | None] = []
        self._due: deque[_Ask] = deque()
        self._busy: set[asyncio.Task[None]] = set()

    @property
    def has_begun(self) -> bool:
        """Whether the clock runs: connections are open."""
        return self._started_at_s > 0

    def interrupted(self) -> LoadRecord:
        """Record of a run that ends now. Requests that are under way count as none: what would have become of them is
        not known."""
        record = self._record
        record.interrupted_s = time.perf_counter() - self._started_at_s
        record.started = len(record.rows)
        return record

    def _connect(self) -> Coroutine[Any, Any, LoadConnection]:
        return connect(self._endpoint.host, self._endpoint.port, self._endpoint.tls)

    async def run_closed(self, plan: LoadPlan) -> LoadRecord:
        connections = await self._open(plan)
        async with asyncio.TaskGroup() as group:
            for connection in connections:
                group.create_task(self._ask_until_end(connection))
        return self._record

    async def _ask_until_end(self, connection: LoadConnection | None) -> None:
        while (now_s := time.perf_counter()) < self._end_s:
            ask = _Ask(self._record.started, now_s, now_s)
            if connection is None or not connection.is_open:
                try:
                    connection = await self._connect()
                except TransportError as error:
                    self._record.started += 1
                    self._give_up(ask, str(error))
                    await asyncio.sleep(min(RECONNECT_PAUSE_S, max(0.0, self._end_s - time.perf_counter())))
                continue
            self._record.started += 1
            await self._exchange(connection, ask, is_open_loop=False)
        if connection is not None:
            connection.close()

    async def run_open(self, plan: LoadPlan, schedule: Iterable[float]) -> LoadRecord:
        self._retries = plan.retries
        self._idle = await self._open(plan)
        finished = asyncio.Event()
        loop = asyncio.get_running_loop()
        pacer = Pacer(self._started_at_s, schedule, loop, self._release_first, finished.set)
        pacer.start()
        try:
            await finished.wait()
            # Tasks empty the backlog themselves, and give up on what is too old to be sent.
            while self._busy:
                await asyncio.gather(*self._busy)
        finally:
            pacer.stop()
            for connection in self._idle:
                if connection is not None:
                    connection.close()
        return self._record

    def _release_first(self, due_s: float) -> None:
        ask = _Ask(self._record.started, due_s, due_s)
        self._record.started += 1
        self._record.late += (time.perf_counter() - due_s) * 1000 > LATE_MS
        if not self._idle:
            self._record.held_back += 1
        self._release(ask)

    def _release(self, ask: _Ask) -> None:
        if not self._idle:
            self._due.append(ask)
            return
        # The last one used is the first one taken: a server closes connections that stay idle.
        self._start(self._carry(self._idle.pop(), ask))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def _carry(self, connection: LoadConnection | None, ask: _Ask) -> None:
        """Carries one request, then those that wait because every connection was busy."""
        while True:
            if time.perf_counter() > self._end_s + self._timeout_s:
                self._give_up(ask, "never sent: every connection stayed busy")
            else:
                connection = await self._send_due(connection, ask)
            if not self._due:
                self._idle.append(connection)
                return
            ask = self._due.popleft()

    async def _send_due(self, connection: LoadConnection | None, ask: _Ask) -> LoadConnection | None:
        if connection is None or not connection.is_open:
            try:
                connection = await self._connect()
            except TransportError as error:
                self._give_up(ask, str(error))
                return None
        await self._exchange(connection, ask, is_open_loop=True)
        return connection

    async def _open(self, plan: LoadPlan) -> list[LoadConnection | None]:
        """Every connection before the clock starts; those that fail are tried again during the run."""
        attempts: list[Coroutine[Any, Any, LoadConnection]] = [self._connect() for _ in range(plan.connections)]
        opened = await asyncio.gather(*attempts, return_exceptions=True)
        for failure in opened:
            if isinstance(failure, BaseException) and not isinstance(failure, TransportError):
                raise failure
        self._started_at_s = time.perf_counter()
        self._end_s = self._started_at_s + plan.duration_s
        return [connection if isinstance(connection, LoadConnection) else None for connection in opened]

    async def _exchange(self, connection: LoadConnection, ask: _Ask, *, is_open_loop: bool) -> None:
        record = self._record
        payload = self._requests[ask.number]
        is_timed = ask.number % record.timed.every == 0 and self._requests.seeds_each > 0
        if is_timed:
            payload = asking_for_times(payload)
        try:
            answer = await connection.exchange(payload, self._timeout_s, is_timed=is_timed)
        except TransportError as error:
            self._give_up(ask, str(error))
            return
        if is_open_loop:
            record.lags_ms.append((answer.sent_at_s - ask.try_due_s) * 1000)
        else:
            ask.due_s = ask.try_due_s = answer.sent_at_s
        record.statuses[answer.status] += 1
        record.last_answer_s = max(record.last_answer_s, answer.answered_at_s - self._started_at_s)
        if answer.status == 200:
            if is_timed:
                self._add_times(answer)
            self._add_row(ask, self._read_answerer(answer), answer.answered_at_s)
            return
        reason, sentence = _read_refusal(answer)
        record.errors[reason] += 1
        if sentence:
            record.sentences.setdefault(reason, sentence)
        if answer.status not in {429, 503}:
            self._add_row(ask, FAILED)
        elif not self._retry(ask, answer):
            self._add_row(ask, REFUSED)

    def _retry(self, ask: _Ask, answer: TimedAnswer) -> bool:
        """Tries again at the time that the server asked for, unless that is after the end of the run."""
        wait_s = _parse_retry_after(answer.told.get(b"retry-after", b""))
        if ask.tries > self._retries or wait_s is None or answer.answered_at_s + wait_s >= self._end_s:
            return False
        self._start(self._retry_after(_Ask(ask.number, ask.due_s, answer.answered_at_s + wait_s, ask.tries + 1)))
        return True

    async def _retry_after(self, ask: _Ask) -> None:
        await asyncio.sleep(ask.try_due_s - time.perf_counter())
        self._release(ask)

    def _read_answerer(self, answer: TimedAnswer) -> int:
        record = self._record
        if not self._requests.seeds_each:
            return NO_VARIANT
        if variant := answer.told.get(b"gnnserve-variant"):  # the binary form says it in the head
            record.objectives_met += answer.told.get(b"gnnserve-objective-met") == b"true"
            return record.position_of(variant.decode("latin-1"))
        try:
            prediction = _decode_prediction(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            record.errors["answer without variant and objectiveMet"] += 1
            return NO_VARIANT
        record.objectives_met += prediction.objective_met
        return record.position_of(prediction.variant)

    def _add_times(self, answer: TimedAnswer) -> None:
        sent_at_s, ended_at_s = answer.sent_at_s, answer.answered_at_s
        self._record.timed.add(
            (ended_at_s - sent_at_s) * 1000,
            (answer.written_at_s - sent_at_s) * 1000,
            (ended_at_s - answer.first_at_s) * 1000,
            answer.told.get(b"server-timing", b""),
        )

    def _give_up(self, ask: _Ask, reason: str) -> None:
        self._record.errors[reason] += 1
        self._add_row(ask, FAILED)

    def _add_row(self, ask: _Ask, answerer: int, answered_at_s: float = math.nan) -> None:
        self._record.rows.add(
            ask.due_s - self._started_at_s,
            (answered_at_s - ask.due_s) * 1000,
            answerer,
            self._requests.seeds_of(ask.number),
            last_try_ms=(answered_at_s - ask.try_due_s) * 1000,
            tries=ask.tries,
        )


def _parse_retry_after(text: bytes) -> float | None:
    """Seconds; a date, which gnnserve never sends, is not followed."""
    return float(text) if text.isdigit() and len(text) < 10 else None


def _read_refusal(answer: TimedAnswer) -> tuple[str, str]:
    """Status and code, and what the server says of it."""
    try:
        said = _decode_refusal(answer.body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return str(answer.status), ""
    return f"{answer.status} {said.code}", said.message


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
