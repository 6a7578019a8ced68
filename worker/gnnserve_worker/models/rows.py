"""Rows of tables, made of the features of nodes that the tables have no row for.

A row is made as the table's own were: features scaled by what the revision's were scaled by, then either the table's
columns of them or the product that the table stores, in its format. Rows of stored layers are `stored_rows.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from gnnserve_worker.kernel_cache import brief_kernel, inlined, kernel
from gnnserve_worker.kernels.primitives import prefetch_row
from gnnserve_worker.models.architecture import Projection
from gnnserve_worker.models.feature_products import FeatureProducts, RowsOfFeatures, ScaledColumns, Scaling, product_of
from gnnserve_worker.models.network import Linear
from gnnserve_worker.sampling.batch_view import BatchView, FeatureRows, name_rows
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.tables.table import NO_SCALES, Rows, RowsBehind, Table

_BRIEF_ROWS = 512
"""Up to as many rows are written without giving the interpreter away, in 0.1 ms: predictions wait meanwhile, and would
wait longer for it to come back. Of more, numpy and such a kernel would hold up all that answers requests."""
_AHEAD = 8
"""Rows that are fetched into the cache before they are written."""


FeaturesOf = Callable[[np.ndarray], np.ndarray]
"""By the positions of stored nodes (int64), their features as in the source, float32 [nodes, columns of the widest
type]: zeros behind those of a narrower one."""


class ReachedRows(NamedTuple):
    """Rows of a stored layer that a sample reads and that are others in the views of their requests."""

    keys: np.ndarray
    """`node_keys` of their nodes, int64, ascending, distinct."""
    origins: np.ndarray
    """The stored node of each, int64; below 0 of a new one, for which nothing is stored."""
    amounts: np.ndarray
    """Estimates of how far each has moved, float32 [rows], above 0; 1 of a new node."""
    times: np.ndarray
    """How often the sample reads each, int64."""
    is_asked: np.ndarray
    """Whether it is the row of a node itself and not of a neighbour, bool."""

    @property
    def is_first(self) -> np.ndarray:
        """Whether it is made whatever the budget: of a new node, or of a node itself. bool"""
        is_first: np.ndarray = (self.origins < 0) | self.is_asked
        return is_first


NOTHING_REACHED = ReachedRows(
    np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(0, np.bool_)
)


class ReachesRows(Protocol):
    """Finder of the rows that requests change, some of which may be read as they are stored."""

    def reached(self, view: BatchView, sample: NeighbourSample) -> ReachedRows:
        """Rows that the sample reads otherwise than they are stored."""
        ...  # pragma: no cover


class MakesRows(Protocol):
    """Maker of rows of nodes that a table has no row for, or no longer the right one."""

    @property
    def reaching(self) -> ReachesRows | None:
        """What finds rows of which a batch may choose some; None: all are made that requests change."""
        ...  # pragma: no cover

    @property
    def made_of(self) -> Sequence[RowsOfFeatures]:
        """What makes its rows of features of each type; empty: they are made of more than a node's features."""
        ...  # pragma: no cover

    @property
    def names_leaves(self) -> bool:
        """Whether samples must name leaves that only gain neighbours."""
        ...  # pragma: no cover

    def kept_features(self, features: Sequence[int]) -> FeaturesOf | None:
        """What reads features of stored nodes from the table; None: it does not hold all of the source, as many of each
        type as given, to the precision of float32."""
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
    """Maker of the rows that a table has of nodes whose features have changed for good."""

    @property
    def table(self) -> Table: ...  # pragma: no cover

    def rows_of_type(self, kind: int) -> int:
        """Rows of neighbours that a node of a type (its place) has in the table."""
        ...  # pragma: no cover

    def renew(self, features: np.ndarray, nodes: np.ndarray) -> RenewedRows:
        """All rows of these nodes (int64), made of their features: float32 [nodes, columns], as in the source."""
        ...  # pragma: no cover


