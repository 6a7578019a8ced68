"""Masked slots: a cache that is written while it is read, without a lock that a reader would feel.

The directory says in which slot an item lies; -1, masked, says nowhere, and is a miss. A reader looks an item up once
and reads that slot: it waits for nothing and repeats nothing. A writer who wants a slot

    masks        the directory entry that leads to it,
    waits        until everybody has left who may have read the entry before it was masked (`epochs.py`),
    writes       the slot, which nobody can be reading now,
    unmasks      the entry of the item that is in it.

So no reader ever sees a slot that is being written. GPU feature caching, section 3.4, asks for wait-free
readers and lock-free writers by masking and leaves the steps open.

**Why this holds on a GPU**, where kernels of different streams see each other's writes in no order but this:

(1) Masking is a kernel on the updater's own stream, and `wait_for_readers` first waits, on the host, until it has
ended: then -1 is in the device's memory as all kernels see it that are launched from then on. A batch that enters
after that is launched after that, since the lock in `epochs.py` orders "entered" and "looked who is inside". Kernels
of one batch are told apart by nothing here, and a replayed CUDA graph is no exception: what it fixed is the
directory's address; each of its kernels reads what is there when it runs, and first-level caches, which are not
coherent, are emptied as it starts.

(2) A batch that entered before may hold the old slot in a register, or the old entry in a first-level cache. It is
waited for, and it leaves only when the host has seen the last of its kernels end.

(3) Writing and unmasking are kernels on one stream, one after the other (between devices the host waits in between),
so the row is in the second-level cache of the device where it lies, through which other devices read it too, before
the entry says so; and a reader computes the row's address from the entry, so it cannot read the row earlier.

(4) It must not find an older row in a first-level cache instead. A kernel that runs throughout mask, write and unmask
has not read the slot itself; but a kernel of an older batch may have, on the same multiprocessor, after the newer one
had started, and left its line there. So **kernels read the pools past the first-level cache** (`ld.global.cg`), and
the directory too; and a slot is whole lines (`sharding.LINE_BYTES`), so that nobody fetches it along with its
neighbour.

(5) An entry that is seen late is a miss: right, only slower.

**A row that changed.** `invalidate` is called after the row was changed in the table, and after it returns nobody
reads the old one from the cache. It wins against an update that is copying the old row at that moment: under the lock
it marks the copy as void, and what is void is never unmasked but copied again. That lock is held by writers alone,
for as long as it takes to write down who holds what and to launch a mask or an unmask, never while anything is copied
or waited for. An invalidation also waits for readers where the item is masked already: who masked it may still be
waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gnnserve_worker.caching.policy import NO_ITEMS, Changes
from gnnserve_worker.caching.sharding import CachePlan, FreeSlots

_MASKED_AT_ONCE = 1 << 20
"""So that masking everything needs little of a device's memory, which may be short."""


class Storage(Protocol):
    """Directory and pools. `mask` and `unmask` take effect in the order of their calls."""

    def mask(self, items: np.ndarray) -> None:
        """Entries of `items` (int64) become -1."""
        ...

    def wait_for_readers(self) -> None:
        """Until all masks are seen by whoever enters now, and all have left who entered before. By any thread."""
        ...

    def write(self, items: np.ndarray, slots: np.ndarray) -> None:
        """Copy the items' rows, as the table has them now, into `slots` (int32). By one thread."""
        ...

    def unmask(self, items: np.ndarray, slots: np.ndarray) -> None:
        """Entries of `items` become `slots`, after what was written into these."""
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """Since the start, in items."""

    admitted: int = 0
    evicted: int = 0
    copied: int = 0
    """Into slots: those admitted, and those whose rows had changed."""


