"""Rows of a table of products over several types, made of the features of nodes that the table has no row for.

A new node is read by each relation through other weights, so that it has a row for each relation by which a sample
reads it, and one for itself. A node of a type without features comes with its default embedding in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_worker.graph.feature_rows import FeatureRows
from gnnserve_worker.kernel_cache import brief_kernel, inlined
from gnnserve_worker.kernels.layout import unpack_layout
from gnnserve_worker.kernels.view import row_of_overlay, unpack
from gnnserve_worker.models.dense import Linear
from gnnserve_worker.models.relation_table import RelationTable
from gnnserve_worker.models.relational import RelationalLayer
from gnnserve_worker.models.rows import FeaturesOf, RenewedRows, copy_rows, encode_rows
from gnnserve_worker.models.scaling import Scaling
from gnnserve_worker.sampling.batch_view import BatchView
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.tables.table import Rows, RowsBehind, Table


@dataclass(frozen=True, slots=True)
class RelationRowMaker:
    """Makes rows of one table: a `models.rows.MakesRows`."""

    table: Table
    reads: RelationTable
    """Where the table has the rows of each relation."""
    scalings: Sequence[Scaling]
    """How the features of each type were scaled."""
    widths: Sequence[int]
    """Columns of each type: its features, or its embedding."""
    relations: Sequence[Linear]
    """The product of each relation."""
    own: Sequence[Linear]
    """That of each type with its own weights."""

    @property
    def names_leaves(self) -> bool:
        return False

    def kept_features(self, features: int) -> FeaturesOf | None:
        """As `MakesRows.kept_features`: products do not tell them."""
        return None

    def behind(self, view: BatchView, sample: NeighbourSample, columns: int, *, apart: bool) -> RowsBehind | None:
        """As `MakesRows.behind`. Rows of neighbours and of nodes themselves are numbered apart in any case."""
        if view.features is None:
            return None
        features = view.features
        count, relations = len(features), len(self.relations)
        read, own_read = np.empty((2, count * relations), np.int64), np.empty((2, count * len(self.own)), np.int64)
        found, found_own = _name_rows(
            self.reads.layout, view.sampling.packed, sample.type_ends, sample.segments, sample.nodes, sample.neighbours,
            len(self.table.own.values), count, read, own_read,
        )  # fmt: skip
        read, own_read = read[:, :found], own_read[:, :found_own]
        values, scales = self._make(features, read, self.relations, self.reads.sources, self.table.rows)
        kinds = range(len(self.own))
        own_values, own_scales = self._make(features, own_read, self.own, kinds, self.table.own)
        if view.stand_ins is not None:
            self._copy(view.stand_ins, read, own_read, RowsBehind(values, scales, own_values, own_scales))
        return RowsBehind(values, scales, own_values, own_scales)

    def _copy(self, stand_ins: np.ndarray, read: np.ndarray, own_read: np.ndarray, made: RowsBehind) -> None:
        """Put the table's rows of stored nodes in place of those made for nodes that stand for them."""
        first_nodes, sources = unpack_layout(self.reads.layout)[2], np.array(self.reads.sources, np.int64)
        stored = stand_ins[read[1]]
        moved = self.reads.first_rows[read[0]] - first_nodes[sources[read[0]]]
        copy_rows(self.table.rows, np.where(stored < 0, -1, stored + moved), made.values, made.scales)
        copy_rows(self.table.own, stand_ins[own_read[1]], made.own_values, made.own_scales)

    def rows_of_type(self, kind: int) -> int:
        return [*self.reads.sources].count(kind)

    def renew(self, features: np.ndarray, nodes: np.ndarray) -> RenewedRows:
        """A `RenewsRows`, of features as wide as those of the widest type: a node has a row for each relation that
        reads its type."""
        first_nodes = unpack_layout(self.reads.layout)[2]
        kinds = np.searchsorted(first_nodes, nodes, side="right") - 1
        read, places = [_NO_ROWS], [_NO_ROWS[0]]
        for relation, (source, first) in enumerate(
            zip(self.reads.sources, self.reads.first_rows.tolist(), strict=True)
        ):
            own = np.flatnonzero(kinds == source)
            if first >= 0 and len(own):
                read.append(np.stack((np.full(len(own), relation), own)))
                places.append(first + nodes[own] - first_nodes[source])
        # A table of the last layer has rows of nodes themselves for the type that is classified alone.
        itself = np.flatnonzero(nodes < len(self.table.own.values))
        own_read = np.stack((kinds[itself], itself))
        given = FeatureRows.of(features)
        made = self._make(given, np.concatenate(read, axis=1), self.relations, self.reads.sources, self.table.rows)
        made_own = self._make(given, own_read, self.own, range(len(self.own)), self.table.own)
        return RenewedRows(self.table, nodes, RowsBehind(*made, *made_own), (np.concatenate(places), nodes[itself]))

    def _make(
        self, features: FeatureRows, read: np.ndarray, products: Sequence[Linear], kinds: Sequence[int], rows: Rows
    ) -> tuple[np.ndarray, np.ndarray]:
        """A row for each of `read`: the place of its product, and of its features, int64 [2, rows]. `kinds`: the type
        that each product reads."""
        made = np.zeros((read.shape[1], rows.values.shape[1]), np.float32)
        for place in np.unique(read[0]).tolist():
            product, kind = products[place], kinds[place]
            wanted = np.flatnonzero(read[0] == place)
            width = self.widths[kind]
            scaled = self.scalings[kind].scale(features, read[1, wanted], np.arange(width), width)
            out = np.empty((len(wanted), product.outputs), np.float32)
            product.apply(scaled.ravel(), len(wanted), out.ravel())
            made[wanted, : product.outputs] = out
        return encode_rows(rows, made)


