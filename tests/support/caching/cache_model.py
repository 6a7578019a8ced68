"""The cache's protocol on the CPU: rows that check themselves, readers as compiled kernels, and mistakes on purpose.

A block of a row is 16 words: item, version, numbers made of both, and a checksum over all. So a reader sees of every
block whether it is whole, of which item it is, and how old it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numba import njit

from gnnserve_worker.caching.epochs import Epochs
from gnnserve_worker.caching.policy import NO_ITEMS, ResidencyChanges
from gnnserve_worker.caching.sharding import CachePlan
from gnnserve_worker.caching.slots import MaskedSlots
from gnnserve_worker.kernels.primitives import mix

WORDS = 16
"""uint64, of a block: 128 bytes."""
_TILE = 32
"""Directory entries that a reader looks up before it reads the first of their rows."""
HITS, MISSES, TORN, MISPLACED, STALE = range(5)


class Mistake(StrEnum):
    NONE = "none"
    NO_WAIT = "written at once"
    """Into the slot, without waiting for readers."""
    EARLY_UNMASK = "unmasked first"
    """The slot is written after its entry is unmasked."""
    NO_VOID = "shown in spite of a change"
    """A row that changed while it was copied."""


@njit(nogil=True)
def write_rows(table: np.ndarray, items: np.ndarray, versions: np.ndarray) -> None:
    """table: uint64 [items, WORDS]."""
    for place in range(len(items)):
        item, version = np.uint64(items[place]), np.uint64(versions[place])
        row = table[items[place]]
        row[0] = item
        row[1] = version
        check = mix(mix(item) ^ version)
        for word in range(2, WORDS - 1):
            row[word] = mix(item * np.uint64(31) + version * np.uint64(17) + np.uint64(word))
            check = mix(check ^ row[word])
        row[WORDS - 1] = check


@njit(nogil=True)
def copy_rows(table: np.ndarray, items: np.ndarray, slots: np.ndarray, pools: np.ndarray, stride: int) -> None:
    """pools: uint64 [devices, stride, WORDS]."""
    for place in range(len(items)):
        device, row = slots[place] // stride, slots[place] % stride
        for word in range(WORDS):
            pools[device, row, word] = table[items[place], word]


@njit(nogil=True)
def read_batch(
    directory: np.ndarray, pools: np.ndarray, stride: int, oldest: np.ndarray, wanted: np.ndarray, result: np.ndarray
) -> None:
    """Reads as the GPU's kernel does: it looks an entry up, then reads where it says. Nothing is repeated, nothing is
    waited for.

    directory: int32 [blocks, nodes]; oldest: int64 [nodes], the version that may be read at least; wanted: int64 nodes;
    result: int64 [5], added to.
    """
    blocks = directory.shape[0]
    nodes = directory.shape[1]
    slots = np.empty((_TILE, blocks), dtype=np.int32)
    for begin in range(0, len(wanted), _TILE):
        count = min(_TILE, len(wanted) - begin)
        for place in range(count):
            node = wanted[begin + place]
            for block in range(blocks):
                slots[place, block] = directory[block, node]
        for place in range(count):
            node = wanted[begin + place]
            at_least = oldest[node]
            for block in range(blocks):
                slot = slots[place, block]
                if slot < 0:
                    result[MISSES] += 1
                    continue
                result[HITS] += 1
                row = pools[slot // stride, slot % stride]
                item, version = row[0], row[1]
                check = mix(mix(item) ^ version)
                for word in range(2, WORDS - 1):
                    check = mix(check ^ row[word])
                if check != row[WORDS - 1]:
                    result[TORN] += 1
                elif item != np.uint64(block * nodes + node):
                    result[MISPLACED] += 1
                elif np.int64(version) < at_least:
                    result[STALE] += 1


@dataclass(frozen=True, slots=True)
class Stress:
    nodes: int = 400
    blocks: int = 3
    slots: tuple[int, ...] = (150, 150)
    """Slots of two simulated devices: a quarter of all items."""
    readers: int = 2
    batch: int = 1024
    """Nodes that are read between entering and leaving."""
    portion: int = 16
    changed: int = 4
    """Rows that change at once."""
    hits: int = 1_000_000
    """Blocks that are read from the cache before it ends …"""
    copied: int = 1000
    """… and blocks that are copied into it."""
    mistake: Mistake = Mistake.NONE
    seed: int = 0

    @property
    def plan(self) -> CachePlan:
        return CachePlan(self.nodes, self.blocks, WORDS, 8 * WORDS, self.slots)


@dataclass(frozen=True, slots=True)
class Outcome:
    seconds: float
    hits: int
    misses: int
    torn: int
    """Blocks that were not whole."""
    misplaced: int
    """Whole blocks of another item."""
    stale: int
    """Blocks older than an invalidation that had returned before they were read."""
    admitted: int
    evicted: int
    refreshed: int
    rows_changed: int

    @property
    def wrong(self) -> int:
        return self.torn + self.misplaced + self.stale


@dataclass
class ModelStorage:
    """`slots.SlotStorage` in the host's memory."""

    stress: Stress
    epochs: Epochs = field(default_factory=Epochs)

    def __post_init__(self) -> None:
        plan = self.stress.plan
        self.table = np.zeros((plan.items, WORDS), dtype=np.uint64)
        write_rows(self.table, np.arange(plan.items), np.zeros(plan.items, dtype=np.int64))
        self.directory = np.full((plan.blocks, plan.nodes), -1, dtype=np.int32)
        self.pools = np.zeros((len(plan.slots), plan.slots_per_device, WORDS), dtype=np.uint64)
        self.oldest = np.zeros(plan.nodes, dtype=np.int64)

    def mask(self, items: np.ndarray) -> None:
        self.directory.ravel()[items] = -1

    def wait_for_readers(self) -> None:
        if self.stress.mistake is not Mistake.NO_WAIT:
            self.epochs.wait()

    def write(self, items: np.ndarray, slots: np.ndarray) -> None:
        if self.stress.mistake is Mistake.EARLY_UNMASK:
            self.unmask(items, slots)
        copy_rows(self.table, items, slots, self.pools, self.pools.shape[1])

    def unmask(self, items: np.ndarray, slots: np.ndarray) -> None:
        self.directory.ravel()[items] = slots


