"""A first layer that attends over feature columns by each relation; over products of them it is
`models/relation_attention.py`, whose mathematics it has.

What a head makes of a row, as a neighbour or as a reader, is one product with the row's columns. Sums of a head are
made of columns, and multiplied by its weights afterwards, since sums commute with linear maps: a row of the sample
becomes, for each head, its sums by each relation that its type reads, beside each other, and one product for each head
makes the layer's output of them; where heads are averaged, one product of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gnnserve_worker.columns.type_means import column_widths
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.kernels.primitives import prefetch_rows
from gnnserve_worker.models.architecture import Heads, RelationalLayer
from gnnserve_worker.models.network import Activations, Linear, PerHead, Product, no_bias
from gnnserve_worker.models.relation_table import RelationTable
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.tables.attention import exponential, leaky
from gnnserve_worker.tables.table import NOTHING_BEHIND, ROWS_AHEAD, RowsBehind, Table
from gnnserve_worker.tables.vectors import dot_row, sum_weighted_columns


@dataclass(frozen=True, slots=True)
class TypeHeads:
    """Widths, scoring vectors and product of the rows of a type, for all heads."""

    widths: np.ndarray
    """Columns that are read by each relation that the type has, in their order, 0 where nothing is read, and of the row
    itself: int64."""
    vectors: np.ndarray
    """What scores rows, float32, flat: for each such relation and head the neighbour's, as wide as it, then the row's
    own, relation after relation."""
    product: Product
    """Makes the output of the heads' sums, head after head."""


@dataclass(frozen=True, slots=True)
class TypeAttention:
    """A `NetworkLayer`, the first one of a network."""

    inputs: int
    """Columns of the type that it reads most of."""
    reads: RelationTable
    heads: Heads
    of_types: Mapping[int, TypeHeads]
    """By the place of a type. Rows of types without are 0."""
    outputs: int = field(init=False)
    bytes_per_row: int = field(init=False)
    weighs_neighbours: bool = field(init=False, default=False)
    finish: None = field(init=False, default=None)
    """Products are of the types of rows, which the sample alone tells: `gather` makes them."""

    def __post_init__(self) -> None:
        numbers = max((one.product.inputs for one in self.of_types.values()), default=0)
        object.__setattr__(self, "outputs", self.heads.outputs)
        object.__setattr__(self, "bytes_per_row", 4 * (numbers + self.outputs))

    @staticmethod
    def build(layer: RelationalLayer, reads: RelationTable, *, relu: bool) -> TypeAttention:
        """`layer`: of attention, its matrices over columns in rank order. Products are made in float32. ValueError:
        relations read unlike many columns of a type."""
        heads = layer.heads
        if heads is None:
            raise ValueError("the first layer attends, and nothing says how many heads it has")
        widths = column_widths(layer, reads)
        of_types = {
            kind: _heads_of(layer, heads, reads, kind, widths, bias, relu=relu) for kind, bias in layer.biases.items()
        }
        return TypeAttention(max(widths.values()), reads, heads, of_types)

    def gather(
        self, table: Table, sample: NeighbourSample, scratch: Activations, behind: RowsBehind | None = None
    ) -> np.ndarray:
        """See `NetworkLayer`."""
        out = scratch.hidden(len(sample.nodes) * self.outputs)
        types, begin = self.reads.types, 0
        for place, end in enumerate(sample.type_ends.tolist()):
            if end > begin:
                written = out[begin * self.outputs : end * self.outputs]
                found = self.of_types.get(place % types)
                if found is None:
                    written.fill(0)
                else:
                    self._gather_type(found, begin, end, table, sample, scratch, behind, written)
            begin = end
        return out

    def _gather_type(
        self, found: TypeHeads, begin: int, end: int, table: Table, sample: NeighbourSample, scratch: Activations,
        behind: RowsBehind | None, out: np.ndarray,
    ) -> None:  # fmt: skip
        """Rows begin to end - 1, all of one type, of the layer's output."""
        more = NOTHING_BEHIND if behind is None else behind
        rows = scratch.aggregated((end - begin) * found.product.inputs, np.float32)
        _gather_sums(
            table.rows.values, table.rows.scales, more.values, more.scales, begin, end, sample.nodes, sample.neighbours,
            sample.segments, self.reads.stride, found.widths, found.vectors, self.heads.heads,
            self.heads.negative_slope, no_bias(), rows,
        )  # fmt: skip
        found.product.apply(rows, end - begin, out)

    def infer(self, below: np.ndarray, sample: NeighbourSample, hops: int, scratch: Activations) -> np.ndarray:
        """See `NetworkLayer`. ValueError always: later layers are `RelationAttention`, over states of one width."""
        raise ValueError("a layer over columns of features reads a table, and is the first one")


