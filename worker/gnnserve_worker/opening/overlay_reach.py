"""Reach of what requests bring: nodes whose rows of stored layers it changes, and an estimate of how far each moves.

As for changes of the graph (`staleness/movement.py`), a row moves by the share of its neighbours that came, and by what
the rows that it reads have moved, each as a mean would weigh it. A row that reads nothing else than before does not
move, so that rows which move are those that are others in a request's view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gnnserve_worker.graph.store import Graph
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.kernels.layout import type_of, unpack_layout
from gnnserve_worker.kernels.primitives import list_begin, list_end
from gnnserve_worker.kernels.view import HAS_OVERLAY, HAS_OVERRIDES, SampleView, seen_as, unpack
from gnnserve_worker.models.rows import ReachedRows
from gnnserve_worker.sampling.neighbours import NeighbourSample

_OF_DEGREE = np.float32(0.5)
"""Movement of a neighbour's weight, where the layer weighs it by its degree, over the share of its list that came."""
_LEAST = np.float32(2.0**-20)
"""Movement of a row that is another one, at least."""

_VIEW_BITS = 32
_ROOM = 64
"""Entries that there is room for at first, for each node."""
_MARKS = 1 << 12
"""Marks, by the low bits of their numbers, of the nodes that stand for stored ones in a view: few others share one, and
looking for those in the view's slots takes many times as long."""


