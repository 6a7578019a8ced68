"""Reach of what requests bring: nodes whose rows of stored layers it changes, and an estimate of how far each moves.

As for changes of the graph (`staleness/movement.py`), a row moves by the share of its neighbours that came, and by what
the rows that it reads have moved, each as a mean would weigh it. A row that reads nothing else than before does not
move, so that rows which move are those that are others in a request's view.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.kernels.view import HAS_OVERLAY, HAS_OVERRIDES, SampleView, unpack
from gnnserve_worker.models.rows import ReachedRows
from gnnserve_worker.programs.numbering import seed_rows
from gnnserve_worker.sampling.neighbours import NeighbourSample, Sampler, Scratch

_OF_DEGREE = np.float32(0.5)
"""Movement of a neighbour's weight, where the layer weighs it by its degree, over the share of its list that came."""
_LEAST = np.float32(2.0**-20)
"""Movement of a row that is another one, at least."""


_VIEW_BITS = 32


def node_keys(views: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """A number of each node as a request sees it, int64: `views` and `nodes` of a batch, integers."""
    keys: np.ndarray = views.astype(np.int64) << _VIEW_BITS | nodes.astype(np.int64)
    return keys


def of_node_keys(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The views (int32) and nodes (int64) that `node_keys` numbers."""
    return (keys >> _VIEW_BITS).astype(np.int32), keys & ((1 << _VIEW_BITS) - 1)


class _Memory(threading.local):
    """Memory in which a thread looks at neighbours."""

    def __init__(self) -> None:
        self.scratch = Scratch()


_memory = _Memory()


@dataclass(frozen=True, slots=True)
class OverlayReach:
    """Reach over the layers of one network, each of which reads neighbours and no further nodes."""

    graph: Graph
    draw: Sampler
    weighs_neighbours: bool
    """Whether layers weigh neighbours by their degrees."""
    names_leaves: bool
    """Whether samples name all leaves by their views; those over relations name stored ones that only gain neighbours
    as they are stored."""

    def rows_of(
        self, view: SampleView, sample: NeighbourSample, layer: int, names: np.ndarray, of_names: np.ndarray
    ) -> ReachedRows:
        """Rows of that layer, from 1, that a sample reads otherwise than they are stored. `names`, `of_names`: as of
        `named`."""
        _, _, flags, _, origins, _, _, _, _ = unpack(view.packed)
        at = np.flatnonzero((names >= self.graph.nodes) | self._reaches(flags, layer)[of_names])
        keys, firsts, counts = np.unique(node_keys(of_names[at], names[at]), return_index=True, return_counts=True)
        views, nodes = of_node_keys(keys)
        amounts = self.amounts(view, nodes, views, layer)[layer]
        moved = np.flatnonzero(amounts > 0)
        # Rows of nodes themselves come first.
        is_asked = at[firsts[moved]] < len(sample.nodes)
        return ReachedRows(keys[moved], self.origins_of(origins, nodes[moved]), amounts[moved], counts[moved], is_asked)

    def amounts(self, view: SampleView, nodes: np.ndarray, views: np.ndarray, layers: int) -> np.ndarray:
        """How far rows of these nodes move by each layer: float32 [layers + 1, nodes], first that of their features. 0:
        they are as they are stored. `nodes`: int64, each once in each of `views` (int32), by their names there."""
        _, _, flags, _, origins, streams, extra_starts, _, _ = unpack(view.packed)
        is_brought = nodes >= self.graph.nodes
        moved = np.zeros((layers + 1, len(nodes)), np.float32)
        moved[0, is_brought & (nodes - self.graph.nodes < len(streams))] = 1
        # Edges with other columns change a row, too.
        moved[1:, is_brought] = _LEAST
        is_new = self.origins_of(origins, nodes) < 0
        moved[:, is_new] = 1
        at = np.flatnonzero(~is_new & (is_brought | self._reaches(flags, layers)[views])) if layers else is_new[:0]
        if not len(at):
            return moved
        lists = self._lists_of(view.of_others(views[at]), nodes[at])
        came = lists.came(self.graph.nodes, extra_starts)
        read = self._moved_entries(view, lists, layers - 1)
        read[:, came] = 1
        if self.weighs_neighbours:
            np.maximum(read, _OF_DEGREE * self._shares_that_came(view, lists.entries), out=read)
        for layer in range(1, layers + 1):
            sums = moved[layer, at] + moved[layer - 1, at] + lists.means(read[layer - 1])
            moved[layer, at] = np.minimum(1, sums)
        return moved

    def named(self, view: SampleView, sample: NeighbourSample) -> tuple[np.ndarray, np.ndarray]:
        """Names in their views of the nodes that a sample reads, int64, those of its rows first; and the view of each,
        int64."""
        seed_views = unpack(view.packed)[0]
        # A sample of seeds alone has none.
        views = seed_views[view.first_seed :][: len(sample.nodes)] if sample.views is None else sample.views
        names = np.concatenate([sample.nodes, sample.neighbours]).astype(np.int64)
        of_names = np.concatenate([views, np.repeat(views, np.diff(sample.starts))]).astype(np.int64)
        return self._named(names, of_names, view), of_names

    def origins_of(self, origins: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """The stored node that each of these (int64) is or stands for, int64; below 0: it is new. `origins`: as of
        `unpack`."""
        is_brought = nodes >= self.graph.nodes
        found: np.ndarray = nodes.copy()
        found[is_brought] = origins[nodes[is_brought] - self.graph.nodes]
        return found

    def _named(self, names: np.ndarray, views: np.ndarray, view: SampleView) -> np.ndarray:
        """Numbers of nodes (int64) in their views, as samples have them."""
        return names if self.names_leaves else _as_seen(names, views, self.graph.nodes, view)

    def _lists_of(self, view: SampleView, nodes: np.ndarray) -> _SeenLists:
        """`view`: that of these nodes (int64)."""
        graph = self.graph
        sample = self.draw(
            graph.indptr, graph.indices, nodes, (FULL_NEIGHBOURHOOD,), 0, _memory.scratch, share=True, view=view,
            names_leaves=True,
        )  # fmt: skip
        assert sample.views is not None  # noqa: S101 - it is drawn in a view
        rows, stride = seed_rows(sample), (len(sample.segments) - 1) // len(sample.nodes)
        segments = (rows[:, None] * stride + np.arange(stride)).ravel()
        starts, ends = sample.segments[segments], sample.segments[segments + 1]
        bounds = np.concatenate(([0], np.cumsum(ends - starts)))
        places = np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], ends - starts)
        views = sample.views[rows][np.repeat(np.arange(len(nodes)), np.diff(bounds[::stride]))]
        return _SeenLists(nodes, self._named(sample.neighbours[places].astype(np.int64), views, view), views, bounds)

    def _reaches(self, flags: np.ndarray, layer: int) -> np.ndarray:
        """Whether rows of stored nodes may be others in each view through what these read, bool: through the first
        layer where neighbours have other features or weights, and through later ones where they have other lists."""
        through = HAS_OVERLAY if layer > 1 or self.weighs_neighbours else HAS_OVERRIDES
        is_other: np.ndarray = (flags & through != 0) & (layer > 0)
        return is_other

    def _moved_entries(self, view: SampleView, lists: _SeenLists, layers: int) -> np.ndarray:
        """How far what each entry of lists names has moved by each layer: float32 [layers + 1, entries]."""
        flags = unpack(view.packed)[2]
        found = np.zeros((layers + 1, len(lists.entries)), np.float32)
        at = np.flatnonzero((lists.entries >= self.graph.nodes) | self._reaches(flags, layers)[lists.views])
        if len(at):
            keys, places = np.unique(node_keys(lists.views[at], lists.entries[at]), return_inverse=True)
            views, nodes = of_node_keys(keys)
            found[:, at] = self.amounts(view, nodes, views, layers)[:, places]
        return found

    def _shares_that_came(self, view: SampleView, entries: np.ndarray) -> np.ndarray:
        """The share of the list of each node (int64) that a request brings, float32; `_LEAST` at least of one that it
        brings something to."""
        _, _, _, _, origins, _, extra_starts, _, _ = unpack(view.packed)
        shares = np.zeros(len(entries), np.float32)
        brought = np.flatnonzero(entries >= self.graph.nodes)
        places = entries[brought] - self.graph.nodes
        came = extra_starts[places + 1] - extra_starts[places]
        listed = np.zeros(len(places), np.int64)
        known = np.flatnonzero(origins[places] >= 0)
        listed[known] = _lengths(self.graph.indptr, origins[places[known]])
        shares[brought] = np.maximum(_LEAST, came / np.maximum(1, came + listed))
        return shares


@dataclass(frozen=True, slots=True)
class _SeenLists:
    """Whole lists of some nodes as their requests see them. Of each list what came stands last."""

    nodes: np.ndarray
    """int64"""
    entries: np.ndarray
    """int64: names of neighbours."""
    views: np.ndarray
    """int32 [entries]"""
    bounds: np.ndarray
    """Where each list begins, and once more: int64 [nodes · lists of a node + 1]."""

    def came(self, stored: int, extra_starts: np.ndarray) -> np.ndarray:
        """Places of the entries that requests bring: int64. `stored`: the graph's nodes; `extra_starts`: as of
        `unpack`."""
        stride = (len(self.bounds) - 1) // len(self.nodes)
        brought = np.flatnonzero(self.nodes >= stored)
        lists = (brought[:, None] * stride + np.arange(stride)).ravel()
        extra = (self.nodes[brought, None] - stored + np.arange(stride)).ravel()
        counts = extra_starts[extra + 1] - extra_starts[extra]
        firsts = self.bounds[lists + 1] - counts
        ends = np.cumsum(counts)
        return np.asarray(np.arange(counts.sum()) + np.repeat(firsts - (ends - counts), counts))

    def means(self, entries: np.ndarray) -> np.ndarray:
        """The mean over each list (float [entries]), summed over the lists of each node: float64 [nodes]."""
        sums = np.concatenate(([0.0], np.cumsum(entries, dtype=np.float64)))[self.bounds]
        means = np.diff(sums) / np.maximum(1, np.diff(self.bounds))
        return np.asarray(means.reshape(len(self.nodes), -1).sum(axis=1))


def _lengths(indptr: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Entries of the first list of each stored node (int64): int64."""
    bounds = indptr[nodes] if indptr.ndim == 2 else np.stack((indptr[nodes], indptr[nodes + 1]), axis=1)
    return np.asarray(bounds[:, 1] - bounds[:, 0])


def _as_seen(names: np.ndarray, views: np.ndarray, stored: int, view: SampleView) -> np.ndarray:
    """Numbers of nodes (int64) in their views, where leaves that only gain neighbours may have their stored ones."""
    _, _, _, first_slots, origins, _, _, _, slots = unpack(view.packed)
    of_slots = np.repeat(np.arange(len(first_slots) - 1), np.diff(first_slots))
    there = np.flatnonzero(slots >= 0)
    keys = node_keys(of_slots[there], origins[slots[there] - stored])
    if not len(keys):
        return names
    order, wanted = np.argsort(keys), node_keys(views, names)
    places = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    return np.where(keys[places] == wanted, slots[there][places], names)
