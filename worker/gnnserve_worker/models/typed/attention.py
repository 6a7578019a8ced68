"""Inference by attention over a sample of a graph of several types: `network.py` has that by means.

A row of the table is the product of a relation with a node, and behind it what each head makes of it as a neighbour; a
node's own row is what each head makes of it as a reader, relation after relation. A later layer makes such rows of the
hidden states of each hop, and is then computed as the first one is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.models.dense import Linear
from gnnserve_worker.models.network import Activations, Network, copy_rows, no_bias
from gnnserve_worker.models.typed.architecture import Heads
from gnnserve_worker.models.typed.network import as_typed, name_rows, seed_rows
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.sampling.typed import TypedSample
from gnnserve_worker.tables.attention import exponential, leaky
from gnnserve_worker.tables.table import NO_SCALES, NOTHING_BEHIND, RowsBehind, Table
from gnnserve_worker.tables.vectors import number_of, sum_weighted_columns

Source = np.ndarray | tuple[np.ndarray, np.ndarray | None]
"""Rows in one array, or in one and another behind it (`tables/vectors.py`)."""


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    heads: Heads
    biases: Mapping[int, np.ndarray]
    """Bias of each type that the layer has an output for, by place: float32 [outputs]."""
    relations: Mapping[int, Linear]
    """By relation, what makes rows of hidden states. Empty for the first layer, whose rows are in the table."""
    own: Mapping[int, Linear]
    """By type."""
    columns: int
    """Width of these rows."""


@dataclass(frozen=True, slots=True)
class TypedAttentionNetwork(Network):
    """As `TypedNetwork`, by attention."""

    layout: np.ndarray
    first_rows: np.ndarray
    sources: tuple[int, ...]
    """The type that each relation reads."""
    attending: tuple[AttentionLayer, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "weighs_neighbours", False)
        object.__setattr__(self, "bytes_per_row", 4 * self.attending[0].columns)

    @property
    def hidden(self) -> int:
        return self.attending[-2].heads.outputs if len(self.attending) > 1 else 0

    def gather(
        self, table: Table, sample: NeighbourSample, scratch: Activations, behind: RowsBehind | None = None
    ) -> np.ndarray:
        typed, first, more = as_typed(sample), self.attending[0], behind or NOTHING_BEHIND
        named = name_rows(self.layout, typed, self.first_rows, table.nodes, scratch)
        out = scratch.hidden(len(typed.nodes) * first.heads.heads * first.heads.columns)
        rows, own = table.rows, table.own
        _attend_table(
            rows.values, rows.scales, own.values, own.scales, *more, typed.nodes, len(typed.nodes), typed.segments,
            int(self.layout[1]), named, first.heads.heads, first.heads.columns, first.heads.negative_slope, no_bias(),
            out,
        )  # fmt: skip
        return self._finish(first, out, typed, len(self.attending), scratch)

    def infer(
        self,
        aggregated: np.ndarray,
        sample: NeighbourSample,
        scratch: Activations,
        scores: np.ndarray,
        embeddings: np.ndarray | None = None,
    ) -> None:
        """As `Network.infer`."""
        typed, hidden = as_typed(sample), aggregated
        for depth, layer in enumerate(self.attending[1:], start=1):
            hops = len(self.attending) - depth
            width = self.attending[depth - 1].heads.outputs
            below = hidden[: sample.ends[hops] * width].reshape(sample.ends[hops], width)
            if depth == len(self.attending) - 1 and embeddings is not None:
                copy_rows(below[: sample.ends[hops - 1]], seed_rows(typed), embeddings)
            hidden = self._infer_layer(layer, below, typed, hops, scratch)
        rows = sample.ends[0]
        copy_rows(hidden[: rows * self.classes].reshape(rows, self.classes), seed_rows(typed), scores)

    def _infer_layer(
        self, layer: AttentionLayer, below: np.ndarray, sample: TypedSample, hops: int, scratch: Activations
    ) -> np.ndarray:
        """The layer's output for the rows of the first `hops` hops, from hidden states of one hop more."""
        types, rows, columns = int(self.layout[0]), sample.ends[hops - 1], layer.columns
        own = np.zeros((rows, columns), np.float32)
        blocks = _blocks(sample, types, hops + 1)
        for hop in range(hops):
            for kind, product in layer.own.items():
                begin, end = blocks[hop][kind]
                _apply(product, below[begin:end], own[begin:end])
        wanted = [
            (hop, place, *blocks[hop + 1][self.sources[place]]) for hop in range(hops) for place in layer.relations
        ]
        made = np.empty((max(1, sum(end - begin for _, _, begin, end in wanted)), columns), np.float32)
        moved = np.zeros((hops, len(self.sources)), np.int64)
        first = 0
        for hop, place, begin, end in wanted:
            _apply(layer.relations[place], below[begin:end], made[first : first + end - begin])
            moved[hop, place] = first - begin
            first += end - begin
        named = np.empty(len(sample.neighbours), np.int32)
        _name_made(self.layout, sample.segments, sample.type_ends[: hops * types], sample.children, moved, named)
        out = scratch.hidden(rows * layer.heads.heads * layer.heads.columns)
        _attend_hidden(
            made, own, NO_SCALES, rows, sample.segments, int(self.layout[1]), named, layer.heads.heads,
            layer.heads.columns, layer.heads.negative_slope, no_bias(), out,
        )  # fmt: skip
        return self._finish(layer, out, sample, hops, scratch)

    def _finish(
        self, layer: AttentionLayer, sums: np.ndarray, sample: TypedSample, hops: int, scratch: Activations
    ) -> np.ndarray:
        """The layer's output, of the sums of its heads: averaged where it is the last layer, biases, ReLU."""
        heads, types, rows = layer.heads, int(self.layout[0]), sample.ends[hops - 1]
        found = sums[: rows * heads.heads * heads.columns].reshape(rows, heads.heads, heads.columns)
        out = scratch.hidden(rows * heads.outputs)
        shaped = out[: rows * heads.outputs].reshape(rows, heads.outputs)
        shaped[...] = found.mean(axis=1) if heads.averages else found.reshape(rows, heads.outputs)
        for blocks in _blocks(sample, types, hops):
            for kind, (begin, end) in enumerate(blocks):
                if kind in layer.biases:
                    shaped[begin:end] += layer.biases[kind]
                else:
                    shaped[begin:end] = 0
        if layer is not self.attending[-1]:
            np.maximum(shaped, 0, out=shaped)
        return out


