"""What several test processes use at once: the first one begins it, the last one ends it.

Each holds a lock on one file, shared, for as long as it uses the thing. Who can have that lock alone is the last one.
The kernel frees the lock of a process however that process ends.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.cluster.harness.commands import only_one, say


@dataclass(frozen=True, slots=True)
class Use:
    """One process's share of the thing."""

    handle: IO[str]

    @contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """Waits until no other process uses it, and keeps it from others meanwhile."""
        say(f"waiting to be alone with {what}")
        fcntl.flock(self.handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self.handle, fcntl.LOCK_SH)

    def is_alone(self) -> bool:
        """Keeps the lock, as it was or alone."""
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # A lock that cannot be exchanged is lost.
            fcntl.flock(self.handle, fcntl.LOCK_SH)
            return False
        return True

    def share(self) -> None:
        fcntl.flock(self.handle, fcntl.LOCK_SH)


@contextmanager
def shared(lock: Path, begin: Callable[[bool], None], end: Callable[[], None]) -> Iterator[Use]:
    """`begin` learns whether no other process uses it yet; the last process calls `end`. Never do two of these calls
    overlap."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    turn = lock.with_name(f"{lock.name}.turn")
    what = f"begin or end with {lock.stem}"
    with lock.open("w") as handle:
        use = Use(handle)
        try:
            with only_one(turn, what):
                # Within the turn: of two that come at the same time, one is the first.
                use.share()
                is_first = use.is_alone()
                use.share()
                begin(is_first)
            yield use
        finally:
            with only_one(turn, what):
                if use.is_alone():
                    end()
