"""The worker's process: the event loop from its start to an orderly end.

On SIGTERM or SIGINT a worker may first stay a while as a lame duck: it answers, but `/readyz` fails and every answer
closes its connection, so that clients move on without an error. Then the engine drains, with the socket still open: new
requests get 503 while accepted ones are answered. Then the connections close, and the process may exit with 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import uvloop

from gnnserve_worker.serving.engine.engine import Engine
from gnnserve_worker.serving.process.loop_calls import LoopCalls
from gnnserve_worker.serving.process.served_service import ServedService
from gnnserve_worker.serving.security.handshakes import HandshakeLimits

BACKLOG = 2048
"""Connections that wait in the kernel's queue of a socket."""
_POLL_S = 0.02
_EXIT_POLL_S = 0.1
_LINGER_S = 5
"""Time for clients that are half-way through sending a request, once every complete one is answered."""


class ServerProcess:
    """The event loop from its start to the end of the drain."""

    def __init__(
        self,
        services: dict[str, ServedService],
        engine: Engine,
        calls: LoopCalls,
        lame_duck_s: float,
        handshakes: HandshakeLimits,
    ) -> None:
        self._services = services
        self._handshakes = handshakes
        self._calls = calls
        self.should_exit = False
        """Drain and end; any thread may set it."""
        self._force_exit = False
        """Do not wait for accepted requests."""
        self._is_closing = False
        """No service is added any more."""
        self._retiring: set[asyncio.Future[None]] = set()
        """Services that are being removed: each is done once its future is."""
        self.when_started: Callable[[], object] = lambda: None
        self._engine = engine
        self._lame_duck_s = lame_duck_s

    def run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        with self._captured_signals():
            for served in self._services.values():
                await served.listener.open(served.sock, BACKLOG, served.tls, self._handshakes)
                await served.open_grpc()
            self._calls.loop = asyncio.get_running_loop()
            self._engine.start(self._on_engine_stopped)
            self.when_started()
            while not self.should_exit:
                await asyncio.sleep(_EXIT_POLL_S)
            await self._shut_down()

    async def open(self, name: str, served: ServedService) -> None:
        """Answer for a service that came later."""
        if self._is_closing:
            served.sock.close()
            await self._close_grpc(served)
            return
        await served.open_grpc()
        self._services[name] = served
        served.app.leaving = self.should_exit
        await served.listener.open(served.sock, BACKLOG, served.tls, self._handshakes)
        served.begin()

    async def retire(self, name: str) -> None:
        """Drain one service and close its connections."""
        if self._is_closing:
            return
        served, engine = self._services.pop(name), self._engine
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._retiring.add(done)
        try:
            served.app.leaving = True
            began_s = time.monotonic()
            while served.answers and time.monotonic() < began_s + self._lame_duck_s:
                await asyncio.sleep(_POLL_S)
            await self._close_grpc(served)
            engine.retire(name)
            while not engine.is_done_with(name) and engine.alive and not self._force_exit:
                await asyncio.sleep(_POLL_S)
            await self._close(served)
            served.end()
            engine.remove(name)
        finally:
            self._retiring.discard(done)
            done.set_result(None)

    async def _close_grpc(self, served: ServedService) -> None:
        # While the engine answers: clients of gRPC are told to connect anew, and lose nothing by it.
        await served.close_grpc(_LINGER_S, lambda: self._force_exit)

    async def _close(self, served: ServedService) -> None:
        await served.listener.close(_LINGER_S, lambda: self._force_exit)
        await served.app.close()

    async def _shut_down(self) -> None:
        self._leave()
        drain_at_s = time.monotonic() + self._lame_duck_s
        # A worker without a revision needs no lame-duck phase.
        while self._engine.answers and self._lame_duck_s and time.monotonic() < drain_at_s:
            await asyncio.sleep(_POLL_S)
        self._lame_duck_s = 0.0  # from here on SIGINT means: do not wait for the queue either
        await asyncio.gather(*(self._close_grpc(served) for served in self._services.values()))
        self._engine.drain()
        while self._engine.alive and not self._force_exit:
            await asyncio.sleep(_POLL_S)
        if self._force_exit:
            self._engine.abandon()
        self._is_closing = True
        # At once: the time that clients have to complete their requests is that of the whole server.
        await asyncio.gather(*map(self._close, self._services.values()), *self._retiring)

    def _leave(self) -> None:
        for served in self._services.values():
            served.app.leaving = True

    def _handle_exit(self, number: int, _frame: FrameType | None) -> None:
        if self._lame_duck_s:
            if self.should_exit:
                self._lame_duck_s = 0.0  # second signal: drain now
            self._leave()  # at once, and not when the loop looks next
        elif self.should_exit and number == signal.SIGINT:
            self._force_exit = True
        self.should_exit = True

    def _on_engine_stopped(self) -> None:
        # Without a request to stop, this is a crash: exit and be restarted rather than refuse for ever.
        self.should_exit = True

    @contextlib.contextmanager
    def _captured_signals(self) -> Iterator[None]:
        """A handled signal is not raised again afterwards: a drained exit is a success."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self._handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
