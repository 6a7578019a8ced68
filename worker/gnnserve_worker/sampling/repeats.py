"""How many nodes samples will have, and how many of them will be the same: what is known before sampling."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from gnnserve_worker.kernel_cache import kernel


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
