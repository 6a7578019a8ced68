"""Masked slots: a cache that is written while it is read, without a lock on the readers' path.

The directory holds the slot of each item; -1 (masked) is a miss. A reader looks an item up once and reads that slot: it
never waits or retries. A writer that needs a slot

    masks        the directory entry that leads to it,
    waits        until every batch has left that may have read the entry before it was masked (`epochs.py`),
    writes       the slot, which no reader can reach now,
    unmasks      the entry of the item that is in it.

So no reader ever reads a slot that is being written. GPU feature caching, section 3.4, asks for wait-free readers and
lock-free writers by masking and leaves the steps open.

**Why this holds on a GPU**, where kernels of different streams see each other's writes in no order but this:

(1) Masking is a kernel on the updater's own stream, and `wait_for_readers` first waits, on the host, until it has
ended: then -1 is in the device's memory as all kernels see it that are launched from then on. A batch that enters after
that is launched after that, since the lock in `epochs.py` orders "entered" and "looked who is inside". All kernels of a
batch are treated alike, a replayed CUDA graph included: a graph fixes the directory's address, but each of its kernels
reads the entries when it runs, and first-level caches, which are not coherent, are emptied as a kernel starts.

(2) A batch that entered before may hold the old slot in a register, or the old entry in a first-level cache. It is
waited for, and it leaves only when the host has seen the last of its kernels end.

(3) Writing and unmasking are kernels on one stream, one after the other (between devices the host waits in between),
so the row is in the second-level cache of the device where it lies, through which other devices read it too, before
the entry says so; and a reader computes the row's address from the entry, so it cannot read the row earlier.

(4) It must not find an older row in a first-level cache instead. A kernel that runs throughout mask, write and unmask
has not read the slot itself; but a kernel of an older batch may have, on the same multiprocessor, after the newer one
had started, and left its line there. So **kernels read the pools past the first-level cache** (`ld.global.cg`), and the
directory too; and a slot is whole lines (`sharding.LINE_BYTES`), so that no read of a neighbouring slot fetches part of
it.

(5) A reader that sees an unmasked entry late counts a miss: correct, only slower.

**A row that changed.** `invalidate` is called after the row was changed in the table; once it returns, no reader gets
the old row from the cache. It wins against an update that is copying the old row at that moment: under the lock it
marks the copy as void, and a void copy is never unmasked but copied again. That lock is taken by writers alone, only to
update the ledger and to launch a mask or an unmask, never during a copy or a wait. An invalidation also waits for
readers where the item is masked already: the thread that masked it may still be waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gnnserve_worker.caching.policy import NO_ITEMS, ResidencyChanges
from gnnserve_worker.caching.sharding import CachePlan, FreeSlots

_MASKED_AT_ONCE = 1 << 20
"""Items that are masked per launch, so that masking everything needs little of a device's memory."""


class SlotStorage(Protocol):
    """Directory and pools of a cache. `mask` and `unmask` take effect in the order of their calls."""

    def mask(self, items: np.ndarray) -> None:
        """Set the entries of `items` (int64) to -1."""
        ...

    def wait_for_readers(self) -> None:
        """Block until every batch that enters now sees all masks, and every batch that entered before has left. Any
        thread may call it."""
        ...

    def write(self, items: np.ndarray, slots: np.ndarray) -> None:
        """Copy the items' rows, as the table has them now, into `slots` (int32). One thread calls it at a time."""
        ...

    def unmask(self, items: np.ndarray, slots: np.ndarray) -> None:
        """Set the entries of `items` to `slots`, after what was written into these slots."""
        ...


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """Items written since the start."""

    admitted: int = 0
    evicted: int = 0
    copied: int = 0
    """Items copied into slots: those admitted, and those whose rows had changed."""


