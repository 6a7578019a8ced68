"""A revision whose graph changes while it answers: what applies the log's batches to all that its variants read.

A batch is applied between two batches of predictions, never beside one, so that arrays are written in place and no
prediction sees a part of it. What is written: neighbour lists, rows that are made of features, and rows of stored
layers of all nodes that a change reaches, which are made anew from their neighbours as generation made them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from gnnserve_worker.graph.change_batch import Applied, ChangeBatch, ChangeProblem, ChangeRefusal
from gnnserve_worker.graph.living_graph import FoundNodes, LivingGraph, no_room
from gnnserve_worker.graph.view import BatchView
from gnnserve_worker.inference.batch import Infer, Inference
from gnnserve_worker.models.living_sums import LivingSums
from gnnserve_worker.models.rows import RowMaker
from gnnserve_worker.models.stored_rows import StoredRowMaker
from gnnserve_worker.repository.loaded import LoadedRevision
from gnnserve_worker.sampling.normalised import renew_inverse_roots
from gnnserve_worker.tables.table import Rows, Table

_PAGE_BYTES = 4096
_ENTRY_BYTES = 4
_ID_BYTES = 64
"""Memory of a new node beside its rows: its id in a hash table, and where its list is."""


class LivingRevision:
    """One thread at a time calls `apply`; `check` and `offset` are for all."""

    def __init__(self, loaded: LoadedRevision, offset: int, max_delta_bytes: int) -> None:
        """`loaded`: opened with room for changes. `offset`: that of the log that its graph was made at."""
        if loaded.living is None:
            raise ValueError("the revision was not opened for changes")
        self.graph: LivingGraph = loaded.living
        self.max_delta_bytes = max_delta_bytes
        self._offset = offset
        self._loaded = loaded
        self._makers = loaded.makers
        found = [variant.rows for variant in loaded.variants.values() if isinstance(variant.rows, StoredRowMaker)]
        makers = {id(maker.table): maker for maker in found}.values()
        self._sums = {
            id(maker.products.table): LivingSums(maker.products.table, self.graph.lists)
            for maker in makers
            if maker.sums_up
        }
        """Sums that are kept by increments, of each table of products."""
        self._stored = [(maker, self._sums.get(id(maker.products.table))) for maker in makers]
        """Makers of stored layers, one of each table, and their sums."""
        whole = (maker for maker in self._makers if maker.keeps_features(loaded.features))
        self._features: RowMaker | None = next(whole, None)
        self._nodes = self.graph.ids.count
        """Nodes of the revision's own."""
        self._entries = self.graph.lists.used_entries
        self._row_pages, self._row_bytes = _sizes([maker.table for maker in self._makers])
        stored_pages, stored_bytes = _sizes([maker.table for maker in makers])
        aggregated = [maker.aggregated for maker in makers if maker.aggregated is not None]
        # A sum takes as much as the row that is aggregated.
        self._stored_pages = stored_pages + 2 * sum(_pages(rows) for rows in aggregated)
        self._new_bytes = self._row_bytes + stored_bytes + 2 * sum(map(_bytes, aggregated)) + _ID_BYTES
        self._written = np.zeros((3, self._nodes), np.bool_)
        """Whether memory of the revision's own nodes was copied to be written to: rows of features, of stored layers,
        lists."""
        self._copied_pages = 0
        self._computing = threading.Lock()
        """Held while a batch of predictions is computed, or one of changes is applied."""
        self._writing = threading.Lock()
        """Held while the graph is written to, so that `check` never waits for predictions."""

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def nodes(self) -> int:
        """How many nodes the graph has now."""
        return self.graph.ids.nodes

    @property
    def delta_bytes(self) -> int:
        """Memory that changes have taken."""
        lists = self.graph.lists.used_entries - self._entries
        both = 2 if self.graph.readers is not None else 1
        new_nodes = self.graph.ids.count - self._nodes
        return self._copied_pages * _PAGE_BYTES + both * lists * _ENTRY_BYTES + new_nodes * self._new_bytes

    def guarded(self, infer: Infer) -> Infer:
        """`infer` with no change applied meanwhile."""

        def infer_alone(
            variant: str,
            seeds: np.ndarray,
            key: int,
            *,
            with_embeddings: bool = True,
            view: BatchView | None = None,
        ) -> Inference:
            with self._computing:
                return infer(variant, seeds, key, with_embeddings=with_embeddings, view=view)

        return infer_alone

    def check(self, batch: ChangeBatch) -> ChangeRefusal | None:
        """What `apply` would say now; None: it would apply the batch."""
        with self._writing:
            found = self._find(batch)
        return found if isinstance(found, ChangeRefusal) else None

    def apply(self, offset: int, batch: ChangeBatch) -> Applied | ChangeRefusal:
        """Apply the batch of that offset as a whole, or nothing of it."""
        if offset != self._offset + 1:
            raise ValueError(f"offset {offset} after {self._offset}")
        found = self._find(batch)
        if isinstance(found, ChangeRefusal):
            if found.problem is not ChangeProblem.NO_ROOM:
                self._offset = offset
            return found
        with self._alone():
            unchanged = self._write(batch, found)
            self._offset = offset
        return Applied(unchanged)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._computing, self._writing:
            yield

    def _find(self, batch: ChangeBatch) -> FoundNodes | ChangeRefusal:
        if (refusal := self._check_features(batch)) is not None:
            return refusal
        found = self.graph.find(batch)
        if not isinstance(found, ChangeRefusal) and self.delta_bytes >= self.max_delta_bytes:
            return no_room(f"changes have taken {self.delta_bytes:,} of {self.max_delta_bytes:,} bytes")
        return found

    def _check_features(self, batch: ChangeBatch) -> ChangeRefusal | None:
        counts, rows, width = batch.counts, batch.features, self._loaded.features
        if counts.rows and rows.shape[1] != width:
            message = f"{rows.shape[1]:,} features a node, and the graph has {width:,}"
            remedy = "give every column of the graph's source"
            return ChangeRefusal(ChangeProblem.WRONG_LENGTH, "features", message, remedy)
        if not counts.rows or np.isfinite(rows).all():
            return None
        is_kept = np.isnan(rows)
        is_kept[: counts.new_nodes] = False
        if not (is_kept | np.isfinite(rows)).all():
            row, column = np.argwhere(~(is_kept | np.isfinite(rows)))[0].tolist()
            field = _field_of(row, counts.new_nodes, column)
            return ChangeRefusal(
                ChangeProblem.INVALID_VALUE, field, f"{rows[row, column]} is not finite", "give a number"
            )
        if self._features is None:
            row, column = np.argwhere(is_kept)[0].tolist()
            return ChangeRefusal(
                ChangeProblem.MISSING_COLUMN,
                _field_of(row, counts.new_nodes, column),
                "it is missing, and this revision does not keep what the node has: it stores no table of all features "
                "in float32, or rows were divided by their norms",
                "give every column",
            )
        return None

    def _write(self, batch: ChangeBatch, found: FoundNodes) -> int:
        """Returns the number of edges that changed nothing."""
        renewed = np.concatenate((found.new, found.overridden))
        if len(renewed):
            features = self._whole_features(batch, found)
            reading = self.graph.entries_reading(found.overridden)
            self._change_sums(reading, adds=False)
            for maker in self._makers:
                maker.write(features, renewed)
            self._change_sums(reading, adds=True)
            self._count_copies(0, renewed, self._row_pages)
        effect = self.graph.apply(batch, found)
        self._change_sums(effect.added, adds=True)
        self._change_sums(effect.removed, adds=False)
        roots, lists, readers = self._loaded.neighbour_roots, self.graph.lists, effect.readers
        if roots is not None:
            roots[found.new] = 1.0
            renew_inverse_roots(lists.bounds, lists.indices, readers, roots)
        self._count_copies(2, readers, 1)
        if self._stored:
            reached = self._reached(renewed, readers)
            for stored, sums in self._stored:
                stored.write(reached, sums)
            self._count_copies(1, reached, self._stored_pages)
        return effect.unchanged

    def _change_sums(self, entries: np.ndarray, *, adds: bool) -> None:
        for sums in self._sums.values():
            sums.change(entries, adds=adds)

    def _whole_features(self, batch: ChangeBatch, found: FoundNodes) -> np.ndarray:
        """Features of new nodes and of overridden ones, float32 [rows, features]."""
        features = np.array(batch.features, np.float32)
        overridden = features[len(found.new) :]
        is_kept = np.isnan(overridden)
        if is_kept.any() and self._features is not None:
            partly = np.flatnonzero(is_kept.any(axis=1))
            stored = self._features.features_of(found.overridden[partly])
            overridden[partly] = np.where(is_kept[partly], stored, overridden[partly])
        return features

    def _reached(self, renewed: np.ndarray, readers: np.ndarray) -> np.ndarray:
        """Nodes whose output of the first layer is another one: int64, distinct."""
        sources = renewed
        if any(maker.neighbour_roots is not None for maker, _ in self._stored):
            # What a node weighs hangs on its degree.
            sources = np.concatenate((renewed, readers))
        return np.unique(np.concatenate((renewed, readers, self.graph.readers_of(sources))))

    def _count_copies(self, what: int, nodes: np.ndarray, pages: int) -> None:
        own = nodes[nodes < self._nodes]
        first = own[~self._written[what, own]]
        self._written[what, first] = True
        self._copied_pages += pages * len(first)


def _field_of(row: int, new_nodes: int, column: int) -> str:
    is_new = row < new_nodes
    return f"{'nodes' if is_new else 'overrides'}[{row if is_new else row - new_nodes}].features[{column}]"


def _sizes(tables: list[Table]) -> tuple[int, int]:
    """Pages that are copied to write one row of each, and the bytes of these rows."""
    rows = [rows for table in tables for rows in {id(part): part for part in (table.rows, table.own)}.values()]
    return sum(map(_pages, rows)), sum(map(_bytes, rows))


def _bytes(rows: Rows) -> int:
    return int(rows.values.shape[1]) * rows.values.itemsize


def _pages(rows: Rows) -> int:
    return -(-_bytes(rows) // _PAGE_BYTES)
