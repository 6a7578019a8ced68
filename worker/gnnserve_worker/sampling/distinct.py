"""Distinct nodes: how many a sample will have, which row each has in it, and which seeds of a batch repeat.

A batch's seeds are deduplicated before anything is computed, so that each is computed once. Real requests repeat a few
popular nodes more often than uniform benchmarks do. What a node draws depends on the key, the depth and the node alone,
so one computation serves every request of the batch that asks for it, and no answer changes. Where requests have views
of their own, one computation serves each request by itself: in another view a node has other neighbours, or draws
others.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from gnnserve_worker.growth import room_for, scratch_for
from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.kernels.primitives import GOLDEN, mix
from gnnserve_worker.kernels.view import SampleView, unpack

LAST_GENERATION = 2**31 - 64
"""Largest generation KnownNodes can store (32 bits). Each hop takes one; at the limit the table is cleared."""
_WORTH_IT = 64
"""Deduplicate only where at least one seed in this many is a repetition. Finding one takes a few ns, copying its scores
a few more; a seed that is not computed saves microseconds."""


# How many, before sampling


def most_by_hop(fanouts: Sequence[int], seeds: int = 1) -> list[int]:
    """Most nodes that a sample has in each hop, seeds first. No fan-out is -1."""
    return list(accumulate(fanouts, operator.mul, initial=seeds))


def effective_nodes(indptr: np.ndarray) -> float:
    """Number of equally likely nodes that would collide as often as the ends of random edges do: 1 / Σ p²."""
    edges = int(indptr[-1])
    return edges * (edges / _sum_of_squares(indptr)) if edges else math.inf


def distinct_share(draws: int, nodes: float) -> float:
    """Expected share of `draws` out of `nodes` equally likely ones that are distinct."""
    if not draws or math.isinf(nodes):
        return 1.0
    return nodes * -math.expm1(-draws / nodes) / draws


@kernel
def _sum_of_squares(indptr: np.ndarray) -> float:
    total = 0.0
    for node in range(len(indptr) - 1):
        degree = np.float64(indptr[node + 1] - indptr[node])
        total += degree * degree
    return total


# Which row a node has


class KnownNodes:
    """A hash table for kernels (`row_of`): the row of each node met in the current generation."""

    def __init__(self) -> None:
        self.entries = np.zeros(0, dtype=np.int64)
        """Open-addressed; a word holds generation and node of an entry. An older generation counts as an empty
        entry."""
        self.rows = np.empty(0, dtype=np.int32)
        self.generation = np.zeros(1, dtype=np.int64)

    def reserve(self, count: int) -> None:
        """Make room for `count` different nodes."""
        if len(self.entries) < 2 * count:
            self.entries = np.zeros(2 * room_for(count), dtype=np.int64)
            self.rows = np.empty(len(self.entries), dtype=np.int32)
        elif self.generation[0] > LAST_GENERATION:
            self.entries.fill(0)
            self.generation[0] = 0


@inlined
def place_seeds(
    seeds: np.ndarray, share: bool, nodes: np.ndarray, seed_rows: np.ndarray,
    known: np.ndarray, known_rows: np.ndarray, generation: np.ndarray,
) -> int:  # fmt: skip
    if not share:
        for i in range(len(seeds)):
            nodes[i] = seeds[i]
        return len(seeds)
    generation[0] += 1
    rows = 0
    for i in range(len(seeds)):
        row = row_of(seeds[i], rows, known, known_rows, generation[0])
        if row == rows:
            nodes[rows] = seeds[i]
            rows += 1
        seed_rows[i] = row
    return rows


@inlined
def place_seeds_seen(
    seeds: np.ndarray, share: bool, nodes: np.ndarray, seed_rows: np.ndarray,
    known: np.ndarray, known_rows: np.ndarray, generation: np.ndarray,
    views: np.ndarray, seed_views: np.ndarray, first_seed: int,
) -> int:  # fmt: skip
    """As `place_seeds`, each in its view: `seed_views` from `first_seed` on. `views` gets that of each row."""
    rows = 0
    generation[0] += 1
    for i in range(len(seeds)):
        row = rows
        if share:
            row = row_in_view(seeds[i], seed_views[first_seed + i], rows, known, known_rows, views, generation[0])
            seed_rows[i] = row
        if row == rows:
            nodes[rows] = seeds[i]
            views[rows] = seed_views[first_seed + i]
            rows += 1
    return rows


@inlined
def row_of(node: int, rows: int, known: np.ndarray, known_rows: np.ndarray, generation: int) -> int:
    """The node's row in this generation; a node met for the first time gets row `rows`."""
    mask = len(known) - 1
    word = (np.int64(generation) << np.int64(32)) | np.int64(node)
    slot = np.int64(mix(np.uint64(node))) & mask
    while known[slot] >> np.int64(32) == generation:
        if known[slot] == word:
            return int(known_rows[slot])
        slot = (slot + 1) & mask
    known[slot] = word
    known_rows[slot] = rows
    return rows


@inlined
def row_in_view(
    node: int, view: int, rows: int, known: np.ndarray, known_rows: np.ndarray, views: np.ndarray, generation: int
) -> int:
    """As `row_of`, for a node as it is in one view: it has a row in each."""
    mask = len(known) - 1
    word = (np.int64(generation) << np.int64(32)) | np.int64(node)
    slot = np.int64(mix(np.uint64(node) + np.uint64(view) * GOLDEN)) & mask
    while known[slot] >> np.int64(32) == generation:
        if known[slot] == word and views[known_rows[slot]] == view:
            return int(known_rows[slot])
        slot = (slot + 1) & mask
    known[slot] = word
    known_rows[slot] = rows
    return rows


# Seeds of a batch


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
