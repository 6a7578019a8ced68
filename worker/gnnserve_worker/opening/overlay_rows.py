"""Rows of a table that stores a layer, for nodes that requests bring and for those around them: made over all
neighbours as each request sees them, of rows of the layer before that are made in the same way. What a request does not
reach is read as it is stored, and so is what a batch does not choose (`ChoosingView`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from gnnserve_worker.kernels.layout import unpack_layout
from gnnserve_worker.kernels.view import unpack
from gnnserve_worker.models.feature_products import RowsOfFeatures
from gnnserve_worker.models.rows import FeaturesOf, MakesRows, ReachedRows, encode_rows, multiplied, pad_rows
from gnnserve_worker.models.stored_layers import StoredLayerMaker, StoredRelationMaker
from gnnserve_worker.models.whole_lists import LayerScratch
from gnnserve_worker.opening.overlay_reach import OverlayReach, node_keys, of_node_keys
from gnnserve_worker.sampling.batch_view import BatchView, FeatureRows
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.tables.table import RowsBehind, Table


class ChoosingView(BatchView, frozen=True, kw_only=True):
    """A view in which rows of a stored layer are made for some nodes that requests change, and not for all."""

    chosen: np.ndarray
    """`node_keys` of these nodes, int64, ascending. Rows of other stored nodes are read as they are stored."""

    @staticmethod
    def of(view: BatchView, chosen: np.ndarray) -> ChoosingView:
        return ChoosingView(view.sampling, view.features, view.stand_ins, view.payload, chosen=chosen)

    @property
    def whole(self) -> BatchView:
        """The view in which all rows are made."""
        return BatchView(self.sampling, self.features, self.stand_ins, self.payload)

    def of_seeds(self, part: slice) -> ChoosingView:
        """As `BatchView.of_seeds`."""
        return ChoosingView.of(self.whole.of_seeds(part), self.chosen)

    def of_places(self, places: np.ndarray) -> ChoosingView:
        """As `BatchView.of_places`."""
        return ChoosingView.of(self.whole.of_places(places), self.chosen)

    def of_distinct(self, views: np.ndarray) -> ChoosingView:
        """As `BatchView.of_distinct`."""
        return ChoosingView.of(self.whole.of_distinct(views), self.chosen)


class SeenNodes(NamedTuple):
    """Nodes as the requests of a batch see them."""

    view: BatchView
    views: np.ndarray
    """View of each, int32."""
    inputs: MakesRows
    """Makes rows that the layer reads, where requests change them."""

    def at(self, places: np.ndarray) -> SeenNodes:
        """Those at these places (int64)."""
        return self._replace(views=self.views[places])


class ReadPlaces(NamedTuple):
    """Places among some nodes of those whose rows a sample reads; -1 of rows that are read as they are stored."""

    nodes: np.ndarray
    """Place of each of the sample's nodes themselves, int64."""
    neighbours: np.ndarray
    """Place of each of its neighbours, int64."""


