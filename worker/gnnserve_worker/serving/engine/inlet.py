"""Input of one service that waits for the service's turn on the event loop.

A process with one service reads what sockets bring as it comes. With several, whose connections share one event loop,
reading is work like computing: a service with many busy connections would have its sockets read, its requests parsed
and its answers written before another one's. So what arrives waits here, and is read in the service's turns
(`shared_time.py`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Protocol

_BYTES_AS_MESSAGE = 16 * 1024
"""Bytes that cost sockets about as much as one more message."""


class InputSource(Protocol):
    """Input that waits, of one client."""

    def take_in(self) -> None:
        """Read it. Raises nothing."""
        ...


class Inlet:
    """Belongs to the event loop's thread."""

    def __init__(self, read_on: Callable[[], None], charge: Callable[[float], None]) -> None:
        """`read_on` is called when there is something to take in; `charge` with the time, in ms, that tasks of this
        service's requests took outside of its turns."""
        self._read_on = read_on
        self._charge = charge
        self._sources: deque[InputSource] = deque()
        self.messages = 0.0
        """Messages that sockets read and wrote for the service since this was last set to 0; large ones count as
        several."""

    @property
    def is_waiting(self) -> bool:
        return bool(self._sources)

    def put(self, source: InputSource) -> None:
        """Have this source read when the service has its turn, behind those that came before."""
        self._sources.append(source)
        if len(self._sources) == 1:
            self._read_on()

    def count(self, size_bytes: int) -> None:
        """Count a message that a socket brought."""
        self.messages += 1 + size_bytes / _BYTES_AS_MESSAGE

    def take_in(self, may_go_on: Callable[[], bool]) -> None:
        """Read one source, and further ones for as long as `may_go_on`."""
        sources = self._sources
        while sources:
            sources.popleft().take_in()
            if not may_go_on():
                break

    def metered(self, coroutine: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        """A coroutine that does the same, its steps charged to the service."""
        return _TimedCoroutine(coroutine, self._charge)


class _TimedCoroutine(Coroutine[Any, Any, None]):
    """A coroutine whose steps are timed."""

    __slots__ = ("_charge", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, None], charge: Callable[[float], None]) -> None:
        self._coroutine = coroutine
        self._charge = charge

    def send(self, value: Any) -> Any:
        started_s = time.perf_counter()
        try:
            return self._coroutine.send(value)
        finally:
            self._charge((time.perf_counter() - started_s) * 1000)

    def throw(
        self, kind: Any, value: BaseException | object = None, traceback: TracebackType | None = None
    ) -> Any:  # fmt: skip
        started_s = time.perf_counter()
        try:
            return self._coroutine.throw(kind)
        finally:
            self._charge((time.perf_counter() - started_s) * 1000)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        return self._coroutine.__await__()
