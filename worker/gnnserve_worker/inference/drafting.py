"""Batches of changes, applied to a draft of the revision: neighbour lists, products of features, sums over neighbours,
rows of stored layers.

What predictions read stays as it is meanwhile. What of it must become another is gathered in a group, of one batch or
several, which is published as a whole (`inference/living.py`). One thread at a time drafts.

Rows of products are made of features, one for each relation that reads a node. What a node of a type without features
has in their place is the type's default, as for nodes that a request brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np

from gnnserve_worker.graph.change_batch import BatchEffect, ChangeBatch
from gnnserve_worker.graph.found_nodes import FoundNodes, distinct
from gnnserve_worker.models.living_sums import LivingSums
from gnnserve_worker.models.rows import RenewedRows
from gnnserve_worker.models.stored_layers import MakesLayer, parts_of, write_layer
from gnnserve_worker.opening.changes import Draft
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.parallel import map_parallel
from gnnserve_worker.sampling.normalised import renew_inverse_roots
from gnnserve_worker.staleness.movement import Moved, Movement
from gnnserve_worker.tables.table import Table

_NO_NODES = np.zeros(0, np.int64)
_LONG = 128
"""Entries of a list from which on the sum of a node's neighbours is kept while rows wait: who reads its row is not to
read the whole list. Shorter ones are read in a few microseconds."""
_PARTS = 16
"""Parts whose rows are made at a time on all threads, before they are written."""


@dataclass(slots=True)
class ChangeGroup:
    """Changes of batches that are published together."""

    records: int = 0
    """Batches, those that were refused among them."""
    items: int = 0
    """Items of all these batches."""
    batches: list[tuple[ChangeBatch, FoundNodes]] = field(default_factory=list)
    """Those that were applied."""
    rows: list[RenewedRows] = field(default_factory=list)
    """Rows that were made of features, in the order of the batches."""
    lists: list[np.ndarray] = field(default_factory=list)
    """Neighbour lists that are others, or whose nodes weigh something else, int64."""
    reached: list[np.ndarray] = field(default_factory=list)
    """Nodes whose rows of the first stored layer are others, as far as a hop tells, int64."""
    added: list[np.ndarray] = field(default_factory=list)
    """Entries that lists gained: (list, sender), int64 [entries, 2]."""
    removed: list[np.ndarray] = field(default_factory=list)
    """Entries that lists lost."""

    def renews(self, nodes: np.ndarray) -> bool:
        """Whether any of these nodes (int64) has got other features within the group."""
        return any(np.isin(nodes, one.nodes, kind="sort").any() for one in self.rows)


class PutRows(Protocol):
    def __call__(self, *, in_parallel: bool = False) -> None:
        """`in_parallel`: other threads write at the same time."""
        ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class StoredLayerRows:
    """Rows of a table that stores a layer, to be written."""

    table: Table
    nodes: np.ndarray
    """int64"""
    put: PutRows


@dataclass(frozen=True, slots=True)
class DraftedLayer:
    """A table that stores a layer, and what its rows are made of in the draft."""

    maker: MakesLayer
    """It reads the draft, and writes to the revision."""
    sums: LivingSums | None
    """Those that its rows are made of; None: they are made of neighbours."""
    into: MakesLayer | None
    """It writes to the draft's own table, which a later layer is made of; None: no later layer is."""

    def make(self, nodes: np.ndarray) -> StoredLayerRows:
        """Rows of these nodes (int64), which later layers read from then on."""
        made = self.maker.make(nodes, self.sums)
        if self.into is not None:
            self.into.put(made, in_parallel=True)
        return StoredLayerRows(self.maker.table, made.nodes, partial(self.maker.put, made))


