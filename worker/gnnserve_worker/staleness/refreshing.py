"""Refreshing of rows of stored layers that changes have left stale: some before a batch reads them, and the worst ones
while nothing else is computed.

A layer behind the first has a mark for each row that a change has moved (`movement.py`). A row is made anew from all
neighbours of its node as generation made it, once the rows of the layer below that it reads are right themselves, so
that a row without a mark is exact. Predictions and changes are kept from the revision's arrays meanwhile. A batch may
bear less than a budget leaves: then further rows are made anew, whatever that takes.

Rows of the first layer wait in the same way, and no budget is for them: all that are read are made before, so that who
reads the layer finds it exact.

What requests bring changes rows of nodes around it, for these requests alone (`opening/overlay_reach.py`). Those rows
share the budget, ranked with stale ones: new nodes and nodes that are asked about come first. They are made by the
batch itself (`opening/overlay_rows.py`); what they are made of is right before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from gnnserve_api.files.profile import StaleLayerProfile
from gnnserve_api.limits import RefreshBudget
from gnnserve_worker.graph.found_nodes import distinct
from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.models.rows import NOTHING_REACHED, ReachedRows
from gnnserve_worker.models.stored_layers import MakesLayer, parts_of
from gnnserve_worker.parallel import map_parallel
from gnnserve_worker.staleness.choice import beyond, choose, within
from gnnserve_worker.staleness.loss import LEAST_PERMILLE, ReadErrors, Sensitivity, StaleRead, loss_permille
from gnnserve_worker.staleness.movement import Moved
from gnnserve_worker.staleness.stale_rows import StaleRows
from gnnserve_worker.tables.table import Table

TURN_US = 500.0
"""Time of a turn in which the worst rows are refreshed, unless one row takes longer."""
_MOST_IN_TURN = 256
_FEW, _LOOKS = 32, 4
"""Rows that are made at a time, at least; and how often the time is looked at, about, where it is limited."""
_ROW_ENTRIES = 64
"""Entries of a list that take as long as the rest of a row."""
_FIRST_NS = 20.0
"""Time of an entry, before it was measured."""
_LEARNT = 0.2
_LEARNT_FROM = 4096
"""Entries of rows that are made in one go, at least, where the time of one is learnt."""


class RefreshedBy(StrEnum):
    """Reason for which rows were refreshed."""

    REQUEST = "request"
    """A batch that read them."""
    OVERLAY = "overlay"
    """A batch whose requests bring something: rows of that and of nodes that it changes, which are not kept."""
    BACKGROUND = "background"


@dataclass(slots=True)
class RefreshCount:
    rows: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerMakers:
    """Makers of rows of one layer."""

    makes: MakesLayer
    """It reads and writes the revision."""
    copies: tuple[MakesLayer, ...] = ()
    """They write the same rows to copies of the table."""


@dataclass(frozen=True, slots=True)
class StaleLayer:
    number: int
    """The first layer is 1."""
    makers: Sequence[LayerMakers]
    """One of each table."""
    rows: StaleRows
    hops: int
    """As of `FollowedLayer`."""
    nodes: Callable[[], int]
    """How many rows it has."""
    reads: ReadErrors = field(default_factory=ReadErrors)
    """What is left of errors where batches read it, once rows are made anew within the budget."""
    sensitivity: Sensitivity = field(default_factory=Sensitivity)
    """How many answers its errors change."""

    @property
    def mean_error(self) -> float:
        """Mean estimated error of its rows."""
        return self.rows.error / max(1, self.nodes())

    @property
    def read_error(self) -> float:
        """Expected mean error of what a batch reads, once rows are made anew within the budget."""
        return self.reads.expected(self.mean_error)


class SeenRead(NamedTuple):
    """Rows that a batch reads, once they are right as far as they are to be."""

    stale: StaleRead
    chosen: np.ndarray
    """As of `ChoosingView`."""


class Refreshing:
    """Its counters belong to who has the revision's arrays for itself."""

    def __init__(
        self,
        graph: LivingGraph,
        layers: Sequence[Sequence[LayerMakers]],
        hops: Sequence[int],
        note_written: Callable[[Sequence[Table], np.ndarray], None] = lambda _tables, _nodes: None,
    ) -> None:
        """`graph`: as predictions see it. `layers`, `hops`: of all stored layers, the first one's first; where there is
        no other, no row is ever stale. `note_written` is told of rows that were written."""
        self._graph, self._note_written = graph, note_written
        room = len(graph.is_gone)
        self._all = [
            StaleLayer(number, makers, StaleRows(room), hops, lambda: graph.taken)
            for number, (makers, hops) in enumerate(zip(layers, hops, strict=True), start=1)
            if len(layers) > 1
        ]
        self.first = self._all[0] if self._all else None
        """The first layer, whose rows may wait until they are read."""
        self.layers = self._all[1:]
        """Layers whose rows may be read while they are stale, by their numbers."""
        self.budget: RefreshBudget | None = None
        """None: rows are made anew with each change, and those that are still stale before a batch reads them."""
        self.counts = {by: RefreshCount() for by in RefreshedBy}
        self.on_marked: Callable[[], None] = lambda: None
        """Called where rows were marked, by who applies changes."""
        self.entry_ns = _FIRST_NS
        """Expected time for each entry of the lists that a row is made of, in ns; learnt as rows are made."""

    @property
    def is_any_stale(self) -> bool:
        return any(layer.rows.count for layer in self._all)

    @property
    def marks(self) -> bool:
        """Whether changes mark rows that they move, in place of making them."""
        return self.budget is not None and bool(self.layers)

    def layer_of(self, table: Table) -> StaleLayer | None:
        """The layer that the table stores; None: its rows are never stale."""
        return next((one for one in self._all if any(each.makes.table is table for each in one.makers)), None)

    @contextmanager
    def marking(self, moved: Sequence[Moved], give_way: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Mark rows of each layer that have moved so, the first one's first, if any have; within it changes are to be
        published. `give_way` is called between steps."""
        with ExitStack() as held:
            for layer, (nodes, amounts) in zip(self._all, moved, strict=False):
                held.enter_context(layer.rows.held())
                layer.rows.mark(nodes, amounts, give_way)
            yield
        if self.is_any_stale:
            self.on_marked()

    def learn(self, measured: Iterable[StaleLayerProfile]) -> None:
        """Begin sensitivities with what generation measured."""
        by_number = {layer.number: layer for layer in self.layers}
        for one in measured:
            if (layer := by_number.get(one.layer)) is not None:
                for found in one.changes:
                    layer.sensitivity.note(found.read_error, found.answers, found.differing * found.answers)

    def expected_loss_permille(self, layer: StaleLayer) -> float:
        """Expected answers in permille that differ from those of exact rows, of who reads the layer; above 0 where any
        row is stale, unless rows are made anew before they are read."""
        if self.budget is None or not layer.rows.count:
            return 0.0
        return max(LEAST_PERMILLE, loss_permille(layer.read_error, layer.sensitivity.bound))

    def make_read(self, *read: np.ndarray) -> StaleRead:
        """Make all rows of the first layer that wait and are read (nodes, int32 or int64, in any order)."""
        assert self.first is not None  # noqa: S101
        waiting = self.first.rows.among(*read)
        return StaleRead(self._refresh(self.first, waiting, None, RefreshedBy.REQUEST), 0.0)

    def note_made(self, nodes: np.ndarray) -> None:
        """Rows of the first layer were made of these nodes (int64) as changes were published."""
        assert self.first is not None  # noqa: S101
        self.first.rows.clear(nodes)

    def refresh_read(
        self, layer: StaleLayer, *read: np.ndarray, most_permille: float = math.inf, most_us: float = math.inf
    ) -> StaleRead:
        """As `refresh_seen`, where requests bring nothing."""
        return self.refresh_seen(layer, read, NOTHING_REACHED, most_permille=most_permille, most_us=most_us).stale

    def refresh_seen(
        self, layer: StaleLayer, read: Sequence[np.ndarray], reached: ReachedRows, *,
        most_permille: float = math.inf, most_us: float = math.inf,
    ) -> SeenRead:  # fmt: skip
        """Refresh the rows that pay most of those that are read (nodes, int32 or int64, in any order), and choose those
        that pay most of the ones that requests change. `most_permille`: expected answers that may differ; where the
        budget leaves more, further rows are refreshed. `most_us`: time that a deadline leaves for the budget."""
        read = (*read, reached.origins[reached.origins >= 0])
        stale, budget = layer.rows.among(*read), self.budget
        if not len(stale) and not len(reached.keys):
            layer.reads.note(0.0, layer.mean_error)
            return SeenRead(StaleRead(0, 0.0), reached.keys)
        if budget is None:
            made = self._refresh(layer, stale, None, RefreshedBy.REQUEST)
            return SeenRead(StaleRead(made, 0.0, len(reached.keys)), reached.keys)
        bearable = most_permille / (1000 * layer.sensitivity.bound)
        seen = _SeenRows.of(layer, read, stale, reached)
        is_chosen = seen.is_first.copy()
        if bearable > 0:
            costs = self._costs_us(layer, seen.nodes)
            most_us = max(0.0, min(budget.microseconds, most_us) - float(costs[is_chosen].sum()))
            most_rows = max(0, budget.rows - int(is_chosen.sum()))
            chosen = choose(np.where(is_chosen, 0, seen.errors), most_rows)
            chosen = chosen[within(costs[chosen], most_us)]
            is_chosen[chosen] = True
            left_us = most_us - float(costs[chosen[chosen >= len(stale)]].sum())
            made = self._refresh(layer, stale[chosen[chosen < len(stale)]], left_us, RefreshedBy.REQUEST)
        else:
            made = 0
        error = layer.rows.mean_among(*read)
        if bearable > 0:
            # What routing expects of a batch is what the budget leaves of stale rows.
            layer.reads.note(error, layer.mean_error)
        error += seen.error_brought(is_chosen)
        if error > bearable:
            left = seen.left(layer, is_chosen)
            chosen = beyond(left, bearable / error)
            is_chosen[chosen] = True
            rest = chosen[chosen < len(stale)]
            made += self._refresh(layer, stale[rest[left[rest] > 0]], None, RefreshedBy.REQUEST)
            error = layer.rows.mean_among(*read) + seen.error_brought(is_chosen)
        keys = reached.keys[is_chosen[len(stale) :]]
        return SeenRead(StaleRead(made, error, len(keys)), keys)

    def make_right_below(self, layer: StaleLayer, *nodes: np.ndarray) -> None:
        """Make rows of the layers below of which rows of these stored nodes (int64), as requests see them, are made."""
        around = distinct(nodes)
        for below in reversed(self._all[: layer.number - 1]):
            if any(one.rows.count for one in self._all[: below.number]):
                around = distinct((around, self._graph.lists.of(self._graph.places.lists_of(around))))
                if len(stale := below.rows.among(around)):
                    self._make(below, stale)

    def note_brought(self, rows: int, took_s: float) -> None:
        """So many rows were made for what requests bring."""
        count = self.counts[RefreshedBy.OVERLAY]
        count.rows += rows
        count.seconds += took_s

    def refreshes_within(self, layer: StaleLayer, *read: np.ndarray, most_us: float) -> bool:
        """Refresh all rows that are read, for what the background may take; False: that is expected to take longer than
        `most_us`, and none was."""
        stale = layer.rows.among(*read)
        if float(self._costs_us(layer, stale).sum()) > most_us:
            return False
        self._refresh(layer, stale, None, RefreshedBy.BACKGROUND)
        return True

    def refresh_worst(self) -> int:
        """Refresh the rows with the largest errors for a turn; how many."""
        # Most rows of the first layer are made for those of the others, which read them.
        for layer in (*self.layers, *self._all[:1]):
            worst = layer.rows.worst(_MOST_IN_TURN)
            if not len(worst):
                continue
            fitting = worst[within(self._costs_us(layer, worst), TURN_US)]
            # One whose list is so long that it fits into no turn has one of its own.
            chosen = fitting if len(fitting) else worst[:1]
            return self._refresh(layer, chosen, TURN_US, RefreshedBy.BACKGROUND)
        return 0

    def _costs_us(self, layer: StaleLayer, nodes: np.ndarray) -> np.ndarray:
        """Expected time of making the row of each of these nodes (int64)."""
        return self._work_of(layer, nodes) * (self.entry_ns / 1000)

    def _work_of(self, layer: StaleLayer, nodes: np.ndarray) -> np.ndarray:
        """Entries that making the row of each of these nodes (int64) is worth, with those of rows of the layer below
        that are made before, as many as there are on average: float64."""
        entries = self._entries_of(nodes)
        work = np.asarray(_ROW_ENTRIES + entries, np.float64)
        if layer.number > 1:
            below = self._all[layer.number - 2]
            count = max(1, below.nodes())
            mean_work = _ROW_ENTRIES + self._graph.lists.used_entries / count
            work += below.rows.count / count * (1 + entries) * mean_work
        return work

    def _entries_of(self, nodes: np.ndarray) -> np.ndarray:
        """Entries of all lists of each node: a number each [nodes]."""
        places = self._graph.places
        if places.has_one_list_each:
            return self._graph.lists.lengths(nodes)
        of_lists = np.repeat(np.arange(len(nodes)), places.slots[places.kinds_of(nodes)])
        return np.bincount(of_lists, self._graph.lists.lengths(places.lists_of(nodes)), len(nodes))

    def _refresh(self, layer: StaleLayer, nodes: np.ndarray, most_us: float | None, by: RefreshedBy) -> int:
        """Make the rows of these nodes (int64, distinct) in their order; how many. `most_us`: after that time no
        further ones are begun; None: all are made, on all threads."""
        if not len(nodes):
            return 0
        began_s = time.perf_counter()
        made, work = 0, self._work_of(layer, nodes)
        step = max(_FEW, len(nodes) if most_us is None else len(nodes) // _LOOKS)
        for start in range(0, len(nodes), step):
            part = nodes[start : start + step]
            self._make(layer, part)
            made += len(part)
            if most_us is not None and (time.perf_counter() - began_s) * 1e6 >= most_us:
                break
        took_s = time.perf_counter() - began_s
        self._learn(float(work[:made].sum()), took_s)
        count = self.counts[by]
        count.rows += made
        count.seconds += took_s
        return made

    def _learn(self, entries: float, took_s: float) -> None:
        if entries < _LEARNT_FROM:  # what a call takes says little of an entry
            return
        # A turn that was held up by another process says little of the next.
        measured = min(took_s * 1e9 / entries, 4 * self.entry_ns)
        self.entry_ns += _LEARNT * (measured - self.entry_ns)

    def _make(self, layer: StaleLayer, nodes: np.ndarray) -> None:
        """Make rows of a layer, once those are right that they are made of."""
        if layer.number > 1:
            below = self._all[layer.number - 2]
            read = [nodes]
            for _ in range(layer.hops):
                read.append(distinct([self._graph.lists.of(self._graph.places.lists_of(read[-1]))]))
            if len(stale := below.rows.among(*read)):
                self._make(below, stale)
        parts = parts_of(nodes)
        map_parallel(lambda place: _make_part(layer, parts[place]), len(parts))
        self._note_written([one.makes.table for one in layer.makers], nodes)
        layer.rows.clear(nodes)


@dataclass(frozen=True, slots=True)
class _SeenRows:
    """Rows that may be made for a batch: stale ones, and then those that its requests change."""

    nodes: np.ndarray
    """Stored nodes whose lists are read for each, int64; of a new node that is none of its own."""
    errors: np.ndarray
    """float32"""
    is_first: np.ndarray
    """Whether it is made whatever the budget, bool."""
    stale: np.ndarray
    """The first of `nodes`."""
    reached: ReachedRows
    read: Sequence[np.ndarray]
    """Nodes that are read, int32 or int64, each as often as it is."""

    @staticmethod
    def of(layer: StaleLayer, read: Sequence[np.ndarray], stale: np.ndarray, reached: ReachedRows) -> _SeenRows:
        return _SeenRows(
            np.concatenate((stale, np.maximum(0, reached.origins))),
            np.concatenate((layer.rows.errors[stale], reached.amounts)),
            np.concatenate((np.zeros(len(stale), np.bool_), reached.is_first)),
            stale,
            reached,
            read,
        )

    @property
    def _count(self) -> int:
        """Rows that are read, each as often as it is."""
        return max(1, sum(map(len, self.read)))

    def error_brought(self, is_chosen: np.ndarray) -> float:
        """What rows that requests change add to the mean error, where those are made that are chosen (bool)."""
        left = self.reached.amounts * self.reached.times * ~is_chosen[len(self.stale) :]
        return float(left.sum(dtype=np.float64)) / self._count

    def left(self, layer: StaleLayer, is_chosen: np.ndarray) -> np.ndarray:
        """What is left of the mean error by each, once those are made that are chosen (bool): float64."""
        brought = self.reached.amounts * ~is_chosen[len(self.stale) :]
        errors = np.concatenate((layer.rows.errors[self.stale], brought))
        times = np.concatenate((_times_read(self.stale, self.read), self.reached.times))
        return np.asarray(errors * times / self._count)


def _make_part(layer: StaleLayer, nodes: np.ndarray) -> None:
    for one in layer.makers:
        made = one.makes.make(nodes, None)
        for maker in (one.makes, *one.copies):
            maker.put(made, in_parallel=True)


def _times_read(nodes: np.ndarray, read: Sequence[np.ndarray]) -> np.ndarray:
    """How often each of these nodes is among those that are read: int64."""
    if not len(nodes):
        return nodes
    found, counts = np.unique(np.concatenate(read), return_counts=True)
    return counts[np.searchsorted(found, nodes)]
