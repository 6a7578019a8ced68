"""Rows and operations of a batch, counted from the shapes of a network. What they take is for those who measure.

The symbols are those of `gnnserve_cli/report/performance_model.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import assert_never

from gnnserve_api.spec.model import Architecture

_ALL = -1
"""A fan-out: every neighbour."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """A network and a batch, as the performance model sees them."""

    seeds: int
    fanouts: tuple[float, ...]
    """Neighbours per node, the targets' draw first: the limits, or what is expected to be drawn. One per layer."""
    widths: tuple[int, ...]
    """f_0 … f_L."""

    def __post_init__(self) -> None:
        if len(self.widths) != len(self.fanouts) + 1 or any(fanout < 0 for fanout in self.fanouts):
            raise ValueError(f"fan-outs {self.fanouts} and widths {self.widths} describe no network")

    @property
    def layers(self) -> int:
        return len(self.fanouts)


@dataclass(frozen=True, slots=True)
class NetworkShape:
    architecture: Architecture
    projected: bool = False
    """The first layer's first product is stored per node: rows are as wide as it, and it is not computed."""
    mlp_hidden: int | None = None
    """Width between the two products of a GIN layer; None: that layer's output."""
    heads: tuple[int, ...] = ()
    """Attention heads of each GAT layer; empty for other architectures."""


def hidden_rows(shape: BatchShape) -> float:
    """R · t: rows of a batch that get a hidden state of the first layer, none met twice."""
    return shape.seeds * sum(_tree(shape)[:-1])


def read_rows(shape: BatchShape) -> float:
    """Rows that a batch reads: of every node with a hidden state its own and those of its neighbours."""
    return hidden_rows(shape) + shape.seeds * sum(_tree(shape)[1:])


def distinct_rows_bound(shape: BatchShape) -> float:
    """t · (1 + s_L + s_L · s_{L−1} + …): rows that a batch copies to a device at most."""
    return shape.seeds * sum(_tree(shape))


def effective_fanouts(fanouts: Sequence[int], rows_read_per_seed: float) -> tuple[float, ...]:
    """Draws that are to be expected where degrees limit them: e_d = min(fan-out, m), with the one number of neighbours
    m at which a seed would read as many rows as were measured. For -1 the fan-out limits nothing."""
    limits = tuple(math.inf if fanout == _ALL else float(fanout) for fanout in fanouts)

    def drawn(neighbours: float) -> tuple[float, ...]:
        return tuple(min(limit, neighbours) for limit in limits)

    def rows(neighbours: float) -> float:
        return read_rows(BatchShape(1, drawn(neighbours), (1,) * (len(limits) + 1)))

    finite = [limit for limit in limits if math.isfinite(limit)]
    low, high = 0.0, max(finite) if len(finite) == len(limits) else max(1.0, rows_read_per_seed)
    if rows(high) <= rows_read_per_seed:
        return drawn(high)
    for _ in range(100):  # `rows` rises with the neighbours
        middle = (low + high) / 2
        low, high = (middle, high) if rows(middle) < rows_read_per_seed else (low, middle)
    return drawn(high)


def operations(shape: BatchShape, network: NetworkShape) -> float:
    """Operations of a batch, without the sums of the first layer, which are made while rows are read."""
    return sum(
        _layer_operations(shape, network, layer, inputs, outputs)
        for layer, (inputs, outputs) in enumerate(pairwise(shape.widths), start=1)
    )


def _layer_operations(shape: BatchShape, network: NetworkShape, layer: int, inputs: int, outputs: int) -> float:
    tree = _tree(shape)
    rows = shape.seeds * sum(tree[: shape.layers - layer + 1])
    edges = shape.seeds * sum(tree[1 : shape.layers - layer + 2])
    heads = network.heads[layer - 1] if network.heads else 1
    # A head of attention scores what it sums: a multiply-add for either.
    sums = 0.0 if layer == 1 else edges * inputs * (4 * heads if network.heads else 1)
    stored = network.projected and layer == 1
    # Heads of the last layer are averaged, and each of them is as wide as it.
    products = _products(network, inputs, outputs * heads if layer == shape.layers else outputs, stored=stored)
    return sums + rows * (products + outputs)


def _products(network: NetworkShape, inputs: int, outputs: int, *, stored: bool) -> float:
    """Operations of a layer's matrix products for one row. `stored`: the first of them is in the table."""
    match network.architecture:
        case Architecture.GRAPHSAGE | Architecture.RGCN:
            return 0.0 if stored else 2 * (2 * inputs * outputs)
        case Architecture.GIN:
            inner = network.mlp_hidden or outputs
            return 2 * inner * outputs + inner + (0.0 if stored else 2 * inputs * inner)
        case Architecture.GCN | Architecture.SGC | Architecture.SIGN | Architecture.GAT | Architecture.LIGHT_GCN:
            return 0.0 if stored else 2 * inputs * outputs
        case _:
            assert_never(network.architecture)


def _tree(shape: BatchShape) -> list[float]:
    """w_0 … w_L: nodes at each distance from one target."""
    return list(accumulate(shape.fanouts, lambda width, fanout: width * fanout, initial=1.0))
