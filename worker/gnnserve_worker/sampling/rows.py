"""Which row of a sample a node has: a hash table for kernels, which is never cleared between hops."""

from __future__ import annotations

import numpy as np

from gnnserve_worker.growth import room_for
from gnnserve_worker.kernel_cache import inlined
from gnnserve_worker.kernels.primitives import GOLDEN, mix

LAST_GENERATION = 2**31 - 64
"""Largest generation KnownNodes can store (32 bits). Each hop takes one; at the limit the table is cleared."""


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
