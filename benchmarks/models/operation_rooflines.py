"""Least time of each convolution on a machine: bytes that it reads over bandwidth and operations over peak.

Counts are of the convolution as its definition has it, in the cheapest order: products of what is summed where that is
less, each row of a neighbour read once for each edge, and what stands between two steps only where no step could be
made without it. Both rates are measured in the same run, by one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_api.files.layers import Convolution

_FLOAT_BYTES = 4
_EXPONENTIAL = 16
"""Operations of an exponential, as polynomials make it."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a machine, by one thread."""

    gb_per_s: float
    """10^9 bytes per second of rows of neighbours."""
    gflop_per_s: float
    """10^9 operations per second of matrix products."""


@dataclass(frozen=True, slots=True)
class HopCounts:
    """Counts of what a hop of a convolution reads in one sample."""

    targets: int
    """Rows that it writes."""
    edges: int
    rows: int
    """Rows that it reads, those of the targets among them."""


@dataclass(frozen=True, slots=True)
class Work:
    bytes: float = 0.0
    operations: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes + other.bytes, self.operations + other.operations)

    def least_ms(self, rates: Rates) -> float:
        return self.bytes / rates.gb_per_s / 1e6 + self.operations / rates.gflop_per_s / 1e6


@dataclass(frozen=True, slots=True)
class Sizes:
    """Columns of a convolution that writes as wide rows as it reads."""

    width: int
    heads: int = 1
    edge_columns: int = 0


def product(rows: int, inputs: int, outputs: int) -> Work:
    """A matrix product, whose rows are read where they were made."""
    return Work(operations=2.0 * rows * inputs * outputs)


def gathered(hop: HopCounts, width: int, per_number: float, more: float = 0.0) -> Work:
    """Rows of neighbours are read for each edge, and those of targets read and written. `per_number`: operations for
    each number of an edge's row; `more`: for each edge."""
    read = hop.edges * width + 2 * hop.targets * width
    return Work(_FLOAT_BYTES * read, hop.edges * (width * per_number + more))


def _written(rows: int, width: int) -> Work:
    """Rows that are written, to be read by many edges."""
    return Work(_FLOAT_BYTES * 2.0 * rows * width)


def _of_edges(hop: HopCounts, columns: int) -> Work:
    return Work(_FLOAT_BYTES * hop.edges * columns)


def _with_itself(hop: HopCounts) -> HopCounts:
    """Each node reads itself, too."""
    return HopCounts(hop.targets, hop.edges + hop.targets, hop.rows)


def _sum_and_own(hops: Sequence[HopCounts], of: Sizes) -> Work:
    (hop,) = hops
    return gathered(hop, of.width, 1) + product(hop.targets, 2 * of.width, of.width)


def _gcn(hops: Sequence[HopCounts], of: Sizes) -> Work:
    (hop,) = map(_with_itself, hops)
    return gathered(hop, of.width, 2) + product(hop.targets, of.width, of.width)


def _gat(hops: Sequence[HopCounts], of: Sizes) -> Work:
    (hop,) = map(_with_itself, hops)
    made = product(hop.rows, of.width, of.width) + _written(hop.rows, of.width)
    scores = product(hop.rows + hop.targets, of.width, 1)
    return made + scores + gathered(hop, of.width, 2, of.heads * (_EXPONENTIAL + 4))


def _rgat(hops: Sequence[HopCounts], of: Sizes) -> Work:
    (hop,) = hops
    made = product(hop.rows, of.width, of.width) + _written(hop.rows, of.width)
    scores = product(hop.rows + hop.targets, of.width, of.heads)
    return made + scores + gathered(hop, of.width, 2, of.heads * (_EXPONENTIAL + 4))


def _gatv2(hops: Sequence[HopCounts], of: Sizes) -> Work:
    (hop,) = map(_with_itself, hops)
    made = product(hop.rows + hop.targets, of.width, of.width) + _written(hop.rows, of.width)
    return made + gathered(hop, of.width, 6, of.heads * _EXPONENTIAL)


