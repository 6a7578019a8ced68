"""Nodes as many others are scored for each of them: by a row that is kept of each of the others.

A score is an inner product, or a perceptron's output whose hidden layer is the sum of a half of either node. Then the
half of each of the others is its row, so that a pair takes a sum and a product, whatever the embeddings' width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

_BLOCK_NUMBERS = 1 << 16
"""Numbers of a block of rows, float32: they stay in a core's own cache while all queries read them."""


class PairQueries(Protocol):
    @property
    def vectors(self) -> np.ndarray:
        """float32 [queries, width]"""

    @property
    def point_nowhere(self) -> bool:
        """Whether all nodes have the same score, whatever their rows are."""

    def some(self, places: np.ndarray) -> PairQueries:
        """Those at these places, int64."""

    def score(self, rows: np.ndarray) -> np.ndarray:
        """Scores float32 [queries, n] with each of n nodes. `rows`: theirs, float32 [n, width]."""


@dataclass(frozen=True, slots=True)
class Products:
    """Scores are inner products."""

    vectors: np.ndarray

    @property
    def point_nowhere(self) -> bool:
        return not self.vectors.any()

    def some(self, places: np.ndarray) -> Products:
        return Products(self.vectors[places])

    def score(self, rows: np.ndarray) -> np.ndarray:
        if len(self.vectors) == 1:  # a product of a matrix and a vector is the faster one
            one: np.ndarray = rows @ self.vectors[0]
            return one[np.newaxis]
        scores: np.ndarray = self.vectors @ rows.T
        return scores


@dataclass(frozen=True, slots=True)
class HiddenSums:
    """Scores are those of a perceptron with one hidden layer of rectified sums."""

    vectors: np.ndarray
    """The queries' halves of the hidden layer, the bias included: float32 [queries, hidden]."""
    out: np.ndarray
    """Weights of the last product, float32 [hidden]."""
    end: float
    """The last bias."""

    @property
    def point_nowhere(self) -> bool:
        return False

    def some(self, places: np.ndarray) -> HiddenSums:
        return HiddenSums(self.vectors[places], self.out, self.end)

    def score(self, rows: np.ndarray) -> np.ndarray:
        width = rows.shape[1]
        step = max(1, _BLOCK_NUMBERS // max(1, width))
        scores = np.empty((len(self.vectors), len(rows)), np.float32)
        scratch = np.empty((min(step, len(rows)), width), np.float32)
        # max(0, half + row) is max(-half, row) + half, of which the second part is the same for all rows.
        opposed, same = -self.vectors, self.vectors @ self.out + np.float32(self.end)
        for start in range(0, len(rows), step):
            block = rows[start : start + step]
            hidden = scratch[: len(block)]
            for place, half in enumerate(opposed):
                np.maximum(block, half, out=hidden)
                np.dot(hidden, self.out, out=scores[place, start : start + len(block)])
        scores += same[:, np.newaxis]
        return scores
