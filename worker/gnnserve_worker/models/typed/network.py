"""Inference over a sample of a graph of several types: what one network of one type is in `models/network.py`.

Layer 1 is in the table: for each relation the product of its weights with each node that it reads, and for each node
that of its type's own weights. So the rows of all relations are as wide as the hidden layer, and one weighted sum over
a row's neighbours, each weighed by one over the neighbours of its relation, is the sum over relations of their means.
Later layers put those means beside each other, with the row itself, and multiply them by the weights below each other:
one product for each type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from gnnserve_worker.growth import room_for, scratch_for
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.kernels.layout import unpack_layout
from gnnserve_worker.models.dense import Linear
from gnnserve_worker.models.network import Activations, Network, copy_rows, no_bias
from gnnserve_worker.sampling.neighbours import NeighbourSample, SampleWeights
from gnnserve_worker.sampling.typed import TypedSample
from gnnserve_worker.tables.gather import Aggregation, Aggregator, Own, gather
from gnnserve_worker.tables.table import NO_SCALES, RowsBehind, Table
from gnnserve_worker.tables.vectors import sum_rows


@dataclass(frozen=True, slots=True)
class TypedLayer:
    """A layer behind the first one."""

    inputs: int
    outputs: int
    products: Mapping[int, Linear]
    """By the place of a type: the product of its rows, which are the means by each relation that it reads, in their
    order, and the row itself. Rows of types without one are 0."""

    @property
    def dtype(self) -> type[np.generic]:
        """Type of the numbers that the products read."""
        return next(iter(self.products.values())).input_dtype


class _Named:
    """What one thread names the rows of a table in. It grows to the largest sample seen."""

    def __init__(self) -> None:
        self.rows = np.empty(0, dtype=np.int32)
        self.weights = np.empty(0, dtype=np.float32)
        self.ones = np.empty(0, dtype=np.float32)

    def reserve(self, rows: int, edges: int) -> None:
        if len(self.rows) < edges:
            self.rows, self.weights = scratch_for(self.rows, edges), scratch_for(self.weights, edges)
        if len(self.ones) < rows:
            self.ones = np.ones(room_for(rows), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class TypedNetwork(Network):
    """A network over a table of products. What it has of `Network` is the contract of a batch; it has no layers of
    graphs of one type."""

    layout: np.ndarray
    """`kernels.layout.pack_layout` of the graph."""
    first_rows: np.ndarray
    """int64 [relations]: where the table has the rows of each relation; -1: it has none of them."""
    columns: int
    """Width of a row of the table: the first layer's outputs."""
    later: tuple[TypedLayer, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "weighs_neighbours", False)
        object.__setattr__(self, "bytes_per_row", 4 * self.columns)

    @property
    def hidden(self) -> int:
        return self.later[-1].inputs if self.later else 0

    def gather(
        self, table: Table, sample: NeighbourSample, scratch: Activations, behind: RowsBehind | None = None
    ) -> np.ndarray:
        """The first layer's output for every row of the sample: flat float32, in scratch memory."""
        typed = as_typed(sample)
        rows, named = name_rows(self.layout, typed, self.first_rows, table.nodes, scratch), _named_of(scratch)
        read = msgspec.structs.replace(typed, neighbours=rows, weights=SampleWeights(named.weights, named.ones))
        aggregation = _HIDDEN if self.later else _LAST
        out = scratch.hidden(len(typed.nodes) * self.columns)
        gather(table, self.columns, read, aggregation, out, behind)
        return out

    def infer(
        self,
        aggregated: np.ndarray,
        sample: NeighbourSample,
        scratch: Activations,
        scores: np.ndarray,
        embeddings: np.ndarray | None = None,
    ) -> None:
        """As `Network.infer`."""
        typed, hidden, rows = as_typed(sample), aggregated, sample.ends[-1]
        types, width = int(self.layout[0]), self.columns
        for depth, layer in enumerate(self.later, start=1):
            below = hidden[: rows * width].reshape(rows, width)
            hops = len(self.later) + 1 - depth
            rows, width = sample.ends[hops - 1], layer.outputs
            if depth == len(self.later) and embeddings is not None:
                copy_rows(below[:rows], seed_rows(typed), embeddings)
            hidden = scratch.hidden(rows * width)
            begin = 0
            for place, end in enumerate(typed.type_ends[: hops * types].tolist()):
                if end > begin:
                    self._infer_type(layer, place % types, begin, end, below, typed, scratch, hidden)
                begin = end
        copy_rows(hidden[: rows * self.classes].reshape(rows, self.classes), seed_rows(typed), scores)

    def _infer_type(
        self, layer: TypedLayer, kind: int, begin: int, end: int, below: np.ndarray, sample: TypedSample,
        scratch: Activations, hidden: np.ndarray,
    ) -> None:  # fmt: skip
        """Rows begin to end - 1, all of one type, of a layer's output."""
        out = hidden[begin * layer.outputs : end * layer.outputs]
        product = layer.products.get(kind)
        if product is None:
            out.fill(0)
            return
        rows = scratch.aggregated((end - begin) * product.inputs, product.input_dtype)
        _aggregate_relations(
            below, NO_SCALES, layer.inputs, begin, end, product.inputs // layer.inputs - 1, int(self.layout[1]),
            sample.segments, sample.children, no_bias(), rows,
        )  # fmt: skip
        product.apply(rows, end - begin, out)