class MakesSeenRows(Protocol):
    """Maker of the rows that one layer gives of nodes as requests see them."""

    @property
    def table(self) -> Table:
        """It stores the layer."""
        ...  # pragma: no cover

    def kinds_of(self, nodes: np.ndarray) -> np.ndarray:
        """Places of the types of stored nodes (int64)."""
        ...  # pragma: no cover

    def name(self, sample: NeighbourSample, places: ReadPlaces, kinds: np.ndarray) -> Sequence[np.ndarray]:
        """Put rows behind the table's in place of nodes whose rows are made, in the sample's own arrays; returns what
        `make_seen` is to know of it. `kinds`: the place of the type of each node whose rows are made, int64."""
        ...  # pragma: no cover

    def make_seen(
        self, nodes: np.ndarray, kinds: np.ndarray, read: Sequence[np.ndarray], seen: SeenNodes
    ) -> RowsBehind:
        """Rows of these nodes (int64, each once in each view, by their names there), in the format of the table.
        `kinds`, `read`: as `name` takes and gives them."""
        ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class OverlayRows:
    """A `MakesRows` of a table behind a layer that reads the neighbours of a node and no further ones."""

    maker: MakesSeenRows
    inputs: MakesRows
    """Makes rows of the table that the layer reads."""
    reach: OverlayReach
    layer: int
    """The first layer is 1."""

    @property
    def made_of(self) -> Sequence[RowsOfFeatures]:
        """As `MakesRows.made_of`: nothing, since a layer reads neighbours."""
        return ()

    @property
    def reaching(self) -> OverlayRows | None:
        """As `MakesRows.reaching`: who reads the first layer finds it exact."""
        return self if self.layer > 1 else None

    @property
    def names_leaves(self) -> bool:
        """A node that gains neighbours has another row, also where it is a leaf."""
        return True

    def kept_features(self, features: Sequence[int]) -> FeaturesOf | None:
        """As `MakesRows.kept_features`: rows of layers do not tell them."""
        return None

    def reached(self, view: BatchView, sample: NeighbourSample) -> ReachedRows:
        """As of `ReachesRows`."""
        return self.reach.rows_of(view.sampling, sample, self.layer, *self.reach.named(view.sampling, sample))

    def behind(self, view: BatchView, sample: NeighbourSample, columns: int, *, apart: bool) -> RowsBehind | None:
        """As `MakesRows.behind`; rows of neighbours and of nodes themselves have the same numbers."""
        del columns, apart
        keys, places = self._find(view, sample)
        if not len(keys):
            return None
        views, nodes = of_node_keys(keys)
        origins = self.reach.origins_of(unpack(view.sampling.packed)[4], nodes)
        is_new = origins < 0
        kinds = np.where(is_new, -1 - origins, self.maker.kinds_of(np.where(is_new, 0, origins)))
        read = self.maker.name(sample, places, kinds)
        # What these rows are made of is right, whatever is chosen of the table itself.
        whole = view.whole if isinstance(view, ChoosingView) else view
        return self.maker.make_seen(nodes, kinds, read, SeenNodes(whole, views, self.inputs))

    def _find(self, view: BatchView, sample: NeighbourSample) -> tuple[np.ndarray, ReadPlaces]:
        """`node_keys` of the nodes whose rows are made, int64, and where the sample reads them. In the sample stored
        nodes are put in place of those that requests bring."""
        names, of_names = self.reach.named(view.sampling, sample)
        if isinstance(view, ChoosingView):
            chosen = view.chosen
        else:
            chosen = self.reach.rows_of(view.sampling, sample, self.layer, names, of_names).keys
        keys = node_keys(of_names, names)
        places = np.minimum(np.searchsorted(chosen, keys), max(0, len(chosen) - 1))
        is_made = chosen[places] == keys if len(chosen) else np.zeros(len(keys), np.bool_)
        made, numbers = np.unique(places[is_made], return_inverse=True)
        named = self.reach.origins_of(unpack(view.sampling.packed)[4], names)
        sample.nodes[:], sample.neighbours[:] = np.split(named, [len(sample.nodes)])
        read = np.full(len(keys), -1, np.int64)
        read[is_made] = numbers
        return chosen[made], ReadPlaces(*np.split(read, [len(sample.nodes)]))


class _Spaces(threading.local):
    """Scratch memory of a thread, for each layer: rows of one are made while another's sample is read."""

    def __init__(self) -> None:
        self._of_layers: dict[int, LayerScratch] = {}

    def of(self, layer: int) -> LayerScratch:
        if layer not in self._of_layers:
            self._of_layers[layer] = LayerScratch()
        return self._of_layers[layer]


_spaces = _Spaces()


def name_by_node(sample: NeighbourSample, places: ReadPlaces, table_rows: int) -> Sequence[np.ndarray]:
    """As `MakesSeenRows.name`, where nodes themselves and neighbours read the same rows, of which a table has so
    many."""
    for named, read in ((sample.nodes, places.nodes), (sample.neighbours, places.neighbours)):
        named[read >= 0] = table_rows + read[read >= 0]
    return ()


