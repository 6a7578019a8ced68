"""Seeds of a batch that repeat: each is computed once, before anything else.

Real requests repeat a few popular nodes more often than uniform benchmarks do. What a node draws depends on the key,
the depth and the node alone, so one computation serves every request of the batch that asks for it, and no answer
changes. Where requests have views of their own, one computation serves each request by itself: in another view a node
has other neighbours, or draws others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.kernels.primitives import scratch_for
from gnnserve_worker.kernels.view import SampleView, row_in_view, unpack
from gnnserve_worker.sampling.neighbours import KnownNodes, place_seeds

_WORTH_IT = 64
"""Deduplicate only where at least one seed in this many is a repetition. Finding one takes a few ns, copying its scores
a few more; a seed that is not computed saves microseconds."""


class DistinctSeeds(NamedTuple):
    """Views into scratch memory, valid until the scratch is used again."""

    seeds: np.ndarray
    """int64, each once, in the order of first appearance."""
    places: np.ndarray
    """int32: for each seed that was given, its position in `seeds`."""
    views: np.ndarray | None = None
    """int32: the view of each of `seeds`; None: they were given without any."""


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
            self.given, self.seeds = scratch_for(self.given, count), scratch_for(self.seeds, count)
            self.places, self.views = scratch_for(self.places, count), scratch_for(self.views, count)
        self.known.reserve(count)


def find_distinct(seeds: np.ndarray, scratch: DistinctScratch, view: SampleView | None = None) -> DistinctSeeds | None:
    """The distinct ones of `seeds` (int64 node ids in range); None where too few repeat to be worth the work. With the
    view of a whole batch they are its seeds, and equal ones of different views are distinct."""
    count = len(seeds)
    if count < 2:
        return None
    scratch.reserve(count)
    scratch.given[:count] = seeds
    given, known = scratch.given[:count], scratch.known
    if view is None:
        found = _find(given, scratch.seeds, scratch.places, known.entries, known.rows, known.generation)
    else:
        found = _find_in_views(
            given, view.packed, scratch.seeds, scratch.places, scratch.views,
            known.entries, known.rows, known.generation,
        )  # fmt: skip
    if (count - found) * _WORTH_IT < count:
        return None
    views = None if view is None else scratch.views[:found]
    return DistinctSeeds(scratch.seeds[:found], scratch.places[:count], views)


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
    seed_views = unpack(packed)[0]
    generation[0] += 1
    rows = 0
    for i in range(len(given)):
        view = seed_views[i]
        row = row_in_view(given[i], view, rows, known, known_rows, views, generation[0])
        if row == rows:
            seeds[rows] = given[i]
            views[rows] = view
            rows += 1
        places[i] = row
    return rows
