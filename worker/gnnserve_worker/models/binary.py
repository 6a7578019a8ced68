"""Products of binary features: each number of a row is zero or one same number, as where columns are words or labels.

The product of such a row is a sum of rows of the weights, times that number. Four columns have 16 possible sums. These
are made once for all rows of a batch, and each row adds one of them in place of four products: 512 rows of 745 features
and 128 outputs take 0.43 ms in place of 0.96, and finding out which to add 0.10 for all products. Scaling is in the
weights and after the sums, as in `nonzero.py`, which takes less time where few numbers are not zero.
"""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np

from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.models.nonzero import NonzeroProduct, Order
from gnnserve_worker.sampling.batch_view import FeatureRows, row_at
from gnnserve_worker.tables.table import NO_SCALES
from gnnserve_worker.tables.vectors import sum_rows

_LEAST_ROWS = 64
"""Rows below which making the sums takes longer than they save."""
_TOLD = 4
"""Columns of features that are told by one number, one bit each."""
_SUMS = 1 << _TOLD
_NUMBERS = 12
"""Numbers of a row whose sums are read at a time."""
_OUTPUTS = 64
"""Columns of the product that are made at a time: with `_NUMBERS`, sums of 48 KB. Fewer are read faster, and what a row
has added so far is read and written more often."""
_VECTOR = 16
"""Numbers of float32 in a cache line, and in the widest vector: a vector in two lines takes twice as long."""


