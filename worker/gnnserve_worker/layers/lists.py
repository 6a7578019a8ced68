"""Neighbour lists of a relation in one sample, with what edges have and what sums weigh them by."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.layers.aggregates import NO_WEIGHTS, list_bounds

Columns = tuple[int, ...]
"""Places of columns among those of the edges."""


@dataclass(frozen=True, slots=True)
class Normalisation:
    """How sums are weighed by the roots of both degrees."""

    has_self_loops: bool
    """Whether each node reads itself once, whether or not it stands in its list."""
    keeps_self: bool
    """Whether a node that stands in its own list counts as any neighbour; without self-loops."""
    fill: float
    """What a self-loop weighs that is in no list, where edges have weights."""
    weight: int | None
    """Place of the column that weighs edges; None: each counts 1."""


@dataclass(frozen=True, slots=True)
class NormalisedWeights:
    of_edges: np.ndarray
    """float32 [edges]"""
    of_targets: np.ndarray
    """float32 [targets]: of each node itself; [0]: none reads itself."""


@dataclass
class RelationLists:
    """Lists of the nodes of a relation's target type, in the order of their numbers."""

    edges: np.ndarray
    """int64 [2, edges]: the node that is read, and the one that reads it, which ascends."""
    features: np.ndarray
    """float32 [edges, columns]; [0, 0]: the network reads none."""
    of_graph: NormalisedWeights | None
    """Weights that the sample has of the graph; None: the network reads none."""
    targets: int
    """Nodes that may have a list."""
    _columns: dict[Columns, np.ndarray] = field(default_factory=dict)
    _normalised: dict[Normalisation, tuple[int, NormalisedWeights]] = field(default_factory=dict)
    _filtered: dict[tuple[int, float], RelationLists] = field(default_factory=dict)

    @property
    def sources(self) -> np.ndarray:
        """int64 [edges]"""
        sources: np.ndarray = self.edges[0]
        return sources

    @cached_property
    def bounds(self) -> np.ndarray:
        """Where the edges of each target begin and end, int64 [targets + 1]."""
        bounds = np.empty(self.targets + 1, np.int64)
        list_bounds(self.edges[1], bounds)
        return bounds

    def columns(self, places: Columns) -> np.ndarray:
        """Those columns of the edges, float32 [edges, columns], in C order."""
        found = self._columns.get(places)
        if found is None:
            is_all = places == tuple(range(self.features.shape[1]))
            found = self.features if is_all else np.ascontiguousarray(self.features[:, places])
            self._columns[places] = found
        return found

    def weights(self, place: int | None) -> np.ndarray:
        """Column that weighs edges, float32 [edges]; [0]: `place` is None."""
        return NO_WEIGHTS if place is None else self.columns((place,)).reshape(-1)

    def where(self, place: int, number: float) -> RelationLists:
        """Lists of the edges alone whose column at that place has the number."""
        found = self._filtered.get((place, number))
        if found is None:
            kept = np.flatnonzero(self.features[:, place] == np.float32(number))
            found = RelationLists(self.edges.take(kept, axis=1), self.features.take(kept, axis=0), None, self.targets)
            self._filtered[place, number] = found
        return found

    def weights_of_graph(self) -> NormalisedWeights:
        """Weights by the degrees of the graph, with self-loops."""
        assert self.of_graph is not None  # noqa: S101 - a network that reads them has them among its inputs
        return self.of_graph

    def normalised(self, normalisation: Normalisation, count: int) -> NormalisedWeights:
        """Weights by the degrees that the lists have, which are whole for all nodes whose rows are read. `count`:
        targets that sums are of, the first ones; edges of others have no weights."""
        before, found = self._normalised.get(normalisation, (-1, None))
        if found is None or before < count:
            weights = self.weights(normalisation.weight)
            roots, itself = np.empty(self.targets, np.float32), np.empty(self.targets, np.float32)
            _find_roots(
                self.sources, self.bounds, weights, normalisation.has_self_loops, normalisation.keeps_self,
                np.float32(normalisation.fill), roots, itself,
            )  # fmt: skip
            found = NormalisedWeights(
                np.empty(int(self.bounds[count]), np.float32),
                itself[:count] * roots[:count] ** 2 if normalisation.has_self_loops else NO_WEIGHTS,
            )
            _weigh(self.sources, self.bounds, weights, normalisation.keeps_self, roots, found.of_edges)
            self._normalised[normalisation] = (count, found)
        return found


@kernel
def _find_roots(
    sources: np.ndarray, bounds: np.ndarray, weights: np.ndarray, has_self_loops: bool, keeps_self: bool,
    fill: np.float32, roots: np.ndarray, itself: np.ndarray,
) -> None:  # fmt: skip
    """The inverse root of each target's degree, and what it weighs itself. Where edges have no weights, entries are
    counted: most lists are those of nodes whose degrees alone are read."""
    for target in range(len(roots)):
        begin, end = bounds[target], bounds[target + 1]
        if len(weights) == 0:
            loops = 0
            for edge in range(begin, end):
                loops += sources[edge] == target
            degree, itself[target] = np.float32(end - begin - (0 if keeps_self else loops)), np.float32(1.0)
        else:
            degree, itself[target] = np.float32(0.0), fill
            for edge in range(begin, end):
                is_self = sources[edge] == target
                if is_self and has_self_loops:
                    itself[target] = weights[edge]
                if not is_self or keeps_self:
                    degree += weights[edge]
        if has_self_loops:
            degree += itself[target]
        roots[target] = np.float32(0.0) if degree == 0 else np.float32(1.0) / np.sqrt(degree)


@kernel
def _weigh(
    sources: np.ndarray, bounds: np.ndarray, weights: np.ndarray, keeps_self: bool, roots: np.ndarray,
    of_edges: np.ndarray,
) -> None:  # fmt: skip
    """As torch_geometric's gcn_norm; sources without a list, which no target that is written reads, have 0."""
    target = 0
    for edge in range(len(of_edges)):
        while bounds[target + 1] <= edge:
            target += 1
        source = sources[edge]
        if source >= len(roots) or (source == target and not keeps_self):
            of_edges[edge] = 0.0
        else:
            of_edges[edge] = (weights[edge] if len(weights) > 0 else np.float32(1.0)) * roots[target] * roots[source]
