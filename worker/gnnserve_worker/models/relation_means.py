"""Layers that sum the means over neighbours by each relation, each with weights of its own.

Layer 1 is in the table: for each relation the product of its weights with each node that it reads, and for each node
that of its type's own weights. So the rows of all relations are as wide as the hidden layer, and one weighted sum over
a row's neighbours, each weighed by one over the neighbours of its relation, is the sum over relations of their means.
Later layers put those means beside each other, with the row itself, and multiply them by the weights below each other:
one product for each type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.models.network import Activations, Linear, no_bias
from gnnserve_worker.models.relation_table import RelationTable
from gnnserve_worker.sampling.neighbours import NeighbourSample, SampleWeights
from gnnserve_worker.tables.table import NO_SCALES, Aggregation, Aggregator, Own, RowsBehind, Table, gather
from gnnserve_worker.tables.vectors import sum_rows


@dataclass(frozen=True, slots=True)
class RelationMeans:
    """A `NetworkLayer`."""

    inputs: int
    outputs: int
    reads: RelationTable
    products: Mapping[int, Linear]
    """By the place of a type: the product of its rows, which are the means by each relation that it reads, in their
    order, and the row itself. Rows of types without one are 0. Empty where the table stores the products already."""
    relu: bool
    bytes_per_row: int = field(init=False)
    weighs_neighbours: bool = field(init=False, default=False)
    finish: None = field(init=False, default=None)
    """Products of the first layer are in the table."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes_per_row", 4 * self.inputs)

    def gather(
        self, table: Table, sample: NeighbourSample, scratch: Activations, behind: RowsBehind | None = None
    ) -> np.ndarray:
        """See `NetworkLayer`."""
        named = self.reads.name(sample, table.nodes, scratch)
        rows, weights = named.rows[: len(sample.neighbours)], SampleWeights(named.weights, named.ones)
        out = scratch.hidden(len(sample.nodes) * self.inputs)
        read = msgspec.structs.replace(sample, neighbours=rows, weights=weights)
        gather(table, self.inputs, read, _HIDDEN if self.relu else _LAST, out, behind)
        return out

    def infer(self, below: np.ndarray, sample: NeighbourSample, hops: int, scratch: Activations) -> np.ndarray:
        """See `NetworkLayer`."""
        types, begin = self.reads.types, 0
        out = scratch.hidden(sample.ends[hops - 1] * self.outputs)
        for place, end in enumerate(sample.type_ends[: hops * types].tolist()):
            if end > begin:
                self._infer_type(place % types, begin, end, below, sample, scratch, out)
            begin = end
        return out

    def _infer_type(
        self, kind: int, begin: int, end: int, below: np.ndarray, sample: NeighbourSample, scratch: Activations,
        hidden: np.ndarray,
    ) -> None:  # fmt: skip
        """Rows begin to end - 1, all of one type, of the layer's output."""
        out = hidden[begin * self.outputs : end * self.outputs]
        product = self.products.get(kind)
        if product is None:
            out.fill(0)
            return
        rows = scratch.aggregated((end - begin) * product.inputs, product.input_dtype)
        _aggregate_relations(
            below, NO_SCALES, self.inputs, begin, end, product.inputs // self.inputs - 1, self.reads.stride,
            sample.segments, sample.children, no_bias(), rows,
        )  # fmt: skip
        product.apply(rows, end - begin, out)


_HIDDEN = Aggregation(Aggregator.NORMALISED_SUM, Own.ADDED, 1.0, no_bias(), relu=True)
_LAST = Aggregation(Aggregator.NORMALISED_SUM, Own.ADDED, 1.0, no_bias(), relu=False)


@kernel
def _aggregate_relations(
    hidden: np.ndarray, no_scales: np.ndarray, columns: int, begin: int, end: int, lists: int, stride: int,
    segments: np.ndarray, children: np.ndarray, no_bias: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """For rows begin to end - 1, the mean of `hidden` over the children by each of `lists` slots, and the row itself,
    beside each other."""
    place = 0
    for row in range(begin, end):
        for slot in range(lists):
            start = segments[row * stride + slot]
            stop = segments[row * stride + slot + 1]
            factor = 1.0 / (stop - start) if stop > start else 1.0
            sum_rows(out, place, columns, hidden, no_scales, children, start, stop, factor,
                     hidden, no_scales, row, 0.0, no_bias, False)  # fmt: skip
            place += columns
        sum_rows(out, place, columns, hidden, no_scales, children, 0, 0, 0.0,
                 hidden, no_scales, row, 1.0, no_bias, False)  # fmt: skip
        place += columns