_NO_ROWS = np.zeros((2, 0), np.int64)


def relation_row_maker(
    table: Table, reads: RelationTable, layer: RelationalLayer, scalings: Sequence[Scaling], widths: Sequence[int]
) -> RelationRowMaker:
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

    return RelationRowMaker(
        table,
        reads,
        scalings,
        widths,
        [
            product(widths[source], layer.relations.get(place), layer.shifts.get(place))
            for place, source in enumerate(reads.sources)
        ],
        [product(width, layer.own.get(kind), biases.get(kind)) for kind, width in enumerate(widths)],
    )


@brief_kernel
def _name_rows(
    layout: np.ndarray, packed: np.ndarray, type_ends: np.ndarray, segments: np.ndarray, nodes: np.ndarray,
    neighbours: np.ndarray, own_rows: int, features: int, read: np.ndarray, own_read: np.ndarray,
) -> tuple[int, int]:  # fmt: skip
    """Put the rows that are gathered in place of overlay nodes, in the sample's own arrays: stored nodes that keep
    their features by their number, neighbours as N + i for the i-th of `read`, and nodes themselves as what is i behind
    the table's own rows for the i-th of `own_read`. Both get the place of a relation or type, and of features."""
    types, stride, first_nodes, _, slots, relation_of, _ = unpack_layout(layout)
    stored = first_nodes[types]
    _, _, _, _, origins, streams, _, _, _ = unpack(packed)
    places = np.full(features * layout[2], -1, dtype=np.int64)
    own_places = np.full(features * types, -1, dtype=np.int64)
    found = 0
    found_own = 0
    begin = 0
    for block in range(len(type_ends)):
        kind = block % types
        for row in range(begin, type_ends[block]):
            if nodes[row] >= stored:
                made = row_of_overlay(nodes[row], stored, origins, streams)
                nodes[row] = made
                if made >= stored:
                    place = _place_of(kind, (made - stored) // stride, features, own_places, own_read, found_own)
                    found_own = max(found_own, place + 1)
                    nodes[row] = own_rows + place
            for slot in range(slots[kind]):
                relation = relation_of[kind * stride + slot]
                for edge in range(segments[row * stride + slot], segments[row * stride + slot + 1]):
                    if neighbours[edge] < stored:
                        continue
                    made = row_of_overlay(neighbours[edge], stored, origins, streams)
                    neighbours[edge] = made
                    if made >= stored:
                        place = _place_of(relation, (made - stored) // stride, features, places, read, found)
                        found = max(found, place + 1)
                        neighbours[edge] = stored + place
        begin = type_ends[block]
    return found, found_own


@inlined
def _place_of(product: int, row: int, features: int, places: np.ndarray, read: np.ndarray, found: int) -> int:
    """The place in `read` of what a product makes of a row of features, which is put behind the first `found` where it
    has none yet. `places`: those that there are, -1 of all others."""
    key = product * features + row
    if places[key] < 0:
        places[key] = found
        read[0, found] = product
        read[1, found] = row
    return int(places[key])
