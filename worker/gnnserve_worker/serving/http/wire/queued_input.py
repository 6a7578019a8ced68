"""A connection whose input waits for its service's turn, since other services share the event loop.

It stands between transport and connection: what arrives is kept, with its time, until the service's inlet takes it in
(`serving/inlet.py`). Of one connection at most two pieces are kept: after the second nothing more is read from its
socket, so that a client cannot send faster than its service has turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gnnserve_worker.serving.http.wire.connection import Connection
from gnnserve_worker.serving.inlet import Inlet
from gnnserve_worker.serving.model import monotonic_ms


class QueuedInput(asyncio.Protocol):
    def __init__(self, connection: Connection, inlet: Inlet, clock_ms: Callable[[], float] = monotonic_ms) -> None:
        self._connection = connection
        self._inlet = inlet
        self._clock_ms = clock_ms
        self._unread = b""
        """Arrived, and not read yet."""
        self._arrived_ms = 0.0
        """When its beginning arrived."""
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._connection.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unread = b""
        self._connection.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inlet.count(len(data))
        if self._unread:
            self._unread += data
            self._connection.hold_reading()
            return
        self._unread, self._arrived_ms = data, self._clock_ms()
        self._connection.has_waiting_input = True
        self._inlet.put(self)

    def eof_received(self) -> None:
        # The transport closes next, and what the client sent before its end is answered where that takes no batch.
        self.take_in()

    def take_in(self) -> None:
        unread, self._unread = self._unread, b""
        connection = self._connection
        if not unread or connection.transport.is_closing():
            return
        connection.read_on()
        try:
            connection.read(unread, self._arrived_ms)
        except Exception as error:  # noqa: BLE001  (as the event loop does where data are read as they come)
            asyncio.get_running_loop().call_exception_handler({
                "message": "input of a connection could not be read", "exception": error,
                "transport": connection.transport, "protocol": connection,
            })  # fmt: skip
            connection.abort()
