"""The feature cache in GPU memory: `caching/` with tensors on one or several devices, on each with a stream of its own.

The first device computes: it has the directory and counts reads. The others lend memory, which it reads as its own
(peer access). Nothing here runs on the default stream, on a stream of the engine's or in the engine's thread, and
nothing waits for a whole device. Readers are waited for by their word alone (`enter`, `leave`), so graphs may be
captured, replayed and launched on any stream meanwhile. Why that is enough is written in `caching/slots.py`.

Counts of reads are never set back to zero, since a kernel may be adding to them: the updater remembers what it saw and
takes the difference, which loses nothing and is right even after an int32 has wrapped around.

On tensors of the CPU all is the same, but for streams and pinned memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnnserve_worker.caching.epochs import Epochs
from gnnserve_worker.caching.policy import Policy
from gnnserve_worker.caching.rows import copy_blocks
from gnnserve_worker.caching.sharding import COUNTERS_AT_ONCE, CachePlan
from gnnserve_worker.caching.slots import MaskedSlots
from gnnserve_worker.caching.updater import CountedReads, Rhythm, RoundCost, Totals, Updater
from gnnserve_worker.gpu.arrays import CacheView, DeviceRows
from gnnserve_worker.gpu.waiting import sleep_until_idle
from gnnserve_worker.parallel import map_parallel, thread_count

_COPIED_BY_ONE = 4096
"""Rows' blocks that one thread gathers in the host's memory; more are worth several."""
_WORD = torch.int64
"""Type as which slots are copied: the widest one, so that any storage takes the fewest numbers."""


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counts since the cache was made; reads are those up to the updater's last round."""

    hits: int
    """Blocks that were read from the cache."""
    misses: int
    """Blocks that were not there."""
    admissions: int
    evictions: int
    link_bytes: int
    """Bytes over the link: blocks that were not in the cache, as whole ones, and blocks that were copied into the
    cache."""


class FeatureCache:
    def __init__(
        self,
        rows: DeviceRows,
        plan: CachePlan,
        policy: Policy,
        devices: Sequence[torch.device],
        rhythm: Rhythm | None = None,
    ) -> None:
        """`plan` is of these rows and devices, and `policy` of the plan's items and capacity.

        ValueError: they do not fit each other. RuntimeError: a device cannot be read by the first one.
        """
        _check(rows, plan, policy, devices)
        self._plan = plan
        self._epochs = Epochs()
        self._storage = _DeviceStorage(rows, plan, [_Device.open(device) for device in devices], self._epochs)
        self._slots = MaskedSlots(plan, self._storage)
        self._policy = policy
        self._updater = Updater(policy, self._slots, self._storage, self._epochs, rhythm or Rhythm())

    @property
    def view(self) -> CacheView:
        """The tensors that kernels read; always the same ones."""
        return self._storage.view

    @property
    def memory_bytes(self) -> tuple[int, ...]:
        """Bytes on each device, everything counted."""
        return self._plan.memory_bytes

    @property
    def problem(self) -> str | None:
        """Why the cache is not updated any more, if so: it stays as it is, and right."""
        return self._updater.problem

    @property
    def last_round(self) -> RoundCost | None:
        return self._updater.last

    @property
    def rounds(self) -> Totals:
        return self._updater.totals

    def begin(self) -> None:
        """Copy what the policy keeps from the start. Before the first batch and before `start`."""
        self._slots.fill(self._policy.begin())
        self._storage.wait_for_readers()

    def start(self) -> None:
        """The updating thread. What was read before, to warm up, says nothing of the traffic: no policy is told."""
        self._storage.take_reads()
        self._updater.start()

    def stop(self) -> None:
        """Stop updating for good; any thread may call it. Cached rows stay, and can still be invalidated."""
        self._updater.stop()

    def enter(self) -> int:
        """Begins a batch that reads the cache, before its first launch. Returns the ticket to leave with."""
        return self._epochs.enter()

    def leave(self, ticket: int) -> None:
        """Ends a batch once all of its kernels have ended, as the host has seen; also of a batch that failed."""
        self._epochs.leave(ticket)
        self._updater.notice()

    def invalidate(self, nodes: np.ndarray) -> None:
        """The rows of `nodes` (int64) have changed in the table: no batch gets an old one from the cache after this.

        Waits for the batches that are under way; so never between `enter` and `leave` of the same thread.
        """
        self._slots.invalidate(nodes)
        self._updater.wake()

    def invalidate_all(self) -> None:
        """`invalidate` every node: cached rows are copied again, round after round."""
        self._slots.invalidate_all()
        self._updater.wake()

    def run_round(self) -> RoundCost:
        """Run a round in the calling thread. Not to be called while the updater's thread runs."""
        return self._updater.run_round()

    def stats(self) -> CacheStats:
        written = self._slots.written
        hits, misses = self._storage.totals
        return CacheStats(
            hits=hits,
            misses=misses,
            admissions=written.admitted,
            evictions=written.evicted,
            link_bytes=(misses + written.copied) * self._plan.block_bytes,
        )