@dataclass(frozen=True, slots=True)
class StoredSeenRows:
    """A `MakesSeenRows` over one list of each node."""

    maker: StoredLayerMaker
    table: Table = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", self.maker.table)

    def kinds_of(self, nodes: np.ndarray) -> np.ndarray:
        """As `MakesSeenRows.kinds_of`: there is one type."""
        return np.zeros(len(nodes), np.int64)

    def name(self, sample: NeighbourSample, places: ReadPlaces, kinds: np.ndarray) -> Sequence[np.ndarray]:
        """As `MakesSeenRows.name`."""
        return name_by_node(sample, places, self.table.nodes)

    def make_seen(
        self, nodes: np.ndarray, kinds: np.ndarray, read: Sequence[np.ndarray], seen: SeenNodes
    ) -> RowsBehind:
        """As `MakesSeenRows.make_seen`."""
        maker, space, count = self.maker, _spaces.of(self.maker.number), len(nodes)
        view = seen.view.of_distinct(seen.views)
        sample = space.sample(maker.graph, nodes, maker.neighbour_roots, view.sampling)
        behind = seen.inputs.behind(view, sample, maker.source.columns, apart=True)
        gathered = maker.layer.gather(maker.source, sample, space.activations, behind)
        outputs = maker.layer.outputs
        hidden = maker.layer.multiply(gathered, count, space.activations)[: count * outputs].reshape(count, outputs)
        table, products = maker.table, maker.next_products
        if not products:
            made = encode_rows(table.rows, pad_rows(table.rows, hidden.copy()))
            return RowsBehind(*made, *made)
        made = multiplied(hidden, products[0], table.rows)
        return RowsBehind(*made, *(made if len(products) == 1 else multiplied(hidden, products[1], table.own)))


@dataclass(frozen=True, slots=True)
class RelationSeenRows:
    """A `MakesSeenRows` over a list by each relation. The table has rows of a node for each relation that reads it, and
    one for itself."""

    maker: StoredRelationMaker

    @property
    def table(self) -> Table:
        """As `MakesSeenRows.table`."""
        return self.maker.table

    def kinds_of(self, nodes: np.ndarray) -> np.ndarray:
        """As `MakesSeenRows.kinds_of`."""
        kinds: np.ndarray = np.searchsorted(self.maker.graph.schema.first_nodes, nodes, side="right") - 1
        return kinds

    def name(self, sample: NeighbourSample, places: ReadPlaces, kinds: np.ndarray) -> Sequence[np.ndarray]:
        """As `MakesSeenRows.name`: places of the nodes (int64) of which rows of each number of `RowPlaces` are made.
        Neighbours are named behind the graph's nodes, and nodes themselves behind the table's own rows."""
        graph, own = self.maker.graph, np.flatnonzero(places.nodes >= 0)
        relations, types = len(graph.schema.relations), len(graph.schema.types)
        at = np.flatnonzero(places.neighbours >= 0)
        by_relation, numbers = _numbered(
            _relations_read(sample, graph.layout)[at], places.neighbours[at], relations, len(kinds)
        )
        sample.neighbours[at] = graph.nodes + numbers
        by_type, numbers = _numbered(kinds[places.nodes[own]], places.nodes[own], types, len(kinds))
        sample.nodes[own] = len(self.table.own.values) + numbers
        return [*by_relation, *by_type]

    def make_seen(
        self, nodes: np.ndarray, kinds: np.ndarray, read: Sequence[np.ndarray], seen: SeenNodes
    ) -> RowsBehind:
        """As `MakesSeenRows.make_seen`."""
        maker, space = self.maker, _spaces.of(self.maker.number)
        view = seen.view.of_distinct(seen.views)
        sample = space.sample_relations(maker.graph, nodes, view.sampling)
        behind = seen.inputs.behind(view, sample, maker.source.columns, apart=True)
        hidden = maker.hidden_of(sample, kinds, space, behind)
        return maker.rows.make(FeatureRows.of(hidden), read, self.table.columns)


def _relations_read(sample: NeighbourSample, layout: np.ndarray) -> np.ndarray:
    """The relation by which each neighbour of a sample is read: int64. `layout`: as of `pack_layout`."""
    types, stride, _, _, _, relation_of, _ = unpack_layout(layout)
    blocks = np.diff(sample.type_ends, prepend=0)
    kinds = np.repeat(np.arange(len(blocks)) % types, blocks)
    of_lists = relation_of.reshape(types, stride)[kinds].ravel()
    return np.repeat(of_lists, np.diff(sample.segments[: len(of_lists) + 1]))


def _numbered(of: np.ndarray, places: np.ndarray, count: int, nodes: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Pairs of a number below `count` and a place below `nodes` (int64, int64), each once, in order: the places of each
    number; and which of them each pair is, int64."""
    pairs, numbers = np.unique(of * nodes + places, return_inverse=True)
    ends = np.searchsorted(pairs, np.arange(1, count) * nodes)
    return np.split(pairs % max(1, nodes), ends), numbers
