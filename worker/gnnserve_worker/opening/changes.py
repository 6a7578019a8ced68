"""Parts by which changes are applied to a revision that was opened for them: its graph and tables as predictions read
them, and a draft that changes are applied to first.

Of the tables that store a layer the draft has those alone that a later stored layer is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Protocol

import numpy as np

from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.models.rows import FeaturesOf, RenewsRows, RowMaker
from gnnserve_worker.models.stored_layers import MakesLayer
from gnnserve_worker.opening.delta_memory import DeltaMemory
from gnnserve_worker.tables.growing import empty_growing
from gnnserve_worker.tables.table import Table


@dataclass(frozen=True, slots=True)
class Draft:
    graph: LivingGraph
    tables: Mapping[int, Table]
    """Tables that stored layers are made of, by the identity of the revision's own: products of features for the first
    layer, rows of the layer before for each later one."""
    neighbour_roots: np.ndarray | None
    """As `GraphReading.neighbour_roots`."""

    def maker(self, maker: MakesLayer) -> MakesLayer:
        """A maker of a stored layer that reads the draft and writes to the revision."""
        return maker.reading(self.graph.graph, self.tables[id(maker.source)], self.neighbour_roots)


@dataclass(frozen=True, slots=True)
class FollowedLayer:
    """A stored layer whose rows follow changes."""

    makers: tuple[MakesLayer, ...]
    """One of each table."""
    hops: int = 1
    """Hops within which a row reads rows and degrees that it is made of."""


class MakesNumberedLayer(MakesLayer, Protocol):
    @property
    def number(self) -> int:
        """The first layer is 1."""
        ...  # pragma: no cover


def layers_by_number(makers: Iterable[MakesNumberedLayer], hops: Sequence[int] = ()) -> tuple[FollowedLayer, ...]:
    """The layers that these store, the first layer's first, with one maker of each table. `hops`: of each layer; empty:
    each reads one."""
    found: dict[int, MakesNumberedLayer] = {}
    for maker in makers:
        found.setdefault(id(maker.table), maker)
    by_number: dict[int, list[MakesNumberedLayer]] = {}
    for maker in found.values():
        by_number.setdefault(maker.number, []).append(maker)
    return tuple(
        FollowedLayer(tuple(by_number[number]), hops[number - 1] if hops else 1) for number in sorted(by_number)
    )


@dataclass(frozen=True, slots=True)
class FollowedRows:
    """Makers of the rows of tables that follow changes."""

    makers: tuple[RowMaker, ...] = ()
    """Makers of rows from features, of each table that has such rows."""
    layers: Sequence[FollowedLayer] = ()
    """Stored layers, the first layer's first."""

    @staticmethod
    def joined(parts: Sequence[FollowedRows]) -> FollowedRows:
        """Those of tables of several layouts: layers of one number are made together, where changes reach any."""
        makers = tuple(maker for part in parts for maker in part.makers)
        by_number = zip_longest(*(part.layers for part in parts), fillvalue=FollowedLayer((), 0))
        return FollowedRows(makers, tuple(map(_together, by_number)))


def _together(layers: Sequence[FollowedLayer]) -> FollowedLayer:
    return FollowedLayer(tuple(maker for one in layers for maker in one.makers), max(one.hops for one in layers))


@dataclass(frozen=True, slots=True)
class OpenedChanges:
    """All arrays have room behind: `LoadedRevision.graph.nodes` and rows of tables count it."""

    graph: LivingGraph
    """The graph as predictions see it."""
    draft: Draft
    makers: tuple[RenewsRows, ...]
    """Makers of rows from features, of each table that has such rows."""
    memory: DeltaMemory
    """Memory that changes take."""
    layers: Sequence[FollowedLayer] = ()
    """Stored layers, the first layer's first."""
    features_of: FeaturesOf | None = None
    """What reads features of stored nodes; None: the revision does not keep them."""

    @property
    def layer_makers(self) -> tuple[MakesLayer, ...]:
        """Those of all stored layers."""
        return tuple(maker for layer in self.layers for maker in layer.makers)


def draft_of(
    graph: LivingGraph,
    sources: Iterable[Table],
    roots: np.ndarray | None,
    open_again: Callable[[Table], Table],
) -> Draft:
    """`graph`: the draft of `living_graphs`. `sources`: of makers of stored layers. `roots`: the revision's, if it has
    any. `open_again`: opens the files of a table of the revision once more."""
    tables = {id(source): source for source in sources}
    drafted = {key: open_again(table) for key, table in tables.items()}
    own_roots = None
    if roots is not None:
        nodes = graph.taken
        own_roots = empty_growing(roots.shape, np.float32)
        own_roots[:nodes] = roots[:nodes]
    return Draft(graph, drafted, own_roots)