class MaskedSlots:
    """Who holds which slot. `change`, `refresh` and `fill` by one thread at a time, `invalidate` by any."""

    def __init__(self, plan: CachePlan, storage: Storage) -> None:
        self._plan = plan
        self._storage = storage
        self._lock = threading.Lock()
        """Of writers; what it guards is below."""
        self._slots = np.full(plan.items, -1, dtype=np.int32)
        """Of each item, whether it can be read there or not; -1: none."""
        self._readable = np.zeros(plan.items, dtype=np.bool_)
        """Items whose directory entry is their slot, or may be, where the storage failed."""
        self._free = FreeSlots(plan.slots)
        self._copying = NO_ITEMS
        self._void = np.zeros(0, dtype=np.bool_)
        """Of what is being copied: its row has changed since."""
        self._outdated: list[np.ndarray] = []
        """Items that have a slot and cannot be read there, as their rows have changed, but for those evicted since."""
        self._written = Written()

    @property
    def written(self) -> Written:
        return self._written

    @property
    def free_slots(self) -> int:
        return self._free.count

    @property
    def has_outdated(self) -> bool:
        return bool(self._outdated)

    def readable(self) -> np.ndarray:
        """Items (int64, ascending) that are read from the cache now."""
        with self._lock:
            return np.flatnonzero(self._readable)

    def change(self, portion: Changes) -> None:
        """Evict, then admit. All that is evicted has a slot, nothing that is admitted has one, and there are enough."""
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
            self._written = Written(
                before.admitted + len(admitted), before.evicted + len(evicted), before.copied + len(admitted)
            )
        self._finish_copying()

    def refresh(self, limit: int) -> int:
        """Copy rows again that have changed, `limit` of them at most. Returns how many there were, which may be none
        while others wait."""
        with self._lock:
            again = self._take_outdated(limit)
            self._begin_copying(again)
            before = self._written
            self._written = Written(before.admitted, before.evicted, before.copied + len(again))
        if len(again):
            self._finish_copying()
        return len(again)

    def fill(self, items: np.ndarray) -> None:
        """Admit before the first batch, in portions as large as can be copied at once."""
        for portion in portions(Changes(NO_ITEMS, items), self._plan.staged_items, self.free_slots):
            self.change(portion)

    def invalidate(self, nodes: np.ndarray) -> None:
        """Rows of `nodes` (int64) have changed in the table: nobody who reads after this gets an old one.

        Not between entering and leaving: it waits for whoever is inside.
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
        """Any row may have changed: as `invalidate` of all nodes."""
        with self._lock:
            self._void[:] = True
            seen = np.flatnonzero(self._readable)
            for begin in range(0, len(seen), _MASKED_AT_ONCE):
                part = seen[begin : begin + _MASKED_AT_ONCE]
                self._mask(part)
                self._outdated.append(part)
        self._storage.wait_for_readers()

    def _take_outdated(self, limit: int) -> np.ndarray:
        """The first, each once. Not all are looked through: there may be as many as the cache has slots."""
        taken, left = [NO_ITEMS], limit
        while self._outdated and left:
            first = self._outdated.pop(0)
            taken.append(first[:left])
            if left < len(first):
                self._outdated.insert(0, first[left:])
            left -= len(taken[-1])
        items = np.unique(np.concatenate(taken))
        # But for those that were evicted since, and those that have been copied again already.
        return items[(self._slots[items] >= 0) & ~self._readable[items]]

    def _mask(self, items: np.ndarray) -> None:
        # In this order, and the other one for unmasking: where the storage fails, an entry that may be there still is
        # readable by the ledger, so that a row that changes later is masked all the same.
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


def portions(changes: Changes, items: int, free_slots: int) -> Iterator[Changes]:
    """`changes` in portions of at most `items` evicted and as many admitted, for which there are always slots.

    ValueError: more is admitted than the evicted leave room for.
    """
    evicted, admitted = changes.evicted, changes.admitted
    while len(evicted) or len(admitted):
        free_slots += min(items, len(evicted))
        count = min(items, len(admitted), free_slots)
        if count == 0 and len(evicted) == 0:
            raise ValueError(f"{len(admitted):,} items are admitted beyond the capacity of the cache")
        yield Changes(evicted[:items], admitted[:count])
        free_slots -= count
        evicted, admitted = evicted[items:], admitted[count:]