def _heads_of(
    layer: RelationalLayer, heads: Heads, reads: RelationTable, kind: int, widths: Mapping[int, int], bias: np.ndarray,
    *, relu: bool,
) -> TypeHeads:  # fmt: skip
    schema, inner = reads.schema, heads.heads * heads.columns
    columns, scores, matrices = list[int](), list[np.ndarray](), list[np.ndarray]()
    for place, relation in enumerate(schema.relations):
        if relation.target == schema.types[kind].name:
            read = layer.relations.get(place)
            columns.append(0 if read is None else widths[reads.sources[place]])
            if read is not None:
                scores.append(read[:, inner:].T)
                matrices.append(read[:, :inner])
    own = layer.own.get(kind)
    if own is None or own.shape[1] != len(columns) * heads.heads:
        found = "nothing" if own is None else f"{own.shape[1]} numbers"
        expected = f"{heads.heads} for each of {len(columns)} relations"
        raise ValueError(f"layer 0 makes {found} of a reader of type {schema.types[kind].name}, expected {expected}")
    vectors = np.concatenate([*(one.ravel() for one in scores), own.T.ravel()]).astype(np.float32)
    weight = np.concatenate([*matrices, np.zeros((0, inner), np.float32)])
    parts = np.split(weight, heads.heads, axis=1)
    if heads.averages:
        # The mean of the heads' products is one product of all heads' sums beside each other.
        product: Product = _product(np.concatenate(parts) / np.float32(heads.heads), bias, relu=relu)
    else:
        biases = np.split(bias, heads.heads)
        product = PerHead(tuple(_product(part, own, relu=relu) for part, own in zip(parts, biases, strict=True)))
    return TypeHeads(np.array([*columns, widths[kind]], np.int64), vectors, product)


def _product(weight: np.ndarray, bias: np.ndarray, *, relu: bool) -> Linear:
    return Linear.build(weight, bias, relu=relu, compute="float32")


@kernel
def _gather_sums(
    values: np.ndarray, scales: np.ndarray, more_values: np.ndarray | None, more_scales: np.ndarray | None,
    begin: int, end: int, nodes: np.ndarray, neighbours: np.ndarray, segments: np.ndarray, stride: int,
    widths: np.ndarray, vectors: np.ndarray, heads: int, slope: float, no_bias: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """For rows begin to end - 1, the sums of each head over the neighbours by each relation, weighed by its softmax of
    them: heads beside each other, relations within each. `widths`, `vectors`: as of `TypeHeads`."""
    lists = len(widths) - 1
    rows_read = (values, more_values)
    scales_read = (scales, more_scales)
    own_width = widths[lists]
    inner = 0
    longest = 1
    for slot in range(lists):
        inner += widths[slot]
        for row in range(begin, end):
            longest = max(longest, segments[row * stride + slot + 1] - segments[row * stride + slot])
    weights = np.empty(longest, dtype=np.float32)
    for row in range(begin, end):
        ahead = row + ROWS_AHEAD
        if ahead < end:
            for slot in range(lists):
                prefetch_rows(values, scales, neighbours, segments[ahead * stride + slot],
                              segments[ahead * stride + slot + 1], widths[slot])  # fmt: skip
            prefetch_rows(values, scales, nodes, ahead, ahead + 1, own_width)
        node = np.int64(nodes[row])
        place = (row - begin) * heads * inner
        of_neighbour = 0
        of_reader = heads * inner
        for slot in range(lists):
            width = widths[slot]
            start = segments[row * stride + slot]
            stop = segments[row * stride + slot + 1]
            for head in range(heads):
                if width > 0:
                    total = np.float32(1.0)
                    if stop > start:
                        reader = dot_row(rows_read, scales_read, node, own_width, vectors, of_reader)
                        largest = np.float32(-np.inf)
                        for edge in range(start, stop):
                            score = dot_row(rows_read, scales_read, np.int64(neighbours[edge]), width, vectors,
                                            of_neighbour)  # fmt: skip
                            weights[edge - start] = leaky(score + reader, slope)
                            largest = max(largest, weights[edge - start])
                        total = np.float32(0.0)
                        for edge in range(stop - start):
                            weights[edge] = exponential(weights[edge] - largest)
                            total += weights[edge]
                    sum_weighted_columns(out, place + head * inner, width, rows_read, scales_read, neighbours, start,
                                         stop, np.float32(1.0) / total, rows_read, scales_read, node, 0.0, no_bias,
                                         False, weights, -start, 0)  # fmt: skip
                of_neighbour += width
                of_reader += own_width
            place += width
