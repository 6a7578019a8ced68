"""Numbers of rows of tables, made of the features of nodes of one type: the columns of them that a table has, or the
products that it stores, in float32. Features that requests and changes bring are scaled by what the revision's were
scaled by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.models.binary import BinaryRows, warm_up_binary
from gnnserve_worker.models.network import Linear
from gnnserve_worker.models.nonzero import LEAST_INPUTS, NonzeroProduct, Order, pays
from gnnserve_worker.sampling.batch_view import FeatureRows, row_at
from gnnserve_worker.tables.normalise import ROW_NORMS
from gnnserve_worker.tables.table import Rows

# --- scaled features


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a revision's features were scaled."""

    method: Normalization
    """The method that was applied; never AUTO."""
    mean: np.ndarray | None = None
    """float64 [features], with STANDARDIZE."""
    deviation: np.ndarray | None = None
    """float64 [features], with STANDARDIZE."""

    def check(self, features: int) -> None:
        """ValueError: moments are missing, or not those of so many features."""
        for name, moment in (("mean", self.mean), ("deviation", self.deviation)):
            if moment is not None and (moment.shape != (features,) or moment.dtype != np.float64):
                raise ValueError(f"{name!r} is {moment.dtype} {list(moment.shape)}, expected float64 {[features]}")
        if self.method is Normalization.STANDARDIZE and (self.mean is None or self.deviation is None):
            raise ValueError("features were standardized, and 'mean' or 'deviation' is missing")

    def scale(self, features: FeatureRows, read: np.ndarray, columns: np.ndarray, width: int) -> np.ndarray:
        """The given columns of those rows of the features (int64), scaled: float32 [rows read, width], zeros behind
        them."""
        make = np.empty if width == len(columns) else np.zeros
        scaled: np.ndarray = make((len(read), width), np.float32)
        mean, factors = _NO_MOMENTS, _NO_MOMENTS
        if self.mean is not None and self.deviation is not None:
            mean, factors = self.mean, 1.0 / self.deviation
        _scale(features.addresses, features.columns, read, self.order, mean, factors, columns, scaled)
        return scaled

    @property
    def order(self) -> Order:
        """Order of the norm by which a row is divided; 0: it is not."""
        return ROW_NORMS.get(self.method, 0)

    @property
    def can_be_undone(self) -> bool:
        """Whether scaled features tell those of the source: not where rows were divided by norms, which are lost."""
        return self.method not in ROW_NORMS

    def undo(self, scaled: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Features as in the source, float32 [rows, features], of all scaled ones. `columns`: the source's column of
        each, int64."""
        rows = scaled.astype(np.float64)
        if self.mean is not None and self.deviation is not None:
            rows = rows * self.deviation[columns] + self.mean[columns]
        features = np.empty(rows.shape, np.float32)
        features[:, columns] = rows
        return features


_NO_MOMENTS = np.zeros(0)


@kernel
def _scale(
    addresses: np.ndarray, width: int, read: np.ndarray, order: int, mean: np.ndarray, factors: np.ndarray,
    columns: np.ndarray, scaled: np.ndarray,
) -> None:  # fmt: skip
    is_in_order = True
    for i in range(len(columns)):
        is_in_order = is_in_order and columns[i] == i
    sums = np.empty(_BESIDE, np.float64)
    for place in range(len(read)):
        row = row_at(addresses[read[place]], width)
        written = scaled[place]
        # Columns in order are read and written as vectors: without a look-up for each, and without a division.
        if is_in_order and len(mean) > 0:
            for i in range(len(columns)):
                written[i] = (row[i] - mean[i]) * factors[i]
        elif is_in_order:
            factor = _factor_of(row, order, sums)
            for i in range(len(columns)):
                written[i] = row[i] * factor
        else:
            factor = _factor_of(row, order, sums)
            for i in range(len(columns)):
                column = columns[i]
                written[i] = (row[column] - mean[column]) * factors[column] if len(mean) > 0 else row[column] * factor


_BESIDE = 16
"""Sums that are made beside each other, as a vector."""


@inlined
def _factor_of(row: np.ndarray, order: int, sums: np.ndarray) -> float:
    """What a row is multiplied by so that its norm is 1; 1 for a row of zeros, and without an order. In float64: in
    float32 the norm of large features overflows, although the quotients do not."""
    if order == 0:
        return 1.0
    sums[:] = 0.0
    whole = len(row) - len(row) % _BESIDE
    for begin in range(0, whole, _BESIDE):
        for i in range(_BESIDE):
            value = np.float64(row[begin + i])
            sums[i] += abs(value) if order == 1 else value * value
    for i in range(whole, len(row)):
        value = np.float64(row[i])
        sums[0] += abs(value) if order == 1 else value * value
    norm = 0.0
    for i in range(_BESIDE):
        norm += sums[i]
    if order > 1:
        norm = np.sqrt(norm)
    return float(1.0 / norm) if norm > 0 else 1.0


# --- numbers of rows


_FEW_ROWS = 4
"""Up to as many are multiplied by the weights as they are: packed ones take twice as long then (602 features and 256
columns: one row 15 µs, and 9 as they are)."""
_MOST_OF_ALL = 1.25
"""Rows of features that any product reads, beside those of the product that reads fewest, up to which all products are
made of all: scaling a row takes as long as a fifth of a product."""


class RowsOfFeatures(Protocol):
    """Maker of rows of the features of nodes of a type."""

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
        wide = [one for one in products if len(one.dense) >= LEAST_INPUTS]
        nonzero = tuple(NonzeroProduct.build(one.dense, one.bias, scaling.mean, scaling.deviation) for one in wide)
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
