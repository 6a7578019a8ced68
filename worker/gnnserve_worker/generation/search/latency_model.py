"""Latency model of batches of variants, from what other variants took on the same machine. Pure.

For each batch size one linear model: a constant, and costs per row that is read, per byte of these rows and per
operation. They are fitted by least squares of the relative errors, with no cost below 0; so a variant that takes
microseconds counts as much as one that takes milliseconds. The error of the model is told by leaving out each
measurement in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from msgspec import UNSET, UnsetType
from scipy.optimize import nnls

from gnnserve_api.files.repository import NetworkKind, NetworkManifest, VariantManifest
from gnnserve_api.operations import BatchShape, NetworkShape, operations, read_rows
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD, Architecture
from gnnserve_api.variants import Storage
from gnnserve_worker.graph.relation_lists import parted_lists
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.tables.formats import FORMATS


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a variant for one seed, where none is met twice."""

    rows: float
    bytes: float
    operations: float
    batches: float = 1.0
    """Batches whose constant cost counts: 0 where it is of another kind of network than was measured."""

    def terms(self) -> tuple[float, ...]:
        return (self.batches, self.rows, self.bytes, self.operations)


@dataclass(frozen=True, slots=True)
class RelationDegrees:
    """Neighbours that are drawn of a node by one relation."""

    source: int
    """Place of the type that is read."""
    target: int
    """Place of the type that reads."""
    of_nodes: np.ndarray
    """int64: of nodes of the target, each counted once."""
    of_neighbours: np.ndarray
    """int64: of these nodes as often as they are neighbours of one."""


@dataclass(frozen=True, slots=True)
class Degrees:
    """Neighbours that are drawn of a node."""

    relations: tuple[RelationDegrees, ...]
    seeds: tuple[int, ...] = (0,)
    """Places of the types that are asked about, each as often as the others."""

    @staticmethod
    def of(graph: Graph, seeds: tuple[int, ...] = (0,)) -> Degrees:
        """`graph`: lists of all types, with their schema."""
        schema, lists = graph.schema, parted_lists(graph)
        ends = [(schema.place_of(one.source), schema.place_of(one.target)) for one in schema.relations]

        def met(own: np.ndarray, target: int) -> np.ndarray:
            read = [_sample(one.indices) for one, (source, _) in zip(lists, ends, strict=True) if source == target]
            return np.concatenate([own[each] for each in read]) if read else own[:0]

        found = []
        for one, (source, target) in zip(lists, ends, strict=True):
            own = np.diff(one.indptr)
            found.append(RelationDegrees(source, target, own, met(own, target)))
        return Degrees(tuple(found), seeds)

    def drawn(
        self, fanouts: Sequence[int], by_relation: Sequence[Sequence[int]] | UnsetType = UNSET
    ) -> tuple[float, ...]:
        """What is to be expected of each hop, the seed's first, by all relations together. `by_relation`: fan-outs of
        each relation; UNSET: `fanouts`."""
        counts = dict.fromkeys(self.seeds, 1 / len(self.seeds))
        found = []
        for hop, fanout in enumerate(fanouts):
            read: dict[int, float] = {}
            for place, one in enumerate(self.relations):
                limit = fanout if by_relation is UNSET else by_relation[place][hop]
                drawn = _mean_drawn(one.of_neighbours if hop else one.of_nodes, limit)
                read[one.source] = read.get(one.source, 0.0) + counts.get(one.target, 0.0) * drawn
            total = sum(counts.values())
            found.append(sum(read.values()) / total if total else 0.0)
            counts = read
        return tuple(found)


_SAMPLED = 1_000_000


def _sample(indices: np.ndarray) -> np.ndarray:
    """Enough of a long list for a mean."""
    return indices[:: max(1, len(indices) // _SAMPLED)]


def _mean_drawn(degrees: np.ndarray, fanout: int) -> float:
    if not len(degrees):
        return 0.0
    return float((degrees if fanout == FULL_NEIGHBOURHOOD else np.minimum(degrees, fanout)).mean())


def work_of(manifest: VariantManifest, storage: Storage, *, is_product: bool, degrees: Degrees) -> Work:
    """Over several relations an operation of a layer counts as one of one relation: it is as much more of all variants
    of a network."""
    network = manifest.network
    widths = (manifest.columns, *[network.hidden] * (network.layers - 1), network.classes)
    shape = BatchShape(1, degrees.drawn(manifest.fanouts, manifest.relation_fanouts), widths)
    rows = read_rows(shape)
    computed = _OPERATIONS[network.kind](network, shape, is_product)
    return Work(rows, rows * FORMATS[storage].row_bytes(manifest.columns), computed)


def _operations_of_layers(network: NetworkManifest, shape: BatchShape, is_product: bool) -> float:
    heads = () if network.attention is None else tuple(network.heads_of(layer) for layer in range(network.layers))
    counted = NetworkShape(Architecture(network.architecture), is_product, network.mlp_hidden, heads)
    return operations(shape, counted)


_OPERATIONS: Mapping[NetworkKind, Callable[[NetworkManifest, BatchShape, bool], float]] = {
    NetworkKind.LAYERS: _operations_of_layers,
    NetworkKind.LISTED: lambda network, shape, is_product: 0.0,
    NetworkKind.PROGRAM: lambda network, shape, is_product: 0.0,  # not known; rows tell how much there is to do
}


@dataclass(frozen=True, slots=True)
class MeasuredLatency:
    work: Work
    p50_ms: Mapping[int, float]
    """By seeds."""


@dataclass(frozen=True, slots=True)
class LatencyModel:
    costs_ms: Mapping[int, tuple[float, ...]]
    """By seeds: a constant, and what a row, a byte and an operation per seed cost."""
    error: float
    """Median over measurements and sizes of the relative error of predicting one from the others."""

    @staticmethod
    def fit(measured: Sequence[MeasuredLatency]) -> LatencyModel:
        """From two measurements on; with few, what they cannot tell apart is told by one of the terms."""
        if len(measured) < 2:
            raise ValueError("a latency model needs two measurements")
        sizes = measured[0].p50_ms.keys()
        costs = {seeds: _fit(measured, seeds) for seeds in sizes}
        errors = [
            abs(_apply(_fit([*measured[:left], *measured[left + 1 :]], seeds), out.work) / out.p50_ms[seeds] - 1)
            for left, out in enumerate(measured)
            for seeds in sizes
        ]
        return LatencyModel(costs, median(errors))

    def p50_ms(self, work: Work) -> dict[int, float]:
        """By seeds."""
        return {seeds: _apply(costs, work) for seeds, costs in self.costs_ms.items()}


def _fit(measured: Sequence[MeasuredLatency], seeds: int) -> tuple[float, ...]:
    terms = np.array([each.work.terms() for each in measured])
    times = np.array([each.p50_ms[seeds] for each in measured])
    relative = terms / times[:, None]
    # Each column scaled to 1, since bytes and constants differ by many orders of magnitude.
    scales = np.where(relative.max(axis=0) > 0, relative.max(axis=0), 1.0)
    found, _ = nnls(relative / scales, np.ones(len(measured)))
    return tuple(float(cost) for cost in found / scales)


def _apply(costs: Sequence[float], work: Work) -> float:
    return sum(cost * term for cost, term in zip(costs, work.terms(), strict=True))
