"""A first layer that sums the means of feature columns over neighbours by each relation; products of them are
`models/relation_means.py`.

A table has one row of each node of any type, with the columns of its type first. A row of the sample is aggregated to
the mean of its neighbours' columns by each relation that its type reads, behind each mean 1 where there are such
neighbours, and its own columns: all beside each other. One product for each type, of the weights below each other,
makes the layer's output of it. What a network adds for each relation that has neighbours is multiplied by that 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gnnserve_api.files.profile import Compute
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.kernels.primitives import prefetch_rows
from gnnserve_worker.models.architecture import RelationalLayer
from gnnserve_worker.models.network import Activations, Linear, no_bias
from gnnserve_worker.models.relation_table import RelationTable
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.tables.table import NOTHING_BEHIND, ROWS_AHEAD, RowsBehind, Table
from gnnserve_worker.tables.vectors import sum_rows

_ONE: Mapping[type[np.generic], np.ndarray] = {
    np.float32: np.ones(1, np.float32), np.uint16: np.full(1, 0x3F80, np.uint16),
}  # fmt: skip
"""1 as rows of each type have it; uint16 stands for the bits of bfloat16."""


@dataclass(frozen=True, slots=True)
class TypeProduct:
    """The product of the rows of a type."""

    widths: np.ndarray
    """Columns of the means by each relation that the type reads, in their order, and of the row itself: int64."""
    linear: Linear


@dataclass(frozen=True, slots=True)
class TypeMeans:
    """A `NetworkLayer`, the first one of a network."""

    inputs: int
    """Columns of the type that it reads most of."""
    outputs: int
    reads: RelationTable
    products: Mapping[int, TypeProduct]
    """By the place of a type. Rows of types without one are 0."""
    bytes_per_row: int = field(init=False)
    weighs_neighbours: bool = field(init=False, default=False)
    finish: None = field(init=False, default=None)
    """Products are of the types of rows, which the sample alone tells: `gather` makes them."""

    def __post_init__(self) -> None:
        numbers = max((each.linear.inputs + self.outputs for each in self.products.values()), default=self.outputs)
        object.__setattr__(self, "bytes_per_row", 4 * numbers)

    @staticmethod
    def build(layer: RelationalLayer, reads: RelationTable, *, relu: bool, compute: Compute) -> TypeMeans:
        """`layer`: of means, its matrices over columns in rank order. ValueError: relations read unlike many columns of
        a type."""
        widths = column_widths(layer, reads)
        schema, products = reads.schema, dict[int, TypeProduct]()
        nothing = np.zeros((1, layer.outputs), np.float32)
        for kind, bias in layer.biases.items():
            matrices, columns = list[np.ndarray](), list[int]()
            for place, relation in enumerate(schema.relations):
                if relation.target == schema.types[kind].name:
                    read = layer.relations.get(place)
                    shift = layer.shifts.get(place)
                    matrices += [] if read is None else [read]
                    matrices.append(nothing if shift is None else shift.reshape(1, -1))
                    columns.append(0 if read is None else widths[reads.sources[place]])
            own = layer.own.get(kind)
            matrices += [] if own is None else [own]
            columns.append(0 if own is None else widths[kind])
            weight = np.concatenate([*matrices, nothing[:0]])
            products[kind] = TypeProduct(
                np.array(columns, np.int64), Linear.build(weight, bias, relu=relu, compute=compute)
            )
        return TypeMeans(max(widths.values()), layer.outputs, reads, products)

    def gather(
        self, table: Table, sample: NeighbourSample, scratch: Activations, behind: RowsBehind | None = None
    ) -> np.ndarray:
        """See `NetworkLayer`."""
        out = scratch.hidden(len(sample.nodes) * self.outputs)
        types, begin = self.reads.types, 0
        for place, end in enumerate(sample.type_ends.tolist()):
            if end > begin:
                written = out[begin * self.outputs : end * self.outputs]
                product = self.products.get(place % types)
                if product is None:
                    written.fill(0)
                else:
                    self._gather_type(product, begin, end, table, sample, scratch, behind, written)
            begin = end
        return out

    def _gather_type(
        self, product: TypeProduct, begin: int, end: int, table: Table, sample: NeighbourSample, scratch: Activations,
        behind: RowsBehind | None, out: np.ndarray,
    ) -> None:  # fmt: skip
        """Rows begin to end - 1, all of one type, of the layer's output."""
        linear, more = product.linear, NOTHING_BEHIND if behind is None else behind
        rows = scratch.aggregated((end - begin) * linear.inputs, linear.input_dtype)
        _gather_means(
            table.rows.values, table.rows.scales, more.values, more.scales, begin, end, sample.nodes, sample.neighbours,
            sample.segments, self.reads.stride, product.widths, _ONE[linear.input_dtype], no_bias(), rows,
        )  # fmt: skip
        linear.apply(rows, end - begin, out)

    def infer(self, below: np.ndarray, sample: NeighbourSample, hops: int, scratch: Activations) -> np.ndarray:
        """See `NetworkLayer`. ValueError always: later layers are `RelationMeans`, over states of one width."""
        raise ValueError("a layer over columns of features reads a table, and is the first one")


def column_widths(layer: RelationalLayer, reads: RelationTable) -> dict[int, int]:
    """Columns that a first layer reads of each type, by its place. ValueError: relations differ in it."""
    read = [(reads.sources[place], len(matrix)) for place, matrix in layer.relations.items()]
    widths: dict[int, int] = {}
    for kind, width in (*read, *((kind, len(matrix)) for kind, matrix in layer.own.items())):
        if widths.setdefault(kind, width) != width:
            name = reads.schema.types[kind].name
            raise ValueError(f"matrices of layer 0 read {widths[kind]} and {width} columns of type {name}")
    return widths


@kernel
def _gather_means(
    values: np.ndarray, scales: np.ndarray, more_values: np.ndarray | None, more_scales: np.ndarray | None,
    begin: int, end: int, nodes: np.ndarray, neighbours: np.ndarray, segments: np.ndarray, stride: int,
    widths: np.ndarray, one: np.ndarray, no_bias: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """For rows begin to end - 1, the mean of the first columns of neighbours by each relation, whether there are any,
    and the first columns of the row itself, beside each other. `widths`: how many of each."""
    lists = len(widths) - 1
    rows_read = (values, more_values)
    scales_read = (scales, more_scales)
    place = 0
    for row in range(begin, end):
        ahead = row + ROWS_AHEAD
        if ahead < end:
            for slot in range(lists):
                prefetch_rows(values, scales, neighbours, segments[ahead * stride + slot],
                              segments[ahead * stride + slot + 1], widths[slot])  # fmt: skip
            prefetch_rows(values, scales, nodes, ahead, ahead + 1, widths[lists])
        node = np.int64(nodes[row])
        for slot in range(lists):
            start = segments[row * stride + slot]
            stop = segments[row * stride + slot + 1]
            factor = 1.0 / (stop - start) if stop > start else 1.0
            sum_rows(out, place, widths[slot], rows_read, scales_read, neighbours, start, stop, factor,
                     rows_read, scales_read, node, 0.0, no_bias, False)  # fmt: skip
            place += widths[slot]
            out[place] = one[0] if stop > start else 0
            place += 1
        sum_rows(out, place, widths[lists], rows_read, scales_read, neighbours, 0, 0, 0.0,
                 rows_read, scales_read, node, 1.0, no_bias, False)  # fmt: skip
        place += widths[lists]
