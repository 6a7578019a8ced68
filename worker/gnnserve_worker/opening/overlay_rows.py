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

from gnnserve_worker.kernels.view import unpack
from gnnserve_worker.models.feature_products import RowsOfFeatures
from gnnserve_worker.models.rows import FeaturesOf, MakesRows, encode_rows, multiplied, pad_rows
from gnnserve_worker.models.stored_layers import StoredLayerMaker
from gnnserve_worker.models.whole_lists import LayerScratch
from gnnserve_worker.opening.overlay_reach import OverlayReach, ReachedRows, node_keys, of_node_keys
from gnnserve_worker.sampling.batch_view import BatchView
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


class MakesSeenRows(Protocol):
    """Maker of the rows that one layer gives of nodes as requests see them."""

    @property
    def table(self) -> Table:
        """It stores the layer."""
        ...  # pragma: no cover

    def make_seen(self, nodes: np.ndarray, origins: np.ndarray, seen: SeenNodes) -> RowsBehind:
        """Rows of these nodes (int64, each once in each view, by their names there), in the format of the table.
        `origins`: as of `ReachedRows`; -1 - the type of a new node."""
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
    def names_leaves(self) -> bool:
        """A node that gains neighbours has another row, also where it is a leaf."""
        return True

    def kept_features(self, features: Sequence[int]) -> FeaturesOf | None:
        """As `MakesRows.kept_features`: rows of layers do not tell them."""
        return None

    def reached(self, view: BatchView, sample: NeighbourSample) -> ReachedRows:
        """Rows that the sample reads otherwise than they are stored."""
        return self.reach.rows_of(view.sampling, sample, self.layer, *self.reach.named(view.sampling, sample))

    def behind(self, view: BatchView, sample: NeighbourSample, columns: int, *, apart: bool) -> RowsBehind | None:
        """As `MakesRows.behind`; rows of neighbours and of nodes themselves have the same numbers."""
        del columns, apart
        keys = self._name(view, sample)
        if not len(keys):
            return None
        views, nodes = of_node_keys(keys)
        origins = self.reach.origins_of(unpack(view.sampling.packed)[4], nodes)
        # What these rows are made of is right, whatever is chosen of the table itself.
        whole = view.whole if isinstance(view, ChoosingView) else view
        return self.maker.make_seen(nodes, origins, SeenNodes(whole, views, self.inputs))

    def _name(self, view: BatchView, sample: NeighbourSample) -> np.ndarray:
        """`node_keys` of the nodes whose rows are made, int64. In the sample N + i is put in place of the i-th of them,
        N being the table's rows, and stored ones in place of others."""
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
        named[is_made] = self.maker.table.nodes + numbers
        sample.nodes[:], sample.neighbours[:] = np.split(named, [len(sample.nodes)])
        found: np.ndarray = chosen[made]
        return found


class _Spaces(threading.local):
    """Scratch memory of a thread, for each layer: rows of one are made while another's sample is read."""

    def __init__(self) -> None:
        self._of_layers: dict[int, LayerScratch] = {}

    def of(self, layer: int) -> LayerScratch:
        return self._of_layers.setdefault(layer, LayerScratch())


_spaces = _Spaces()


@dataclass(frozen=True, slots=True)
class StoredSeenRows:
    """A `MakesSeenRows` over one list of each node."""

    maker: StoredLayerMaker
    table: Table = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", self.maker.table)

    def make_seen(self, nodes: np.ndarray, origins: np.ndarray, seen: SeenNodes) -> RowsBehind:
        """As `MakesSeenRows.make_seen`."""
        del origins
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
