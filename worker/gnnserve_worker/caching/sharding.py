"""Layout of a cache: rows are cut into blocks of columns, memory into slots, slots over devices. Pure arithmetic.

Columns are in rank order, so a variant that reads fewer of them touches the first blocks only: equal memory holds k
times as many nodes of a k× variant, and a wider one finds what the narrower left there and fetches the rest.

Several devices form one cache: a slot's number says on which device it lies, and every device reads the memory of every
other. An item's home is the device `node % devices`, so that reads spread evenly; where that is full, any other will
do. Hence two devices keep exactly what one of twice the size would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LINE_BYTES = 128
"""Line size of a GPU's first-level cache. A slot is a whole number of lines: see `slots.py`."""
_MOST_BLOCKS = 16
"""Most blocks that a row is cut into: each costs a directory lookup, and 12 bytes for every node, cached or not."""
_DIRECTORY_BYTES = 4
_COUNTER_BYTES = 8
"""A counter: the count of reads, and its value when it was last taken."""
COUNTERS_AT_ONCE = 1 << 20
"""Counters that are taken at once: few, so that taking them needs little memory."""
_MOST_SLOTS = 2**31 - 1
"""Most slots over all devices: entries of the directory are int32."""
_SCRATCH_BYTES = 48
"""Scratch for each counter that is taken: its copy, the difference, and position, item and count if it was read."""
_STAGING_BYTES = 4 << 20
_STAGED_BYTES = 16
"""Item and slot of a block that is being copied, in addition to its row."""


@dataclass(frozen=True, slots=True)
class CachePlan:
    nodes: int
    blocks: int
    block_columns: int
    """A power of two."""
    block_bytes: int
    slots: tuple[int, ...]
    """Slots of each device. The first device computes and holds directory and counters as well."""

    @property
    def items(self) -> int:
        return self.blocks * self.nodes

    @property
    def capacity(self) -> int:
        """Most items that are kept at a time."""
        return sum(self.slots)

    @property
    def slots_per_device(self) -> int:
        """Distance between the numbers of two devices' first slots; a device with less room leaves numbers unused."""
        return max(self.slots)

    @property
    def staged_items(self) -> int:
        """Most blocks that are copied to a device at once."""
        return min(self.items, max(1, _STAGING_BYTES // self.block_bytes))

    @property
    def memory_bytes(self) -> tuple[int, ...]:
        """Bytes on each device, everything counted."""
        fixed = [_fixed_bytes(self.items, self.block_bytes, computes=device == 0) for device in range(len(self.slots))]
        return tuple(of_all + slots * self.block_bytes for of_all, slots in zip(fixed, self.slots, strict=True))


def plan_cache(
    *, nodes: int, columns: int, widths: Sequence[int], item_bytes: int, budgets_bytes: Sequence[int]
) -> CachePlan | None:
    """The largest cache of rows of `columns` numbers of `item_bytes`; None where no slot fits.

    `widths`: columns that each variant reads. `budgets_bytes`: memory allowed on each device, the computing one first.
    """
    block_columns = choose_block_columns(columns, widths, item_bytes)
    block_bytes = block_columns * item_bytes
    blocks = -(-columns // block_columns)
    items = blocks * nodes
    most = _MOST_SLOTS // len(budgets_bytes)
    room = [
        min(most, max(0, (budget - _fixed_bytes(items, block_bytes, computes=device == 0)) // block_bytes))
        for device, budget in enumerate(budgets_bytes)
    ]
    if items == 0 or sum(room) == 0 or budgets_bytes[0] < _fixed_bytes(items, block_bytes, computes=True):
        return None
    return CachePlan(nodes, blocks, block_columns, block_bytes, share_out(items, room))


def choose_block_columns(columns: int, widths: Sequence[int], item_bytes: int) -> int:
    """The largest power of two within the narrowest variant's columns that is whole lines and not too many blocks."""
    wanted = max(1, min(columns, *widths))
    block = 1 << (wanted.bit_length() - 1)
    while block * item_bytes < LINE_BYTES or columns > _MOST_BLOCKS * block:
        block *= 2
    return block


def share_out(items: int, room: Sequence[int]) -> tuple[int, ...]:
    """Distribute as many of `items` as fit over the devices, as evenly as `room` allows."""
    shares = [0] * len(room)
    left = items
    by_room = sorted(range(len(room)), key=lambda device: room[device])
    for place, device in enumerate(by_room):
        shares[device] = min(room[device], -(-left // (len(room) - place)))
        left -= shares[device]
    return tuple(shares)


def _fixed_bytes(items: int, block_bytes: int, *, computes: bool) -> int:
    staged = min(items, max(1, _STAGING_BYTES // block_bytes)) * (block_bytes + _STAGED_BYTES)
    if not computes:
        return staged
    return staged + items * (_DIRECTORY_BYTES + _COUNTER_BYTES) + min(items, COUNTERS_AT_ONCE) * _SCRATCH_BYTES


class FreeSlots:
    """Slots that hold no item, by device. To be used by one thread at a time."""

    def __init__(self, slots: Sequence[int]) -> None:
        self._stride = max(slots)
        # The lowest slot is taken first, so that a cache that is not full stays contiguous.
        self._free = [
            np.arange(count, dtype=np.int32)[::-1] + np.int32(device * self._stride)
            for device, count in enumerate(slots)
        ]
        self._counts = list(slots)

    @property
    def count(self) -> int:
        return sum(self._counts)

    def take(self, nodes: np.ndarray) -> np.ndarray:
        """Take a slot (int32) for each of `nodes` (int64, at most `count`), on the node's home device where one is
        left."""
        if len(nodes) > self.count:
            raise ValueError(f"{len(nodes):,} slots wanted, {self.count:,} are free")
        slots = np.full(len(nodes), -1, dtype=np.int32)
        homes = nodes % len(self._counts)
        for device in range(len(self._counts)):
            self._take_from(device, np.flatnonzero(homes == device), slots)
        for device in range(len(self._counts)):
            self._take_from(device, np.flatnonzero(slots < 0), slots)
        return slots

    def give_back(self, slots: np.ndarray) -> None:
        for device in range(len(self._counts)):
            back = slots[slots // self._stride == device]
            self._free[device][self._counts[device] : self._counts[device] + len(back)] = back
            self._counts[device] += len(back)

    def _take_from(self, device: int, places: np.ndarray, slots: np.ndarray) -> None:
        taken = min(len(places), self._counts[device])
        top = self._counts[device]
        slots[places[:taken]] = self._free[device][top - taken : top][::-1]
        self._counts[device] = top - taken
