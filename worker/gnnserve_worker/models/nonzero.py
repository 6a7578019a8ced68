"""Products of features that are mostly zeros, as words and categories are: only what is not zero is multiplied.

A new node of 4,700 words has 14 of them. They are looked for once, for all products of a row. Scaled by mean and
deviation its features are zeros no longer, but the product of them is that of the raw ones with scaled weights, and a
row that is the same for all nodes:

    W · ((x - mean) / deviation) = (W / deviation) · x - W · (mean / deviation)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.sampling.batch_view import FeatureRows, bits_at, row_at

LEAST_INPUTS = 256
"""Narrower features take less time to multiply than looking at them would save."""
_MOST_NONZERO = 1 / 16
"""Share of numbers that are not zero, up to which it pays: each takes as long as about seven in a product of all."""
_LOOKED_AT = 8
"""Rows that tell how sparse all are."""
_BLOCK = 16
"""Numbers that are looked at together, as one vector."""

Order = Literal[0, 1, 2]
"""Order of the norm by which each row is divided; 0: it is not."""


@dataclass(frozen=True, slots=True)
class NonzeroProduct:
    weights: np.ndarray
    """float32 [inputs, outputs], over the deviations of inputs."""
    shift: np.ndarray
    """float32 [outputs]: the product of features that are zeros."""

    @staticmethod
    def build(
        weights: np.ndarray, bias: np.ndarray, mean: np.ndarray | None, deviation: np.ndarray | None
    ) -> NonzeroProduct:
        """`weights`: float32 [inputs, outputs]. `bias`: float32 [outputs]. `mean`, `deviation`: float64 [inputs], by
        which features are scaled, or None."""
        if mean is None or deviation is None:
            made = NonzeroProduct(np.ascontiguousarray(weights), np.ascontiguousarray(bias, np.float32))
        else:
            scaled = weights / deviation[:, None]
            made = NonzeroProduct(scaled.astype(np.float32), (bias - mean @ scaled).astype(np.float32))
        made.warm_up()
        return made

    def warm_up(self) -> None:
        """Compile or load its kernels, so that no request pays for it."""
        features, read = FeatureRows.of(np.zeros((1, len(self.weights)), np.float32)), np.zeros(1, np.int64)
        if pays(features, read):
            self.multiply(features, read, 0, read, self)

    def multiply(
        self, features: FeatureRows, read: np.ndarray, order: Order, own_read: np.ndarray, own: NonzeroProduct
    ) -> tuple[np.ndarray, np.ndarray]:
        """The product of the rows `read` (int64), and by `own` that of the rows `own_read`, scaled: float32 [rows read,
        outputs]. A row that both read is looked through once."""
        made = np.empty((len(read), len(self.shift)), np.float32)
        own_made = np.empty((len(own_read), len(own.shift)), np.float32)
        _multiply(
            features.addresses, features.columns, order, read, self.weights, self.shift, made,
            own_read, own.weights, own.shift, own_made,
        )  # fmt: skip
        return made, own_made


def pays(features: FeatureRows, read: np.ndarray) -> bool:
    """Whether those rows of the features (int64) are sparse enough to look for what is not zero, by some of them."""
    if features.columns < LEAST_INPUTS or not len(read):
        return False
    looked_at = read[:: max(1, len(read) // _LOOKED_AT)][:_LOOKED_AT]
    found = _count_nonzero(features.addresses, features.columns, looked_at)
    return bool(found <= _MOST_NONZERO * len(looked_at) * features.columns)


@kernel
def _count_nonzero(addresses: np.ndarray, width: int, read: np.ndarray) -> int:
    found = 0
    for place in range(len(read)):
        row = row_at(addresses[read[place]], width)
        for column in range(width):
            found += row[column] != 0
    return found


@kernel
def _multiply(
    addresses: np.ndarray, width: int, order: int, read: np.ndarray, weights: np.ndarray, shift: np.ndarray,
    made: np.ndarray, own_read: np.ndarray, own_weights: np.ndarray, own_shift: np.ndarray, own_made: np.ndarray,
) -> None:  # fmt: skip
    columns = np.empty(width, np.int64)
    values = np.empty(width, np.float32)
    own_place = np.full(len(addresses), -1, np.int64)
    for place in range(len(own_read)):
        own_place[own_read[place]] = place
    for place in range(len(read)):
        row = read[place]
        found = _find(addresses[row], width, order, columns, values)
        _add(columns, values, found, weights, shift, made[place])
        if own_place[row] >= 0:
            _add(columns, values, found, own_weights, own_shift, own_made[own_place[row]])
            own_place[row] = _DONE - own_place[row]
    for place in range(len(own_read)):
        row = own_read[place]
        if own_place[row] == _DONE - place:
            continue
        found = _find(addresses[row], width, order, columns, values)
        _add(columns, values, found, own_weights, own_shift, own_made[place])


_DONE = -2
"""Less the place of a row that is made."""


@inlined
def _find(address: int, width: int, order: int, columns: np.ndarray, values: np.ndarray) -> int:
    """Write what is not zero of a row, divided by the row's norm, and where it is; how many these are."""
    row = row_at(address, width)
    bits = bits_at(address, width)
    found = 0
    whole = width - width % _BLOCK
    for begin in range(0, whole, _BLOCK):
        together = np.uint32(0)
        for column in range(begin, begin + _BLOCK):
            together |= bits[column]
        if together != 0:
            for column in range(begin, begin + _BLOCK):
                columns[found] = column
                values[found] = row[column]
                found += row[column] != 0
    for column in range(whole, width):
        columns[found] = column
        values[found] = row[column]
        found += row[column] != 0
    if order > 0:
        # In float64, as where rows are divided whole: the norm of large features overflows in float32.
        norm = 0.0
        for i in range(found):
            value = np.float64(values[i])
            norm += abs(value) if order == 1 else value * value
        if order > 1:
            norm = np.sqrt(norm)
        factor = 1.0 / norm if norm > 0 else 1.0
        for i in range(found):
            values[i] = np.float32(values[i] * factor)
    return found


@inlined
def _add(
    columns: np.ndarray, values: np.ndarray, found: int, weights: np.ndarray, shift: np.ndarray, out: np.ndarray
) -> None:
    for column in range(len(shift)):
        out[column] = shift[column]
    for i in range(found):
        value = values[i]
        of_input = weights[columns[i]]
        for column in range(len(out)):
            out[column] += value * of_input[column]
