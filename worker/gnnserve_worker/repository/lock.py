"""The lock that lets one process at a time write in a service's folder.

It is an advisory lock on `.lock` (flock), which the kernel drops when its holder dies, however it dies. Readers need
none, because published files never change.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

from gnnserve_worker.repository import files


class _BusyError(Exception):
    """Another process holds the lock."""


def _give_up() -> NoReturn:
    raise _BusyError


class ServiceLock:
    """A re-entrant lock: a caller may hold it over several calls that each take it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mutex = threading.RLock()
        self._depth = 0

    @contextmanager
    def held(self, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
        """Hold the lock. `on_wait` is called once before waiting, when another process holds it."""
        with self._mutex:
            if self._depth > 0:
                yield
                return
            files.make_folder(self._path.parent)
            with files.storing(self._path):
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                with files.storing(self._path):
                    self._wait_for(descriptor, on_wait)
                self._depth = 1
                yield
            finally:
                self._depth = 0
                os.close(descriptor)

    @contextmanager
    def held_if_free(self) -> Iterator[bool]:
        """Hold the lock unless another process does; tells whether it is held."""
        with ExitStack() as held:
            try:
                held.enter_context(self.held(_give_up))
            except _BusyError:
                yield False
                return
            yield True

    @staticmethod
    def _wait_for(descriptor: int, on_wait: Callable[[], None] | None) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is not None:
                on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
