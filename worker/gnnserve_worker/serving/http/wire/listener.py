"""A server's listening socket and all its connections, until they are closed."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from email.utils import formatdate

from gnnserve_worker.serving.engine.inlet import Inlet
from gnnserve_worker.serving.http.app import ServingApp
from gnnserve_worker.serving.http.wire.connection import ConnectionContext, QueuedInput
from gnnserve_worker.serving.http.wire.http1 import ResponseStart
from gnnserve_worker.serving.http.wire.limits import DEFAULT_PATIENCE, DEFAULT_ROOM, Patience, Room
from gnnserve_worker.serving.security.handshakes import HandshakeLimits, TlsListener
from gnnserve_worker.serving.security.tls import ListeningTls

_log = logging.getLogger(__name__)
_POLL_S = 0.02
_GIVING_UP_S = 1.0
"""How long requests that are given up may take to say so."""
_DATE_EVERY_S = 1.0


class HttpListener:
    """Belongs to the event loop's thread."""

    def __init__(self, app: ServingApp, patience: Patience = DEFAULT_PATIENCE, room: Room = DEFAULT_ROOM) -> None:
        self.shared = ConnectionContext(app, patience, room, ResponseStart(_encode_date()))
        self.tls: TlsListener | None = None
        """The TLS listener, where connections are encrypted."""
        self._sock: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._dating: asyncio.TimerHandle | None = None

    async def open(
        self, sock: socket.socket, backlog: int, tls: ListeningTls | None, handshakes: HandshakeLimits
    ) -> None:
        """Accept connections of `sock` from now on. With `tls` it must be listening already."""
        self._sock = sock
        if tls is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self.shared.connect, sock=sock, backlog=backlog)
        else:
            self.tls = TlsListener(sock, tls, self.shared.connect, handshakes)
        self._renew_date()

    def resize(self, room: Room) -> None:
        """Keep as many connections from now on. Those beyond stay; new ones take the places of idle ones."""
        self.shared.app.most_connections = room.connections
        self.shared.places.room = room

    def queue_input(self, inlet: Inlet) -> None:
        """Have what arrives wait for the service's turns from now on."""
        if self.shared.inlet is None:
            self.shared.inlet = inlet
            for connection in self.shared.connections:
                connection.transport.set_protocol(QueuedInput(connection, inlet))

    async def close(self, linger_s: float, is_forced: Callable[[], bool]) -> None:
        """Accept no more connections; close each once its answer is sent. Clients that are half-way through a request
        have `linger_s` to complete it, unless `is_forced` becomes true."""
        if self.tls is not None:
            await self.tls.close()
        if self._server is not None:
            self._server.close()
        if self._sock is not None:
            self._sock.close()
        if self.shared.inlet is not None:
            # What has arrived is answered.
            self.shared.inlet.take_in(lambda: True)
        for connection in tuple(self.shared.connections):
            connection.shut_down()
        try:
            async with asyncio.timeout(linger_s):
                await asyncio.sleep(0)
                while (self.shared.connections or self.shared.tasks) and not is_forced():
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            given_up = tuple(self.shared.tasks)
            for task in given_up:
                task.cancel()
            if given_up:
                _log.error("incomplete %g s after the drain and given up: %d requests", linger_s, len(given_up))
                # Their clients are told so.
                await asyncio.wait(given_up, timeout=_GIVING_UP_S)
        # Nothing reads what else they send.
        for connection in tuple(self.shared.connections):
            connection.abort()
        if self._dating is not None:
            self._dating.cancel()

    def _renew_date(self) -> None:
        self.shared.start.set_date(_encode_date())
        self._dating = asyncio.get_running_loop().call_later(_DATE_EVERY_S, self._renew_date)


def _encode_date() -> bytes:
    return formatdate(time.time(), usegmt=True).encode()
