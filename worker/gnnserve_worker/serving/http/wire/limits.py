"""Limits of clients: their time, and how many of them may be connected at once."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection
from dataclasses import dataclass
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

from gnnserve_worker.serving.http.app import MOST_CONNECTIONS, RESERVED_CONNECTIONS

MOST_PIPELINED = 16
"""Requests that wait behind the one that is being answered. No more are read from their connection."""
MOST_LINGERED_BYTES = 256 * 1024 * 1024
"""Bytes that are discarded of a request that was answered before its end. None of them is kept, but receiving them
takes a third of a second."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits of a client. They are checked now and then, so a client may exceed them by one interval."""

    request_s: float = 60.0
    """Seconds from the connection or a request's first byte until the request is complete."""
    idle_s: float = 75.0
    """Time from an answer to the next request."""
    linger_s: float = 30.0
    """Seconds from an answer to the end of its request, where the answer came first: a client that is still sending
    must not lose it to a reset connection. As long as nginx and Apache linger."""
    linger_silent_s: float = 5.0
    """Time for which such a client may send nothing."""
    unread_s: float = 60.0
    """Time for which a client may read nothing of what it is sent."""
    surplus_s: float = 5.0
    """`request_s` of a connection beyond the limit."""
    look_every_s: float = 5.0


DEFAULT_PATIENCE = Patience()


@dataclass(frozen=True, slots=True)
class Room:
    """Limits of the number of connections."""

    connections: int = MOST_CONNECTIONS
    reserved: int = RESERVED_CONNECTIONS
    """Connections beyond those, for probes, scrapes and the operator, each for one answer. When these are taken too, a
    new connection takes the place of the one among them that has been silent for longest."""


DEFAULT_ROOM = Room()
_LONG_IDLE_LOOKS = 2
"""A connection that was idle at this many looks in a row may lose its place to a new one."""
_SEARCH_EVERY_S = 0.5
"""A search for idle connections looks at all of them."""
_FOUND_AT_ONCE = 64


class Occupant(Protocol):
    """The part of a connection that its place depends on."""

    def idle_looks(self) -> int:
        """Consecutive checks at which it was idle."""
        ...

    def abort(self) -> None: ...


T = TypeVar("T", bound=Occupant)


class Places(Generic[T]):
    """Tells which connections are within the limit, which are surplus, and which one is closed for a new one."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._surplus: dict[T, None] = {}
        """Open connections beyond the limit, the oldest first."""
        self._unheard: dict[T, None] = {}
        """Surplus connections whose request's head is not complete."""
        self._lingering: dict[T, None] = {}
        """Connections that were answered for the last time and only wait for the client to end, the oldest first."""
        self._dismissed: set[T] = set()
        """Aborted connections that are still counted."""
        self._idle: list[T] = []
        """Found at the last search, the longest idle one last."""
        self._next_search_s = -math.inf

    def has_place(self, connections: Collection[T], now_s: float) -> bool:
        """Whether one more connection, already among `connections`, is within the limit. Where that is needed, the
        connection is closed for it that has lingered for longest, or else the one that has been idle for longest."""
        if len(connections) - len(self._surplus) - len(self._dismissed) <= self.room.connections:
            return True
        lingering = next((one for one in self._lingering if one not in self._surplus), None)
        dismissed = self._longest_idle(connections, now_s) if lingering is None else lingering
        if dismissed is None:
            return False
        self._dismiss(dismissed)
        return True

    def take_surplus(self, connection: T) -> T | None:
        """The connection that has to be refused; None: there is room."""
        refused: T | None = None
        if len(self._surplus) >= self.room.reserved:
            lingering = next((one for one in self._surplus if one in self._lingering), None)
            if lingering is None:
                refused = next(iter(self._unheard), connection)
                self.forget(refused)
            else:
                self._dismiss(lingering)
        if refused is not connection:
            self._surplus[connection] = self._unheard[connection] = None
        return refused

    def note_heard(self, connection: T) -> None:
        self._unheard.pop(connection, None)

    def note_lingering(self, connection: T) -> None:
        self._lingering[connection] = None

    def forget(self, connection: T) -> None:
        self._surplus.pop(connection, None)
        self._unheard.pop(connection, None)
        self._lingering.pop(connection, None)
        self._dismissed.discard(connection)

    def _dismiss(self, connection: T) -> None:
        self.forget(connection)
        self._dismissed.add(connection)
        connection.abort()  # nothing is due to it, and with TLS a goodbye may take half a minute

    def _longest_idle(self, connections: Collection[T], now_s: float) -> T | None:
        while True:
            while self._idle:
                connection = self._idle.pop()
                if connection.idle_looks() >= _LONG_IDLE_LOOKS:
                    return connection
            if now_s < self._next_search_s:
                return None
            self._next_search_s = now_s + _SEARCH_EVERY_S
            idle = [(looks, c) for c in connections if (looks := c.idle_looks()) >= _LONG_IDLE_LOOKS]
            found = heapq.nlargest(_FOUND_AT_ONCE, idle, key=itemgetter(0))
            self._idle = [connection for _, connection in reversed(found)]
