"""Rows of a table that stores the first of the layers which a manifest lists, for nodes that requests bring and for
those around them: made by the layer's own kernels, over all neighbours as each request sees them. What a request does
not reach is read as it is stored. Only a server that has such tables imports this.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD
from gnnserve_worker.kernels.view import HAS_OVERLAY, HAS_OVERRIDES, SampleView, unpack
from gnnserve_worker.models.feature_products import RowsOfFeatures
from gnnserve_worker.models.rows import FeaturesOf, RowMaker, encode_rows, pad_rows
from gnnserve_worker.opening.listed_layers import ListedLayerMaker, SeenNodes
from gnnserve_worker.programs.numbering import seed_rows
from gnnserve_worker.sampling.batch_view import BatchView
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch
from gnnserve_worker.tables.table import RowsBehind

_VIEW_BITS = 32


class _Memory(threading.local):
    """Memory in which a thread looks at neighbours."""

    def __init__(self) -> None:
        self.scratch = Scratch()


_memory = _Memory()


class _AlteredNodes(NamedTuple):
    """Nodes whose row is another one in their view than the table's."""

    ids: np.ndarray
    """int64"""
    views: np.ndarray
    """int32"""


@dataclass(frozen=True, slots=True)
class ListedOverlayRows:
    """A `MakesRows` of a table behind a layer that reads the neighbours of a node and no further ones."""

    maker: ListedLayerMaker
    inputs: RowMaker
    """Makes rows of the table that the layer reads."""

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

    def behind(self, view: BatchView, sample: NeighbourSample, columns: int, *, apart: bool) -> RowsBehind | None:
        """As `MakesRows.behind`; rows of neighbours and of nodes themselves have the same numbers."""
        del columns, apart
        altered = self._name_altered(view.sampling, sample)
        if not len(altered.ids):
            return None
        kinds = self._kinds_of(view.sampling, altered.ids)
        made = self.maker.rows_of(altered.ids, kinds, SeenNodes(view, altered.views, self.inputs))
        rows = self.maker.table.rows
        values, scales = encode_rows(rows, pad_rows(rows, made))
        return RowsBehind(values, scales, values, scales)

    def _name_altered(self, view: SampleView, sample: NeighbourSample) -> _AlteredNodes:
        """The altered nodes that the sample reads. In the sample N + i is put in place of the i-th of them, N being the
        table's rows."""
        seed_views, _, flags, first_slots, origins, _, _, _, slots = unpack(view.packed)
        # A sample of seeds alone has none.
        views = seed_views[view.first_seed :][: len(sample.nodes)] if sample.views is None else sample.views
        names = np.concatenate([sample.nodes, sample.neighbours]).astype(np.int64)
        of_names = np.concatenate([views, np.repeat(views, np.diff(sample.starts))]).astype(np.int64)
        stored = self.maker.graph.nodes
        names = _as_seen(names, of_names, stored, first_slots, slots, origins)
        # Through its neighbours a stored node has another row where these have other features, or count otherwise.
        reaching = HAS_OVERLAY if self.maker.weighs_neighbours else HAS_OVERRIDES
        candidates = np.flatnonzero((names >= stored) | (flags[of_names] & reaching != 0))
        keys, places = np.unique(of_names[candidates] << _VIEW_BITS | names[candidates], return_inverse=True)
        ids, of_ids = keys & ((1 << _VIEW_BITS) - 1), (keys >> _VIEW_BITS).astype(np.int32)
        is_altered = ids >= stored
        if len(asked := np.flatnonzero(~is_altered)):
            is_altered[asked] = self._read_altered(view.of_others(of_ids[asked]), ids[asked])
        named = np.where(is_altered, self.maker.table.nodes + np.cumsum(is_altered) - 1, ids)
        names[candidates] = named[places]
        sample.nodes[:], sample.neighbours[:] = np.split(names, [len(sample.nodes)])
        return _AlteredNodes(ids[is_altered], of_ids[is_altered])

    def _read_altered(self, view: SampleView, nodes: np.ndarray) -> np.ndarray:
        """Whether each of these stored nodes (int64) reads one that the layer reads otherwise in its view: bool.
        `view`: theirs."""
        graph, weighs = self.maker.graph, self.maker.weighs_neighbours
        sample = self.maker.draw(
            graph.indptr, graph.indices, nodes, (FULL_NEIGHBOURHOOD,), 0, _memory.scratch, share=True, view=view,
            names_leaves=True,
        )  # fmt: skip
        others = sample.neighbours.astype(np.int64) - graph.nodes
        # Nodes with other features stand before those that only gain neighbours, and so have another degree.
        is_read = (others >= 0) & (weighs | (others < len(unpack(view.packed)[5])))
        found = np.zeros(len(sample.nodes), np.bool_)
        found[np.repeat(np.arange(len(sample.nodes)), np.diff(sample.starts))[is_read]] = True
        altered: np.ndarray = found[seed_rows(sample)]
        return altered

    def _kinds_of(self, view: SampleView, ids: np.ndarray) -> np.ndarray:
        """The place of each node's type, by numbers of stored or overlay nodes (int64)."""
        origins, stored = unpack(view.packed)[4], self.maker.graph.nodes
        is_stored = ids < stored
        standing_for = np.where(is_stored, ids, np.append(origins, 0)[np.where(is_stored, -1, ids - stored)])
        is_new = standing_for < 0
        return np.where(is_new, -1 - standing_for, self.maker.kinds_of(np.where(is_new, 0, standing_for)))


def _as_seen(
    names: np.ndarray, views: np.ndarray, stored: int, first_slots: np.ndarray, slots: np.ndarray, origins: np.ndarray
) -> np.ndarray:
    """Numbers of nodes (int64) in their views, where leaves that only gain neighbours may have their stored ones. The
    last three: as of `unpack`."""
    of_slots = np.repeat(np.arange(len(first_slots) - 1), np.diff(first_slots))
    there = np.flatnonzero(slots >= 0)
    keys = of_slots[there] << _VIEW_BITS | origins[slots[there] - stored]
    if not len(keys):
        return names
    order, wanted = np.argsort(keys), views << _VIEW_BITS | names
    places = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    return np.where(keys[places] == wanted, slots[there][places], names)
