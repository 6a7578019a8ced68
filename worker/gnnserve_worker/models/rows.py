"""Rows of tables, made of the features of nodes that the tables have no row for.

A row is made as the table's own were: features scaled by what the revision's were scaled by, then either the table's
columns of them or the product that the table stores, in its format. Rows of stored layers are `stored_rows.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.graph.feature_rows import FeatureRows
from gnnserve_worker.kernel_cache import brief_kernel, inlined, kernel
from gnnserve_worker.models.architecture import Projection
from gnnserve_worker.models.binary import BinaryRows, warm_up_binary
from gnnserve_worker.models.dense import Linear
from gnnserve_worker.models.nonzero import NonzeroProduct, pays
from gnnserve_worker.models.scaling import Scaling
from gnnserve_worker.sampling.batch_view import BatchView, name_rows
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.tables.table import NO_SCALES, Rows, RowsBehind, Table

_FEW_ROWS = 4
"""Up to as many are multiplied by the weights as they are: packed ones take twice as long then (602 features and 256
columns: one row 15 µs, and 9 as they are)."""
_MOST_OF_BOTH = 1.25
"""Rows of features that neighbours or nodes themselves read, beside the fewer of the two, up to which both products are
made of all: scaling a row takes as long as a fifth of a product."""
_BRIEF_ROWS = 512
"""Up to as many rows are written without giving the interpreter away, in 0.1 ms: predictions wait meanwhile, and would
wait longer for it to come back. Of more, numpy and such a kernel would hold up all that answers requests."""


FeaturesOf = Callable[[np.ndarray], np.ndarray]
"""By the positions of stored nodes (int64), their features as in the source, float32 [nodes, features]."""


class MakesRows(Protocol):
    """What answers about nodes that a table has no row for, or no longer the right one."""

    @property
    def names_leaves(self) -> bool:
        """Whether samples must name leaves that only gain neighbours."""
        ...  # pragma: no cover

    def kept_features(self, features: int) -> FeaturesOf | None:
        """What reads features of stored nodes from the table; None: it does not hold all of the source, as many as
        given, to the precision of float32."""
        ...  # pragma: no cover

    def behind(
        self, view: BatchView, sample: NeighbourSample, columns: int, *, apart: bool
    ) -> RowsBehind | None:  # pragma: no cover
        """Rows of what the sample reads of the view, named in the sample from then on; None: it reads nothing. Nodes
        that stand for stored ones (`BatchView.stand_ins`) have these ones' rows.

        Of a table of features the leading `columns` are made at least. `apart`: rows of neighbours and of nodes
        themselves may be numbered apart where they are others, and be made for what is read of either.
        """
        ...


class RenewsRows(Protocol):
    """What makes the rows that a table has of nodes whose features have changed for good."""

    @property
    def table(self) -> Table: ...  # pragma: no cover

    def rows_of_type(self, kind: int) -> int:
        """Rows of neighbours that a node of a type (its place) has in the table."""
        ...  # pragma: no cover

    def renew(self, features: np.ndarray, nodes: np.ndarray) -> RenewedRows:
        """All rows of these nodes (int64), made of their features: float32 [nodes, columns], as in the source."""
        ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Makes rows of one table."""

    table: Table
    scaling: Scaling
    columns: np.ndarray
    """The source's column of each column that is read, int64: of the table's, or all in their order where it stores
    products."""
    products: tuple[Linear, ...]
    """What scaled features are multiplied by where the table stores products: for its rows, and for those of a node
    itself where they are others. Empty: it stores features."""
    nonzero: tuple[NonzeroProduct | None, ...]
    """For each of `products`, how mostly empty features are multiplied; None: features are narrow."""

    @property
    def names_leaves(self) -> bool:
        """Whether it must be told of neighbours that only gain neighbours themselves: its rows are made of features."""
        return False

    def behind(self, view: BatchView, sample: NeighbourSample, columns: int, *, apart: bool) -> RowsBehind | None:
        """As `MakesRows.behind`."""
        if view.features is None:
            return None
        named = name_rows(view, sample, self.table.nodes, apart=apart and self.has_own_rows)
        return self.make_of(view, named.neighbours, named.own, columns)

    def make_of(self, view: BatchView, read: np.ndarray, own_read: np.ndarray, columns: int) -> RowsBehind:
        """Rows of a view's features as of `make`, or of the stored nodes that its nodes stand for."""
        if view.features is None:
            raise ValueError("the view brings nothing")
        made = self.make(view.features, read, own_read, columns)
        if view.stand_ins is not None:
            copy_rows(self.table.rows, view.stand_ins[read], made.values, made.scales)
            if self.has_own_rows:
                copy_rows(self.table.own, view.stand_ins[own_read], made.own_values, made.own_scales)
        return made

    def keeps_features(self, features: int) -> bool:
        """Whether the table holds all features of the source, as many as given, to the precision of float32."""
        is_exact = self.table.rows.format.is_exact and self.scaling.can_be_undone
        return not self.products and len(self.columns) == features and is_exact

    def kept_features(self, features: int) -> FeaturesOf | None:
        """As `MakesRows.kept_features`."""
        return self.features_of if self.keeps_features(features) else None

    def features_of(self, nodes: np.ndarray) -> np.ndarray:
        """Features of stored nodes as in the source, float32 [nodes, features], where `keeps_features`."""
        return self.scaling.undo(self.table.rows.values[nodes, : len(self.columns)], self.columns)

    @property
    def has_own_rows(self) -> bool:
        """Whether other rows are read of a node itself than of it as a neighbour."""
        return len(self.products) > 1

    def make(self, features: FeatureRows, read: np.ndarray, own_read: np.ndarray, columns: int) -> RowsBehind:
        """Rows that stand behind the table's, one for each of `read`, the rows of the features that are wanted (int64),
        and where the table has own rows, one of those for each of `own_read`.

        Of a table of features the leading `columns` are written at least. A number beyond what the format holds becomes
        the largest that it does.
        """
        rows, own = self.table.rows, self.table.own
        if not self.products:
            # A row's scale is that of all its columns.
            wanted = self.columns if rows.format.has_scales else self.columns[:columns]
            values, scales = encode_rows(rows, self.scaling.scale(features, read, wanted, rows.values.shape[1]))
            return RowsBehind(values, scales, values, scales)
        if not self.has_own_rows:
            own_read = read[:0]
        made, own_made = self._multiply(features, read, own_read)
        values, scales = encode_rows(rows, pad_rows(rows, made))
        if not self.has_own_rows:
            return RowsBehind(values, scales, values, scales)
        return RowsBehind(values, scales, *encode_rows(own, pad_rows(own, own_made)))

    def rows_of_type(self, kind: int) -> int:
        return 1

    def renew(self, features: np.ndarray, nodes: np.ndarray) -> RenewedRows:
        """A `RenewsRows`: a row of the table, and of a node itself, for each row of features."""
        rows = np.arange(len(features))
        return RenewedRows(self.table, nodes, self.make(FeatureRows.of(features), rows, rows, self.table.columns))

    def _multiply(self, features: FeatureRows, read: np.ndarray, own_read: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The product of the rows `read`, and that of `own_read` for nodes themselves: float32 [rows read, columns]."""
        nonzero, own_nonzero, order = self.nonzero[0], self.nonzero[-1], self.scaling.order
        both = _either(len(features), read, own_read)
        if nonzero is None or own_nonzero is None:
            return self._multiply_whole(features, read, own_read, both)
        if pays(features, both):
            return nonzero.multiply(features, read, order, own_read, own_nonzero)
        binary = BinaryRows.of(features, both, order)
        if binary is None:
            return self._multiply_whole(features, read, own_read, both)
        return binary.multiply(read, nonzero), binary.multiply(own_read, own_nonzero)

    def _multiply_whole(
        self, features: FeatureRows, read: np.ndarray, own_read: np.ndarray, both: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same of any features, from scaled ones. `both`: rows of which either is read, ascending."""
        columns, width = self.columns, len(self.columns)
        if len(both) <= _MOST_OF_BOTH * min(len(read), len(own_read)):
            # Nearly the same rows are read of both: they are scaled once, and a few more are multiplied.
            scaled = self.scaling.scale(features, both, columns, width)
            made, own_made = (product_of(scaled, product) for product in (self.products[0], self.products[-1]))
            return _at(made, both, read), _at(own_made, both, own_read)
        made = product_of(self.scaling.scale(features, read, columns, width), self.products[0])
        own_scaled = self.scaling.scale(features, own_read, columns, width)
        return made, product_of(own_scaled, self.products[-1])


def _either(count: int, read: np.ndarray, own_read: np.ndarray) -> np.ndarray:
    """The rows that are in either list, int64, ascending. `count`: how many rows there are."""
    is_read = np.zeros(count, np.bool_)
    is_read[read] = True
    is_read[own_read] = True
    return np.flatnonzero(is_read)


def _at(made: np.ndarray, rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Those of what was made for `rows`, ascending, that are wanted."""
    return made if np.array_equal(rows, wanted) else made[np.searchsorted(rows, wanted)]


def multiplied(scaled: np.ndarray, product: Linear, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The product of `scaled`, float32 [rows, inputs], in the format of `rows` and as wide; and its scales."""
    return encode_rows(rows, pad_rows(rows, product_of(scaled, product)))


def product_of(scaled: np.ndarray, product: Linear) -> np.ndarray:
    """The product of `scaled`, float32 [rows, inputs]: float32 [rows, outputs]."""
    made = np.empty((len(scaled), product.outputs), dtype=np.float32)
    if 0 < len(scaled) <= _FEW_ROWS:
        np.matmul(scaled, product.dense, out=made)
    elif len(scaled):
        product.apply(scaled.ravel(), len(scaled), made.ravel())
    return made


def pad_rows(rows: Rows, made: np.ndarray) -> np.ndarray:
    """`made`, float32 [rows, columns], with zeros behind them, as wide as `rows` are."""
    padding = rows.values.shape[1] - made.shape[1]
    return np.pad(made, ((0, 0), (0, padding))) if padding else made


def encode_to_write(rows: Rows, made: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In the format of `rows`, for `write_rows`, which needs no padding of numbers that are kept as they are. `made`:
    float32 [rows, columns]."""
    return (made, NO_SCALES) if rows.format.is_exact else encode_rows(rows, pad_rows(rows, made))


def encode_rows(rows: Rows, made: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In the format of `rows`. `made`: float32, as wide as they are with padding."""
    if (largest := rows.format.largest) is not None:
        made = made.clip(-largest, largest)
    values, scales = rows.format.encode(made)
    return values, NO_SCALES if scales is None else scales


def copy_rows(rows: Rows, places: np.ndarray, values: np.ndarray | None, scales: np.ndarray | None) -> None:
    """Put rows in place of `values`, which are of the same format. `places`: the row for each of them, int64; -1: it
    stays."""
    is_copied = places >= 0
    if values is not None:
        values[is_copied] = rows.values[places[is_copied]]
    if scales is not None and len(scales):
        scales[is_copied] = rows.scales[places[is_copied]]


def keeper_of(makers: Iterable[RowMaker], features: int) -> RowMaker | None:
    """The first whose table holds all features of the source, as many as given; None: there is none."""
    return next((maker for maker in makers if maker.keeps_features(features)), None)


def put_rows(table: Table, nodes: np.ndarray, made: RowsBehind) -> None:
    """Write rows that `RowMaker.renew` made for such a table, in place of those of these nodes (int64)."""
    write_rows(table.rows, nodes, made.values, made.scales)
    if table.own is not table.rows:
        write_rows(table.own, nodes, made.own_values, made.own_scales)


@dataclass(frozen=True, slots=True)
class RenewedRows:
    """Rows that are made of the features of some nodes, to be written in place of those that a table has of them."""

    table: Table
    nodes: np.ndarray
    """int64"""
    made: RowsBehind
    places: tuple[np.ndarray, np.ndarray] | None = None
    """Where each row is written, of neighbours and of nodes themselves: int64. None: where its node is."""

    def put(self, *, in_parallel: bool = False) -> None:
        """`in_parallel`: other threads write at the same time."""
        if self.places is None:
            put_rows(self.table, self.nodes, self.made)
            return
        rows, own, made = self.table.rows, self.table.own, self.made
        write_rows(rows, self.places[0], made.values, made.scales, in_parallel=in_parallel)
        write_rows(own, self.places[1], made.own_values, made.own_scales, in_parallel=in_parallel)


def write_rows(
    rows: Rows, nodes: np.ndarray, values: np.ndarray | None, scales: np.ndarray | None, *, in_parallel: bool = False
) -> None:
    """Write rows that `encode_rows` made, in place of those of these nodes (int64); or float32 ones without their
    padding. `in_parallel`: other threads write at the same time. ValueError: the rows are read alone."""
    if rows.written is None or values is None:
        raise ValueError("these rows were not opened for changes, or there are none to write")
    put = _put if in_parallel or len(nodes) > _BRIEF_ROWS else _put_briefly
    put(rows.written.values.view(np.uint8), nodes, np.ascontiguousarray(values).view(np.uint8))
    if rows.format.has_scales:
        rows.written.scales[nodes] = scales


@kernel
def _put(written: np.ndarray, nodes: np.ndarray, values: np.ndarray) -> None:
    _copy(written, nodes, values)


@brief_kernel
def _put_briefly(written: np.ndarray, nodes: np.ndarray, values: np.ndarray) -> None:
    _copy(written, nodes, values)


@inlined
def _copy(written: np.ndarray, nodes: np.ndarray, values: np.ndarray) -> None:
    """Copy rows of bytes."""
    width = values.shape[1]
    for i in range(len(nodes)):
        row = written[nodes[i]]
        made = values[i]
        for place in range(width):
            row[place] = made[place]


def first_products(projection: Projection, width: int = 0) -> tuple[Linear, ...]:
    """What features are multiplied by for the rows of projected tables, whatever they are stored in. `width`: least
    columns of what they write; those beyond the projection's are zeros, as the padding of rows is."""
    # The networks' own products: another library's beside them would take turns with them in the processor's caches.
    matrices = (projection.rows,) if projection.own is None else (projection.rows, projection.own)
    padded = [np.pad(matrix, ((0, 0), (0, max(0, width - matrix.shape[1])))) for matrix in matrices]
    return tuple(
        Linear.build(matrix, np.zeros(matrix.shape[1], np.float32), relu=False, compute="float32") for matrix in padded
    )


def row_maker(
    table: Table, features: int, scaling: Scaling, columns: np.ndarray, products: tuple[Linear, ...]
) -> RowMaker:
    """`columns`: the source's columns in the order of the table, where it holds features; those beyond the table's own
    are left out. `products`: `first_products`, where it holds products. ValueError: something does not fit."""
    for name, moment in (("mean", scaling.mean), ("deviation", scaling.deviation)):
        if moment is not None and (moment.shape != (features,) or moment.dtype != np.float64):
            raise ValueError(f"{name!r} is {moment.dtype} {list(moment.shape)}, expected float64 {[features]}")
    if scaling.method is Normalization.STANDARDIZE and (scaling.mean is None or scaling.deviation is None):
        raise ValueError("features were standardized, and 'mean' or 'deviation' is missing")
    if not table.projected:
        # Where no variant reads all columns, the table has the first ones alone.
        read = np.array(columns[: table.columns], np.int64)
        if len(read) != table.columns or read.min() < 0 or read.max() >= features:
            raise ValueError(f"{len(columns)} columns of {features} features, expected at least {table.columns}")
        return RowMaker(table, scaling, read, (), ())
    if not products:
        raise ValueError("the first layer's weights are missing")
    expected = [features, table.columns]
    for product in products:
        if [product.inputs, product.outputs] != expected:
            raise ValueError(f"the first layer's weights are {[product.inputs, product.outputs]}, expected {expected}")
    nonzero = tuple(NonzeroProduct.build(product.dense, scaling.mean, scaling.deviation) for product in products)
    if any(product is not None for product in nonzero):
        warm_up_binary()
    return RowMaker(table, scaling, np.arange(features), products, nonzero)
