"""Arrays that grow as more comes and keep what they have.

Scratch memory, of which nothing is kept, is replaced by `kernels.primitives.scratch_for`. Arrays over address space
that was reserved for all that may ever come are `tables/growing.py`.
"""

from __future__ import annotations

import numpy as np

_FEWEST = 64


def enlarged(array: np.ndarray, used: int, count: int, most: int | None = None) -> np.ndarray:
    """The array, or where it has no room for `count` items another one that has, with the first `used` of them. `most`:
    room for so many is enough, whatever comes."""
    if len(array) >= count:
        return array
    room = max(count, 2 * len(array), _FEWEST)
    longer = np.empty((room if most is None else max(count, min(room, most)), *array.shape[1:]), array.dtype)
    longer[:used] = array[:used]
    return longer


class GrowingArray:
    """Items that come at the end and leave there, in memory for about twice as many."""

    def __init__(self, item_shape: tuple[int, ...], dtype: type[np.generic], most: int | None = None) -> None:
        """`most`: items that there may be at a time, beyond which there is no room in advance; None: any number."""
        self._array = np.empty((0, *item_shape), dtype)
        self._count = 0
        self._most = most

    def __len__(self) -> int:
        return self._count

    @property
    def items(self) -> np.ndarray:
        """All of them, to be read and written until more come, [items, …]."""
        return self._array[: self._count]

    def extend(self, items: np.ndarray) -> None:
        """Add these at the end, [items, …]."""
        count = self._count + len(items)
        self._array = enlarged(self._array, self._count, count, self._most)
        self._array[self._count : count] = items
        self._count = count

    def drop_last(self) -> None:
        """Take the last one away."""
        self._count -= 1
