"""A revision whose graph changes while it answers: what applies the log's batches to all that its variants read.

A batch is applied between two batches of predictions, never beside one, so that arrays are written in place and no
prediction sees a part of it. What is written: neighbour lists, rows that are made of features, and rows of stored
layers of all nodes that a change reaches, which are made anew from their neighbours as generation made them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakSet

import numpy as np

from gnnserve_worker.graph.change_batch import OF_THIS_WORKER, Applied, ChangeBatch, ChangeProblem, ChangeRefusal
from gnnserve_worker.graph.living_graph import FoundNodes, LivingGraph, no_room
from gnnserve_worker.graph.view import BatchView
from gnnserve_worker.inference.batch import Infer, Inference
from gnnserve_worker.inference.written import WrittenSince
from gnnserve_worker.models.rows import RowMaker, keeper_of
from gnnserve_worker.models.stored_layers import StoredLayerMaker
from gnnserve_worker.models.stored_rows import StoredRowMaker
from gnnserve_worker.repository.loaded import LoadedRevision
from gnnserve_worker.sampling.normalised import renew_inverse_roots
from gnnserve_worker.tables.growing import CopiedPages
from gnnserve_worker.tables.table import Rows, Table

_ENTRY_BYTES = 4
_ID_BYTES = 64
"""Memory of a new node beside its rows: its id in a hash table, and where its list is."""


class LivingRevision:
    """One thread at a time calls `apply`; `check` and `offset` are for all."""

    def __init__(
        self,
        loaded: LoadedRevision,
        max_delta_bytes: int,
        on_written: Callable[[ChangeBatch, FoundNodes], None] = lambda _batch, _found: None,
    ) -> None:
        """`loaded`: opened with room for changes. `on_written` is called for each batch that is applied, and its
        nodes."""
        if loaded.living is None:
            raise ValueError("the revision was not opened for changes")
        self._on_written = on_written
        self.graph: LivingGraph = loaded.living
        self.max_delta_bytes = max_delta_bytes
        base = loaded.made_of
        self.base_offset = self._offset = 0 if base is None else base.offset
        """The offset of the log that the revision's graph was made at."""
        self.base_checksum = 0 if base is None else base.checksum
        """Checksum of the log's record there; 0 where there is none."""
        self.changes_since_base = 0
        """Items of the batches that were applied since, also where they were refused."""
        self.inferences = 0
        """Batches of predictions that were computed over it."""
        self._loaded = loaded
        self._makers = loaded.makers
        makers = _makers_of_stored(loaded)
        first, later = makers.get(1, []), [makers[number] for number in sorted(makers) if number > 1]
        self._nodes = self.graph.ids.count
        """Nodes of the revision's own."""
        self._sums = {
            id(maker.source): sums for maker in first if (sums := maker.sums(self.graph.lists, self._nodes)) is not None
        }
        """Sums that are kept by increments, of each table of products."""
        self._stored = [(maker, self._sums.get(id(maker.source))) for maker in first]
        """Makers of tables that store the first layer, and their sums."""
        self._later = later
        """Makers of those that store a later one, by layer; their neighbours are read."""
        self._features = keeper_of(self._makers, loaded.features)
        self._entries = self.graph.lists.used_entries
        row_bytes = _row_bytes([maker.table for maker in self._makers])
        aggregated = [_bytes(maker.aggregated) for maker in first if maker.aggregated is not None]
        # A sum takes as much as the row that is aggregated.
        stored_bytes = _row_bytes([maker.table for maker in first]) + aggregated + aggregated
        later_bytes = [_row_bytes([maker.table for maker in layer]) for layer in later]
        self._new_bytes = sum(row_bytes) + sum(stored_bytes) + sum(map(sum, later_bytes)) + _ID_BYTES
        self._rows_copied = [CopiedPages(self._nodes, size) for size in row_bytes]
        self._stored_copied = [CopiedPages(self._nodes, size) for size in stored_bytes]
        self._later_copied = [[CopiedPages(self._nodes, size) for size in sizes] for sizes in later_bytes]
        self._lists_copied = CopiedPages(self._entries, _ENTRY_BYTES)
        self._written: WeakSet[WrittenSince] = WeakSet()
        """What is noted of changes for copies of its arrays."""
        self._is_broken = False
        """An error has left a batch half applied."""
        self._computing = threading.Lock()
        """Held while a batch of predictions is computed, or one of changes is applied."""
        self._writing = threading.Lock()
        """Held while the graph is written to, so that `check` never waits for predictions."""

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def first_edges(self) -> int:
        """Entries of the revision's own lists."""
        return self._entries

    @property
    def first_nodes(self) -> int:
        """Nodes of the revision's own."""
        return self._nodes

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
        later = (copied for layer in self._later_copied for copied in layer)
        pages = (*self._rows_copied, *self._stored_copied, *later, *both * (self._lists_copied,))
        return sum(copied.nbytes for copied in pages) + both * lists * _ENTRY_BYTES + new_nodes * self._new_bytes

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
                self._require_whole()
                self.inferences += 1
                return infer(variant, seeds, key, with_embeddings=with_embeddings, view=view)

        return infer_alone

    def note_written(self) -> WrittenSince:
        """What changes write from now on, noted for as long as it is referred to. It is to be read within a batch that
        `guarded` lets through."""
        written = WrittenSince()
        with self._computing:
            self._written.add(written)
        return written

    def check(self, batch: ChangeBatch) -> ChangeRefusal | None:
        """What `apply` would say now; None: it would apply the batch."""
        with self._writing:
            found = self._find(batch)
        return found if isinstance(found, ChangeRefusal) else None

    def apply(self, offset: int, batches: Sequence[ChangeBatch]) -> list[Applied | ChangeRefusal]:
        """Apply batches from that offset on, each as a whole or nothing of it; what was said of each. One that there is
        no room for is the last that something is said of."""
        if offset != self._offset + 1:
            raise ValueError(f"offset {offset} after {self._offset}")
        said: list[Applied | ChangeRefusal] = []
        reached: list[np.ndarray] = []
        with self._alone():
            for batch in batches:
                found = self._find(batch)
                said.append(found if isinstance(found, ChangeRefusal) else self._write(batch, found, reached))
                if isinstance(found, ChangeRefusal) and found.problem in OF_THIS_WORKER:
                    break
                self._offset += 1
                self.changes_since_base += batch.counts.items
            self._write_stored(reached)
        return said

    def make_stored_rows_anew(self) -> None:
        """Make rows of stored layers from lists that were made from sums: for who writes them to files, so that what
        rounding left in a sum does not last."""
        with self._alone():
            for stored, sums in self._stored:
                if sums is not None:
                    nodes = sums.begun(self.graph.ids.count)
                    stored.write(nodes, None)
                    self._note_rows([stored], nodes)
                    self._write_later(nodes)

    @property
    def is_busy(self) -> bool:
        """Whether `check` would wait."""
        return self._writing.locked()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._computing, self._writing:
            self._require_whole()
            try:
                yield
            except BaseException:
                self._is_broken = True
                raise

    def _require_whole(self) -> None:
        if self._is_broken:
            raise RuntimeError("a batch of changes was applied in part: start the worker anew, which applies all again")

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

    def _write(self, batch: ChangeBatch, found: FoundNodes, reached: list[np.ndarray]) -> Applied:
        """All but rows of stored layers; adds the nodes whose rows these are to `reached`."""
        renewed = np.concatenate((found.new, found.overridden))
        if len(renewed):
            self._write_rows(self._whole_features(batch, found), found, renewed)
        for sums in self._sums.values():
            sums.begin(self._near(found))
        effect = self.graph.apply(batch, found)
        self._on_written(batch, found)
        for sums in self._sums.values():
            sums.change(effect.added, adds=True)
            sums.change(effect.removed, adds=False)
        roots, lists, readers = self._loaded.neighbour_roots, self.graph.lists, effect.readers
        if roots is not None:
            roots[found.new] = 1.0
            renew_inverse_roots(lists.bounds, lists.indices, readers, roots)
        self._lists_copied.note(lists.bounds[readers, 0])
        for written in self._written:
            written.note_lists(np.concatenate((found.new, readers)))
        if self._stored:
            reached.append(self._reached(renewed, readers))
        return Applied(effect.unchanged)

    def _write_rows(self, features: np.ndarray, found: FoundNodes, renewed: np.ndarray) -> None:
        """Rows that are made of features, and what they change of their readers' sums."""
        reading = self.graph.entries_reading(found.overridden)
        before = {}
        for key, sums in self._sums.items():
            sums.begin(np.concatenate((renewed, reading[:, 0])))
            before[key] = sums.rows_of(found.overridden)
        for maker in self._makers:
            maker.write(features, renewed)
        # Entries are in the order of the overridden nodes.
        places = np.repeat(np.arange(len(found.overridden)), self.graph.readers_counts(found.overridden))
        for key, sums in self._sums.items():
            sums.move(reading, places, before[key])
        for copied in self._rows_copied:
            copied.note(renewed)
        self._note_rows(self._makers, renewed)

    def _near(self, found: FoundNodes) -> np.ndarray:
        """Nodes whose lists may change, int64."""
        ends = np.concatenate((found.edges.ravel(), found.removed_edges.ravel()))
        if not len(found.removed):
            return ends
        return np.concatenate((ends, found.removed, self.graph.entries_reading(found.removed)[:, 0]))

    def _write_stored(self, reached: Sequence[np.ndarray]) -> None:
        """Rows of stored layers, of these nodes."""
        if not reached:
            return
        nodes = reached[0] if len(reached) == 1 else np.unique(np.concatenate(reached))
        for stored, sums in self._stored:
            stored.write(nodes, sums)
        for copied in self._stored_copied:
            copied.note(nodes)
        self._note_rows([stored for stored, _ in self._stored], nodes)
        self._write_later(nodes)

    def _write_later(self, nodes: np.ndarray) -> None:
        """Rows of later layers, where those of the first are others at these nodes (int64)."""
        for makers, copied in zip(self._later, self._later_copied, strict=True):
            nodes = np.union1d(nodes, self.graph.readers_of(nodes))
            for maker in makers:
                maker.write(nodes, None)
            for one in copied:
                one.note(nodes)
            self._note_rows(makers, nodes)

    def _note_rows(self, makers: Sequence[RowMaker | StoredLayerMaker], nodes: np.ndarray) -> None:
        for written in self._written:
            written.note_rows([maker.table for maker in makers], nodes)

    def _whole_features(self, batch: ChangeBatch, found: FoundNodes) -> np.ndarray:
        """Features of new nodes and of overridden ones, float32 [rows, features]."""
        features = np.array(batch.features, np.float32)
        overridden = features[len(found.new) :]
        is_kept = np.isnan(overridden)
        if is_kept.any() and self._features is not None:
            partly = np.flatnonzero(is_kept.any(axis=1))
            nodes = found.overridden[partly]
            stored = self._features.features_of(nodes)
            # Those that are new in the same batch have no row yet.
            is_new = nodes >= self.graph.ids.count
            stored[is_new] = features[nodes[is_new] - self.graph.ids.count]
            overridden[partly] = np.where(is_kept[partly], stored, overridden[partly])
        return features

    def _reached(self, renewed: np.ndarray, readers: np.ndarray) -> np.ndarray:
        """Nodes whose output of the first layer is another one: int64, distinct."""
        sources = renewed
        if any(maker.neighbour_roots is not None for maker, _ in self._stored):
            # What a node weighs hangs on its degree.
            sources = np.concatenate((renewed, readers))
        return np.unique(np.concatenate((renewed, readers, self.graph.readers_of(sources))))


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


def _field_of(row: int, new_nodes: int, column: int) -> str:
    is_new = row < new_nodes
    return f"{'nodes' if is_new else 'overrides'}[{row if is_new else row - new_nodes}].features[{column}]"


def _row_bytes(tables: Sequence[Table]) -> list[int]:
    """Bytes of a row in each matrix of these tables."""
    rows = [rows for table in tables for rows in {id(part): part for part in (table.rows, table.own)}.values()]
    return [_bytes(each) for each in rows]


def _bytes(rows: Rows) -> int:
    return int(rows.values.shape[1]) * rows.values.itemsize
