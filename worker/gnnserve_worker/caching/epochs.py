"""Epochs: which batches may still be reading, so that a slot can be reused without a lock on the readers' path.

A batch enters before the first of its reads is launched and leaves once the host has seen the last of them end. `wait`
returns when every batch that was inside at its call has left; a batch that enters later sees whatever the caller did
before it waited (read-copy update: McKenney and Slingwine, PDCS 1998).

Entering and leaving hold a lock for a fraction of a microsecond, and nothing blocks while it is held: the lock orders
"entered" before or after "listed the batches inside" on every memory model. The reads themselves take no lock.
"""

from __future__ import annotations

import threading


class Epochs:
    """Epochs of readers: any number of threads may enter, leave and wait. A thread that waits between its own enter and
    leave deadlocks."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside: dict[int, None] = {}
        """Tickets of the batches inside, in the order of entering: the first is the oldest."""
        self._next = 0
        self._waiting = 0

    @property
    def entered(self) -> int:
        """Number of batches that have entered so far."""
        return self._next

    def enter(self) -> int:
        """Enter, and return the ticket to leave with."""
        with self._changed:
            ticket = self._next
            self._next += 1
            self._inside[ticket] = None
            return ticket

    def leave(self, ticket: int) -> None:
        """Leave. KeyError where the ticket was given back already."""
        with self._changed:
            del self._inside[ticket]
            if self._waiting:
                self._changed.notify_all()

    def wait(self) -> None:
        """Block until every batch that is inside now has left."""
        with self._changed:
            until = self._next
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: next(iter(self._inside), until) >= until)
            finally:
                self._waiting -= 1
