"""Nodes that changes have touched, handed from the thread that applies them to one that asks now and then."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gnnserve_worker.graph.found_nodes import distinct

_MOST_PARTS = 4096
"""Parts that are kept apart: more of them are joined, so that what is noted and never taken has each node once. Joining
takes as long as sorting all nodes that were touched, and comes rarely."""
_MOST_ENTRIES = 1 << 20
"""Entries of parts that are kept (8 bytes each), beside twice those of the last join, which has each node twice at
most."""


@dataclass(frozen=True, slots=True)
class ChangedNodes:
    """Nodes that a group of changes has touched, int64, distinct."""

    offset: int
    """The last offset of the group."""
    listed: np.ndarray
    """Nodes whose neighbour lists are others, and those that have come or left."""
    renewed: np.ndarray
    """Nodes that have come, or whose features are others."""

    @property
    def entries(self) -> int:
        return len(self.listed) + len(self.renewed)


class TouchedSince:
    def __init__(self) -> None:
        self.on_touched: Callable[[], None] = lambda: None
        """Called, by the thread that applies changes, when there is something to take."""
        self._lock = threading.Lock()
        self._parts: deque[ChangedNodes] = deque()
        self._entries = 0
        """Entries of all parts."""
        self._joined_entries = 0
        """Entries of the part that was joined last."""

    def note(self, part: ChangedNodes) -> None:
        """By the thread that applies changes."""
        with self._lock:
            self._parts.append(part)
            self._entries += part.entries
            most = _MOST_ENTRIES + 2 * self._joined_entries
            parts: deque[ChangedNodes] = deque()
            if len(self._parts) > _MOST_PARTS or self._entries > most:
                parts, self._parts, self._entries = self._parts, deque(), 0
        if parts:
            # Without the lock, which the event loop takes: until it is joined, there is nothing to take.
            listed = distinct(one.listed for one in parts)
            joined = ChangedNodes(part.offset, listed, distinct(one.renewed for one in parts))
            with self._lock:
                self._parts.append(joined)
                self._entries = self._joined_entries = joined.entries
        self.on_touched()

    def take(self) -> ChangedNodes | None:
        """The next part, in the order in which they were applied; None: there is none. From any thread."""
        with self._lock:
            if not self._parts:
                return None
            part = self._parts.popleft()
            self._entries -= part.entries
            return part