def node_keys(views: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """A number of each node as a request sees it, int64: `views` and `nodes` of a batch, integers."""
    keys: np.ndarray = views.astype(np.int64) << _VIEW_BITS | nodes.astype(np.int64)
    return keys


def of_node_keys(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The views (int32) and nodes (int64) that `node_keys` numbers."""
    return (keys >> _VIEW_BITS).astype(np.int32), keys & ((1 << _VIEW_BITS) - 1)


@dataclass(frozen=True, slots=True)
class OverlayReach:
    """Reach over the layers of one network, each of which reads neighbours and no further nodes."""

    graph: Graph
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
        _, _, _, _, origins, streams, _, _, _ = unpack(view.packed)
        around = self._around(view, node_keys(views, nodes), layers)
        _, named = of_node_keys(around.keys)
        is_brought = named >= self.graph.nodes
        moved = np.zeros((layers + 1, len(named)), np.float32)
        moved[0, is_brought & (named - self.graph.nodes < len(streams))] = 1
        # Edges with other columns change a row, too.
        moved[1:, is_brought] = _LEAST
        moved[:, self.origins_of(origins, named) < 0] = 1
        shares = _OF_DEGREE * self._shares_that_came(view, named) if self.weighs_neighbours else np.float32(0)
        for layer in range(1, layers + 1):
            read = np.maximum(moved[layer - 1], shares)[around.read]
            sums = moved[layer] + moved[layer - 1] + around.means(read)
            moved[layer] = np.minimum(1, sums)
        return moved[:, : len(nodes)]

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

    def _around(self, view: SampleView, keys: np.ndarray, layers: int) -> _Surroundings:
        """Nodes by which rows of some nodes may move within so many layers. `keys`: `node_keys` of these, distinct. A
        list is read once, whatever the number of layers that reach it."""
        known, fresh, parts = keys, keys, list[_ReadEntries]()
        for layer in range(layers, 0, -1):
            part = self._read_lists(view, fresh, layer)
            parts.append(part._replace(readers=part.readers + (len(known) - len(fresh))))
            found = np.unique(part.keys)
            fresh = found[~np.isin(found, known, assume_unique=True, kind="sort")]
            known = np.concatenate((known, fresh))
            if not len(fresh):
                break
        came = np.zeros(len(known))
        if not parts:
            nothing = np.zeros(0, np.int64)
            return _Surroundings(known, came, nothing, nothing, np.zeros(0))
        joined = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
        came[: len(joined[0])] = joined[0]
        order = np.argsort(known)
        read = order[np.searchsorted(known, joined[2], sorter=order)]
        return _Surroundings(known, came, joined[1], read, joined[3])

    def _read_lists(self, view: SampleView, keys: np.ndarray, layer: int) -> _ReadEntries:
        """Read the lists of nodes whose rows of the layer may be others."""
        graph, room = self.graph, _ROOM * (1 + len(keys))
        while True:
            came, weights = np.empty(len(keys)), np.empty(room)
            readers, read = np.empty((2, room), np.int64)
            count = _read_lists(
                view.packed, graph.indptr, graph.indices, graph.layout, keys, self._through(layer),
                self._through(layer - 1), came, readers, read, weights,
            )  # fmt: skip
            if count <= room:
                return _ReadEntries(came, readers[:count], read[:count], weights[:count])
            room = count

    def _through(self, layer: int) -> int:
        """Flags of views in which rows of stored nodes may be others through what these read: through the first layer
        where neighbours have other features or weights, and through later ones where they have other lists."""
        if layer == 0:
            return 0
        return HAS_OVERLAY if layer > 1 or self.weighs_neighbours else HAS_OVERRIDES

    def _reaches(self, flags: np.ndarray, layer: int) -> np.ndarray:
        """Whether rows of stored nodes may be others in each view through what these read, bool."""
        is_other: np.ndarray = flags & self._through(layer) != 0
        return is_other

    def _shares_that_came(self, view: SampleView, entries: np.ndarray) -> np.ndarray:
        """The share of the list of each of these nodes (int64) that a request brings, float32; `_LEAST` at least of one
        that it brings something to."""
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


class _ReadEntries(NamedTuple):
    """Entries of lists of some nodes as their requests see them."""

    came: np.ndarray
    """Share of each node's list that requests bring, summed over its lists: float64."""
    readers: np.ndarray
    """Place of the node that reads each entry which was there and whose row may be another one, int64."""
    keys: np.ndarray
    """`node_keys` of what these entries name, int64."""
    weights: np.ndarray
    """One over the length of the entry's list, float64."""


class _Surroundings(NamedTuple):
    """Nodes whose rows may move, and what they read of each other."""

    keys: np.ndarray
    """`node_keys` of the nodes, int64, distinct."""
    came: np.ndarray
    """As of `_ReadEntries`, of all nodes."""
    readers: np.ndarray
    """Place in `keys` of the node that reads each entry, int64."""
    read: np.ndarray
    """Place in `keys` of the node that the entry names, int64."""
    weights: np.ndarray
    """As of `_ReadEntries`."""

    def means(self, moved: np.ndarray) -> np.ndarray:
        """The mean over each list of how far rows have moved, summed over the lists of each node: float64 [nodes].
        `moved`: by entry, float; what came has moved by 1."""
        means: np.ndarray = self.came + np.bincount(self.readers, self.weights * moved, len(self.keys))
        return means


@kernel
def _read_lists(
    packed: np.ndarray, indptr: np.ndarray, indices: np.ndarray, layout: np.ndarray, keys: np.ndarray, through: int,
    through_read: int, came: np.ndarray, readers: np.ndarray, read: np.ndarray, weights: np.ndarray,
) -> int:  # fmt: skip
    """Read the lists of the nodes that requests bring, and of those in views with a flag of `through`; entries of the
    same kinds, by `through_read`, are written as far as there is room. Returns how many there are."""
    _, _, flags, first_slots, origins, _, extra_starts, _, found_nodes = unpack(packed)
    types, _, first_nodes, first_lists, slots, _, _ = unpack_layout(layout)
    stored = first_nodes[types]
    is_marked = np.zeros(_MARKS, np.bool_)
    marked = np.int64(-1)
    count = 0
    for i in range(len(keys)):
        came[i] = 0.0
        view = keys[i] >> _VIEW_BITS
        if view != marked:
            marked = view
            is_marked[:] = False
            for place in range(first_slots[view], first_slots[view + 1]):
                if found_nodes[place] >= 0:
                    is_marked[origins[found_nodes[place] - stored] & (_MARKS - 1)] = True
        node = keys[i] & ((1 << _VIEW_BITS) - 1)
        origin = node if node < stored else origins[node - stored]
        if origin < 0 or (node < stored and not flags[view] & through):
            continue
        kind = type_of(origin, first_nodes)
        first = first_lists[kind] + (origin - first_nodes[kind]) * slots[kind]
        for slot in range(slots[kind]):
            begin = list_begin(indptr, first + slot)
            end = list_end(indptr, first + slot)
            extra = 0
            if node >= stored:
                extra = extra_starts[node - stored + slot + 1] - extra_starts[node - stored + slot]
            weight = 1.0 / max(1, end - begin + extra)
            came[i] += weight * extra
            for entry in range(begin, end):
                name = np.int64(indices[entry])
                if is_marked[name & (_MARKS - 1)]:
                    name = np.int64(seen_as(int(name), view, stored, first_slots, found_nodes, origins))
                if name >= stored or flags[view] & through_read:
                    if count < len(read):
                        readers[count] = i
                        read[count] = view << _VIEW_BITS | name
                        weights[count] = weight
                    count += 1
    return count


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
