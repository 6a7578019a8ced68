"""Connections over TLS: how many of them may be in their handshake at once, and who has to go when there are more.

A handshake costs memory and a file, and whoever says nothing pays nothing for it. Beyond the limit nobody is accepted,
so that newcomers wait in the kernel's queue, until one ends; the oldest is ended for that once it has had a second.
Clients in a hurry finish within milliseconds, so that silent ones hold up the others for seconds at most.
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
"""Before the next try, where a connection cannot be accepted: the process has no file left, as a rule."""


@dataclass(frozen=True, slots=True)
class HandshakeLimits:
    at_once: int = 256
    timeout_s: float = 10.0
    """From the connection to the end of the handshake; whoever is slower is cut off."""
    undisturbed_s: float = 1.0
    """Nobody is cut off earlier, however many wait."""


DEFAULT_HANDSHAKE_LIMITS = HandshakeLimits()


class TlsListener:
    """Accepts from one socket, until it is closed."""

    def __init__(
        self,
        sock: socket.socket,
        tls: ListeningTls,
        connect: Callable[[], asyncio.Protocol],
        limits: HandshakeLimits,
    ) -> None:
        """`sock` listens already."""
        self._sock = sock
        self._tls = tls
        self._connect = connect
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._begun: dict[asyncio.Task[None], float] = {}
        """When, the oldest first."""
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
        # What the other side does wrong, and when it leaves, is its own affair.
        with suppress(OSError):
            await self._loop.connect_accepted_socket(
                self._connect,
                connection,
                ssl=self._tls.context,
                ssl_handshake_timeout=self._limits.timeout_s,
                ssl_shutdown_timeout=CLOSE_TIMEOUT_S,
            )