@dataclass(frozen=True, slots=True)
class _Device:
    """A device and, on a GPU, the stream of everything that is done there."""

    device: torch.device
    stream: torch.cuda.Stream | None

    @staticmethod
    def open(device: torch.device) -> _Device:
        # Priority 0 is the lowest.
        return _Device(device, torch.cuda.Stream(device, priority=0) if device.type == "cuda" else None)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Context in which launches go to the stream."""
        if self.stream is None:
            yield
        else:
            with torch.cuda.stream(self.stream):
                yield

    def wait(self) -> None:
        """Wait until everything launched so far has ended. Any thread may call it."""
        if self.stream is not None:
            sleep_until_idle(self.stream)

    def send(self, array: np.ndarray) -> Tensor:
        """A copy, made by the time this returns."""
        return torch.tensor(array, device=self.device)

    def staging(self, rows: int, row_bytes: int) -> Tensor:
        """uint8 [rows, row_bytes] in the host's memory, pinned for a GPU."""
        return torch.zeros((rows, row_bytes), dtype=torch.uint8, pin_memory=self.stream is not None)


class _DeviceStorage:
    """Directory, counters and pools, as `slots.SlotStorage` and `updater.ReadCounters`."""

    def __init__(self, rows: DeviceRows, plan: CachePlan, devices: Sequence[_Device], epochs: Epochs) -> None:
        first = devices[0]
        for lender in devices[1:]:
            _enable_peer_access(first, lender)
        self._plan = plan
        self._devices = devices
        self._epochs = epochs
        self._host_rows = rows.values.view(torch.uint8).numpy()
        shape = (plan.blocks, plan.nodes)
        with first.turn():
            directory = torch.full(shape, -1, dtype=torch.int32, device=first.device)
            accesses = torch.zeros(shape, dtype=torch.int32, device=first.device)
            totals = torch.zeros(2, dtype=torch.int64, device=first.device)
            self._seen = torch.zeros(shape, dtype=torch.int32, device=first.device)
        self._pools = []
        for device, slots in zip(devices, plan.slots, strict=True):
            with device.turn():
                # At least one, so that there is an address. Zeros, so that no kernel ever multiplies a NaN by 0.
                pool_shape = (max(1, slots), plan.block_columns)
                self._pools.append(torch.zeros(pool_shape, dtype=rows.values.dtype, device=device.device))
        self._staging = [device.staging(plan.staged_items, plan.block_bytes) for device in devices]
        with first.turn():
            addresses = first.send(np.array([pool.data_ptr() for pool in self._pools], dtype=np.int64))
        for device in devices:
            device.wait()
        self.view = CacheView(directory, addresses, plan.slots_per_device, plan.block_columns, accesses, totals)
        self.totals = (0, 0)
        """Hits and misses, as of the last `take_reads`."""

    def mask(self, items: np.ndarray) -> None:
        first = self._devices[0]
        with first.turn():
            self.view.directory.view(-1).index_fill_(0, first.send(items), -1)

    def wait_for_readers(self) -> None:
        # In this order: a batch that enters in between sees the mask and is waited for as well, which does no harm.
        self._devices[0].wait()
        self._epochs.wait()

    def write(self, items: np.ndarray, slots: np.ndarray) -> None:
        homes = slots // self._plan.slots_per_device
        for place, device in enumerate(self._devices):
            there = homes == place
            rows = slots[there].astype(np.int64) - place * self._plan.slots_per_device
            pool = self._pools[place].view(_WORD)
            for begin in range(0, len(rows), self._plan.staged_items):
                part = slice(begin, begin + self._plan.staged_items)
                self._copy(device, self._staging[place], items[there][part], rows[part], pool)

    def unmask(self, items: np.ndarray, slots: np.ndarray) -> None:
        first = self._devices[0]
        with first.turn():
            self.view.directory.view(-1).index_copy_(0, first.send(items), first.send(slots))

    def take_reads(self) -> CountedReads:
        first, view = self._devices[0], self.view
        step = max(1, COUNTERS_AT_ONCE // self._plan.blocks)
        parts = []
        with first.turn():
            for begin in range(0, self._plan.nodes, step):
                columns = slice(begin, min(begin + step, self._plan.nodes))
                now = view.accesses[:, columns].clone()
                reads = now - self._seen[:, columns]
                self._seen[:, columns] = now
                # A variant that touches m blocks of a row reads all of them.
                for block in range(self._plan.blocks - 2, -1, -1):
                    reads[block] += reads[block + 1]
                width = reads.shape[1]
                places = reads.view(-1).nonzero().view(-1)
                times = reads.view(-1)[places]
                items = places + (places // width) * (self._plan.nodes - width) + begin
                parts.append((items.cpu().numpy(), times.cpu().numpy()))
            self.totals = tuple(view.totals.cpu().tolist())
        return CountedReads(
            np.concatenate([items for items, _ in parts]), np.concatenate([times for _, times in parts])
        )

    def _copy(self, device: _Device, staging: Tensor, items: np.ndarray, rows: np.ndarray, pool: Tensor) -> None:
        """Rows' blocks through `staging` into `rows` (int64) of a pool."""
        self._gather(items, staging.numpy())
        with device.turn():
            staged = staging[: len(items)].to(device.device, non_blocking=True)
            pool.index_copy_(0, device.send(rows), staged.view(_WORD))
        # `staging` is used again; and the slots are unmasked on another stream, where they are another device's.
        device.wait()

    def _gather(self, items: np.ndarray, out: np.ndarray) -> None:
        parts = min(thread_count(), -(-len(items) // _COPIED_BY_ONE))
        bounds = [len(items) * part // parts for part in range(parts + 1)]
        map_parallel(
            lambda part: copy_blocks(
                self._host_rows, self._plan.nodes, items[bounds[part] : bounds[part + 1]], out[bounds[part] :]
            ),
            parts,
        )


def _check(rows: DeviceRows, plan: CachePlan, policy: Policy, devices: Sequence[torch.device]) -> None:
    if rows.values.device.type != "cpu":
        raise ValueError(f"rows lie on {rows.values.device}, expected the host's memory: there is nothing to be cached")
    if rows.values.shape[0] != plan.nodes or rows.item_bytes * plan.block_columns != plan.block_bytes:
        raise ValueError(
            f"a cache was planned for {plan.nodes:,} nodes with {plan.block_columns} columns in {plan.block_bytes} "
            f"bytes, and there are {rows.values.shape[0]:,} rows of {rows.values.dtype}"
        )
    if len(devices) != len(plan.slots):
        raise ValueError(f"a cache was planned for {len(plan.slots)} devices, and there are {len(devices)}")
    if policy.capacity > plan.capacity or len(policy.resident) != plan.items:
        raise ValueError(
            f"policy {policy.name} keeps {policy.capacity:,} of {len(policy.resident):,} items, "
            f"there is room for {plan.capacity:,} of {plan.items:,}"
        )


def _enable_peer_access(first: _Device, lender: _Device) -> None:
    """Lets kernels on `first` read what lies on `lender`.

    torch has no call for it: it does so when it first copies from one to the other (`maybe_enable_p2p_access` in
    aten/src/ATen/native/cuda/Copy.cu), for the direction of the copy; so once each way.
    """
    if first.device.type != "cuda" or lender.device == first.device:
        return
    if not torch.cuda.can_device_access_peer(first.device, lender.device):
        raise RuntimeError(
            f"{first.device} cannot read the memory of {lender.device} (no NVLink, nor PCIe peer access): "
            "use one GPU for the cache, or GPUs that are connected"
        )
    with lender.turn(), first.turn():
        here = torch.zeros(1, dtype=torch.int32, device=first.device)
        there = torch.zeros(1, dtype=torch.int32, device=lender.device)
        here.copy_(there)
        there.copy_(here)
    first.wait()
    lender.wait()
