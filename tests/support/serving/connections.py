"""A worker's connections without a network: the real protocol over a transport that remembers what was written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httptools
from tests.support.serving.serving import Client, FakeWorker, running

from gnnserve_api.spec.service import GNNService
from gnnserve_worker.serving.http.wire.connection import ConnectionContext, HttpConnection
from gnnserve_worker.serving.http.wire.http1 import ResponseStart
from gnnserve_worker.serving.http.wire.limits import DEFAULT_ROOM, Patience, Room
from gnnserve_worker.serving.security.access import Access

DATE = b"Sat, 21 Nov 2026 12:00:00 GMT"


@dataclass(slots=True)
class FakeTransport:
    written: bytearray = field(default_factory=bytearray)
    closed: bool = False
    reading: bool = True
    aborted: bool = False
    ended: bool = False
    """The sending half is closed."""
    unsent_bytes: int = 0
    """What the client has not taken yet."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def get_extra_info(self, _name: str) -> Any:
        return None

    def write(self, data: bytes | memoryview) -> None:
        assert not self.closed
        assert not self.ended
        self.written += data
        self.changed.set()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        assert not self.closed
        self.ended = True
        self.changed.set()

    def close(self) -> None:
        self.closed = True
        self.changed.set()

    def abort(self) -> None:
        self.aborted = True
        self.close()

    @property
    def finished(self) -> bool:
        """Nothing more is sent."""
        return self.closed or self.ended

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


@dataclass(slots=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes = b""
    complete: bool = False


class _Reader:
    def __init__(self) -> None:
        self.responses: list[Response] = []
        self._headers: dict[str, str] = {}
        self._parser = httptools.HttpResponseParser(self)

    def read(self, data: bytes) -> list[Response]:
        self._parser.feed_data(data)
        return self.responses

    def on_message_begin(self) -> None:
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode()] = value.decode()

    def on_headers_complete(self) -> None:
        self.responses.append(Response(self._parser.get_status_code(), self._headers))

    def on_body(self, body: bytes) -> None:
        self.responses[-1].body += body

    def on_message_complete(self) -> None:
        self.responses[-1].complete = True


def read_responses(data: bytes | bytearray) -> list[Response]:
    """The complete ones; interim ones (100) too."""
    return [response for response in _Reader().read(bytes(data)) if response.complete]


@dataclass(slots=True)
class Wire:
    """One client's end."""

    connection: HttpConnection
    transport: FakeTransport

    def send(self, data: bytes) -> None:
        self.connection.data_received(data)

    def responses(self) -> list[Response]:
        return read_responses(self.transport.written)

    async def answers(self, count: int = 1) -> list[Response]:
        while len(self.responses()) < count:
            self.transport.changed.clear()
            await self.transport.changed.wait()
        return self.responses()

    async def finished(self) -> None:
        while not self.transport.finished:
            self.transport.changed.clear()
            await self.transport.changed.wait()

    async def closed(self) -> None:
        while not self.transport.closed:
            self.transport.changed.clear()
            await self.transport.changed.wait()

    def leave(self) -> None:
        self.transport.closed = True
        self.connection.connection_lost(None)


@dataclass(slots=True)
class Server:
    client: Client
    shared: ConnectionContext

    def connect(self) -> Wire:
        transport = FakeTransport()
        connection = HttpConnection(self.shared, asyncio.get_running_loop())
        connection.connection_made(transport)  # type: ignore[arg-type]
        return Wire(connection, transport)


@asynccontextmanager
async def serving(
    worker: FakeWorker | None = None,
    of: GNNService | None = None,
    patience: Patience | None = None,
    access: Access | None = None,
    room: Room = DEFAULT_ROOM,
) -> AsyncIterator[Server]:
    async with running(worker or FakeWorker(), of, access=access) as client:
        shared = ConnectionContext(client.app, patience or Patience(), room, ResponseStart(DATE))
        yield Server(client, shared)
        for connection in list(shared.connections):
            connection.connection_lost(None)
        await asyncio.gather(*shared.tasks, return_exceptions=True)


def predict(body: bytes, *headers: bytes, query: bytes = b"", version: bytes = b"1.1") -> bytes:
    lines = [
        b"POST /v1/predict%b HTTP/%b" % (query, version), b"host: worker", b"content-length: %d" % len(body), *headers
    ]  # fmt: skip
    return b"\r\n".join([*lines, b"", body])
