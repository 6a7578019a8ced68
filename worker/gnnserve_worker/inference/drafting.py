"""Batches of changes, applied to a draft of the revision: neighbour lists, products of features, sums over neighbours.

What predictions read stays as it is meanwhile. What of it must become another is gathered in a group, of one batch or
several, which is published as a whole (`inference/living.py`). One thread at a time drafts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gnnserve_worker.graph.change_batch import Applied, ChangeBatch
from gnnserve_worker.graph.living_graph import FoundNodes
from gnnserve_worker.inference.delta_memory import DeltaMemory
from gnnserve_worker.models.living_sums import LivingSums
from gnnserve_worker.models.rows import RowMaker, keeper_of, put_rows
from gnnserve_worker.models.stored_layers import MadeRows, StoredLayerMaker
from gnnserve_worker.models.stored_rows import StoredRowMaker
from gnnserve_worker.repository.loaded import LoadedRevision
from gnnserve_worker.sampling.normalised import renew_inverse_roots
from gnnserve_worker.tables.table import RowsBehind


@dataclass(slots=True)
class Group:
    """What batches have changed that are published together."""

    records: int = 0
    """Batches, those that were refused among them."""
    items: int = 0
    """Items of all these batches."""
    batches: list[tuple[ChangeBatch, FoundNodes]] = field(default_factory=list)
    """Those that were applied."""
    rows: list[tuple[RowMaker, np.ndarray, RowsBehind]] = field(default_factory=list)
    """Rows that were made of features, and of which nodes (int64), in the order of the batches."""
    lists: list[np.ndarray] = field(default_factory=list)
    """Nodes whose neighbour lists, or what they weigh, are others, int64."""
    reached: list[np.ndarray] = field(default_factory=list)
    """Nodes whose rows of stored layers are others, int64."""

    def renews(self, nodes: np.ndarray) -> bool:
        """Whether any of these nodes (int64) has got other features within the group."""
        return any(np.isin(nodes, renewed, kind="sort").any() for _, renewed, _ in self.rows)


class Drafting:
    def __init__(self, loaded: LoadedRevision) -> None:
        """`loaded`: opened with room for changes."""
        if loaded.draft is None:
            raise ValueError("the revision was not opened for changes")
        draft = loaded.draft
        self.graph = draft.graph
        self._roots = draft.neighbour_roots
        self._makers = loaded.makers
        self._tables = draft.tables
        self.keeper = keeper_of(loaded.makers, loaded.features)
        """What has all features of stored nodes; None: the revision does not keep them."""
        makers = _makers_of_stored(loaded)
        first = [draft.maker(maker) for maker in makers.get(1, ())]
        self.later = [makers[number] for number in sorted(makers) if number > 1]
        """Makers of tables that store a later layer than the first, by layer. They read what predictions do."""
        self.sums: dict[int, LivingSums] = {
            id(maker.source): sums
            for maker in first
            if (sums := maker.sums(self.graph.lists, self.graph.ids.count)) is not None
        }
        """Sums that are kept by increments, of each table of products, by the identity of the draft's."""
        self.stored = [(maker, self.sums.get(id(maker.source))) for maker in first]
        """Makers of tables that store the first layer, which read the draft, and their sums."""
        self.memory = DeltaMemory(self.graph, loaded.makers, [*draft.tables.values()], first, self.later)

    def reads_published(self, batch: ChangeBatch, found: FoundNodes, group: Group) -> bool:
        """Whether the batch keeps columns of nodes that the group has given other features: to keep them they must be
        published."""
        if not group.rows or not len(found.overridden):
            return False
        partly = np.isnan(batch.features[len(found.new) :]).any(axis=1)
        return bool(partly.any()) and group.renews(found.overridden[partly])

    def apply(self, batch: ChangeBatch, found: FoundNodes, group: Group) -> Applied:
        """Apply a batch that was found right."""
        renewed = np.concatenate((found.new, found.overridden))
        if len(renewed):
            self._make_rows(self._whole_features(batch, found), found, renewed, group)
        for sums in self.sums.values():
            sums.begin(self._near(found))
        effect = self.graph.apply(batch, found)
        for sums in self.sums.values():
            sums.change(effect.added, adds=True)
            sums.change(effect.removed, adds=False)
        readers = effect.readers
        if self._roots is not None:
            self._roots[found.new] = 1.0
            renew_inverse_roots(self.graph.lists.bounds, self.graph.lists.indices, readers, self._roots)
        self.memory.note_lists(readers)
        group.batches.append((batch, found))
        group.lists.append(np.concatenate((found.new, readers)))
        if self.stored:
            group.reached.append(self._reached(renewed, readers))
        return Applied(effect.unchanged)

    def make_stored(self, nodes: np.ndarray) -> list[tuple[StoredLayerMaker, list[MadeRows]]]:
        """Rows of the first layer, of these nodes (int64), to be written later."""
        return [(maker, maker.make(nodes, sums)) for maker, sums in self.stored]

    def _make_rows(self, features: np.ndarray, found: FoundNodes, renewed: np.ndarray, group: Group) -> None:
        """Rows that are made of features, and what they change of their readers' sums."""
        reading = self.graph.entries_reading(found.overridden)
        before = {}
        for key, sums in self.sums.items():
            sums.begin(np.concatenate((renewed, reading[:, 0])))
            before[key] = sums.rows_of(found.overridden)
        for maker in self._makers:
            made = maker.make_all(features)
            group.rows.append((maker, renewed, made))
            if (table := self._tables.get(id(maker.table))) is not None:
                put_rows(table, renewed, made)
        # Entries are in the order of the overridden nodes.
        places = np.repeat(np.arange(len(found.overridden)), self.graph.readers_counts(found.overridden))
        for key, sums in self.sums.items():
            sums.move(reading, places, before[key])
        self.memory.note_rows(renewed)

    def _near(self, found: FoundNodes) -> np.ndarray:
        """Nodes whose lists may change, int64."""
        ends = np.concatenate((found.edges.ravel(), found.removed_edges.ravel()))
        if not len(found.removed):
            return ends
        return np.concatenate((ends, found.removed, self.graph.entries_reading(found.removed)[:, 0]))

    def _whole_features(self, batch: ChangeBatch, found: FoundNodes) -> np.ndarray:
        """Features of new nodes and of overridden ones, float32 [rows, features]."""
        features = np.array(batch.features, np.float32)
        overridden = features[len(found.new) :]
        is_kept = np.isnan(overridden)
        if is_kept.any() and self.keeper is not None:
            partly = np.flatnonzero(is_kept.any(axis=1))
            nodes = found.overridden[partly]
            stored = self.keeper.features_of(nodes)
            # Those that are new in the same batch have no row yet.
            is_new = nodes >= self.graph.ids.count
            stored[is_new] = features[nodes[is_new] - self.graph.ids.count]
            overridden[partly] = np.where(is_kept[partly], stored, overridden[partly])
        return features

    def _reached(self, renewed: np.ndarray, readers: np.ndarray) -> np.ndarray:
        """Nodes whose output of the first layer is another one, some several times: int64."""
        sources = renewed
        if any(maker.neighbour_roots is not None for maker, _ in self.stored):
            # What a node weighs hangs on its degree.
            sources = np.concatenate((renewed, readers))
        return np.concatenate((renewed, readers, self.graph.all_readers_of(sources)))


def _makers_of_stored(loaded: LoadedRevision) -> dict[int, list[StoredLayerMaker]]:
    """Makers of stored layers by the number of the layer, one of each table."""
    rows = (variant.rows for variant in loaded.variants.values())
    found: dict[int, StoredLayerMaker] = {}
    for maker in (*(one.stored for one in rows if isinstance(one, StoredRowMaker)), *loaded.followed):
        found.setdefault(id(maker.table), maker)
    by_number: dict[int, list[StoredLayerMaker]] = {}
    for maker in found.values():
        by_number.setdefault(maker.number, []).append(maker)
    return by_number
