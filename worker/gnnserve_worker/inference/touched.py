"""What changes have touched, handed from the thread that applies them to one that asks now and then."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_MOST_PARTS = 4096
"""Parts that are kept apart: more of them are joined, so that what is noted and never taken has each node once. Joining
takes as long as sorting all nodes that were touched, and comes rarely."""


@dataclass(frozen=True, slots=True)
class Touched:
    """Nodes that a group of changes has touched, int64, distinct."""

    offset: int
    """The last offset of the group."""
    listed: np.ndarray
    """Nodes whose neighbour lists are others, and those that have come or left."""
    renewed: np.ndarray
    """Nodes that have come, or whose features are others."""


class TouchedSince:
    def __init__(self) -> None:
        self.on_touched: Callable[[], None] = lambda: None
        """Called, by the thread that applies changes, when there is something to take."""
        self._lock = threading.Lock()
        self._parts: deque[Touched] = deque()

    def note(self, part: Touched) -> None:
        """By the thread that applies changes."""
        with self._lock:
            self._parts.append(part)
            if len(self._parts) > _MOST_PARTS:
                listed = np.unique(np.concatenate([one.listed for one in self._parts]))
                renewed = np.unique(np.concatenate([one.renewed for one in self._parts]))
                self._parts = deque([Touched(part.offset, listed, renewed)])
        self.on_touched()

    def take(self) -> Touched | None:
        """The next part, in the order in which they were applied; None: there is none. From any thread."""
        with self._lock:
            return self._parts.popleft() if self._parts else None
