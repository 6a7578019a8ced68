"""Accounting of memory: the GPU's, for the revisions of a live switch, and the host's, for pinned copies."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

RESERVE_BYTES: Final = 512 * 2**20
"""GPU memory that is left free: for loaded kernels, graphs, and workspaces of matrix products."""
_LARGEST_SHARE: Final = 0.95
"""Share of the free memory that is used where no limit is set: allocators round up."""
_HOST_SHARE: Final = 0.8
"""Share of the host's free memory for pinned copies: requests need some too."""
_UNLIMITED: Final = 2**60
"""cgroups of version 1 say it with a number about as large."""


@dataclass(slots=True)
class Claim:
    """An allocation of a memory, valid until it is released."""

    size_bytes: int
    _ledger: Ledger

    def release(self) -> None:
        self._ledger.release(self)


@dataclass(slots=True)
class Ledger:
    """The claims of one process on a memory, so that two revisions together stay within their limit."""

    claims: list[Claim] = field(default_factory=list)
    _lenders: dict[int, Ledger] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def claimed_bytes(self) -> int:
        with self._lock:
            return sum(claim.size_bytes for claim in self.claims)

    def of_lender(self, place: int) -> Ledger:
        """The ledger of the n-th other GPU that lends memory to this one."""
        with self._lock:
            return self._lenders.setdefault(place, Ledger())

    def available_bytes(self, free_bytes: int, limit_bytes: int | None) -> int:
        """Bytes available to another revision, where `free_bytes` can be allocated; `limit_bytes` is the limit of all
        revisions together."""
        largest = int(free_bytes * _LARGEST_SHARE) - RESERVE_BYTES
        if limit_bytes is not None:
            largest = min(largest, limit_bytes - self.claimed_bytes)
        return max(0, largest)

    def claim(self, size_bytes: int) -> Claim:
        claim = Claim(size_bytes, self)
        with self._lock:
            self.claims.append(claim)
        return claim

    def release(self, claim: Claim) -> None:
        with self._lock:
            self.claims = [other for other in self.claims if other is not claim]


@dataclass(slots=True)
class HostMemory:
    """Memory that this process may still take of the machine's, and of its container's limit.

    Pages of files count as free there, since they are given up when others need them; but not those that are pinned.
    """

    proc: Path = Path("/proc")
    cgroups: Path = Path("/sys/fs/cgroup")
    pinned_files: Ledger = field(default_factory=Ledger)

    def spare_bytes(self) -> int:
        limits = [_available_of_machine(self.proc), *_left_of_container(self.cgroups)]
        return max(0, int(min(limits) * _HOST_SHARE) - self.pinned_files.claimed_bytes)


def _available_of_machine(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _left_of_container(cgroups: Path) -> list[int]:
    """Memory left within the limits of the container's own cgroup; empty where it has no limit."""
    version_1 = cgroups / "memory"
    for folder, limit_name, used_name, files_name in (
        (cgroups, "memory.max", "memory.current", "file"),
        (version_1, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
    ):
        limit = _number(folder / limit_name)
        used = _number(folder / used_name)
        if limit is not None and used is not None and limit < _UNLIMITED:
            return [limit - used + _statistic(folder / "memory.stat", files_name)]
    return []


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _statistic(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)


LEDGER: Final = Ledger()
"""This process's ledger of the GPU's memory."""
HOST: Final = HostMemory()