class NamesRows(Protocol):
    """Names the rows that a sample reads of the features that a view brings, chosen by how a table has rows."""

    def __call__(
        self, view: BatchView, sample: NeighbourSample, table: Table, *, apart: bool
    ) -> Sequence[np.ndarray]:  # pragma: no cover
        """The rows of features that are read of each number of `RowPlaces` (int64), each once; in the sample they are
        named as rows behind the table's, those of one number after those of another. `apart`: as of
        `MakesRows.behind`."""
        ...


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Where a table has the rows of nodes. They are numbered: a row for each relation that reads a node, in the order
    of relations, then one of itself for each type."""

    sources: tuple[int, ...]
    """The type whose nodes each relation reads."""
    first_rows: np.ndarray
    """int64 [relations]: the first row of each relation; -1: it has none of them."""
    first_nodes: np.ndarray
    """int64 [types]: the first node of each type."""
    name: NamesRows

    def of_nodes(self, number: int, nodes: np.ndarray) -> np.ndarray:
        """The rows of such nodes (int64), of those that have this number: int64."""
        if number >= len(self.sources):
            return nodes
        return np.asarray(nodes + (self.first_rows[number] - self.first_nodes[self.sources[number]]))

    def written(self, nodes: np.ndarray, own_rows: int) -> list[np.ndarray]:
        """Places in `nodes` (int64) of those that have a row of each number: int64. `own_rows`: rows that the table has
        of nodes themselves."""
        kinds = np.searchsorted(self.first_nodes, nodes, side="right") - 1
        is_there = [kinds == kind for kind in range(len(self.first_nodes))]
        itself = nodes < own_rows
        read = zip(self.sources, self.first_rows.tolist(), strict=True)
        return [
            *(np.flatnonzero(is_there[source]) if first >= 0 else _NO_ROWS for source, first in read),
            *(np.flatnonzero(own & itself) for own in is_there),
        ]


_NO_ROWS = np.zeros(0, np.int64)


def _name_by_node(view: BatchView, sample: NeighbourSample, table: Table, *, apart: bool) -> Sequence[np.ndarray]:
    named = name_rows(view, sample, table.nodes, apart=apart and table.own is not table.rows)
    return named.neighbours, named.own


BY_NODE = RowPlaces((0,), np.zeros(1, np.int64), np.zeros(1, np.int64), _name_by_node)
"""One row for each node, and one for itself where these are others."""


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Makes rows of one table."""

    table: Table
    made_of: tuple[RowsOfFeatures, ...]
    """What makes rows of features of each type."""
    places: RowPlaces

    @property
    def reaching(self) -> None:
        """As `MakesRows.reaching`."""
        return None

    @property
    def names_leaves(self) -> bool:
        """Whether it must be told of neighbours that only gain neighbours themselves: its rows are made of features."""
        return False

    @property
    def has_own_rows(self) -> bool:
        """Whether other rows are read of a node itself than of it as a neighbour."""
        return self.table.own is not self.table.rows

    def behind(self, view: BatchView, sample: NeighbourSample, columns: int, *, apart: bool) -> RowsBehind | None:
        """As `MakesRows.behind`."""
        if view.features is None:
            return None
        return self.make_of(view, self.places.name(view, sample, self.table, apart=apart), columns)

    def kept_features(self, features: Sequence[int]) -> FeaturesOf | None:
        """As `MakesRows.kept_features`."""
        if len(self.made_of) != len(features):  # it has rows of the first types alone
            return None
        of_types = zip(self.made_of, features, strict=True)
        return self._features_of if all(kind.keeps(self.table.rows, own) for kind, own in of_types) else None

    def make_of(self, view: BatchView, read: Sequence[np.ndarray], columns: int) -> RowsBehind:
        """Rows of a view's features as of `make`, or of the stored nodes that its nodes stand for."""
        if view.features is None:
            raise ValueError("the view brings nothing")
        made = self.make(view.features, read, columns)
        if view.stand_ins is not None:
            self._copy(view.stand_ins, read, made)
        return made

    def make(self, features: FeatureRows, read: Sequence[np.ndarray], columns: int) -> RowsBehind:
        """Rows that stand behind the table's: of each number one for each row of the features that `read` has of it
        (int64), and where the table has rows of nodes themselves, those apart.

        Of a table of features the leading `columns` are written at least. A number beyond what the format holds becomes
        the largest that it does.
        """
        rows, relations = self.table.rows, len(self.places.sources)
        made: list[np.ndarray] = [*read]
        for kind in self.made_of:
            kind.make(features, made, rows, columns)
        values, scales = encode_rows(rows, _together(rows, made[:relations]))
        if not self.has_own_rows:
            return RowsBehind(values, scales, values, scales)
        return RowsBehind(values, scales, *encode_rows(self.table.own, _together(self.table.own, made[relations:])))

    def rows_of_type(self, kind: int) -> int:
        return self.places.sources.count(kind)

    def renew(self, features: np.ndarray, nodes: np.ndarray) -> RenewedRows:
        """A `RenewsRows`, of features as wide as those of the widest type."""
        read, relations = self.places.written(nodes, len(self.table.own.values)), len(self.places.sources)
        made = self.make(FeatureRows.of(features), read, self.table.columns)
        rows = [self.places.of_nodes(number, nodes[own]) for number, own in enumerate(read)]
        return RenewedRows(
            self.table, nodes, made, (np.concatenate(rows[:relations]), np.concatenate(rows[relations:]))
        )

    def _copy(self, stand_ins: np.ndarray, read: Sequence[np.ndarray], made: RowsBehind) -> None:
        """Put the table's rows of stored nodes in place of those made for nodes that stand for them."""
        stored, relations = [stand_ins[one] for one in read], len(self.places.sources)
        rows = [np.where(one < 0, -1, self.places.of_nodes(number, one)) for number, one in enumerate(stored)]
        _copy_rows(self.table.rows, np.concatenate(rows[:relations]), made.values, made.scales)
        if self.has_own_rows:
            _copy_rows(self.table.own, np.concatenate(rows[relations:]), made.own_values, made.own_scales)

    def _features_of(self, nodes: np.ndarray) -> np.ndarray:
        """Features of stored nodes (int64) as in the source, float32 [nodes, columns], where rows keep them."""
        kinds = np.searchsorted(self.places.first_nodes, nodes, side="right") - 1
        features = np.zeros((len(nodes), self.table.columns), np.float32)
        for place, kind in enumerate(self.made_of):
            own, columns = np.flatnonzero(kinds == place), kind.columns_of(self.table.columns)
            rows = self.table.rows.values[nodes[own], : len(columns)]
            features[own, : len(columns)] = kind.scaling.undo(rows, columns)
        return features


