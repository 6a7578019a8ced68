"""Scratch memory of a run: fresh pages for rows of every layer would take longer than what is computed in them."""

from __future__ import annotations

import numpy as np

from gnnserve_worker.kernels.primitives import room_for

_ALIGNED = 16
"""Rows begin at a line of the cache."""


class RunMemory:
    """Memory of one thread, given out one array behind the other until the run ends. It grows to the largest run."""

    def __init__(self) -> None:
        self._room = np.empty(0, np.float32)
        self._used = 0

    def begin(self) -> None:
        """Take back what the run before was given."""
        if self._used > len(self._room):
            self._room = np.empty(room_for(self._used), np.float32)
        self._used = 0

    def rows(self, count: int, columns: int) -> np.ndarray:
        """float32 [count, columns], with any content."""
        start, size = self._used, count * columns
        self._used = start + -(-size // _ALIGNED) * _ALIGNED
        if self._used > len(self._room):
            return np.empty((count, columns), np.float32)
        return self._room[start : start + size].reshape(count, columns)


def taken(rows: np.ndarray, columns: slice, memory: RunMemory) -> np.ndarray:
    """Those columns of rows, float32 in C order, which kernels are compiled for."""
    width = columns.stop - columns.start
    if width == rows.shape[1]:
        return rows
    found = memory.rows(len(rows), width)
    found[:] = rows[:, columns]
    return found
