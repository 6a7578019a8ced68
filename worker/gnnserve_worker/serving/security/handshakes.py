"""A TLS listener that limits the number of concurrent handshakes.

A handshake costs the worker memory and a file descriptor; a client that never sends ClientHello costs itself nothing.
Beyond the limit no connection is accepted, so that new ones wait in the kernel's queue until a handshake ends; the
oldest is aborted for that once it has had a second. Ordinary clients finish within milliseconds, so silent ones delay
the others by seconds at most.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from gnnserve_worker.serving.security.tls import CLOSE_TIMEOUT_S, ListeningTls

_log = logging.getLogger(__name__)
_NO_FILES_S = 1.0
"""Pause after a failed accept; as a rule the process has no file descriptor left."""


@dataclass(frozen=True, slots=True)
class HandshakeLimits:
    at_once: int = 256
    timeout_s: float = 10.0
    """Longest time from the connection to the end of the handshake; a slower client is disconnected."""
    undisturbed_s: float = 1.0
    """A handshake is never aborted earlier, however many connections wait."""


DEFAULT_HANDSHAKE_LIMITS = HandshakeLimits()


class TlsListener:
    """Accepts connections from one socket, until it is closed."""

    def __init__(
        self,
        sock: socket.socket,
        tls: ListeningTls,
        connect: Callable[[], asyncio.Protocol],
        limits: HandshakeLimits,
    ) -> None:
        """`sock` must be listening already."""
        self._sock = sock
        self._tls = tls
        self._connect = connect
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._begun: dict[asyncio.Task[None], float] = {}
        """Start of each handshake, the oldest first."""
        self._ended = asyncio.Event()
        sock.setblocking(False)
        self._accepting = self._loop.create_task(self._accept())

    @property
    def under_way(self) -> int:
        return len(self._begun)

    async def close(self) -> None:
        tasks = {self._accepting, *self._begun}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _accept(self) -> None:
        while True:
            while len(self._begun) >= self._limits.at_once:
                await self._end_one()
            try:
                connection, _ = await self._loop.sock_accept(self._sock)
            except OSError as error:
                _log.warning("a connection cannot be accepted: %s", error.strerror)
                await asyncio.sleep(_NO_FILES_S)
                continue
            task = self._loop.create_task(self._shake_hands(connection))
            self._begun[task] = self._loop.time()
            task.add_done_callback(self._forget)

    async def _end_one(self) -> None:
        oldest, begun_s = next(iter(self._begun.items()))
        self._ended.clear()
        patience_s = begun_s + self._limits.undisturbed_s - self._loop.time()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(patience_s, 0.0)):
                await self._ended.wait()
                return
        oldest.cancel()
        await asyncio.wait({oldest})

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._begun[task]
        self._ended.set()

    async def _shake_hands(self, connection: socket.socket) -> None:
        # Errors of the client, or its disconnection, need no handling.
        with suppress(OSError):
            await self._loop.connect_accepted_socket(
                self._connect,
                connection,
                ssl=self._tls.context,
                ssl_handshake_timeout=self._limits.timeout_s,
                ssl_shutdown_timeout=CLOSE_TIMEOUT_S,
            )
