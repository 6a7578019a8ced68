"""Rows of a table of products over several types, made of the features of nodes that the table has no row for.

A new node is read by each relation through other weights, so that it has a row for each relation by which a sample
reads it, and one for itself. A node of a type without features comes with its default embedding in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from gnnserve_worker.kernel_cache import brief_kernel
from gnnserve_worker.kernels.layout import unpack_layout
from gnnserve_worker.kernels.view import row_of_overlay, unpack
from gnnserve_worker.models.architecture import RelationalLayer
from gnnserve_worker.models.feature_products import FeatureProducts, Scaling
from gnnserve_worker.models.network import Linear
from gnnserve_worker.models.relation_table import RelationTable
from gnnserve_worker.models.rows import RowMaker, RowPlaces
from gnnserve_worker.sampling.batch_view import BatchView
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.tables.table import Table


def relation_row_maker(
    table: Table, reads: RelationTable, layer: RelationalLayer, scalings: Sequence[Scaling], widths: Sequence[int]
) -> RowMaker:
    """`layer`: whose products the table has. `widths`: columns that it reads of each type. ValueError: it does not fit
    the table or the types."""
    biases = layer.biases if layer.heads is None else {}

    def product(width: int, matrix: np.ndarray | None, shift: np.ndarray | None) -> Linear:
        found = np.zeros((width, table.columns), np.float32) if matrix is None else matrix
        if layer.heads is not None:  # what is behind the widest product is not read
            found = np.pad(found, ((0, 0), (0, table.columns - found.shape[1])))
        if found.shape != (width, table.columns):
            raise ValueError(f"a matrix of the first layer is {list(found.shape)}, expected {[width, table.columns]}")
        added = np.zeros(table.columns, np.float32) if shift is None else shift
        return Linear.build(found, added, relu=False, compute="float32")

    relations, types = len(reads.sources), len(widths)
    products = [
        *(
            product(widths[source], layer.relations.get(place), layer.shifts.get(place))
            for place, source in enumerate(reads.sources)
        ),
        *(product(width, layer.own.get(kind), biases.get(kind)) for kind, width in enumerate(widths)),
    ]
    numbers = [
        [*(place for place, source in enumerate(reads.sources) if source == kind), relations + kind]
        for kind in range(types)
    ]
    made_of = tuple(
        FeatureProducts.build(scaling, width, [products[number] for number in own], own)
        for scaling, width, own in zip(scalings, widths, numbers, strict=True)
    )
    first_nodes = unpack_layout(reads.layout)[2][:types]
    places = RowPlaces(reads.sources, reads.first_rows, first_nodes, partial(_name_by_relation, reads.layout))
    return RowMaker(table, made_of, places)


def _name_by_relation(
    layout: np.ndarray, view: BatchView, sample: NeighbourSample, table: Table, *, apart: bool
) -> Sequence[np.ndarray]:
    """As of `NamesRows`. Rows of neighbours and of nodes themselves are numbered apart in any case."""
    count, numbers = 0 if view.features is None else len(view.features), int(layout[2] + layout[0])
    read, ends = np.empty(count * numbers, np.int64), np.empty(numbers, np.int64)
    _name_rows(
        layout, view.sampling.packed, sample.type_ends, sample.segments, sample.nodes, sample.neighbours,
        len(table.own.values), count, read, ends,
    )  # fmt: skip
    return np.split(read[: ends[-1]], ends[:-1])


@brief_kernel
def _name_rows(
    layout: np.ndarray, packed: np.ndarray, type_ends: np.ndarray, segments: np.ndarray, nodes: np.ndarray,
    neighbours: np.ndarray, own_rows: int, features: int, read: np.ndarray, ends: np.ndarray,
) -> None:  # fmt: skip
    """Put the rows that are gathered in place of overlay nodes, in the sample's own arrays: stored nodes that keep
    their features by their number, neighbours as N + i for the i-th row that is made of neighbours, and nodes
    themselves as what is i behind the table's own rows for the i-th of those. `read` gets the rows of features that are
    read of each number, of which each ends in `ends`."""
    types, stride, first_nodes, _, slots, relation_of, _ = unpack_layout(layout)
    relations = layout[2]
    stored = first_nodes[types]
    _, _, _, _, origins, streams, _, _, _ = unpack(packed)
    places = np.full((relations + types, features), -1, dtype=np.int64)
    # First it is found what is read, then numbered: rows of one number stand together.
    for is_numbered in (False, True):
        begin = 0
        for block in range(len(type_ends)):
            kind = block % types
            own = places[relations + kind]
            for row in range(begin, type_ends[block]):
                if nodes[row] >= stored:
                    if is_numbered:
                        nodes[row] = own_rows + own[(nodes[row] - stored) // stride]
                    else:
                        nodes[row] = row_of_overlay(nodes[row], stored, origins, streams)
                        if nodes[row] >= stored:
                            own[(nodes[row] - stored) // stride] = 0
                for slot in range(slots[kind]):
                    by_relation = places[relation_of[kind * stride + slot]]
                    for edge in range(segments[row * stride + slot], segments[row * stride + slot + 1]):
                        if neighbours[edge] < stored:
                            continue
                        if is_numbered:
                            neighbours[edge] = stored + by_relation[(neighbours[edge] - stored) // stride]
                            continue
                        neighbours[edge] = row_of_overlay(neighbours[edge], stored, origins, streams)
                        if neighbours[edge] >= stored:
                            by_relation[(neighbours[edge] - stored) // stride] = 0
            begin = type_ends[block]
        if is_numbered:
            break
        found = 0
        first = 0
        for number in range(relations + types):
            if number == relations:
                first = found
            for row in range(features):
                if places[number, row] >= 0:
                    places[number, row] = found - first
                    read[found] = row
                    found += 1
            ends[number] = found
