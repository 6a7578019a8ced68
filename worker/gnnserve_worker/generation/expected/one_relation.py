"""Expected scores over a graph of one type, compared by the kernels that serve, over full neighbourhoods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy.sparse as sp

from gnnserve_api.files.edges import Direction
from gnnserve_api.files.given_weights import ComparedScores
from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.spec.graph import GraphSource, Normalization, NpzDirection
from gnnserve_api.spec.model import Scope
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.expected.alternatives import ReadingTried, paired_readings, single_readings
from gnnserve_worker.generation.expected.comparison import Cause, compare_listed
from gnnserve_worker.generation.expected.pairs import compare_all_pairs
from gnnserve_worker.generation.hidden import hidden_states
from gnnserve_worker.generation.training_set import (
    fit_normalization,
    keep_columns,
    model_rows,
    normalization_of,
    training_set,
    visible_nodes,
)
from gnnserve_worker.graph.sources.checks import UNREAD_EDGE_DATA
from gnnserve_worker.graph.store import Features, Graph, GraphData
from gnnserve_worker.models.plain import SERVED, PlainGraph, Reading, activated, weights_of
from gnnserve_worker.models.registry import Tensors, spec_of
from gnnserve_worker.progress import ProgressListener
from gnnserve_worker.tasks.generated import GivenDecoder
from gnnserve_worker.tasks.generation import task_of

# --- the part of a graph that scores depend on


@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhood:
    nodes: np.ndarray
    """int64: nodes of the graph, ascending."""
    lists: Graph
    """Their lists, in the numbering of `nodes`."""

    def places(self, nodes: np.ndarray) -> np.ndarray:
        """Where these nodes are among them."""
        return np.searchsorted(self.nodes, nodes)


def neighbourhood_of(graph: Graph, seeds: np.ndarray, hops: int) -> Neighbourhood:
    """All nodes within so many hops of `seeds`. Lists of nodes within `hops` - 1 are whole, those of the last ones lack
    what is further away."""
    is_in = np.zeros(graph.nodes, dtype=bool)
    is_in[seeds] = True
    border = np.unique(seeds)
    for _ in range(hops):
        if is_in.all():  # of a large graph, whose entries need not be copied
            break
        read = _entries(graph, border)
        border = np.unique(read[~is_in[read]])
        if not len(border):
            break
        is_in[border] = True
    nodes = np.flatnonzero(is_in)
    if len(nodes) == graph.nodes:
        return Neighbourhood(nodes, graph)
    places = np.full(graph.nodes, -1, dtype=np.int32)
    places[nodes] = np.arange(len(nodes))
    found = places[_entries(graph, nodes)]
    owners = np.repeat(np.arange(len(nodes)), np.diff(graph.indptr)[nodes])[found >= 0]
    indptr = np.searchsorted(owners, np.arange(len(nodes) + 1)).astype(np.int64)
    return Neighbourhood(nodes, Graph(indptr, np.ascontiguousarray(found[found >= 0])))


def _entries(graph: Graph, nodes: np.ndarray) -> np.ndarray:
    """All entries of the lists of these nodes, list after list."""
    begins, counts = graph.indptr[:-1][nodes], np.diff(graph.indptr)[nodes]
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    entries: np.ndarray = graph.indices[np.repeat(begins, counts) + within]
    return entries


# --- scores over it


_PAIRED_NUMBERS = 1 << 26
"""Most numbers that a way may read for pairs of ways to be tried: there are hundreds of them."""
_NORMALIZATIONS = (Normalization.DISABLED, Normalization.ROW_NORMALIZE, Normalization.STANDARDIZE)


@dataclass(frozen=True, slots=True, eq=False)
class ComparedWeights:
    """Weights that scores are expected of."""

    network: NetworkManifest
    tensors: Tensors
    columns: np.ndarray | None
    """Features that they read, int64; None: all."""


def compare_scores(
    spec: GNNServiceSpec, digests: Mapping[str, str], graph: GraphData, weights: Mapping[str, ComparedWeights],
    load: Callable[[GraphSource], GraphData], decoder: GivenDecoder | None, progress: ProgressListener,
) -> Sequence[ComparedScores]:  # fmt: skip
    """Hold all expected scores of the spec against those of the weights, and of pairs against those that `decoder`
    makes of their rows. `graph`: the source's. `load`: reads another source. InputError: they differ by more than they
    may."""
    rows = cache(lambda: _served_rows(spec, graph, normalization_of(spec)))  # once files are read without errors

    def network_of(name: str) -> _Network:
        return _Network(spec, weights[name].network, graph, weights[name], rows(), load)

    found = compare_listed(spec, digests, graph, _hint(graph), network_of, progress)
    compare_all_pairs(spec, graph, lambda name: network_of(name).scores, decoder)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Network:
    """A `ComparedNetwork` over one list of neighbours."""

    spec: GNNServiceSpec
    network: NetworkManifest
    graph: GraphData
    weights: ComparedWeights
    rows: Features
    """What the first layer reads of each node."""
    load: Callable[[GraphSource], GraphData]

    def scores(self, nodes: np.ndarray) -> np.ndarray:
        return _served_scores(self.network, self.weights, self.rows, self.graph.graph, nodes)

    def causes(self, nodes: np.ndarray) -> Iterator[Cause]:
        return _Causes(self.spec, self.network, self.graph, self.weights, nodes, self.load).tried()


def _served_rows(spec: GNNServiceSpec, graph: GraphData, method: Normalization) -> Features:
    """What the first layer reads of each node."""
    network, problem = spec.network(len(graph.classes)), task_of(spec).pose(graph).problem
    data = training_set(graph, problem, network.classes, spec.model.training.scope, method)
    return model_rows(spec.model, data, data.normalized).served


def _served_scores(
    network: NetworkManifest, weights: ComparedWeights, rows: Features, graph: Graph, positions: np.ndarray
) -> np.ndarray:
    """float32 [positions, classes], as the kernels of serving give them over all neighbours."""
    if network.hops is not None:  # neighbours are in the rows
        graph = Graph(np.zeros(graph.nodes + 1, np.int64), np.zeros(0, np.int32))
    # One hop more than there are layers: what weighs a neighbour may depend on its own list.
    around = neighbourhood_of(graph, positions, network.layers + 1)
    read = rows[around.nodes] if len(around.nodes) < rows.shape[0] else rows
    if weights.columns is not None:
        read = keep_columns(read, weights.columns)
    outputs = hidden_states(network, weights.tensors, read, around.lists)[-1].outputs
    return np.asarray(outputs[around.places(positions)])


@dataclass(frozen=True, slots=True, eq=False)
class _Causes:
    spec: GNNServiceSpec
    network: NetworkManifest
    graph: GraphData
    weights: ComparedWeights
    positions: np.ndarray
    load: Callable[[GraphSource], GraphData]

    def tried(self) -> Iterator[Cause]:
        """Other ways to compute the scores, the likeliest first; those that change nothing are left out."""
        method, architecture = normalization_of(self.spec), spec_of(self.network.architecture)
        features, lists, places = self._read(self.graph.graph, method)
        served = self._scores(features, lists, places, SERVED)

        def of_readings(readings: Iterator[ReadingTried]) -> Iterator[Cause]:
            for one in readings:
                scores = self._scores(features, lists, places, one.reading)
                if not np.array_equal(scores, served):
                    yield Cause(one.words, one.remedy, scores)

        yield from of_readings(single_readings(architecture.assumptions))
        for other in _NORMALIZATIONS:
            if other is not method and (other is not Normalization.STANDARDIZE or not sp.issparse(self.graph.features)):
                scores = self._scores(*self._read(self.graph.graph, other), SERVED)
                yield Cause(
                    f"with features scaled by {other}", f"set spec.graph.normalization to {other}", scores
                )  # fmt: skip
        yield from self._scaled_by_all(served)
        for direction, source in other_directions(self.spec.graph.source):
            scores = self._scores(*self._read(self.load(source).graph, method), SERVED)
            if not np.array_equal(scores, served):
                field = f"spec.graph.source.{direction.field}"
                yield Cause(
                    f"with edges as {field}: {direction.stated} reads them",
                    f"set {field} to {direction.stated}",
                    scores,
                )
        for words, lists_of in TURNED.items():
            scores = self._scores(*self._read(lists_of(self.graph.graph), method), SERVED)
            if not np.array_equal(scores, served):
                yield Cause(words, "state the direction of the edges in spec.graph.source, or write them so", scores)
        if (len(lists.indices) + lists.nodes) * max(features.shape[1], self.network.hidden) <= _PAIRED_NUMBERS:
            yield from of_readings(paired_readings(architecture.assumptions))

    def _scaled_by_all(self, served: np.ndarray) -> Iterator[Cause]:
        """Scores of features that are standardized over all nodes, as a program does that has no split yet."""
        if self.spec.model.training.scope is Scope.TRANSDUCTIVE or sp.issparse(self.graph.features):
            return
        scores = self._scores(*self._read(self.graph.graph, Normalization.STANDARDIZE, Scope.TRANSDUCTIVE), SERVED)
        if not np.array_equal(scores, served):
            yield Cause(
                f"with features scaled by {Normalization.STANDARDIZE} over all nodes",
                f"set spec.graph.normalization to {Normalization.STANDARDIZE} and spec.model.training.scope to "
                f"{Scope.TRANSDUCTIVE}", scores,
            )  # fmt: skip

    def _read(
        self, graph: Graph, method: Normalization, scope: Scope | None = None
    ) -> tuple[np.ndarray, PlainGraph, np.ndarray]:
        """Features around the nodes, their lists, and where the nodes are."""
        hops = self.network.layers + 1 if self.network.hops is None else self.network.hops + 1
        around = neighbourhood_of(graph, self.positions, hops)
        visible = visible_nodes(self.graph.nodes, self.graph.splits, scope or self.spec.model.training.scope)
        scaled = fit_normalization(self.graph.features, method, visible).features[around.nodes]
        if self.weights.columns is not None:
            scaled = keep_columns(scaled, self.weights.columns)
        dense = scaled if isinstance(scaled, np.ndarray) else scaled.toarray()
        plain = PlainGraph(around.lists.indptr, around.lists.indices)
        return dense.astype(np.float64), plain, around.places(self.positions)

    def _scores(self, features: np.ndarray, lists: PlainGraph, places: np.ndarray, reading: Reading) -> np.ndarray:
        architecture, layers = spec_of(self.network.architecture), self.network.layers
        rows = architecture.plain_rows(features, lists, reading, self.network.hops)
        for layer in range(layers):
            own = weights_of(self.weights.tensors, layer)
            outputs = architecture.plain_layer(own, rows, lists, reading, self.network.attention)
            rows = activated(outputs, rows, reading, is_last=layer == layers - 1)
        return np.asarray(rows[places])


@dataclass(frozen=True, slots=True)
class StatedDirection:
    field: str
    """Below spec.graph.source."""
    stated: Direction


def other_directions(source: GraphSource) -> Iterator[tuple[StatedDirection, GraphSource]]:
    """The same source with each other direction that it may state."""
    for name in ("npz", "ogb", "pyg", "parquet", "csv"):
        given = getattr(source, name)
        if given is None:
            continue
        path = (name, "edges") if hasattr(given, "edges") else (name,)
        holder = given.edges if len(path) > 1 else given
        for direction in _DIRECTIONS[name]:
            if holder.direction != direction:
                changed = holder.model_copy(update={"direction": direction})
                own = given.model_copy(update={"edges": changed}) if len(path) > 1 else changed
                field = ".".join((*path, "direction"))
                yield StatedDirection(field, Direction(direction)), source.model_copy(update={name: own})


_DIRECTIONS: Mapping[str, Iterable[Direction | NpzDirection]] = {"npz": NpzDirection} | dict.fromkeys(
    ("ogb", "pyg", "parquet", "csv"), Direction
)
"""Directions that a source may state, by its kind; others have none."""


def _hint(graph: GraphData) -> str:
    """What the source has and the network does not read."""
    unread = [finding.example for finding in graph.findings if finding.what.startswith(UNREAD_EDGE_DATA)]
    return f"; the model may have used edge weights, and {', '.join(unread)} of the edges is not read" if unread else ""


def _reversed(graph: Graph) -> Graph:
    """The nodes that read a node as its neighbours."""
    order = np.argsort(graph.indices, kind="stable")
    ends = graph.indices[order]
    indptr = np.searchsorted(ends, np.arange(graph.nodes + 1)).astype(np.int64)
    return Graph(indptr, np.ascontiguousarray(graph.targets()[order].astype(np.int32)))


def _both_ways(graph: Graph) -> Graph:
    """Each neighbour once, whichever of the two lists the other."""
    ones = np.ones(graph.edges, dtype=np.int8)
    lists = sp.csr_array((ones, graph.indices, graph.indptr), shape=(graph.nodes, graph.nodes))
    both = sp.csr_array(lists + lists.T)
    both.sum_duplicates()
    return Graph(both.indptr.astype(np.int64), both.indices.astype(np.int32))


TURNED: Mapping[str, Callable[[Graph], Graph]] = {
    "with edges the other way": _reversed,
    "with edges both ways": _both_ways,
}
"""Lists as they are where edges have another direction, which no field of the source may state."""