class _NeverVoid(MaskedSlots):
    """Forgets, whatever it is told, that what is being copied has changed."""

    @property
    def _void(self) -> np.ndarray:
        return np.zeros(len(self._copying), dtype=np.bool_)

    @_void.setter
    def _void(self, _: np.ndarray) -> None: ...


def run_stress(stress: Stress) -> Outcome:
    """Readers, one that evicts and admits, and one that changes rows, each in a thread, until enough was read.

    Or until something wrong was read. What a thread raises is raised here.
    """
    plan = stress.plan
    storage = ModelStorage(stress)
    slots = (_NeverVoid if stress.mistake is Mistake.NO_VOID else MaskedSlots)(plan, storage)
    rng = np.random.default_rng(stress.seed)
    order = rng.permutation(plan.items)
    inside, outside = order[: plan.capacity].copy(), order[plan.capacity :].copy()
    slots.fill(inside)
    results = np.zeros((stress.readers, 5 + 11), dtype=np.int64)  # on cache lines of their own
    stopped = threading.Event()
    versions = np.zeros(plan.nodes, dtype=np.int64)
    read_batch(storage.directory, storage.pools, plan.slots_per_device, storage.oldest, NO_ITEMS, results[0])

    def read(number: int) -> None:
        # Most reads are of few nodes: those that change, too.
        draws = np.random.default_rng([stress.seed, number])
        lists = [np.minimum(draws.geometric(8 / plan.nodes, stress.batch) - 1, plan.nodes - 1) for _ in range(16)]
        while not stopped.is_set():
            for wanted in lists:
                ticket = storage.epochs.enter()
                read_batch(
                    storage.directory, storage.pools, plan.slots_per_device, storage.oldest, wanted, results[number]
                )
                storage.epochs.leave(ticket)
            is_enough = results[:, HITS].sum() >= stress.hits and slots.written.copied - plan.capacity >= stress.copied
            if is_enough or results[:, TORN : STALE + 1].any():
                stopped.set()

    def exchange() -> None:
        draws = np.random.default_rng([stress.seed, 100])
        while not stopped.is_set():
            going = draws.choice(len(inside), stress.portion, replace=False)
            coming = draws.choice(len(outside), stress.portion, replace=False)
            evicted, admitted = inside[going], outside[coming]
            slots.change(ResidencyChanges(evicted, admitted))
            inside[going], outside[coming] = admitted, evicted
            slots.refresh(stress.portion)

    def change() -> None:
        draws = np.random.default_rng([stress.seed, 200])
        blocks = np.arange(plan.blocks)[:, None] * plan.nodes
        while not stopped.is_set():
            nodes = draws.choice(plan.nodes // 8, stress.changed, replace=False)
            versions[nodes] += 1
            write_rows(storage.table, (blocks + nodes).ravel(), np.tile(versions[nodes], plan.blocks))
            slots.invalidate(nodes)
            storage.oldest[nodes] = versions[nodes]

    began = time.perf_counter()
    _run_all([lambda number=number: read(number) for number in range(stress.readers)] + [exchange, change], stopped)
    sums = results.sum(axis=0)
    written = slots.written
    return Outcome(
        seconds=time.perf_counter() - began,
        hits=int(sums[HITS]),
        misses=int(sums[MISSES]),
        torn=int(sums[TORN]),
        misplaced=int(sums[MISPLACED]),
        stale=int(sums[STALE]),
        admitted=written.admitted - plan.capacity,
        evicted=written.evicted,
        refreshed=written.copied - written.admitted,
        rows_changed=int(versions.sum()),
    )


def _run_all(works: list[Callable[[], None]], stopped: threading.Event) -> None:
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 (raised again below)
            errors.append(error)
            stopped.set()

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
