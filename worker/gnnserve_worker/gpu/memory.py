"""How much memory there is: of the GPU, for the revisions of a live switch; and of the host, for pinned copies."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

RESERVE_BYTES: Final = 512 * 2**20
"""Of the GPU's memory, left alone: kernels that are loaded, graphs, workspaces of matrix products."""
_LARGEST_SHARE: Final = 0.95
"""Of what is free, where nobody said how much may be taken: allocators round up."""
_HOST_SHARE: Final = 0.8
"""Of the host's free memory, for pinned copies: requests need some too."""
_UNLIMITED: Final = 2**60
"""cgroups of version 1 say it with a number about as large."""


@dataclass(slots=True)
class Claim:
    """What somebody takes of a memory. It holds until it is released."""

    size_bytes: int
    _ledger: Ledger

    def release(self) -> None:
        self._ledger.release(self)


@dataclass(slots=True)
class Ledger:
    """What one process has taken of a memory: so that two revisions together stay within what they may take."""

    claims: list[Claim] = field(default_factory=list)
    _lenders: dict[int, Ledger] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def claimed_bytes(self) -> int:
        with self._lock:
            return sum(claim.size_bytes for claim in self.claims)

    def of_lender(self, place: int) -> Ledger:
        """Of the memory of another GPU, which lends some to this one: the first, the second, …"""
        with self._lock:
            return self._lenders.setdefault(place, Ledger())

    def available_bytes(self, free_bytes: int, limit_bytes: int | None) -> int:
        """For another revision, where `free_bytes` can be allocated; `limit_bytes`: for all revisions together."""
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
    """What this process may still take of the machine's memory, and of its container's limit.

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
    """As the container sees its own cgroup; empty where it has no limit."""
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
"""Of the GPU's memory, this process's."""
HOST: Final = HostMemory()
