"""Rows of a table of features over several types, or of products of them, made of the features of nodes that the table
has no row for.

A node has one row, whichever relation reads it, with the columns of its own type first; or a product with the part of a
matrix that is its type's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gnnserve_worker.kernel_cache import brief_kernel, inlined
from gnnserve_worker.kernels.layout import type_of, unpack_layout
from gnnserve_worker.kernels.view import row_of_overlay, unpack
from gnnserve_worker.models.feature_products import FeatureProducts, RowsOfFeatures, ScaledColumns, Scaling
from gnnserve_worker.models.network import Linear
from gnnserve_worker.models.rows import RowMaker, RowPlaces
from gnnserve_worker.sampling.batch_view import BatchView, FeatureRows
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.tables.table import Rows, Table


def type_row_maker(table: Table, layout: np.ndarray, scalings: Sequence[Scaling], widths: Sequence[int]) -> RowMaker:
    """`layout`: `pack_layout` of the graph. `scalings`, `widths`: of the features of each type. ValueError: they do not
    fit the table."""
    if table.own is not table.rows or table.projected:
        raise ValueError("the table has other rows than features")
    if len(widths) != layout[0] or max(widths) > table.columns:
        raise ValueError(f"features of types are {list(widths)}, expected {layout[0]} of at most {table.columns}")
    made_of = tuple(
        ScaledColumns(scaling, np.arange(width), numbers=(kind,))
        for kind, (scaling, width) in enumerate(zip(scalings, widths, strict=True))
    )
    first_nodes = unpack_layout(layout)[2][: len(widths)]
    places = RowPlaces(tuple(range(len(widths))), first_nodes, first_nodes, partial(_name_by_type, layout))
    return RowMaker(table, made_of, places)


def asked_row_maker(
    table: Table, layout: np.ndarray, scalings: Sequence[Scaling], widths: Sequence[int], product: Linear
) -> RowMaker:
    """Makes rows of a table of products of the features of nodes of the first types, which has rows of no others.
    `scalings`, `widths`: of each of these types. `product`: its inputs are the columns of the types, type after type.
    ValueError: it does not fit."""
    found = [product.inputs, product.outputs]
    if table.own is not table.rows or found != [sum(widths), table.columns]:
        raise ValueError(f"the first layer's weights are {found}, expected {[sum(widths), table.columns]}")
    made_of, begin = list[RowsOfFeatures](), 0
    for kind, (scaling, width) in enumerate(zip(scalings, widths, strict=True)):
        made_of.append(_product_of_type(scaling, width, product.dense[begin : begin + width], kind))
        begin += width
    types, first_nodes = len(widths), unpack_layout(layout)[2][: layout[0]]
    places = RowPlaces(tuple(range(types)), first_nodes[:types], first_nodes, partial(_name_by_type, layout))
    return RowMaker(table, tuple(made_of), places)


def _product_of_type(scaling: Scaling, width: int, weight: np.ndarray, kind: int) -> RowsOfFeatures:
    if not width:
        return _RowsOfNothing(scaling, weight.shape[1], (kind,))
    product = Linear.build(weight, np.zeros(weight.shape[1], np.float32), relu=False, compute="float32")
    return FeatureProducts.build(scaling, width, [product], [kind])


@dataclass(frozen=True, slots=True)
class _RowsOfNothing:
    """The `RowsOfFeatures` of a type without features, whose rows are 0."""

    scaling: Scaling
    outputs: int
    numbers: tuple[int, ...]
    products: tuple[Linear, ...] = ()

    def columns_of(self, columns: int) -> np.ndarray:
        return np.zeros(0, np.int64)

    def keeps(self, rows: Rows, features: int) -> bool:
        return False

    def make(self, features: FeatureRows, made: list[np.ndarray], rows: Rows, columns: int) -> None:
        """As `RowsOfFeatures.make`."""
        (number,) = self.numbers
        made[number] = np.zeros((len(made[number]), self.outputs), np.float32)


def _name_by_type(
    layout: np.ndarray, view: BatchView, sample: NeighbourSample, table: Table, *, apart: bool
) -> Sequence[np.ndarray]:
    """As of `NamesRows`: rows of neighbours and of nodes themselves are one."""
    del apart
    count, types = 0 if view.features is None else len(view.features), int(layout[0])
    read, ends = np.empty(count, np.int64), np.empty(types, np.int64)
    rows = len(table.rows.values)
    _name_rows(layout, view.sampling.packed, sample.nodes, sample.neighbours, rows, read, ends)
    return np.split(read[: ends[-1]], ends[:-1])


@brief_kernel
def _name_rows(
    layout: np.ndarray, packed: np.ndarray, nodes: np.ndarray, neighbours: np.ndarray, rows: int, read: np.ndarray,
    ends: np.ndarray,
) -> None:  # fmt: skip
    """Put the rows that are gathered in place of overlay nodes, in the sample's own arrays: stored nodes that keep
    their features by their number, others as what is i behind the table's own `rows` for the i-th that is made. `read`
    gets the rows of features that
    are read, type after type, of which each ends in `ends`."""
    types, stride, first_nodes, _, _, _, _ = unpack_layout(layout)
    stored = first_nodes[types]
    _, _, _, _, origins, streams, _, _, _ = unpack(packed)
    places = np.full(len(read), -1, dtype=np.int64)
    _note(stored, stride, origins, streams, nodes, places)
    _note(stored, stride, origins, streams, neighbours, places)
    found = 0
    for kind in range(types):
        for row in range(len(read)):
            if places[row] != -2:
                continue
            origin = origins[row * stride]
            own = type_of(origin, first_nodes) if origin >= 0 else -1 - origin
            if own == kind:
                places[row] = found
                read[found] = row
                found += 1
        ends[kind] = found
    _name(stored, stride, nodes, places, rows)
    _name(stored, stride, neighbours, places, rows)


@inlined
def _note(
    stored: int, stride: int, origins: np.ndarray, streams: np.ndarray, ids: np.ndarray, places: np.ndarray
) -> None:
    """Put stored nodes in place of overlay nodes that keep their features, and -2 in `places` of rows of features that
    are read."""
    for i in range(len(ids)):
        if ids[i] >= stored:
            ids[i] = row_of_overlay(ids[i], stored, origins, streams)
            if ids[i] >= stored:
                places[(ids[i] - stored) // stride] = -2


@inlined
def _name(stored: int, stride: int, ids: np.ndarray, places: np.ndarray, rows: int) -> None:
    for i in range(len(ids)):
        if ids[i] >= stored:
            ids[i] = rows + places[(ids[i] - stored) // stride]
