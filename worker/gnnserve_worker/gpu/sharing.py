"""Whether rows that a chunk reads several times are gathered once over the link: measured at start, on this card.

Finding such rows takes a sort and some small kernels, about as long on any link; what it saves is the link's time for
them. So it pays with wide rows, large chunks, slow links and graphs with hubs, and not for one seed. A variant reads
rows of its own width, hence the measurement is each variant's: the largest chunks are timed both ways, and where it
pays there, the next smaller ones, until it does not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from gnnserve_worker.gpu.engine import GpuEngine
from gnnserve_worker.gpu.resident import LANES

ROUNDS: Final = 9
"""Batches of a size that are timed each way; 0: nothing is measured, and no rows are shared."""
_PAYS: Final = 0.95
"""Share of the time without, from which on it is worth it."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SharingCost:
    """Median times of one batch, in ms."""

    seeds: int
    direct_ms: float
    shared_ms: float

    @property
    def pays(self) -> bool:
        return self.shared_ms < _PAYS * self.direct_ms


def decide_sharing(buckets: Sequence[int], measure: Callable[[int], SharingCost]) -> tuple[int | None, SharingCost]:
    """Seeds of the smallest chunk that sharing pays for, or None; and what it costs for the largest. `buckets`: sizes
    of chunks, ascending."""
    largest = cost = measure(buckets[-1])
    found: int | None = None
    for smaller in (*reversed(buckets[:-1]), None):
        if not cost.pays:
            break
        found = cost.seeds
        if smaller is not None:
            cost = measure(smaller)
    return found, largest


def share_where_it_pays(
    engine: GpuEngine, seeds: np.ndarray, rounds: int | None = None, clock: Callable[[], float] = time.perf_counter
) -> dict[str, SharingCost]:
    """Measure, choose and say so in the log. `seeds`: int64, some that requests may ask for, so that what they read
    repeats as it does for requests. Returns the costs of the largest chunks by variant."""
    rounds = ROUNDS if rounds is None else rounds
    chosen: dict[str, int] = {}
    costs: dict[str, SharingCost] = {}
    for variant in sorted(engine.sharing) if rounds and len(seeds) else ():

        def measure(bucket: int, variant: str = variant) -> SharingCost:
            return measure_sharing(engine, variant, bucket, seeds, rounds, clock)

        shared_from, cost = decide_sharing(engine.buckets, measure)
        costs[variant] = cost
        if shared_from is not None:
            chosen[variant] = shared_from
        what = "not shared" if shared_from is None else f"shared in parts of {shared_from} seeds or more"
        _log.info(
            "rows of %s that are read several times are %s: %.3f ms, and %.3f without, for %d seeds a part",
            variant, what, cost.shared_ms, cost.direct_ms, cost.seeds,
        )  # fmt: skip
    if chosen:
        engine.share_rows(chosen)
    elif engine.sharing:
        engine.give_back_distinct_room()
    return costs


def measure_sharing(
    engine: GpuEngine, variant: str, bucket: int, seeds: np.ndarray, rounds: int, clock: Callable[[], float]
) -> SharingCost:
    """Time batches of one size both ways, in turn. The largest are batches of a chunk in each lane, since one gathers
    while others sample and compute."""
    size = bucket * (LANES if bucket == engine.buckets[-1] else 1)
    times: dict[bool, list[float]] = {False: [], True: []}
    # One more at first, in which stages are captured.
    for number in range(rounds + 1):
        batch = np.roll(np.resize(seeds, max(size, len(seeds))), number * size)[:size]
        for is_shared in (False, True):
            engine.share_rows({variant: bucket} if is_shared else {})
            began_s = clock()
            engine.infer_each(variant, batch, key=number, with_embeddings=False)
            if number:
                times[is_shared].append((clock() - began_s) * 1e3)
    engine.share_rows({})
    return SharingCost(bucket, median(times[False]), median(times[True]))
