"""Statistics of the device that a worker computes on: the same words for the CPU and for a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DeviceStats:
    device: str
    """`CPU`, or the GPU's name."""
    problem: str | None = None
    """Why it is the CPU, or why a part of the GPU's work is not done as well as it could be; for people."""
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """Taken of the GPU's memory, by part: graph, tables, cache, weights, buffers; and `lent`, where other GPUs hold a
    share of the cache, of theirs."""
    memory_budget_bytes: int = 0
    variants: int = 0
    """Number of the revision's variants that a GPU computes."""
    hits: int = 0
    """Rows (blocks of columns of a node) that were read from the cache since the revision was loaded."""
    misses: int = 0
    """Rows (blocks) that came over the link."""
    link_bytes: int = 0
    """Bytes of rows read over the link from the host's memory."""
    admissions: int = 0
    evictions: int = 0
    repeated_rows: int = 0
    """Rows that a part of a batch read again, where it had gathered them once."""

    @property
    def standing(self) -> tuple[int, int]:
        """The larger, the less is left to the CPU and to the link: variants, then bytes of memory."""
        return self.variants, sum(self.memory_bytes.values())


ON_CPU = DeviceStats("CPU")
