"""Memory that a server keeps, read from the outside while it is loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_FIELDS = ("VmRSS", "RssAnon", "RssFile")


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of all given processes together."""

    rss_bytes: int
    anonymous_bytes: int
    """RssAnon: their own, without mapped files."""
    file_bytes: int
    """RssFile: mapped files that are in memory; what several processes map counts for each."""


def read_memory(pids: Sequence[int]) -> Memory:
    """OSError where one of them is gone."""
    totals_kib = dict.fromkeys(_FIELDS, 0)
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in totals_kib:
                totals_kib[name] += int(value.split()[0])
    return Memory(*(totals_kib[name] * 1024 for name in _FIELDS))


class MemoryWatch:
    """The most that was anonymous at once between entering and leaving: read at both, and every `every_s` between. The
    kernel keeps such a mark for all resident memory (VmHWM), and none for anonymous memory."""

    def __init__(self, read: Callable[[], Memory], every_s: float) -> None:
        self.most_anonymous_bytes = 0
        self._read = read
        self._every_s = every_s
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory watch", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._left.set()
        self._thread.join()
        if error is None:
            self._look()

    def _watch(self) -> None:
        while not self._left.wait(self._every_s):
            self._look()

    def _look(self) -> None:
        self.most_anonymous_bytes = max(self.most_anonymous_bytes, self._read().anonymous_bytes)
