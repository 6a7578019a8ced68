"""What all compiled kernels share: the decorator, and random numbers that cost a nanosecond.

Kernels release the GIL and are cached on disk, so that only the first start on a machine compiles. Random numbers
are counter-based (SplitMix64): a draw depends on the key and its position, never on which thread drew it.

The cache goes by the file a kernel stands in: after a change here, delete the `__pycache__` folders, or kernels
elsewhere keep the old inlined code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile without the GIL, cached on disk where a folder can be written: set NUMBA_CACHE_DIR to name one."""
    try:
        return cast("F", njit(nogil=True, cache=True)(function))
    except RuntimeError:
        # numba finds no place for a cache, as in a container with a read-only root: compile at every start.
        return cast("F", njit(nogil=True)(function))


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_30, _27, _31, _32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


@kernel
def mix(z: np.uint64) -> np.uint64:
    """SplitMix64's finaliser: every input bit reaches every output bit."""
    z = (z ^ (z >> _30)) * _M1
    z = (z ^ (z >> _27)) * _M2
    return z ^ (z >> _31)


@kernel
def stream(key: int, depth: int, slot: int) -> np.uint64:
    """Start of an independent stream of draws for one slot of one level."""
    return mix(mix(np.uint64(key) + np.uint64(depth + 1) * GOLDEN) ^ np.uint64(slot))


@kernel
def below(bound: int, state: np.uint64) -> Any:
    """A number in [0, bound) by multiply and shift; the bias is under bound / 2^32."""
    return np.int64(((mix(state) >> _32) * np.uint64(bound)) >> _32)


@kernel
def choose_positions(degree: int, count: int, state: np.uint64, out: np.ndarray, table: np.ndarray) -> None:
    """`count` distinct positions out of [0, degree) into out[:count], every subset equally likely.

    Floyd's algorithm (Bentley and Floyd, CACM 30(9), 1987): `count` draws whatever the degree. Duplicates are found
    by looking back for a few positions, by an open-addressed table for many, so that the cost stays O(count).
    `table` is int64 scratch whose length is a power of two of at least 2·count; it is -1 all over between calls.
    """
    if count <= 32:
        for i in range(count):
            top = degree - count + i
            state += GOLDEN
            pick = below(top + 1, state)
            for j in range(i):
                if out[j] == pick:
                    pick = top
                    break
            out[i] = pick
        return
    mask = len(table) - 1
    for i in range(count):
        top = degree - count + i
        state += GOLDEN
        pick = below(top + 1, state)
        if not _insert(table, mask, pick):
            pick = top
            _insert(table, mask, pick)
        out[i] = pick
    for i in range(count):
        slot = np.int64(mix(np.uint64(out[i]))) & mask
        # Entries of one run are removed together below, so walking until a hole would stop too early: clear the run.
        while table[slot] != -1:
            table[slot] = -1
            slot = (slot + 1) & mask


@kernel
def _insert(table: np.ndarray, mask: int, value: int) -> bool:
    """False when the value was there already."""
    slot = np.int64(mix(np.uint64(value))) & mask
    while table[slot] != -1:
        if table[slot] == value:
            return False
        slot = (slot + 1) & mask
    table[slot] = value
    return True


def scratch_table(fanout: int) -> np.ndarray:
    """Scratch for `choose_positions`: int64, -1 all over."""
    size = 1 << max(1, 2 * max(1, fanout) - 1).bit_length()
    return np.full(size, -1, dtype=np.int64)
