"""Numbers of rows of tables, made of the features of nodes of one type: the columns of them that a table has, or the
products that it stores, in float32. Features are scaled by what the revision's were scaled by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gnnserve_worker.graph.feature_rows import FeatureRows
from gnnserve_worker.models.binary import BinaryRows, warm_up_binary
from gnnserve_worker.models.dense import Linear
from gnnserve_worker.models.nonzero import NonzeroProduct, pays
from gnnserve_worker.models.scaling import Scaling
from gnnserve_worker.tables.table import Rows

_FEW_ROWS = 4
"""Up to as many are multiplied by the weights as they are: packed ones take twice as long then (602 features and 256
columns: one row 15 µs, and 9 as they are)."""
_MOST_OF_ALL = 1.25
"""Rows of features that any product reads, beside those of the product that reads fewest, up to which all products are
made of all: scaling a row takes as long as a fifth of a product."""


class RowsOfFeatures(Protocol):
    """What makes rows of the features of nodes of a type."""

    @property
    def scaling(self) -> Scaling: ...  # pragma: no cover

    @property
    def products(self) -> Sequence[Linear]:
        """What scaled features are multiplied by; empty: they are rows as they are."""
        ...  # pragma: no cover

    @property
    def numbers(self) -> Sequence[int]:
        """Which rows of a node, by the numbers that `RowPlaces` gives them, it makes."""
        ...  # pragma: no cover

    def columns_of(self, columns: int) -> np.ndarray:
        """The source's columns (int64) that so many leading columns of the table are made of."""
        ...  # pragma: no cover

    def keeps(self, rows: Rows, features: int) -> bool:
        """Whether such rows hold all features of the source, as many as given, to the precision of float32."""
        ...  # pragma: no cover

    def make(self, features: FeatureRows, made: list[np.ndarray], rows: Rows, columns: int) -> None:  # pragma: no cover
        """Put rows, float32 [rows read, columns], in place of the rows of the features that they are made of (int64),
        which `made` has by the numbers of rows. Of features as they are, at least the leading `columns` of `rows` are
        made."""
        ...


@dataclass(frozen=True, slots=True)
class ScaledColumns:
    """A `RowsOfFeatures` whose rows are columns of features, a node's own those of it as a neighbour."""

    scaling: Scaling
    columns: np.ndarray
    """The source's column of each of the table's, int64."""

    products: tuple[Linear, ...] = ()
    numbers: tuple[int, ...] = (0,)

    def columns_of(self, columns: int) -> np.ndarray:
        return self.columns[:columns]

    def keeps(self, rows: Rows, features: int) -> bool:
        return len(self.columns) == features and rows.format.is_exact and self.scaling.can_be_undone

    def make(self, features: FeatureRows, made: list[np.ndarray], rows: Rows, columns: int) -> None:
        """As `RowsOfFeatures.make`."""
        # A row's scale is that of all its columns.
        wanted = self.columns if rows.format.has_scales else self.columns[:columns]
        (number,) = self.numbers
        made[number] = self.scaling.scale(features, made[number], wanted, rows.values.shape[1])