class Drafting:
    def __init__(self, loaded: LoadedRevision, give_way: Callable[[], None] = lambda: None) -> None:
        """`loaded`: opened with room for changes. `give_way` is called between steps, none of which takes much longer
        than half a millisecond for a group that is applied beside predictions: it lets those go first."""
        self._give_way = give_way
        if (changes := loaded.changes) is None:
            raise ValueError("the revision was not opened for changes")
        draft = changes.draft
        self.graph = draft.graph
        self._draft, self._roots = draft, draft.neighbour_roots
        self.makers = changes.makers
        """Makers of rows from features."""
        self._tables = draft.tables
        self._width = loaded.new_nodes.width
        self._defaults = [one.default for one in loaded.new_nodes.types]
        """What nodes of each type have in place of features, where they have none."""
        self.features_of = changes.features_of
        self._makers = [[draft.maker(maker) for maker in layer.makers] for layer in changes.layers]
        self.sums: dict[int, LivingSums]
        self.later_sums: dict[int, LivingSums]
        """Sums that are kept by increments, of each table that layers are made of, by the identity of the draft's: for
        the first layer, and for those behind it, of which none are kept while rows wait."""
        self.layers: list[list[DraftedLayer]]
        """Tables that store a layer, the first layer's first."""
        self.long: np.ndarray | None
        """Nodes whose sums are kept while rows wait until they are read, bool [room for nodes]: those with long lists,
        whose rows are made with each change all the same. None: no rows wait, and sums of all nodes are kept."""
        self.begin_sums(rows_wait=False)
        self._hops = [layer.hops for layer in changes.layers]
        self.memory = changes.memory
        self._movement = Movement(self.graph.lists, self.graph.naming, self.graph.places, self._roots, give_way)

    def begin_sums(self, *, rows_wait: bool) -> None:
        """Begin all sums anew. To be called where all rows are right. `rows_wait`: rows of stored layers are not made
        with each change from then on, but when they are read."""
        self.long = np.zeros(len(self.graph.is_gone), np.bool_) if rows_wait else None
        self.sums = self._sums_of(self._makers[:1])
        self.later_sums = {} if rows_wait else self._sums_of(self._makers[1:])
        self.layers = [[self._drafted(maker, self._draft) for maker in layer] for layer in self._makers]

    def _sums_of(self, layers: Sequence[Sequence[MakesLayer]]) -> dict[int, LivingSums]:
        found = {id(maker.source): maker for layer in layers for maker in layer}
        sums = {key: maker.sums(self.graph.lists, self.graph.taken) for key, maker in found.items()}
        return {key: one for key, one in sums.items() if one is not None}

    def _drafted(self, maker: MakesLayer, draft: Draft) -> DraftedLayer:
        source, table = id(maker.source), draft.tables.get(id(maker.table))
        sums = self.sums.get(source, self.later_sums.get(source))
        return DraftedLayer(maker, sums, None if table is None else maker.writing(table))

    def reads_published(self, batch: ChangeBatch, found: FoundNodes, group: ChangeGroup) -> bool:
        """Whether the batch keeps columns of nodes that the group has given other features: to keep them they must be
        published."""
        if not group.rows or not len(found.overridden):
            return False
        partly = np.isnan(batch.features[len(found.new) :]).any(axis=1)
        return bool(partly.any()) and group.renews(found.overridden[partly])

    def apply(self, batch: ChangeBatch, found: FoundNodes, group: ChangeGroup) -> list[BatchEffect]:
        """Apply a batch that was found right, or a run of them; what is said of each."""
        renewed = np.concatenate((found.new, found.overridden))
        self._give_way()
        if len(renewed):
            self._make_rows(self._inputs(batch, found, renewed), found, renewed, group)
        self._give_way()
        for sums in self._sums_to_begin():
            sums.begin(self._near(found))
        effect = self.graph.apply(found)
        self._give_way()
        added, removed = (self._summed(entries) for entries in (effect.added, effect.removed))
        for sums in self.sums.values():
            sums.change(added, adds=True)
            sums.change(removed, adds=False)
        lists = effect.lists
        if self._roots is not None:
            self._roots[found.new] = 1.0
            renew_inverse_roots(self.graph.lists.bounds, self.graph.lists.indices, lists, self._roots)
        self.memory.note_lists(lists)
        group.batches.append((batch, found))
        group.lists.append(np.concatenate((self.graph.places.lists_of(found.new), lists)))
        if self.layers:
            group.reached.append(self._reached(renewed, self.graph.nodes_of_lists(lists)))
        if len(self.layers) > 1:
            group.added.append(effect.added)
            group.removed.append(effect.removed)
        return [BatchEffect(unchanged) for unchanged in effect.unchanged.tolist()]

    def _sums_to_begin(self) -> Iterable[LivingSums]:
        """Sums that are made of what was aggregated ahead of time; where rows wait, of lists, when they are read."""
        return self.sums.values() if self.long is None else ()

    def _summed(self, entries: np.ndarray) -> np.ndarray:
        """Those of these entries, (list, sender), int64 [entries, 2], whose list's sum is kept."""
        return entries if self.long is None or not self.sums else entries[self.long[entries[:, 0]]]

    def waiting(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of the nodes that a group has reached (int64) have rows of the first layer that are made of sums all
        the same, and which have rows that wait: int64."""
        for _ in range(self._hops_behind(0)):
            nodes = distinct((nodes, self.graph.all_readers_of(nodes)))
        if self.long is None or not self.sums:
            return _NO_NODES, nodes
        self.long[nodes[self.graph.lists.lengths(nodes) >= _LONG]] = True
        is_long = self.long[nodes]
        return nodes[is_long], nodes[~is_long]

    def make_stored(
        self, nodes: np.ndarray, group: ChangeGroup, *, layers: int, in_parallel: bool
    ) -> Iterator[list[StoredLayerRows]]:
        """Rows of the first `layers` stored layers, to be written to the revision, a few nodes at a time. `nodes`:
        those that the group has reached, int64, ascending, distinct. It goes through all of it once.
        `in_parallel`: on all threads; else in the calling one, and gives way."""
        if not group.batches:  # all were refused
            return
        for number, layer in enumerate(self.layers[:layers]):
            for _ in range(self._hops_behind(number)):
                nodes = distinct((nodes, self.graph.all_readers_of(nodes)))
            self.memory.note_stored(number, nodes)
            for one in layer:
                yield from self._make_layer(one, nodes, group, in_parallel=in_parallel)

    def moved(self, nodes: np.ndarray, waiting: np.ndarray, group: ChangeGroup) -> list[Moved]:
        """Rows of each layer that the group leaves stale, in place of `make_stored`. `nodes`: as of that; `waiting`:
        nodes whose rows of the first layer wait, int64."""
        if not group.batches or len(self.layers) < 2:
            return []
        entries = np.concatenate((*group.added, *group.removed))
        renewed = distinct(part for _, found in group.batches for part in (found.new, found.overridden))
        below = self._movement.of_first_layer(entries, renewed, nodes)
        self.memory.note_stored(0, waiting)
        found = [Moved(waiting, np.ones(len(waiting), np.float32))]
        for number in range(len(self.layers)):
            for _ in range(self._hops_behind(number)):
                below = self._movement.of_next_layer(below, entries)
            if number:
                self.memory.note_stored(number, below.nodes)
                found.append(below)
        return found

    def _hops_behind(self, number: int) -> int:
        """Hops from the rows that the layer below has made anew to those of the layer of that number, the first being
        0; of the first one from the nodes that a group has reached, which is a hop already."""
        return self._hops[number] - (number == 0)

    def _forget_later_sums(self) -> None:
        """Make sums of layers behind the first anew from lists when they are read next."""
        for sums in self.later_sums.values():
            sums.forget(self.graph.taken)

    def _make_layer(
        self, one: DraftedLayer, nodes: np.ndarray, group: ChangeGroup, *, in_parallel: bool
    ) -> Iterator[list[StoredLayerRows]]:
        """Rows of one table. Sums over the draft's own are moved from what it had to what it has then."""
        moved = None if one.into is None else self.later_sums.get(id(one.into.table))
        if moved is not None:
            # Lists are others already, and rows are not.
            moved.change(np.concatenate(group.added), adds=True)
            moved.change(np.concatenate(group.removed), adds=False)
            before = moved.rows_of(nodes)
        yield from self._make_parts(one.make, nodes, in_parallel=in_parallel)
        if moved is not None:
            moved.move(nodes, self.graph.naming, before, shared_among=self.graph.taken if in_parallel else None)

    def _make_parts(
        self, make: Callable[[np.ndarray], StoredLayerRows], nodes: np.ndarray, *, in_parallel: bool
    ) -> Iterator[list[StoredLayerRows]]:
        """What `make` makes of the nodes (int64), a few of them at a time."""
        parts = parts_of(nodes)
        step = _PARTS if in_parallel else 1
        for start in range(0, len(parts), step):
            some = parts[start : start + step]
            if not in_parallel:
                self._give_way()
            yield map_parallel(lambda place, some=some: make(some[place]), len(some))  # type: ignore[misc]

    def make_anew(self) -> Iterator[tuple[Table, np.ndarray]]:
        """Write rows of stored layers that were made of sums, made of neighbours; the tables, and which nodes'
        (int64)."""
        nodes = _NO_NODES
        for number, layer in enumerate(self.layers):
            for _ in range(self._hops_behind(number)):
                nodes = distinct((nodes, self.graph.all_readers_of(nodes)))
            kept = [one for one in layer if one.sums is not None]
            nodes = distinct((nodes, *(one.sums.begun(self.graph.taken) for one in kept if one.sums is not None)))
            for one in kept:
                for maker in (one.maker, *([] if one.into is None else [one.into])):
                    write_layer(maker, nodes, None)
                yield one.maker.table, nodes
        self._forget_later_sums()

    def _make_rows(self, features: np.ndarray, found: FoundNodes, renewed: np.ndarray, group: ChangeGroup) -> None:
        """Rows that are made of features, and what they change of their readers' sums."""
        before = {}
        for sums in self._sums_to_begin():
            sums.begin(np.concatenate((renewed, self.graph.naming.of(found.overridden))))
        for key, sums in self.sums.items():
            before[key] = sums.rows_of(found.overridden)
        for maker in self.makers:
            self._give_way()
            made = maker.renew(features, renewed)
            group.rows.append(made)
            if (table := self._tables.get(id(maker.table))) is not None:
                replace(made, table=table).put()
        self._give_way()
        for key, sums in self.sums.items():
            sums.move(found.overridden, self.graph.naming, before[key])
        self.memory.note_rows(renewed)

    def _near(self, found: FoundNodes) -> np.ndarray:
        """Nodes whose lists may change, int64."""
        ends = np.concatenate((found.edges.ravel(), found.removed_edges.ravel()))
        if not len(found.removed):
            return ends
        return np.concatenate((ends, found.removed, self.graph.entries_reading(found.removed)[:, 0]))

    def _inputs(self, batch: ChangeBatch, found: FoundNodes, nodes: np.ndarray) -> np.ndarray:
        """What the first layer reads of the nodes that have a row of features in the batch, before it is scaled: these,
        or the default of a type without any. float32 [nodes, columns of the widest type]."""
        features = self._whole_features(batch, found)
        if all(default is None for default in self._defaults):
            return features
        inputs = np.zeros((len(nodes), self._width), np.float32)
        inputs[:, : features.shape[1]] = features
        kinds = self.graph.places.kinds_of(nodes)
        for kind, default in enumerate(self._defaults):
            if default is not None:
                own = kinds == kind
                inputs[own] = 0
                inputs[own, : len(default)] = default
        return inputs

    def _whole_features(self, batch: ChangeBatch, found: FoundNodes) -> np.ndarray:
        """Features of new nodes and of overridden ones, float32 [rows, features]."""
        features = np.array(batch.features, np.float32)
        overridden = features[len(found.new) :]
        is_kept = np.isnan(overridden)
        if is_kept.any() and self.features_of is not None:
            partly = np.flatnonzero(is_kept.any(axis=1))
            nodes = found.overridden[partly]
            stored = self.features_of(nodes)
            # Those that are new in the same batch have no row yet.
            is_new = nodes >= self.graph.taken
            stored[is_new] = features[nodes[is_new] - self.graph.taken]
            overridden[partly] = np.where(is_kept[partly], stored, overridden[partly])
        return features

    def _reached(self, renewed: np.ndarray, readers: np.ndarray) -> np.ndarray:
        """Nodes whose output of a first layer of one hop is another one, some several times: int64."""
        sources = renewed
        if any(one.maker.weighs_neighbours for layer in self.layers[:1] for one in layer):
            # What a node weighs hangs on its degree.
            sources = np.concatenate((renewed, readers))
        return np.concatenate((renewed, readers, self.graph.all_readers_of(sources)))
