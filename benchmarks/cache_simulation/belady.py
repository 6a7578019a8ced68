"""The upper bound of hit rates: a cache that knows all reads to come (Belady's MIN), for the simulator only.

No cache that admits an item when it is read, or leaves it out, and starts full at no cost, hits more often: when
capacity is exceeded, the item whose next read lies furthest ahead is evicted, or not admitted. (Belady, "A study of
replacement algorithms for a virtual-storage computer", 1966; leaving items out: McFarling 1992.)

So it is enough to keep the positions of next reads: a read hits when its own position was kept. They lie in a tree of
bitmaps, 64 to a word; finding the greatest reads one word per level.
"""

from __future__ import annotations

import numpy as np

from gnnserve_worker.kernel_cache import inlined, kernel

_LEVELS = 7
"""Levels of the tree: 64^7 reads are more than memory holds."""


def belady_hits(reads: np.ndarray, items: int, capacity: int) -> np.ndarray:
    """Whether each of `reads` (items, int32 or int64) hits, bool [reads]."""
    if capacity == 0 or len(reads) == 0:
        return np.zeros(len(reads), dtype=np.bool_)
    upcoming, first = _next_reads(reads, items)
    begin = np.sort(first[first < len(reads)])[:capacity]
    starts = [0]
    size = len(reads)
    for _ in range(_LEVELS):
        size = -(-size // 64)
        starts.append(starts[-1] + size)
        if size == 1:
            break
    bits = np.zeros(starts[-1], dtype=np.uint64)
    return _replay(upcoming, begin, capacity, bits, np.array(starts[:-1], dtype=np.int64))


@kernel
def _next_reads(reads: np.ndarray, items: int) -> tuple[np.ndarray, np.ndarray]:
    """The position at which each read's item is read next, and the first position of each item; len(reads) means
    never."""
    count = len(reads)
    upcoming = np.empty(count, dtype=np.int64)
    first = np.full(items, count, dtype=np.int64)
    for position in range(count - 1, -1, -1):
        item = reads[position]
        upcoming[position] = first[item]
        first[item] = position
    return upcoming, first


@kernel
def _replay(upcoming: np.ndarray, begin: np.ndarray, capacity: int, bits: np.ndarray, starts: np.ndarray) -> np.ndarray:
    count = len(upcoming)
    hit = np.zeros(count, dtype=np.bool_)
    for position in begin:
        _add(position, bits, starts)
    kept = len(begin)
    for position in range(count):
        if bits[position >> 6] >> np.uint64(position & 63) & np.uint64(1):
            hit[position] = True
            _take(position, bits, starts)
            kept -= 1
        if upcoming[position] < count:
            _add(upcoming[position], bits, starts)
            kept += 1
            if kept > capacity:
                _take(_greatest(bits, starts), bits, starts)
                kept -= 1
    return hit


@inlined
def _add(position: int, bits: np.ndarray, starts: np.ndarray) -> None:
    for level in range(len(starts)):
        word = starts[level] + (position >> 6)
        before = bits[word]
        bits[word] = before | (np.uint64(1) << np.uint64(position & 63))
        if before:
            return
        position >>= 6


@inlined
def _take(position: int, bits: np.ndarray, starts: np.ndarray) -> None:
    for level in range(len(starts)):
        word = starts[level] + (position >> 6)
        bits[word] &= ~(np.uint64(1) << np.uint64(position & 63))
        if bits[word]:
            return
        position >>= 6


@inlined
def _greatest(bits: np.ndarray, starts: np.ndarray) -> int:
    position = 0
    for level in range(len(starts) - 1, -1, -1):
        position = (position << 6) | _highest_bit(bits[starts[level] + position])
    return position


@inlined
def _highest_bit(word: np.uint64) -> int:
    found = 0
    for step in (32, 16, 8, 4, 2, 1):
        if word >> np.uint64(step):
            word >>= np.uint64(step)
            found += step
    return found
