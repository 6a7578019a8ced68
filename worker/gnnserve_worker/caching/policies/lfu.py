"""Least frequently used (LFU): every miss is admitted; the item with the fewest reads since its admission is evicted.

Constant time per read (Shah, Mitra, Matani, "An O(1) algorithm for implementing the LFU cache eviction scheme", 2010):
residents of one count form a list, newest last, and the counts that occur form an ascending list. Of equal counts, the
item that has had it longest is evicted. Counts are dropped with the eviction.
"""

from __future__ import annotations

import numpy as np

from gnnserve_api.device import CachePolicy
from gnnserve_worker.caching.policies.fifo import ONCE
from gnnserve_worker.caching.policies.toggles import Toggles, toggle
from gnnserve_worker.caching.policy import NO_ITEMS, ResidencyChanges
from gnnserve_worker.kernel_cache import inlined, kernel

_NONE = -1


class LfuPolicy:
    name = CachePolicy.LFU

    def __init__(self, items: int, capacity: int) -> None:
        self.capacity = min(capacity, items)
        self.resident = np.zeros(items, dtype=np.bool_)
        slots = max(1, self.capacity)
        self._slot_of = np.full(items, _NONE, dtype=np.int32)
        self._slots = np.full((slots, 4), _NONE, dtype=np.int32)
        """For each slot: its item, its group, and the slots before and after it in the group."""
        self._groups = np.full((slots + 1, 4), _NONE, dtype=np.int32)
        """For each group: its first and its last slot, the groups of the next lower and of the next higher count."""
        self._counts = np.zeros(slots + 1, dtype=np.int64)
        """Count of reads that each group stands for."""
        self._free = np.arange(slots + 1, dtype=np.int32)
        """Groups without slots: the first `state[2]` places."""
        self._state = np.array([0, _NONE, slots + 1], dtype=np.int64)
        """Slots in use, the group of the lowest count, free groups."""
        self._toggles = Toggles(items)

    def begin(self) -> np.ndarray:
        return NO_ITEMS

    def access(self, items: np.ndarray, times: np.ndarray | None = None) -> int:
        if not self.capacity:
            return 0
        toggles = self._toggles
        toggles.reserve(len(items))
        return _access(
            items, ONCE if times is None else times, self.resident, self._slot_of, self._slots, self._groups,
            self._counts, self._free, self._state, toggles.odd, toggles.log, toggles.count,
        )  # fmt: skip

    def end_round(self) -> ResidencyChanges:
        return self._toggles.take(self.resident)


# Columns of the slots and of the groups.
_ITEM, _GROUP, _BEFORE, _AFTER = 0, 1, 2, 3
_FIRST, _LAST, _LOWER, _HIGHER = 0, 1, 2, 3


@kernel
def _access(
    items: np.ndarray, times: np.ndarray, resident: np.ndarray, slot_of: np.ndarray, slots: np.ndarray,
    groups: np.ndarray, counts: np.ndarray, free: np.ndarray, state: np.ndarray,
    odd: np.ndarray, log: np.ndarray, count: np.ndarray,
) -> int:  # fmt: skip
    hits = 0
    for i in range(len(items)):
        item = items[i]
        repeats = int(times[i]) if len(times) else 1
        if repeats < 1:
            continue
        slot = slot_of[item]
        if slot >= 0:
            hits += repeats
            group = slots[slot, _GROUP]
            _raise(slot, group, counts[group] + repeats, slots, groups, counts, free, state)
            continue
        hits += repeats - 1
        if state[0] < len(slots):
            slot = int(state[0])
            state[0] += 1
        else:
            group = int(state[1])
            slot = groups[group, _FIRST]
            gone = slots[slot, _ITEM]
            _unlink(slot, group, slots, groups)
            if groups[group, _FIRST] == _NONE:
                _remove(group, groups, free, state)
            slot_of[gone] = _NONE
            resident[gone] = False
            toggle(gone, odd, log, count)
        slot_of[item] = slot
        slots[slot, _ITEM] = item
        resident[item] = True
        toggle(item, odd, log, count)
        _append(slot, _NONE, repeats, slots, groups, counts, free, state)
    return hits


@inlined
def _raise(
    slot: int, group: int, wanted: int, slots: np.ndarray, groups: np.ndarray, counts: np.ndarray,
    free: np.ndarray, state: np.ndarray,
) -> None:  # fmt: skip
    """Move a slot to the count `wanted`, which is above its group's."""
    _unlink(slot, group, slots, groups)
    _append(slot, group, wanted, slots, groups, counts, free, state)
    if groups[group, _FIRST] == _NONE:
        _remove(group, groups, free, state)


@inlined
def _append(
    slot: int, lower: int, wanted: int, slots: np.ndarray, groups: np.ndarray, counts: np.ndarray,
    free: np.ndarray, state: np.ndarray,
) -> None:  # fmt: skip
    """Insert a slot into the group of that count, searched from the group `lower` upwards (_NONE: from the lowest)."""
    higher = np.int64(state[1]) if lower == _NONE else np.int64(groups[lower, _HIGHER])
    below = np.int64(lower)
    while higher != _NONE and counts[higher] < wanted:
        below = higher
        higher = np.int64(groups[higher, _HIGHER])
    if higher != _NONE and counts[higher] == wanted:
        group = higher
    else:
        state[2] -= 1
        group = np.int64(free[state[2]])
        counts[group] = wanted
        groups[group, _FIRST] = _NONE
        groups[group, _LAST] = _NONE
        groups[group, _LOWER] = below
        groups[group, _HIGHER] = higher
        if below == _NONE:
            state[1] = group
        else:
            groups[below, _HIGHER] = group
        if higher != _NONE:
            groups[higher, _LOWER] = group
    last = groups[group, _LAST]
    slots[slot, _GROUP] = group
    slots[slot, _BEFORE] = last
    slots[slot, _AFTER] = _NONE
    if last == _NONE:
        groups[group, _FIRST] = slot
    else:
        slots[last, _AFTER] = slot
    groups[group, _LAST] = slot


@inlined
def _unlink(slot: int, group: int, slots: np.ndarray, groups: np.ndarray) -> None:
    before, after = slots[slot, _BEFORE], slots[slot, _AFTER]
    if before == _NONE:
        groups[group, _FIRST] = after
    else:
        slots[before, _AFTER] = after
    if after == _NONE:
        groups[group, _LAST] = before
    else:
        slots[after, _BEFORE] = before


@inlined
def _remove(group: int, groups: np.ndarray, free: np.ndarray, state: np.ndarray) -> None:
    lower, higher = groups[group, _LOWER], groups[group, _HIGHER]
    if lower == _NONE:
        state[1] = higher
    else:
        groups[lower, _HIGHER] = higher
    if higher != _NONE:
        groups[higher, _LOWER] = lower
    free[state[2]] = group
    state[2] += 1