_HIDDEN = Aggregation(Aggregator.NORMALISED_SUM, Own.ADDED, 1.0, no_bias(), relu=True)
_LAST = Aggregation(Aggregator.NORMALISED_SUM, Own.ADDED, 1.0, no_bias(), relu=False)


def name_rows(
    layout: np.ndarray, sample: TypedSample, first_rows: np.ndarray, table_rows: int, scratch: Activations
) -> np.ndarray:
    """For each neighbour of the sample, the row of a table by its relation: int32, in scratch memory."""
    named = _named_of(scratch)
    named.reserve(len(sample.nodes), len(sample.neighbours))
    _name_table_rows(
        layout, sample.segments, sample.type_ends, sample.neighbours, first_rows, table_rows, named.rows, named.weights
    )
    return named.rows[: len(sample.neighbours)]


def as_typed(sample: NeighbourSample) -> TypedSample:
    if not isinstance(sample, TypedSample):
        raise TypeError("a network over several types needs a sample of such a graph")
    return sample


def seed_rows(sample: TypedSample) -> np.ndarray:
    """Row of each seed, int32."""
    assert sample.seed_rows is not None  # noqa: S101 - typed samples always have them
    return sample.seed_rows


def _named_of(scratch: Activations) -> _Named:
    """The names of a thread live beside its activations."""
    return scratch.beside(_Named)


@kernel
def _name_table_rows(
    layout: np.ndarray, segments: np.ndarray, type_ends: np.ndarray, neighbours: np.ndarray, first_rows: np.ndarray,
    table_rows: int, named: np.ndarray, weights: np.ndarray,
) -> None:  # fmt: skip
    """For each neighbour, the row of the table by its relation, and one over the neighbours of that relation. What is
    behind the stored nodes is behind the table's rows, in the same order."""
    types, stride, first_nodes, _, slots, relation_of, source_of = unpack_layout(layout)
    stored = first_nodes[types]
    begin = 0
    for place in range(len(type_ends)):
        kind = place % types
        end = type_ends[place]
        for slot in range(slots[kind]):
            relation = relation_of[kind * stride + slot]
            moved = first_rows[relation] - first_nodes[source_of[relation]]
            for row in range(begin, end):
                first = segments[row * stride + slot]
                last = segments[row * stride + slot + 1]
                weight = np.float32(1.0) / np.float32(max(last - first, 1))
                for edge in range(first, last):
                    node = np.int64(neighbours[edge])
                    named[edge] = node + moved if node < stored else node - stored + table_rows
                    weights[edge] = weight
        begin = end


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
