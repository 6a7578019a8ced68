"""A sample in the layout of a GPU's tree (`gpu/arrays.PaddedTree`): every possible node has a place.

A GPU draws its samples itself, but for requests that see the graph otherwise than it is stored: those are sampled here,
as for the CPU, and laid out as the GPU would have done it. Parts of one tree may be written side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.kernels.primitives import scratch_for
from gnnserve_worker.sampling.neighbours import NeighbourSample


class TreeShares(msgspec.Struct, frozen=True):
    """Weights of rows in their sums, float32."""

    of_places: np.ndarray
    of_rows: np.ndarray


class TreeArrays(msgspec.Struct, frozen=True):
    """The arrays of a tree."""

    fanouts: np.ndarray
    """int64"""
    seeds: int
    """Seeds of the tree, padding included."""
    ids: np.ndarray
    """Node of each place, int32; -1 where there is none."""
    counts: np.ndarray
    """Neighbours of each row, int32."""
    shares: TreeShares | None
    """Where neighbours are weighed."""

    @staticmethod
    def over(
        fanouts: Sequence[int], seeds: int, ids: np.ndarray, counts: np.ndarray, shares: TreeShares | None = None
    ) -> TreeArrays:
        return TreeArrays(np.array(fanouts, dtype=np.int64), seeds, ids, counts, shares)

    def clear(self) -> None:
        """Make it a tree without nodes."""
        self.ids.fill(-1)
        self.counts.fill(0)


class PadScratch:
    """Scratch memory in which one thread keeps the places of rows. Grows to the largest sample it has seen."""

    def __init__(self) -> None:
        self.places = np.empty(0, dtype=np.int32)


def pad_sample(
    sample: NeighbourSample, tree: TreeArrays, scratch: PadScratch, *, first_seed: int = 0, nodes: int = 0,
    shift: int = 0,
) -> tuple[int, int]:  # fmt: skip
    """Lay out a sample in which no rows are shared. Its seeds become those of the tree from `first_seed` on, and ids
    from `nodes` on become larger by `shift`. The tree is without nodes there. Returns how many rows, and how many
    neighbours, are such ids."""
    scratch.places = scratch_for(scratch.places, len(sample.nodes))
    weights = None
    if tree.shares is not None and sample.weights is not None:
        weights = (
            sample.weights.of_neighbours, sample.weights.of_itself, tree.shares.of_places, tree.shares.of_rows
        )  # fmt: skip
    own, neighbours = _pad(
        sample.nodes, sample.starts, sample.neighbours, sample.ends[0], first_seed, nodes, shift,
        tree.fanouts, tree.seeds, tree.ids, tree.counts, scratch.places, weights,
    )  # fmt: skip
    return own, neighbours


@kernel
def _pad(
    nodes: np.ndarray, starts: np.ndarray, neighbours: np.ndarray, seeds: int, first_seed: int, stored: int, shift: int,
    fanouts: np.ndarray, width: int, ids: np.ndarray, counts: np.ndarray, places: np.ndarray,
    weights: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None,
) -> tuple[int, int]:  # fmt: skip
    if weights is not None:
        of_neighbours, of_itself, place_shares, row_shares = weights
    rows_behind = 0
    neighbours_behind = 0
    for row in range(seeds):
        places[row] = first_seed + row
        ids[first_seed + row] = nodes[row] if nodes[row] < stored else nodes[row] + shift
    begin = 0
    first = 0
    rows = seeds
    last = len(fanouts) - 1
    for depth in range(len(fanouts)):
        end = begin + width
        stop = rows
        for row in range(first, stop):
            place = places[row]
            rows_behind += nodes[row] >= stored
            to = end + (place - begin) * fanouts[depth] - starts[row]
            counts[place] = starts[row + 1] - starts[row]
            if weights is not None:
                row_shares[place] = of_itself[row]
            for edge in range(starts[row], starts[row + 1]):
                ids[to + edge] = neighbours[edge] if neighbours[edge] < stored else neighbours[edge] + shift
                neighbours_behind += neighbours[edge] >= stored
                if weights is not None:
                    place_shares[to + edge] = of_neighbours[edge]
                if depth < last:
                    places[rows] = to + edge
                    rows += 1
        first = stop
        begin = end
        width *= fanouts[depth]
    return rows_behind, neighbours_behind