def _together(rows: Rows, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Rows one part after the other, as wide as `rows` are."""
    return pad_rows(rows, parts[0] if len(parts) == 1 else np.concatenate(parts))


def multiplied(scaled: np.ndarray, product: Linear, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The product of `scaled`, float32 [rows, inputs], in the format of `rows` and as wide; and its scales."""
    return encode_rows(rows, pad_rows(rows, product_of(scaled, product)))


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


def _copy_rows(rows: Rows, places: np.ndarray, values: np.ndarray | None, scales: np.ndarray | None) -> None:
    """Put rows in place of `values`, which are of the same format. `places`: the row for each of them, int64; -1: it
    stays."""
    is_copied = places >= 0
    if values is not None:
        values[is_copied] = rows.values[places[is_copied]]
    if scales is not None and len(scales):
        scales[is_copied] = rows.scales[places[is_copied]]


@dataclass(frozen=True, slots=True)
class RenewedRows:
    """Rows that are made of the features of some nodes, to be written in place of those that a table has of them."""

    table: Table
    nodes: np.ndarray
    """int64"""
    made: RowsBehind
    places: tuple[np.ndarray, np.ndarray]
    """Where each row is written, of neighbours and of nodes themselves: int64."""

    def put(self, *, in_parallel: bool = False) -> None:
        """`in_parallel`: other threads write at the same time."""
        rows, own, made = self.table.rows, self.table.own, self.made
        write_rows(rows, self.places[0], made.values, made.scales, in_parallel=in_parallel)
        if own is not rows:
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
        if i + _AHEAD < len(nodes):
            prefetch_row(written, nodes[i + _AHEAD], 0, width)
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
    scaling.check(features)
    if not table.projected:
        # Where no variant reads all columns, the table has the first ones alone.
        read = np.array(columns[: table.columns], np.int64)
        if len(read) != table.columns or read.min() < 0 or read.max() >= features:
            raise ValueError(f"{len(columns)} columns of {features} features, expected at least {table.columns}")
        return RowMaker(table, (ScaledColumns(scaling, read),), BY_NODE)
    if not products:
        raise ValueError("the first layer's weights are missing")
    expected = [features, table.columns]
    for product in products:
        if [product.inputs, product.outputs] != expected:
            raise ValueError(f"the first layer's weights are {[product.inputs, product.outputs]}, expected {expected}")
    made_of = FeatureProducts.build(scaling, features, products, range(len(products)))
    return RowMaker(table, (made_of,), BY_NODE)
