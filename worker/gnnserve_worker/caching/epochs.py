"""Who may still be reading: what lets a slot be written again without a lock that readers would feel.

A batch enters before the first of its reads is launched and leaves once the last of them has ended, as the host has
seen. `wait` returns when everybody who was inside as it was called has left; who enters later began after whatever the
caller did before it waited, and sees it (read-copy-update: McKenney and Slingwine, *Read-Copy Update*, PDCS 1998).

Entering and leaving take a lock for a fraction of a microsecond, in which nobody ever waits for anything: that lock
orders "entered" before or after "looked who is inside", on every memory model, and the reads themselves take none.
"""

from __future__ import annotations

import threading


class Epochs:
    """Any number of threads enter, leave and wait. A thread that waits between its own two calls waits for ever."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside: dict[int, None] = {}
        """Tickets in the order in which they were given, so the first is the oldest."""
        self._next = 0
        self._waiting = 0

    @property
    def entered(self) -> int:
        """How many batches have entered so far."""
        return self._next

    def enter(self) -> int:
        """The ticket to leave with."""
        with self._changed:
            ticket = self._next
            self._next += 1
            self._inside[ticket] = None
            return ticket

    def leave(self, ticket: int) -> None:
        """KeyError: it has left already."""
        with self._changed:
            del self._inside[ticket]
            if self._waiting:
                self._changed.notify_all()

    def wait(self) -> None:
        """Until all who are inside now have left."""
        with self._changed:
            until = self._next
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: next(iter(self._inside), until) >= until)
            finally:
                self._waiting -= 1
