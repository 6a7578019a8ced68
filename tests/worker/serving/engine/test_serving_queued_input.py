"""Input that waits for its service's turn: in order, at most two pieces of a connection, and none after its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
from tests.support.serving.connections import FakeTransport, Server, Wire, predict, serving

from gnnserve_worker.serving.engine.inlet import Inlet
from gnnserve_worker.serving.engine.model import monotonic_ms
from gnnserve_worker.serving.http.wire.connection import HttpConnection, QueuedInput


@dataclass
class Queued:
    server: Server
    inlet: Inlet
    clock_ms: Callable[[], float] = monotonic_ms

    def connect(self) -> tuple[QueuedInput, Wire]:
        transport = FakeTransport()
        connection = HttpConnection(self.server.shared, asyncio.get_running_loop())
        queued = QueuedInput(connection, self.inlet, self.clock_ms)
        queued.connection_made(cast(Any, transport))
        return queued, Wire(connection, transport)

    def take_in_one(self) -> None:
        self.inlet.take_in(lambda: False)


def on_server(scenario: Callable[[Queued], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serving() as server:
            await scenario(Queued(server, Inlet(lambda: None, lambda _took_ms: None)))

    asyncio.run(run())


def label_of(wire: Wire) -> list[int]:
    found: list[int] = json.loads(wire.responses()[-1].body)["labels"]
    return found


def test_input_is_read_in_its_turn_and_in_the_order_in_which_it_came() -> None:
    async def scenario(queued: Queued) -> None:
        (first, first_wire), (second, second_wire) = queued.connect(), queued.connect()
        first.data_received(predict(b'{"nodes":[3]}'))
        second.data_received(predict(b'{"nodes":[1]}'))
        in_flight = queued.server.client.app.predict
        assert (queued.inlet.messages, in_flight.in_flight) == (pytest.approx(2, abs=0.1), 0)
        queued.take_in_one()
        assert in_flight.in_flight == 1
        await first_wire.answers()
        assert (label_of(first_wire), second_wire.responses()) == ([40], [])
        queued.take_in_one()
        await second_wire.answers()
        assert label_of(second_wire) == [20]
        assert not queued.inlet.is_waiting

    on_server(scenario)


def test_client_that_sends_more_before_its_turn_is_not_read_from_until_then() -> None:
    async def scenario(queued: Queued) -> None:
        data = predict(b'{"nodes":[3]}')
        client, wire = queued.connect()
        client.data_received(data[:20])
        assert wire.transport.reading
        client.data_received(data[20:] + data)
        assert not wire.transport.reading
        queued.take_in_one()
        assert wire.transport.reading or wire.connection.pipelined
        assert len(await wire.answers(2)) == 2
        assert wire.transport.reading

    on_server(scenario)


def test_what_a_client_sent_before_its_end_is_read_at_that_end() -> None:
    async def scenario(queued: Queued) -> None:
        client, wire = queued.connect()
        client.data_received(b"no request\r\n\r\n")
        assert client.eof_received() is None
        assert [response.status for response in wire.responses()] == [400]
        queued.take_in_one()
        assert len(wire.responses()) == 1

    on_server(scenario)


def test_input_of_a_client_that_is_gone_is_not_read() -> None:
    async def scenario(queued: Queued) -> None:
        (gone, gone_wire), (here, here_wire) = queued.connect(), queued.connect()
        for client in (gone, here):
            client.data_received(predict(b'{"nodes":[3]}'))
        gone.connection_lost(None)
        queued.inlet.take_in(lambda: True)
        await here_wire.answers()
        assert gone_wire.responses() == []

    on_server(scenario)


def test_client_whose_request_waits_is_neither_idle_nor_late() -> None:
    async def scenario(queued: Queued) -> None:
        (asking, asking_wire), (_, silent_wire) = queued.connect(), queued.connect()
        asking.data_received(predict(b'{"nodes":[3]}'))
        for wire in (asking_wire, silent_wire):
            wire.connection._waited_s = 1e6
        assert (asking_wire.connection.idle_looks(), silent_wire.connection.idle_looks() > 0) == (0, True)
        for wire in (asking_wire, silent_wire):
            wire.connection._close_when_overdue()
        assert [wire.transport.is_closing() for wire in (asking_wire, silent_wire)] == [False, True]
        queued.take_in_one()
        await asking_wire.answers()
        assert label_of(asking_wire) == [40]
        assert not asking_wire.connection.has_waiting_input

    on_server(scenario)


def test_input_that_cannot_be_read_ends_its_connection_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(queued: Queued) -> None:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context["exception"]))
        (wrong, wrong_wire), (right, right_wire) = queued.connect(), queued.connect()
        error = RuntimeError("made by the test")
        monkeypatch.setattr(wrong_wire.connection, "data_received", lambda _data: (_ for _ in ()).throw(error))
        for client in (wrong, right):
            client.data_received(predict(b'{"nodes":[3]}'))
        queued.inlet.take_in(lambda: True)
        await right_wire.answers()
        assert (wrong_wire.transport.aborted, told) == (True, [error])

    on_server(scenario)


def test_the_wait_for_a_turn_counts_as_latency() -> None:
    async def scenario(queued: Queued) -> None:
        queued.clock_ms = lambda: monotonic_ms() - 10_000
        client, wire = queued.connect()
        client.data_received(predict(b'{"nodes":[3],"objective":{"latencyMs":5000}}'))
        queued.take_in_one()
        (response,) = await wire.answers()
        assert response.status == 429 or json.loads(response.body)["objectiveMet"] is False

    on_server(scenario)
