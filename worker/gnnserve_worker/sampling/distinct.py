"""Deduplication of a batch's seeds, before anything is computed, so that each is computed once.

Real requests repeat a few popular nodes more often than uniform benchmarks do. What a node draws depends on the key,
the depth and the node alone, so one computation serves every request of the batch that asks for it, and no answer
changes. Where requests have views of their own, one computation serves each request by itself: in another view a node
has other neighbours, or draws others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.sampling.rows import KnownNodes, grown, place_seeds, row_in_view
from gnnserve_worker.sampling.view import HEADER, SampleView

_WORTH_IT = 64
"""Deduplicate only where at least one seed in this many is a repetition. Finding one takes a few ns, copying its scores
a few more; a seed that is not computed saves microseconds."""


class DistinctSeeds(NamedTuple):
    """Views into scratch memory, valid until the scratch is used again."""

    seeds: np.ndarray
    """int64, each once, in the order of first appearance."""
    places: np.ndarray
    """int32: for each seed that was given, its position in `seeds`."""


class DistinctScratch:
    """Scratch memory of one thread. It grows to the largest batch seen."""

    def __init__(self) -> None:
        self.given = np.empty(0, dtype=np.int64)
        """A writable copy of the seeds: a read-only array would compile the kernels a second time."""
        self.seeds = np.empty(0, dtype=np.int64)
        self.places = np.empty(0, dtype=np.int32)
        self.views = np.empty(0, dtype=np.int32)
        """View of each distinct seed, where there is any."""
        self.known = KnownNodes()

    def reserve(self, count: int) -> None:
        if len(self.given) < count:
            size = grown(count)
            self.given, self.seeds = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
            self.places, self.views = np.empty(size, dtype=np.int32), np.empty(size, dtype=np.int32)
        self.known.reserve(count)


def find_distinct(seeds: np.ndarray, scratch: DistinctScratch) -> DistinctSeeds | None:
    """The distinct ones of `seeds` (int64 node ids in range); None where too few repeat to be worth the work."""
    count = len(seeds)
    if count < 2:
        return None
    scratch.reserve(count)
    scratch.given[:count] = seeds
    known = scratch.known
    found = _find(scratch.given[:count], scratch.seeds, scratch.places, known.entries, known.rows, known.generation)
    if (count - found) * _WORTH_IT < count:
        return None
    return DistinctSeeds(scratch.seeds[:found], scratch.places[:count])


def find_distinct_in_views(
    seeds: np.ndarray, view: SampleView, scratch: DistinctScratch
) -> tuple[DistinctSeeds, SampleView] | None:
    """As `find_distinct`, for seeds as they are in their views; and the view whose seeds the distinct ones are."""
    count = len(seeds)
    if count < 2:
        return None
    scratch.reserve(count)
    scratch.given[:count] = seeds
    known = scratch.known
    found = _find_in_views(
        scratch.given[:count], view.packed, scratch.seeds, scratch.places, scratch.views,
        known.entries, known.rows, known.generation,
    )  # fmt: skip
    if (count - found) * _WORTH_IT < count:
        return None
    packed = view.packed.copy()
    packed[HEADER : HEADER + found] = scratch.views[:found]
    return DistinctSeeds(scratch.seeds[:found], scratch.places[:count]), SampleView(packed)


@kernel
def _find(
    given: np.ndarray, seeds: np.ndarray, places: np.ndarray,
    known: np.ndarray, known_rows: np.ndarray, generation: np.ndarray,
) -> int:  # fmt: skip
    return place_seeds(given, True, seeds, places, known, known_rows, generation)


@kernel
def _find_in_views(
    given: np.ndarray, packed: np.ndarray, seeds: np.ndarray, places: np.ndarray, views: np.ndarray,
    known: np.ndarray, known_rows: np.ndarray, generation: np.ndarray,
) -> int:  # fmt: skip
    generation[0] += 1
    rows = 0
    for i in range(len(given)):
        view = packed[HEADER + i]
        row = row_in_view(given[i], view, rows, known, known_rows, views, generation[0])
        if row == rows:
            seeds[rows] = given[i]
            views[rows] = view
            rows += 1
        places[i] = row
    return rows
