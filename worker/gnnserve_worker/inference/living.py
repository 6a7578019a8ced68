"""A revision whose graph changes while it answers: what applies the log's batches to all that its variants read.

Batches are applied to a draft while predictions go on (`inference/drafting.py`): neighbour lists, rows that are made of
features, and rows of stored layers of all nodes that a change reaches, which are made anew from their neighbours as
generation made them; or rows of layers behind the first are marked as stale in place of that, and made when they are
read (`staleness/`). Then all of it is written in place of what predictions read, between two batches of predictions,
never beside one: so no prediction sees a part of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from weakref import WeakSet

import numpy as np
from msgspec import UNSET

from gnnserve_api.limits import RefreshBudget
from gnnserve_worker.asking.features import why_not_kept
from gnnserve_worker.graph.change_batch import (
    MOST_ITEMS,
    OF_THIS_WORKER,
    BatchEffect,
    ChangeBatch,
    ChangeProblem,
    ChangeRefusal,
)
from gnnserve_worker.graph.change_run import ChangeRun, join
from gnnserve_worker.graph.found_nodes import FoundNodes, FoundRun, distinct
from gnnserve_worker.graph.living_graph import LivingGraph, no_room
from gnnserve_worker.inference.batch import Infer, Inference
from gnnserve_worker.inference.changed_nodes import ChangedNodes, TouchedSince
from gnnserve_worker.inference.drafting import ChangeGroup, DraftedLayer, Drafting, StoredLayerRows
from gnnserve_worker.inference.latest_features import LatestFeatures
from gnnserve_worker.inference.written import WrittenSince
from gnnserve_worker.models.stored_layers import MakesLayer
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.parallel import map_parallel
from gnnserve_worker.sampling.batch_view import BatchView
from gnnserve_worker.sampling.normalised import renew_inverse_roots
from gnnserve_worker.staleness.movement import Moved
from gnnserve_worker.staleness.refreshing import LayerMakers, Refreshing, StaleLayer
from gnnserve_worker.tables.table import Table

_MOST_MADE = 1 << 16
"""Nodes whose rows of stored layers are made before they are published. Those of more take much memory, and are made as
they are written, while predictions wait."""
_FEWEST_TOGETHER = 8
"""Batches that are looked at together after one that was refused."""
_SHARED_ITEMS = 128
"""Items of batches that are applied as one while predictions are computed, which wait for no step that takes longer."""
_ITEM_BYTES = 1 << 14
"""Memory that an item may take beside payload: pages of a few tables, and of lists."""
_LONGEST_WAY_S = 0.002
"""For how long a step of applying lets a batch of predictions go first: changes go on, however many predictions there
are."""
_LONGEST_CHECK_S = 0.002
"""For how long predictions may wait, before a group is published, for a batch that is checked just then."""
_LOOK_S = 0.0001
"""How often it looks whether the batch is computed. To wait for the lock would take it from the next batch, for as long
as the interpreter takes to come back."""


@dataclass(frozen=True, slots=True)
class Readers:
    """Nodes that read some others."""

    of: int
    """How many these others are."""
    nodes: np.ndarray
    """int64, distinct."""


class LivingRevision:
    """One thread at a time calls `apply`; `check` and `offset` are for all. `_alone` takes two locks that no other code
    holds both of."""

    def __init__(
        self,
        loaded: LoadedRevision,
        max_delta_bytes: int,
        on_written: Callable[[ChangeBatch, FoundNodes], None] = lambda _batch, _found: None,
        *,
        keeps_features: bool = False,
        refresh: RefreshBudget | None = None,
    ) -> None:
        """`loaded`: opened with room for changes. `on_written` is called for each batch that is applied, and its
        nodes. `keeps_features`: whether features that changes bring are kept as in the source. `refresh`: as of
        `Refreshing.budget`."""
        if loaded.changes is None:
            raise ValueError("the revision was not opened for changes")
        self._on_written = on_written
        self.latest = LatestFeatures(loaded.new_nodes.features) if keeps_features else None
        """Features that changes have brought; None: they are not kept."""
        self.graph: LivingGraph = loaded.changes.graph
        """As predictions see it."""
        self.max_delta_bytes = max_delta_bytes
        self._item_bytes = _ITEM_BYTES + loaded.changes.memory.edge_bytes
        base = loaded.origin.made_of
        self.base_offset = self.offset = 0 if base is None else base.offset
        """The offset of the log that the revision's graph was made at, and the last one that is applied."""
        self.base_checksum = 0 if base is None else base.checksum
        """Checksum of the log's record there; 0 where there is none."""
        self.changes_since_base = 0
        """Items of the batches that were applied since, also where they were refused."""
        self.inferences = 0
        """Batches of predictions that were computed over it."""
        self.computing_s = 0.0
        """Seconds in which they were."""
        self._inferences = 0
        """How many there were when changes were published last."""
        self.loaded = loaded
        """The revision with what has changed."""
        self.first_nodes, self.first_edges = self.graph.taken, self.graph.lists.used_entries
        """Nodes of the revision's own, of all types, and entries of its lists."""
        self._computing = threading.Lock()
        """Held while a batch of predictions is computed, or a group of changes is published."""
        # No method of this one: a revision that is let go is gone at once, with its mapped files.
        self._give_way = partial(_give_way, self._computing)
        self.drafting = Drafting(loaded, self._give_way)
        self._written: WeakSet[WrittenSince] = WeakSet()
        """What is noted of changes for copies of its arrays."""
        of_layers = zip(loaded.changes.layers, self.drafting.layers, strict=True)
        self.refreshing = Refreshing(
            self.graph,
            [[*map(_makers_of, layer.makers, drafted)] for layer, drafted in of_layers],
            [layer.hops for layer in loaded.changes.layers],
            partial(_note_rows, self._written),
        )
        """Stored layers whose rows may be stale."""
        self.refreshing.budget = refresh
        profile = None if loaded.manifest is None else loaded.manifest.profile
        if profile is not None and profile.stale is not UNSET:
            self.refreshing.learn(profile.stale)
        self.touched = TouchedSince()
        """What changes touch, noted from the first one on for one that takes it."""
        self._is_broken = False
        """An error has left a batch half applied."""
        self._publishing = threading.Lock()
        """Held while a group is published, so that `check` never waits for predictions."""
        self.applying = threading.Lock()
        """Held while batches are applied, of which `readers_now` sees nothing or all."""

    @property
    def nodes(self) -> int:
        """How many nodes the graph has now."""
        return self.graph.ids.nodes

    @property
    def delta_bytes(self) -> int:
        """Memory that changes have taken."""
        return self.drafting.memory.nbytes + (0 if self.latest is None else self.latest.nbytes)

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
                began_s = time.perf_counter()
                try:
                    return infer(variant, seeds, key, with_embeddings=with_embeddings, view=view)
                finally:
                    self.computing_s += time.perf_counter() - began_s

        return infer_alone

    def note_written(self) -> WrittenSince:
        """What changes write from now on, noted for as long as it is referred to. It is to be read within a batch that
        `guarded` lets through."""
        written = WrittenSince()
        with self._computing:
            self._written.add(written)
        return written

    def readers_now(self, nodes: np.ndarray, most: int) -> Readers | None:
        """The nodes that read the first of these (int64): of as many as have `most` readers together, or of one. None:
        changes are being applied, and it can be asked again in a moment."""
        if not self.applying.acquire(blocking=False):
            return None
        try:
            graph = self.drafting.graph  # what it reads is the same in both graphs now
            counts = graph.readers_counts(nodes)
            some = max(1, int(np.searchsorted(np.cumsum(counts), most, side="right")))
            return Readers(some, graph.readers_of(nodes[:some]))
        finally:
            self.applying.release()

    def readers_of(self, node: int) -> np.ndarray:
        """The nodes that read one (its number): int64. It waits while changes are applied."""
        with self.applying:
            return self.drafting.graph.readers_of(np.array([node]))

    def check(self, batch: ChangeBatch) -> ChangeRefusal | None:
        """What `apply` would say now; None: it would apply the batch."""
        with self._publishing:
            found = self._find(self.graph, batch)
        return found if isinstance(found, ChangeRefusal) else None

    def apply(self, offset: int, batches: Sequence[ChangeBatch]) -> list[BatchEffect | ChangeRefusal]:
        """Apply batches from that offset on, each as a whole or nothing of it; what was said of each. One that there is
        no room for is the last that something is said of."""
        self._require_whole()
        if offset != self.offset + 1:
            raise ValueError(f"offset {offset} after {self.offset}")
        said: list[BatchEffect | ChangeRefusal] = []
        with self.applying, self._whole_or_broken():
            self._follow_budget()
            group, longest = ChangeGroup(), len(batches)
            while len(said) < len(batches):
                batch, found = self._find_next(batches[len(said) : len(said) + longest])
                records = 1
                if isinstance(found, ChangeRefusal):
                    said.append(found)
                    if found.problem in OF_THIS_WORKER:
                        break
                else:
                    if self.drafting.reads_published(batch, found, group):
                        self._publish(group)
                        group = ChangeGroup()
                    said += self.drafting.apply(batch, found, group)
                    records = found.records
                group.records += records
                group.items += batch.counts.items
                # Where many are refused, few are looked at in vain.
                longest = max(_FEWEST_TOGETHER, 2 * records)
            self._publish(group)
        return said

    def make_stored_rows_anew(self) -> None:
        """Make rows of stored layers from lists that were made from sums: for who writes them to files, so that what
        rounding left in a sum does not last."""
        with self._whole_or_broken():
            self._refresh_all()
        with self._whole_or_broken(), self._alone():
            for table, nodes in self.drafting.make_anew():
                _note_rows(self._written, [table], nodes)

    def refresh_worst(self) -> None:
        """Refresh the worst rows of stored layers for a turn, as far as `unless_busy` lets it."""
        with self.unless_busy() as may:
            if may:
                self.refreshing.refresh_worst()

    @contextmanager
    def unless_busy(self) -> Iterator[bool]:
        """Within it nothing else reads or writes the revision; False: a batch of predictions is computed or changes are
        published just then, or it is broken."""
        may = not self._is_broken and self._computing.acquire(blocking=False)
        try:
            yield may
        finally:
            if may:
                self._computing.release()

    def variants_of(self, layer: StaleLayer) -> tuple[str, ...]:
        """Names of the variants that read the rows of a stored layer, by way of a cascade too."""
        variants = self.loaded.variants.items()
        found = [name for name, variant in variants if self.refreshing.layer_of(variant.table) is layer]
        manifest = self.loaded.manifest
        cascades = () if manifest is None else manifest.cascades
        return (*found, *(one.name for one in cascades if {one.first, one.then} & {*found}))

    def expected_losses(self) -> dict[str, float]:
        """Expected answers in permille that differ from those of exact rows, by the variants that read rows that may be
        stale."""
        found = dict[str, float]()
        for layer in self.refreshing.layers:
            for name in self.variants_of(layer):
                # A cascade may read two of them.
                found[name] = found.get(name, 0.0) + self.refreshing.expected_loss_permille(layer)
        return found

    @property
    def is_busy(self) -> bool:
        """Whether `check` would wait."""
        return self._publishing.locked()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._computing.acquire()
        if not self._publishing.acquire(timeout=_LONGEST_CHECK_S):
            # To check a large batch takes seconds: predictions go on meanwhile.
            self._computing.release()
            self._publishing.acquire()
            self._computing.acquire()
        try:
            self._require_whole()
            yield
        finally:
            self._publishing.release()
            self._computing.release()

    @contextmanager
    def _whole_or_broken(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._is_broken = True
            raise

    def _require_whole(self) -> None:
        if self._is_broken:
            raise RuntimeError("a batch of changes was applied in part: start the worker anew, which applies all again")

    def _find(self, graph: LivingGraph, batch: ChangeBatch) -> FoundNodes | ChangeRefusal:
        # The graph refuses a batch of another form, whose rows are of another width: the log passes that over, and
        # stays before a width that does not fit.
        if batch.ids.form in graph.names.forms and (refusal := self._check_features(batch)) is not None:
            return refusal
        found = graph.find(batch)
        if not isinstance(found, ChangeRefusal) and self.delta_bytes >= self.max_delta_bytes:
            return no_room(f"changes have taken {self.delta_bytes:,} of {self.max_delta_bytes:,} bytes")
        return found

    def _find_next(self, batches: Sequence[ChangeBatch]) -> tuple[ChangeBatch, FoundNodes | ChangeRefusal]:
        """The first of these batches, or it and those that follow as one, with their nodes; or why it is refused."""
        graph, count = self.drafting.graph, self._count_alike(batches)
        while count > 1:
            run = join(batches[:count])
            wrong = self._wrong_by_features(run)
            found = graph.find_run(run) if wrong is None else wrong
            if isinstance(found, FoundRun):
                return found.batch, found.found
            count = found
        return batches[0], self._find(graph, batches[0])

    def _count_alike(self, batches: Sequence[ChangeBatch]) -> int:
        """How many of these batches may be applied as one: those that have ids and features as the graph does. Close to
        the end of the room there are none, so that the first that finds no room is the same one."""
        most = MOST_ITEMS if self.inferences == self._inferences else _SHARED_ITEMS
        room = min(most, (self.max_delta_bytes - self.delta_bytes) // self._item_bytes)
        items, width, joins = 0, self.loaded.new_nodes.features, self.drafting.graph.joins
        for place, batch in enumerate(batches):
            items += batch.counts.items
            if items > room or not joins(batch) or (len(batch.features) and batch.features.shape[1] != width):
                return place
        return len(batches)

    def _wrong_by_features(self, run: ChangeRun) -> int | None:
        """The first batch whose features may be refused; None: there is none."""
        rows = run.batch.features
        if np.isfinite(rows).all():
            return None
        is_right = np.isfinite(rows)
        if self.drafting.features_of is not None:
            new = run.batch.counts.new_nodes
            is_right[new:] |= np.isnan(rows[new:])
        wrong = run.row_records[~is_right.all(axis=1)]
        return int(wrong.min()) if len(wrong) else None

    def _check_features(self, batch: ChangeBatch) -> ChangeRefusal | None:
        counts, rows, width = batch.counts, batch.features, self.loaded.new_nodes.features
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
        if self.drafting.features_of is None:
            row, column = np.argwhere(is_kept)[0].tolist()
            return ChangeRefusal(
                ChangeProblem.MISSING_COLUMN,
                _field_of(row, counts.new_nodes, column),
                why_not_kept(batch.ids.shown(row)),
                "give every column",
            )
        return None

    def _publish(self, group: ChangeGroup) -> None:
        """Let predictions see what the group has changed."""
        reached, listed = distinct(group.reached), distinct(group.lists)
        inferences, self._inferences = self._inferences, self.inferences
        is_beside = self._inferences != inferences
        moved: Sequence[Moved] = ()
        at_once, layers = reached, len(self.drafting.layers)
        if self.drafting.long is not None:
            at_once, waiting = self.drafting.waiting(reached)
            moved, layers = self.drafting.moved(reached, waiting, group), 1
        stored = self.drafting.make_stored(at_once, group, layers=layers, in_parallel=not is_beside)
        if is_beside and len(at_once) <= _MOST_MADE:
            # Without predictions, all threads make rows, and write them at once.
            stored = iter([*stored])
        with self.refreshing.marking(moved, self._give_way), self._alone():
            for rows in group.rows:
                rows.put()
            if self._written:
                renewed = distinct(rows.nodes for rows in group.rows)
                _note_rows(self._written, [maker.table for maker in self.drafting.makers], renewed)
            self._write_lists(listed)
            for made in stored:
                self._write_stored(made, in_parallel=not is_beside)
            for batch, found in group.batches:
                self.graph.follow_nodes(found)
                self._on_written(batch, found)
                if self.latest is not None:
                    self.latest.note(batch, found)
            self.offset += group.records
            self.changes_since_base += group.items
        if self.drafting.long is not None:
            self.refreshing.note_made(at_once)
        if group.records:  # also where all were refused: their offset is told
            named = [found for _, found in group.batches]
            renewed = distinct(part for one in named for part in (one.new, one.overridden))
            gone = distinct(one.removed for one in named)
            self.touched.note(ChangedNodes(self.offset, distinct((self.graph.nodes_of_lists(listed), gone)), renewed))

    def _write_lists(self, listed: np.ndarray) -> None:
        """These neighbour lists (int64), and what their nodes weigh."""
        lists, roots = self.graph.lists, self.loaded.reading.neighbour_roots
        lists.follow(self.drafting.graph.lists, listed)
        if roots is not None:
            renew_inverse_roots(lists.bounds, lists.indices, listed, roots)
        for written in self._written:
            written.note_lists(listed)

    def _write_stored(self, made: Sequence[StoredLayerRows], *, in_parallel: bool) -> None:
        if in_parallel:
            map_parallel(lambda place: made[place].put(in_parallel=True), len(made))
        else:
            for one in made:
                one.put()
        for one in made if self._written else ():
            _note_rows(self._written, [one.table], one.nodes)

    def _follow_budget(self) -> None:
        """Have rows wait from now on where there is a budget; where there is none any more, make those that do."""
        rows_wait = self.refreshing.marks
        if rows_wait == (self.drafting.long is not None):
            return
        if not rows_wait:
            self._refresh_all()
        self.drafting.begin_sums(rows_wait=rows_wait)

    def _refresh_all(self) -> None:
        """Leave no row of a stored layer stale."""
        while self.refreshing.is_any_stale:
            self._give_way()
            with self._alone():
                self.refreshing.refresh_worst()


def _field_of(row: int, new_nodes: int, column: int) -> str:
    is_new = row < new_nodes
    return f"{'nodes' if is_new else 'overrides'}[{row if is_new else row - new_nodes}].features[{column}]"


def _makers_of(makes: MakesLayer, drafted: DraftedLayer) -> LayerMakers:
    return LayerMakers(makes, () if drafted.into is None else (drafted.into,))


def _note_rows(following: Iterable[WrittenSince], tables: Sequence[Table], nodes: np.ndarray) -> None:
    for written in following:
        written.note_rows(tables, nodes)


def _give_way(computing: threading.Lock) -> None:
    """Wait while a batch of predictions is computed, which takes all processors."""
    if not computing.locked():
        return
    ends_s = time.monotonic() + _LONGEST_WAY_S
    while computing.locked() and time.monotonic() < ends_s:
        time.sleep(_LOOK_S)
