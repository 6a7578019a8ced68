"""Products of features that are mostly zeros, as words and categories are: only what is not zero is multiplied.

A new node of 4,700 words has 14 of them. Scaled by mean and deviation its features are zeros no longer, but the product
of them is that of the raw ones with scaled weights, and a row that is the same for all nodes:

    W · ((x - mean) / deviation) = (W / deviation) · x - W · (mean / deviation)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnserve_worker.kernel_cache import inlined, kernel

LEAST_INPUTS = 256
"""Narrower features take less time to multiply than looking at them would save."""
_MOST_NONZERO = 1 / 16
"""Share of numbers that are not zero, up to which it pays: each takes as long as about seven in a product of all."""
_LOOKED_AT = 8
"""Rows that tell how sparse all are."""
_BLOCK = 16
"""Numbers that are looked at together, as one vector."""


@dataclass(frozen=True, slots=True)
class NonzeroProduct:
    weights: np.ndarray
    """float32 [inputs, outputs], over the deviations of inputs."""
    shift: np.ndarray
    """float32 [outputs]: the product of features that are zeros."""

    @staticmethod
    def build(weights: np.ndarray, mean: np.ndarray | None, deviation: np.ndarray | None) -> NonzeroProduct | None:
        """`weights`: float32 [inputs, outputs]. `mean`, `deviation`: float64 [inputs], by which features are scaled, or
        None. Returns None for narrow features."""
        if len(weights) < LEAST_INPUTS:
            return None
        if mean is None or deviation is None:
            made = NonzeroProduct(np.ascontiguousarray(weights), np.zeros(weights.shape[1], np.float32))
        else:
            scaled = weights / deviation[:, None]
            made = NonzeroProduct(scaled.astype(np.float32), -(mean @ scaled).astype(np.float32))
        made.warm_up()
        return made

    def warm_up(self) -> None:
        """Compile or load its kernels, so that no request pays for it."""
        features, read = np.zeros((1, len(self.weights)), np.float32), np.zeros(1, np.int64)
        if self.pays(features, read):
            self.multiply(features, read)

    def pays(self, features: np.ndarray, read: np.ndarray) -> bool:
        """Whether those rows of the features (int64) are sparse enough, by some of them."""
        if not len(read):
            return False
        looked_at = read[:: max(1, len(read) // _LOOKED_AT)][:_LOOKED_AT]
        return bool(_count_nonzero(features, looked_at) <= _MOST_NONZERO * len(looked_at) * features.shape[1])

    def multiply(self, features: np.ndarray, read: np.ndarray) -> np.ndarray:
        """The product of those rows, scaled: float32 [rows read, outputs]. `features`: float32 [rows, inputs], in C
        order, not scaled. `read`: int64."""
        made = np.empty((len(read), len(self.shift)), np.float32)
        _multiply(features, features.view(np.uint32), read, self.weights, self.shift, made)
        return made


@kernel
def _count_nonzero(features: np.ndarray, read: np.ndarray) -> int:
    found = 0
    for place in range(len(read)):
        row = features[read[place]]
        for column in range(len(row)):
            found += row[column] != 0
    return found


@kernel
def _multiply(
    features: np.ndarray, bits: np.ndarray, read: np.ndarray, weights: np.ndarray, shift: np.ndarray, made: np.ndarray
) -> None:
    width = features.shape[1]
    whole = width - width % _BLOCK
    for place in range(len(read)):
        row = features[read[place]]
        row_bits = bits[read[place]]
        out = made[place]
        for column in range(len(shift)):
            out[column] = shift[column]
        for begin in range(0, whole, _BLOCK):
            together = np.uint32(0)
            for column in range(begin, begin + _BLOCK):
                together |= row_bits[column]
            if together != 0:
                _add(row, begin, begin + _BLOCK, weights, out)
        _add(row, whole, width, weights, out)


@inlined
def _add(row: np.ndarray, begin: int, end: int, weights: np.ndarray, out: np.ndarray) -> None:
    for i in range(begin, end):
        value = row[i]
        if value != 0:
            of_input = weights[i]
            for column in range(len(out)):
                out[column] += value * of_input[column]
