"""Seeds that a batch holds several times: found before anything is computed, so that each is computed once.

Requests ask for the same few nodes again and again, more often than uniform benchmarks do. What a node draws depends on
the key, the depth and the node alone, so one computation serves all who ask for it in a batch, and changes no answer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.sampling.neighbours import KnownNodes, grown, place_seeds

_WORTH_IT = 64
"""One repeated seed in so many. Finding them takes a few ns each, giving everybody a copy of the scores some more; a
seed that is not computed saves microseconds."""


class DistinctSeeds(NamedTuple):
    """Views of scratch: they hold until it is used again."""

    seeds: np.ndarray
    """int64, in the order in which they came first."""
    places: np.ndarray
    """Of each seed that was given, its place among them: int32."""


class DistinctScratch:
    """What one thread finds them in. Grows to the largest batch it has seen."""

    def __init__(self) -> None:
        self.given = np.empty(0, dtype=np.int64)
        """A copy of the seeds: kernels are compiled once for arrays that can be written, and once for others."""
        self.seeds = np.empty(0, dtype=np.int64)
        self.places = np.empty(0, dtype=np.int32)
        self.known = KnownNodes()

    def reserve(self, count: int) -> None:
        if len(self.given) < count:
            size = grown(count)
            self.given, self.seeds = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
            self.places = np.empty(size, dtype=np.int32)
        self.known.reserve(count)


def find_distinct(seeds: np.ndarray, scratch: DistinctScratch) -> DistinctSeeds | None:
    """Of `seeds` (int64 node ids in range); None where so few are repeated that it is not worth it."""
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


@kernel
def _find(
    given: np.ndarray, seeds: np.ndarray, places: np.ndarray,
    known: np.ndarray, known_rows: np.ndarray, generation: np.ndarray,
) -> int:  # fmt: skip
    return place_seeds(given, True, seeds, places, known, known_rows, generation)
