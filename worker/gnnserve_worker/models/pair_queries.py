"""Nodes as many others are scored for each of them: by a row that is kept of each of the others.

A score is an inner product, or a perceptron's output whose hidden layer is the sum of a half of either node. Then the
half of each of the others is its row, so that a pair takes a sum and a product, whatever the embeddings' width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from gnnserve_worker.kernel_cache import summing_kernel

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
    _opposed: np.ndarray = field(init=False, repr=False, compare=False)
    _same: np.ndarray = field(init=False, repr=False, compare=False)
    _weights: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # max(0, half + row) is max(-half, row) + half, of which the second part is the same for all rows.
        object.__setattr__(self, "_opposed", np.ascontiguousarray(-self.vectors))
        object.__setattr__(self, "_same", self.vectors @ self.out + np.float32(self.end))
        object.__setattr__(self, "_weights", np.array(self.out, np.float32))  # of one kind of memory, for the kernel

    @property
    def point_nowhere(self) -> bool:
        return False

    def some(self, places: np.ndarray) -> HiddenSums:
        return HiddenSums(self.vectors[places], self.out, self.end)

    def score(self, rows: np.ndarray) -> np.ndarray:
        scores = np.empty((len(self.vectors), len(rows)), np.float32)
        _score_sums(np.ascontiguousarray(rows), self._opposed, self._weights, self._same, scores)
        return scores


def warm_up_sums() -> None:
    """Compile the kernel of `HiddenSums`, for rows that may be written and for those that may not, as mapped ones."""
    query = HiddenSums(np.zeros((1, 1), np.float32), np.zeros(1, np.float32), 0.0)
    for may_be_written in (True, False):
        rows = np.zeros((1, 1), np.float32)
        rows.flags.writeable = may_be_written
        query.score(rows)


@summing_kernel
def _score_sums(rows: np.ndarray, opposed: np.ndarray, out: np.ndarray, same: np.ndarray, scores: np.ndarray) -> None:
    """Σ max(opposed, row) · out for each query and row, and what is the same for all rows of a query. A maximum with
    NaN is NaN."""
    step = max(1, _BLOCK_NUMBERS // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        for query in range(len(opposed)):
            half = opposed[query]
            for row in range(start, min(start + step, len(rows))):
                numbers = rows[row]
                total = np.float32(0.0)
                for column in range(len(out)):
                    number = numbers[column]
                    total += (half[column] if half[column] > number else number) * out[column]
                scores[query, row] = total + same[query]