class MaskedSlots:
    """The ledger of slots. One thread at a time calls `change`, `refresh` and `fill`; any thread calls `invalidate`."""

    def __init__(self, plan: CachePlan, storage: SlotStorage) -> None:
        self._plan = plan
        self._storage = storage
        self._lock = threading.Lock()
        """The lock that writers take; it guards the attributes below."""
        self._slots = np.full(plan.items, -1, dtype=np.int32)
        """Slot of each item, readable or not; -1 for none."""
        self._readable = np.zeros(plan.items, dtype=np.bool_)
        """Whether an item's directory entry is its slot, or may be after a failure of the storage."""
        self._free = FreeSlots(plan.slots)
        self._copying = NO_ITEMS
        self._void = np.zeros(0, dtype=np.bool_)
        """Whether the row of each item that is being copied has changed since."""
        self._outdated: list[np.ndarray] = []
        """Items that have a slot but are masked since their rows changed; those evicted since may still be listed."""
        self._written = SlotCounts()

    @property
    def written(self) -> SlotCounts:
        return self._written

    @property
    def free_slots(self) -> int:
        return self._free.count

    @property
    def has_outdated(self) -> bool:
        return bool(self._outdated)

    def readable(self) -> np.ndarray:
        """Items (int64, ascending) that readers get from the cache now."""
        with self._lock:
            return np.flatnonzero(self._readable)

    def change(self, portion: ResidencyChanges) -> None:
        """Evict, then admit. Every evicted item must have a slot, no admitted item may have one, and slots must
        suffice."""
        evicted, admitted = portion.evicted, portion.admitted
        with self._lock:
            slots = self._slots[evicted]
            if len(slots) and slots.min() < 0:
                raise ValueError(f"item {evicted[slots.argmin()]} is to be evicted and is not cached")
            if len(admitted) and self._slots[admitted].max() >= 0:
                raise ValueError(f"item {admitted[self._slots[admitted].argmax()]} is to be admitted and is cached")
            self._mask(evicted[self._readable[evicted]])
            self._slots[evicted] = -1
            self._free.give_back(slots)
            self._slots[admitted] = self._free.take(admitted % self._plan.nodes)
            self._begin_copying(admitted)
            before = self._written
            self._written = SlotCounts(
                before.admitted + len(admitted), before.evicted + len(evicted), before.copied + len(admitted)
            )
        self._finish_copying()

    def refresh(self, limit: int) -> int:
        """Copy at most `limit` changed rows again. Returns the number copied, which may be 0 while others are
        outdated."""
        with self._lock:
            again = self._take_outdated(limit)
            self._begin_copying(again)
            before = self._written
            self._written = SlotCounts(before.admitted, before.evicted, before.copied + len(again))
        if len(again):
            self._finish_copying()
        return len(again)

    def fill(self, items: np.ndarray) -> None:
        """Admit items before the first batch, in portions as large as can be copied at once."""
        for portion in portions(ResidencyChanges(NO_ITEMS, items), self._plan.staged_items, self.free_slots):
            self.change(portion)

    def invalidate(self, nodes: np.ndarray) -> None:
        """Drop the cached rows of `nodes` (int64), which have changed in the table: no later read gets an old row.

        Not to be called between entering and leaving: it waits for every batch inside.
        """
        if len(nodes) == 0:
            return
        if nodes.min() < 0 or nodes.max() >= self._plan.nodes:
            raise ValueError(f"nodes {nodes.min()} to {nodes.max()}: expected 0 to {self._plan.nodes - 1}")
        items = (np.arange(self._plan.blocks, dtype=np.int64)[:, None] * self._plan.nodes + nodes).ravel()
        with self._lock:
            self._void |= np.isin(self._copying % self._plan.nodes, nodes)
            seen = items[self._readable[items]]
            self._mask(seen)
            if len(seen):
                self._outdated.append(seen)
        self._storage.wait_for_readers()

    def invalidate_all(self) -> None:
        """Drop all cached rows, since any may have changed: `invalidate` of all nodes."""
        with self._lock:
            self._void[:] = True
            seen = np.flatnonzero(self._readable)
            for begin in range(0, len(seen), _MASKED_AT_ONCE):
                part = seen[begin : begin + _MASKED_AT_ONCE]
                self._mask(part)
                self._outdated.append(part)
        self._storage.wait_for_readers()

    def _take_outdated(self, limit: int) -> np.ndarray:
        """Take the first outdated items, each once, without a pass over all: there may be as many as the cache has
        slots."""
        taken, left = [NO_ITEMS], limit
        while self._outdated and left:
            first = self._outdated.pop(0)
            taken.append(first[:left])
            if left < len(first):
                self._outdated.insert(0, first[left:])
            left -= len(taken[-1])
        items = np.unique(np.concatenate(taken))
        # Leave out items that were evicted since, and items that have been copied again already.
        return items[(self._slots[items] >= 0) & ~self._readable[items]]

    def _mask(self, items: np.ndarray) -> None:
        # Mask before the ledger changes, and unmask after it: if the storage fails in between, the ledger still counts
        # an entry that may exist as readable, so a later change of its row masks it.
        if len(items):
            self._storage.mask(items)
            self._readable[items] = False

    def _begin_copying(self, items: np.ndarray) -> None:
        self._copying = items
        self._void = np.zeros(len(items), dtype=np.bool_)

    def _finish_copying(self) -> None:
        items = self._copying
        slots = self._slots[items]
        self._storage.wait_for_readers()
        if len(items):
            self._storage.write(items, slots)
        with self._lock:
            good = ~self._void
            if len(shown := items[good]):
                self._readable[shown] = True
                self._storage.unmask(shown, slots[good])
            if not good.all():
                self._outdated.append(items[~good])
            self._begin_copying(NO_ITEMS)


def portions(changes: ResidencyChanges, items: int, free_slots: int) -> Iterator[ResidencyChanges]:
    """`changes` in portions of at most `items` evicted and as many admitted, for which there are always slots.

    ValueError: more is admitted than the evicted leave room for.
    """
    evicted, admitted = changes.evicted, changes.admitted
    while len(evicted) or len(admitted):
        free_slots += min(items, len(evicted))
        count = min(items, len(admitted), free_slots)
        if count == 0 and len(evicted) == 0:
            raise ValueError(f"{len(admitted):,} items are admitted beyond the capacity of the cache")
        yield ResidencyChanges(evicted[:items], admitted[:count])
        free_slots -= count
        evicted, admitted = evicted[items:], admitted[count:]