@dataclass(frozen=True, slots=True)
class FeatureProducts:
    """A `RowsOfFeatures` whose rows are products."""

    scaling: Scaling
    columns: np.ndarray
    """The type's columns of features, int64, in their order."""
    products: tuple[Linear, ...]
    numbers: tuple[int, ...]
    nonzero: tuple[NonzeroProduct, ...]
    """How mostly empty features are multiplied by each of them; empty: features are narrow."""
    multiplied_by: tuple[Callable[[np.ndarray, Linear], np.ndarray], ...]
    """What multiplies scaled features by each of them."""

    @staticmethod
    def build(scaling: Scaling, width: int, products: Sequence[Linear], numbers: Sequence[int]) -> FeatureProducts:
        """`width`: features of a node of the type."""
        built = (NonzeroProduct.build(one.dense, one.bias, scaling.mean, scaling.deviation) for one in products)
        nonzero = tuple(one for one in built if one is not None)
        if nonzero:
            warm_up_binary()
        multiplied_by = tuple(_biased_product_of if one.bias.any() else product_of for one in products)
        return FeatureProducts(scaling, np.arange(width), tuple(products), tuple(numbers), nonzero, multiplied_by)

    def columns_of(self, columns: int) -> np.ndarray:
        """All, whichever of the product's columns are read."""
        return self.columns

    def keeps(self, rows: Rows, features: int) -> bool:
        """Never: products do not tell what they were made of."""
        return False

    def make(self, features: FeatureRows, made: list[np.ndarray], rows: Rows, columns: int) -> None:
        """As `RowsOfFeatures.make`."""
        reads = [made[number] for number in self.numbers]
        for number, part in zip(self.numbers, self.multiply(features, reads), strict=True):
            made[number] = part

    def multiply(self, features: FeatureRows, reads: Sequence[np.ndarray]) -> list[np.ndarray]:
        """For each product, that of those rows of the features (int64), scaled: float32 [rows read, outputs]."""
        any_of = _any_of(len(features), reads)
        if self.nonzero and len(any_of):
            if pays(features, any_of):
                return self._multiply_nonzero(features, reads)
            if (binary := BinaryRows.of(features, any_of, self.scaling.order)) is not None:
                return [binary.multiply(read, one) for read, one in zip(reads, self.nonzero, strict=True)]
        return self._multiply_whole(features, reads, any_of)

    def _multiply_nonzero(self, features: FeatureRows, reads: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Products of what is not zero, which is looked for once for two of them."""
        made, order = list[np.ndarray](), self.scaling.order
        for place in range(0, len(reads), 2):
            first, second = self.nonzero[place], self.nonzero[min(place + 1, len(reads) - 1)]
            other = reads[place + 1] if place + 1 < len(reads) else reads[place][:0]
            made += first.multiply(features, reads[place], order, other, second)
        return made[: len(reads)]

    def _multiply_whole(
        self, features: FeatureRows, reads: Sequence[np.ndarray], any_of: np.ndarray
    ) -> list[np.ndarray]:  # fmt: skip
        """Products of any features, from scaled ones. `any_of`: rows that any product reads, ascending."""
        columns, width = self.columns, len(self.columns)
        fewest = min(map(len, reads)) or min((len(read) for read in reads if len(read)), default=0)
        if len(any_of) > _MOST_OF_ALL * fewest:
            return [
                multiply(self.scaling.scale(features, read, columns, width), product)
                for read, product, multiply in zip(reads, self.products, self.multiplied_by, strict=True)
            ]
        # Nearly the same rows are read of all: they are scaled once, and a few more are multiplied.
        scaled = self.scaling.scale(features, any_of, columns, width)
        return [
            _at(multiply(scaled if len(read) else scaled[:0], product), any_of, read)
            for read, product, multiply in zip(reads, self.products, self.multiplied_by, strict=True)
        ]


def _any_of(count: int, reads: Sequence[np.ndarray]) -> np.ndarray:
    """The rows that are in any list, int64, ascending. `count`: how many rows there are."""
    is_read = np.zeros(count, np.bool_)
    for read in reads:
        is_read[read] = True
    return np.flatnonzero(is_read)


def _at(made: np.ndarray, rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Those of what was made for `rows`, ascending, that are wanted."""
    # One row, as of one new node, is compared with nothing: to compare takes as long as to multiply it.
    return (
        made if len(made) == len(wanted) <= 1 or np.array_equal(rows, wanted) else made[np.searchsorted(rows, wanted)]
    )


def product_of(scaled: np.ndarray, product: Linear) -> np.ndarray:
    """The product of `scaled`, float32 [rows, inputs], by one whose bias is 0: float32 [rows, outputs]."""
    made = np.empty((len(scaled), product.outputs), dtype=np.float32)
    if 0 < len(scaled) <= _FEW_ROWS:
        np.matmul(scaled, product.dense, out=made)
    elif len(scaled):
        product.apply(scaled.ravel(), len(scaled), made.ravel())
    return made


def _biased_product_of(scaled: np.ndarray, product: Linear) -> np.ndarray:
    """`product_of`, with the product's bias."""
    made = product_of(scaled, product)
    if 0 < len(scaled) <= _FEW_ROWS:
        made += product.bias
    return made
