"""Looks at a worker's process while it gets no requests: what hostile requests have left behind."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.pods.pods import POLL_S, WorkerPod

from benchmarks.memory import read_memory

_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Look:
    anonymous_mib: float
    descriptors: int
    threads: int


def look(pod: WorkerPod) -> Look:
    folder = Path(f"/proc/{pod.process.pid}")
    return Look(
        anonymous_mib=round(read_memory([pod.process.pid]).anonymous_bytes / 2**20, 1),
        descriptors=sum(1 for _ in (folder / "fd").iterdir()),
        threads=sum(1 for _ in (folder / "task").iterdir()),
    )


def wait_until_idle(pod: WorkerPod, descriptors: int | None = None) -> Look:
    """Connections that clients left are gone once the worker has read their end; `descriptors`: as many as before."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        in_flight = next(
            line for line in pod.get("/metrics")[1].splitlines() if line.startswith("gnnserve_in_flight_requests{")
        )
        seen = look(pod)
        is_idle = in_flight.endswith(" 0.0") and (descriptors is None or seen.descriptors <= descriptors)
        if is_idle or time.monotonic() > deadline:
            return seen
        time.sleep(POLL_S)


def count_errors(log: Sequence[Mapping[str, Any]]) -> int:
    """Lines of a worker's log that are errors or have tracebacks."""
    return sum("exception" in line or line["level"] in {"ERROR", "CRITICAL"} for line in log)


def growth_of_floor(before: float, looks: Sequence[float]) -> float:
    """How much higher the lowest of the second half of the looks is than the lowest before them: a leak raises what a
    process goes back to; memory that allocators give back later raises single looks alone. `before`: the look after the
    warm-up."""
    half = len(looks) // 2
    return round(min(looks[half:]) - min(before, *looks[:half]), 1)