class BinaryRows(msgspec.Struct, frozen=True):
    """Binary rows of features, four columns told by one number."""

    rows: np.ndarray
    """Rows of the features, int64, ascending."""
    sums: np.ndarray
    """int16 [blocks of columns, rows, `_NUMBERS`]: which of the 16 sums a row adds, for each four columns of a block,
    whose sums are numbered through."""
    factors: np.ndarray
    """float32 [rows]: what the sum of a row is multiplied by, the norm included."""

    @staticmethod
    def of(features: FeatureRows, rows: np.ndarray, order: Order) -> BinaryRows | None:
        """Those rows of the features (int64, ascending), divided by norms of that order. None: they are few, or not all
        are binary."""
        return BinaryRows.told(features, rows, order) if len(rows) >= _LEAST_ROWS else None

    @staticmethod
    def told(features: FeatureRows, rows: np.ndarray, order: Order) -> BinaryRows | None:
        """The same of any number of rows."""
        blocks = -(-features.columns // (_TOLD * _NUMBERS))
        sums = np.empty((blocks, len(rows), _NUMBERS), np.int16)
        factors = np.empty(len(rows), np.float32)
        if not _tell(features.addresses, features.columns, rows, order, sums, factors):
            return None
        return BinaryRows(rows, sums, factors)

    def multiply(self, read: np.ndarray, product: NonzeroProduct) -> np.ndarray:
        """The product of the rows `read` of the features (int64), all of them among these: float32 [rows read,
        outputs]."""
        made = np.empty((len(read), len(product.shift)), np.float32)
        if len(read):
            table, added = _aligned(_NUMBERS * _SUMS), _aligned(len(read))
            places = np.searchsorted(self.rows, read)
            _multiply(
                self.sums, self.factors, places, product.weights, product.shift, NO_SCALES, table, added.ravel(), made
            )
        return made


@cache
def warm_up_binary() -> None:
    """Compile or load the kernels, so that no request pays for it."""
    product = NonzeroProduct(np.zeros((_TOLD, 1), np.float32), np.zeros(1, np.float32))
    rows = np.zeros(1, np.int64)
    if (told := BinaryRows.told(FeatureRows.of(np.zeros((1, _TOLD), np.float32)), rows, 0)) is not None:
        told.multiply(rows, product)


@kernel
def _tell(
    addresses: np.ndarray, width: int, read: np.ndarray, order: int, sums: np.ndarray, factors: np.ndarray
) -> bool:
    """Fill in `sums` and `factors`; False: a row is not binary."""
    blocks = len(sums)
    is_set = np.zeros(blocks * _NUMBERS * _TOLD, np.uint8)
    fours = is_set.view(np.uint32)
    for place in range(len(read)):
        row = row_at(addresses[read[place]], width)
        first = 0
        while first < width - 1 and row[first] == 0:
            first += 1
        number = row[first]
        others = np.uint8(0)
        for column in range(width):
            is_other = np.uint8(row[column] != 0)
            is_set[column] = is_other
            others |= is_other & np.uint8(row[column] != number)
        if others > 0:
            return False
        found = 0
        for block in range(blocks):
            for i in range(_NUMBERS):
                four = fours[block * _NUMBERS + i]
                found += int(np.uint32(four * _ADDS_BYTES) >> _LAST_BYTE)
                sums[block, place, i] = _SUMS * i + ((np.uint32(four * _JOINS_BYTES) >> _LAST_BYTE) & (_SUMS - 1))
        norm = np.float64(found) if order == 1 else np.sqrt(np.float64(found))
        factors[place] = number if order == 0 or found == 0 else np.sign(number) / norm
    return True


_ADDS_BYTES = np.uint32(0x01010101)
"""Multiplies four bytes of 0 or 1 so that the last byte is their sum, …"""
_JOINS_BYTES = np.uint32(0x01020408)
"""… and so that its lowest bits are the four, the first one lowest."""
_LAST_BYTE = np.uint32(24)


def _aligned(rows: int) -> np.ndarray:
    """float32 [rows, `_OUTPUTS`] whose rows begin with a cache line."""
    space = np.zeros(rows * _OUTPUTS + _VECTOR, np.float32)
    first = -space.ctypes.data // space.itemsize % _VECTOR
    return space[first : first + rows * _OUTPUTS].reshape(rows, _OUTPUTS)


@kernel
def _multiply(
    sums: np.ndarray, factors: np.ndarray, places: np.ndarray, weights: np.ndarray, shift: np.ndarray,
    no_numbers: np.ndarray, table: np.ndarray, added: np.ndarray, made: np.ndarray,
) -> None:  # fmt: skip
    """`table`: where the sums of a block are made. `added`: where they are added, a row for each of `places`."""
    outputs = len(shift)
    blocks, rows, _ = sums.shape
    read = sums.reshape(-1)
    for first in range(0, outputs, _OUTPUTS):
        columns = min(_OUTPUTS, outputs - first)
        # Whole vectors: the columns of a part would be added once more together with some before them.
        whole = columns + -columns % _VECTOR
        for block in range(blocks):
            _sum_up(weights, block * _NUMBERS * _TOLD, first, columns, table)
            # What the blocks before have added is a row of its own.
            of_others = 0.0 if block == 0 else 1.0
            for i in range(len(places)):
                start = (block * rows + places[i]) * _NUMBERS
                place = i * _OUTPUTS
                sum_rows(added, place, whole, table, no_numbers, read, start, start + _NUMBERS, 1.0,
                         added, no_numbers, place, of_others, no_numbers, False)  # fmt: skip
        for i in range(len(places)):
            factor = factors[places[i]]
            for column in range(columns):
                made[i, first + column] = added[i * _OUTPUTS + column] * factor + shift[first + column]


@inlined
def _sum_up(weights: np.ndarray, first_input: int, first: int, columns: int, table: np.ndarray) -> None:
    """All sums of each four rows of the weights from `first_input` on, in the columns from `first` on. Inputs behind
    the last have weights of zero."""
    for number in range(_NUMBERS):
        begin = number * _SUMS
        table[begin] = 0.0
        for bit in range(_TOLD):
            weight_row = first_input + number * _TOLD + bit
            is_there = weight_row < len(weights)
            added = weights[weight_row if is_there else 0, first : first + columns]
            share = np.float32(1.0 if is_there else 0.0)
            for sum_before in range(1 << bit):
                without = table[begin + sum_before]
                with_it = table[begin + (1 << bit) + sum_before]
                for column in range(columns):
                    with_it[column] = without[column] + share * added[column]