def _blocks(sample: TypedSample, types: int, hops: int) -> list[list[tuple[int, int]]]:
    """Where the rows of each type begin and end in each hop."""
    ends = sample.type_ends[: hops * types].tolist()
    begins = [0, *ends[:-1]]
    pairs = list(zip(begins, ends, strict=True))
    return [pairs[hop * types : (hop + 1) * types] for hop in range(hops)]


def _apply(product: Linear, rows: np.ndarray, out: np.ndarray) -> None:
    if len(rows):
        product.apply(rows.reshape(-1), len(rows), out.reshape(-1))


@kernel
def _name_made(
    layout: np.ndarray, segments: np.ndarray, type_ends: np.ndarray, children: np.ndarray, moved: np.ndarray,
    named: np.ndarray,
) -> None:  # fmt: skip
    """For each child, the row that was made of it for its relation."""
    types, stride = layout[0], layout[1]
    relations_at = 3 + 2 * (types + 1) + types
    begin = 0
    for block in range(len(type_ends)):
        kind = block % types
        for slot in range(stride):
            relation = layout[relations_at + kind * stride + slot]
            if relation < 0:
                continue
            shift = moved[block // types, relation]
            for row in range(begin, type_ends[block]):
                for edge in range(segments[row * stride + slot], segments[row * stride + slot + 1]):
                    named[edge] = children[edge] + shift
        begin = type_ends[block]


@kernel
def _attend_table(
    values: np.ndarray, scales: np.ndarray, own_values: np.ndarray, own_scales: np.ndarray,
    more_values: np.ndarray | None, more_scales: np.ndarray | None,
    more_own_values: np.ndarray | None, more_own_scales: np.ndarray | None,
    nodes: np.ndarray, rows: int, segments: np.ndarray, stride: int, named: np.ndarray, heads: int, width: int,
    slope: float, no_bias: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    longest = _longest(segments, rows, stride)
    weights = np.empty(heads * longest, dtype=np.float32)
    for row in range(rows):
        _attend((values, more_values), (scales, more_scales), (own_values, more_own_values),
                (own_scales, more_own_scales), row, np.int64(nodes[row]), segments, stride, named, heads, width, slope,
                no_bias, longest, weights, out)  # fmt: skip


@kernel
def _attend_hidden(
    made: np.ndarray, own: np.ndarray, no_scales: np.ndarray, rows: int, segments: np.ndarray, stride: int,
    named: np.ndarray, heads: int, width: int, slope: float, no_bias: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    longest = _longest(segments, rows, stride)
    weights = np.empty(heads * longest, dtype=np.float32)
    for row in range(rows):
        _attend(made, no_scales, own, no_scales, row, np.int64(row), segments, stride, named, heads, width, slope,
                no_bias, longest, weights, out)  # fmt: skip


@inlined
def _longest(segments: np.ndarray, rows: int, stride: int) -> int:
    """Neighbours of the row that has most, by all relations."""
    longest = 1
    for row in range(rows):
        longest = max(longest, segments[(row + 1) * stride] - segments[row * stride])
    return longest


@inlined
def _attend(
    values: Source, scales: Source, own_values: Source, own_scales: Source, row: int, own_row: np.int64,
    segments: np.ndarray, stride: int, named: np.ndarray, heads: int, width: int, slope: float, no_bias: np.ndarray,
    longest: int, weights: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """The sums of a row's heads beside each other. `weights`: room for heads · longest numbers."""
    start = segments[row * stride]
    stop = segments[(row + 1) * stride]
    for slot in range(stride):
        first = segments[row * stride + slot]
        last = segments[row * stride + slot + 1]
        if first == last:
            continue
        for head in range(heads):
            place = head * longest - start
            target = number_of(own_values, own_scales, own_row, slot * heads + head)
            largest = np.float32(-np.inf)
            for edge in range(first, last):
                score = number_of(values, scales, np.int64(named[edge]), heads * width + head)
                weights[place + edge] = leaky(score + target, slope)
                largest = max(largest, weights[place + edge])
            total = np.float32(0.0)
            for edge in range(first, last):
                weights[place + edge] = exponential(weights[place + edge] - largest)
                total += weights[place + edge]
            for edge in range(first, last):
                weights[place + edge] /= total
    for head in range(heads):
        sum_weighted_columns(out, (row * heads + head) * width, width, values, scales, named, start, stop, 1.0,
                             own_values, own_scales, own_row, 0.0, no_bias, False, weights, head * longest - start,
                             head * width)  # fmt: skip
