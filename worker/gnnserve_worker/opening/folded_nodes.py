"""Rows of embeddings that were learnt of nodes (LightGCN), for nodes that a request brings or joins to more.

A row is made as where the graph changes for good (`models/folded_rows.py`): of the rows of all nodes that a node is
joined to, as they are now. Nothing is learnt of a new node, which adds nothing to others: a stored node that gains new
ones alone keeps its row, and a new one that is joined to no stored node has a row of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.kernels.view import SampleView, unpack
from gnnserve_worker.models.feature_products import RowsOfFeatures
from gnnserve_worker.models.folding import Folding
from gnnserve_worker.models.rows import FeaturesOf, encode_rows, pad_rows
from gnnserve_worker.sampling.batch_view import BatchView
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.tables.table import RowsBehind, Table


@dataclass(frozen=True, slots=True)
class FoldedNodes:
    """A `MakesRows` of a graph in which every node has all in its own lists that it is joined to."""

    table: Table
    graph: Graph
    folding: Folding | None
    """Weights of as many nodes as the table has rows; None: neighbours count alike."""
    has_length_1: np.ndarray
    """Whether the row of each node is brought to length 1, bool [nodes]; of a new node as of others of its type."""

    @property
    def made_of(self) -> Sequence[RowsOfFeatures]:
        """As `MakesRows.made_of`: nothing, since rows are sums of others."""
        return ()

    @property
    def reaching(self) -> None:
        """As `MakesRows.reaching`."""
        return None

    @property
    def names_leaves(self) -> bool:
        """A node that gains neighbours has another row."""
        return True

    def kept_features(self, features: Sequence[int]) -> FeaturesOf | None:
        """As `MakesRows.kept_features`: nodes have none."""
        return None

    def behind(self, view: BatchView, sample: NeighbourSample, columns: int, *, apart: bool) -> RowsBehind | None:
        """As `MakesRows.behind`. No neighbours are sampled, so that all rows are of nodes themselves."""
        stored = self.graph.nodes
        brought = np.flatnonzero(sample.nodes >= stored)
        if not len(brought):
            return None
        numbers, places = np.unique(sample.nodes[brought], return_inverse=True)
        joined = self._joined_to(view.sampling, numbers - stored)
        made = np.flatnonzero(joined.is_other)
        # Behind the table's rows stand those that are other ones; the rest are the table's own.
        named = joined.origins.copy()
        named[made] = stored + np.arange(len(made))
        sample.nodes[brought] = named[places]
        if not len(made):
            return None
        rows = self._rows_of(joined)[made]
        values, scales = encode_rows(self.table.rows, pad_rows(self.table.rows, rows))
        return RowsBehind(values, scales, values, scales)

    def _joined_to(self, view: SampleView, places: np.ndarray) -> _JoinedNodes:
        """The stored nodes that overlay nodes are joined to. `places`: of their first lists in the view, int64."""
        _, _, _, _, origins, _, starts, entries, _ = unpack(view.packed)
        stride, own = int(self.graph.layout[1]), origins[places]
        begins, ends = starts[places], starts[places + stride]
        counts = ends - begins
        readers = np.repeat(np.arange(len(places)), counts)
        at = np.arange(len(readers)) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
        gained = entries[at]
        is_behind = gained >= self.graph.nodes
        gained = np.where(is_behind, origins[np.where(is_behind, gained - self.graph.nodes, 0)], gained)
        readers, gained = readers[gained >= 0], gained[gained >= 0]
        is_other = own < 0
        is_other[readers] = True
        lists = [(place, self.graph.list_of(int(own[place]))) for place in np.flatnonzero(is_other & (own >= 0))]
        readers = np.concatenate([readers, *(np.full(len(listed), place) for place, listed in lists)])
        gained = np.concatenate([gained, *(listed for _, listed in lists)])
        # Several relations may join two nodes, and a request may bring an edge that is there.
        pairs = np.unique(readers * self.graph.nodes + gained)
        first_nodes = np.array(self.graph.schema.first_nodes, np.int64)
        like = np.where(own < 0, first_nodes[np.where(own < 0, -1 - own, 0)], own)
        return _JoinedNodes(own, like, is_other, pairs // self.graph.nodes, pairs % self.graph.nodes)

    def _rows_of(self, joined: _JoinedNodes) -> np.ndarray:
        """Rows, float32 [overlay nodes, columns]; zeros of a node that is joined to none."""
        stored, columns = self.table.rows, self.table.columns
        scales = stored.scales[joined.nodes] if stored.format.has_scales else None
        read = stored.format.decode(np.asarray(stored.values[joined.nodes]), scales)[:, :columns]
        if self.folding is not None:
            read = read * self.folding.shares[joined.nodes, None]
        rows = np.zeros((len(joined.origins), columns), np.float32)
        readers, firsts = np.unique(joined.readers, return_index=True)
        if len(readers):
            rows[readers] = np.add.reduceat(read, firsts)
        if self.folding is not None:
            rows = self.folding.own_of(rows)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        is_scaled = self.has_length_1[joined.like][:, None] & (lengths > 0)
        scaled: np.ndarray = rows / np.where(is_scaled, lengths, np.float32(1.0))
        return scaled


@dataclass(frozen=True, slots=True)
class _JoinedNodes:
    """Overlay nodes of a batch, and what each of them is joined to in its request."""

    origins: np.ndarray
    """As `Overlay.origins`, int64 [overlay nodes]."""
    like: np.ndarray
    """A stored node of the same type: itself, or the first of the type. int64 [overlay nodes]"""
    is_other: np.ndarray
    """Whether its row is another one than the table's: it is new, or joined to a stored node. bool [overlay nodes]"""
    readers: np.ndarray
    """Places of overlay nodes, ascending: int64 [pairs]."""
    nodes: np.ndarray
    """The stored node that each of `readers` is joined to, each once: int64 [pairs]."""


def read_from_one_end(schema: GraphSchema) -> bool:
    """Whether a relation has edges that the nodes at one end alone read: it goes one way, and has no reverse."""
    reversed_ = {(one.target, one.reverse_of, one.source) for one in schema.relations}
    return any(
        one.reverse_of is None and not one.both_ways and (one.source, one.name, one.target) not in reversed_
        for one in schema.relations
    )