def _transformer(hops: Sequence[HopCounts], of: Sizes) -> Work:
    (hop,) = hops
    made = product(hop.rows, of.width, 2 * of.width) + _written(hop.rows, 2 * of.width)
    own = product(hop.targets, of.width, 2 * of.width)
    return made + own + gathered(hop, 2 * of.width, 2, of.heads * _EXPONENTIAL)


def _gin(hops: Sequence[HopCounts], of: Sizes) -> Work:
    (hop,) = hops
    return gathered(hop, of.width, 1) + product(hop.targets, of.width, 2 * of.width)


def _gine(hops: Sequence[HopCounts], of: Sizes) -> Work:
    (hop,) = hops
    of_edges = _of_edges(hop, of.edge_columns)
    return gathered(hop, of.width, 3 + 2 * of.edge_columns) + of_edges + product(hop.targets, of.width, 2 * of.width)


def _pna(hops: Sequence[HopCounts], of: Sizes) -> Work:
    (hop,) = hops
    made = product(hop.rows + hop.targets, of.width, of.width) + _written(hop.rows, of.width)
    behind = product(hop.targets, 13 * of.width, of.width) + product(hop.targets, of.width, of.width)
    return made + gathered(hop, of.width, 7) + behind


def _powers(hops: Sequence[HopCounts], of: Sizes) -> Work:
    """Several hops, each of which is multiplied."""
    summed = sum((gathered(hop, of.width, 2) for hop in hops), Work())
    return summed + product(hops[-1].targets, (len(hops) + 1) * of.width, of.width)


def _sgc(hops: Sequence[HopCounts], of: Sizes) -> Work:
    summed = sum((gathered(_with_itself(hop), of.width, 2) for hop in hops), Work())
    return summed + product(hops[-1].targets, of.width, of.width)


def _appnp(hops: Sequence[HopCounts], of: Sizes) -> Work:
    return sum((gathered(_with_itself(hop), of.width, 2) for hop in hops), Work())


def _agnn(hops: Sequence[HopCounts], of: Sizes) -> Work:
    (hop,) = map(_with_itself, hops)
    return gathered(hop, of.width, 4, _EXPONENTIAL) + product(hop.rows, of.width, 1)


def _gen(hops: Sequence[HopCounts], of: Sizes) -> Work:
    (hop,) = hops
    of_edges = _of_edges(hop, of.edge_columns)
    per_number = 2 * of.edge_columns + 6 + _EXPONENTIAL
    return gathered(hop, of.width, per_number) + of_edges + product(hop.targets, of.width, 2 * of.width)


def _film(hops: Sequence[HopCounts], of: Sizes) -> Work:
    (hop,) = hops
    made = product(hop.rows, of.width, of.width) + _written(hop.rows, of.width)
    return made + gathered(hop, of.width, 4) + product(hop.targets, of.width, 5 * of.width)


COUNTS: Mapping[Convolution, Callable[[Sequence[HopCounts], Sizes], Work]] = {
    Convolution.GRAPH_SAGE: _sum_and_own,
    Convolution.GCN: _gcn,
    Convolution.GRAPH_CONV: _sum_and_own,
    Convolution.GAT: _gat,
    Convolution.GATV2: _gatv2,
    Convolution.TRANSFORMER: _transformer,
    Convolution.GIN: _gin,
    Convolution.GINE: _gine,
    Convolution.PNA: _pna,
    Convolution.TAG: _powers,
    Convolution.CHEBYSHEV: _powers,
    Convolution.SGC: _sgc,
    Convolution.APPNP: _appnp,
    Convolution.GCNII: _gcn,
    Convolution.AGNN: _agnn,
    Convolution.GEN: _gen,
    Convolution.FILM: _film,
    Convolution.RGAT: _rgat,
}
"""Work of one layer, over its hops, the outermost first."""


def hops_of(nodes_per_hop: np.ndarray, read_by: np.ndarray, hops: int) -> list[HopCounts]:
    """Counts of each hop of a network of so many, the outermost first. `nodes_per_hop`: int64 [hops + 1 or more];
    `read_by`: the target of each edge, int64."""
    nodes = np.cumsum(nodes_per_hop)
    return [
        HopCounts(int(nodes[left]), int((read_by < nodes[left]).sum()), int(nodes[left + 1]))
        for left in reversed(range(hops))
    ]
