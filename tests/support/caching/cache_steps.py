"""One reader and one writer, a step at a time: every order in which their steps can fall is tried.

The writer is the real `MaskedSlots` over a storage that stops between its smallest steps; at each stop the reader may
take some of its own. A row has two words, so that it can be caught half written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import numpy as np

from gnnserve_worker.caching.policy import NO_ITEMS, ResidencyChanges
from gnnserve_worker.caching.sharding import CachePlan
from gnnserve_worker.caching.slots import MaskedSlots

PLAN = CachePlan(nodes=2, blocks=1, block_columns=2, block_bytes=16, slots=(1,))
"""Two items and one slot."""
READER_STEPS = 4
"""Enter, look up, read a word, read the other and leave."""
AGED = 1000
"""Added to a row's words when it changes."""


@dataclass
class Seen:
    item: int
    words: tuple[int, int] | None
    """The words that were read; None: a miss."""
    oldest: int
    """Oldest version of the row that the reader may see, as of when it began to read."""

    @property
    def is_right(self) -> bool:
        if self.words is None:
            return True
        first, second = self.words
        return first == second and first % AGED == self.item and first >= self.oldest


@dataclass
class Scene:
    """What happens: item 0 is in the slot, then item 1 takes its place; meanwhile a row may change."""

    wanted: int
    """By the reader."""
    changes_at: int | None
    """The row that is wanted changes at this stop; None: never."""
    reader_at: tuple[int, ...]
    """At which stop each step of the reader is taken."""
    # Mistakes on purpose:
    skip_wait: bool = False
    unmask_first: bool = False
    skip_invalidation_wait: bool = False
    forget_void: bool = False
    # State:
    stops: int = 0
    """That there were so far."""
    inside: bool = False
    changing: bool = False
    seen: Seen | None = None
    directory: list[int] = field(default_factory=lambda: [-1, -1])
    slot: list[int] = field(default_factory=lambda: [-1, -1])
    table: list[list[int]] = field(default_factory=lambda: [[0, 0], [1, 1]])
    oldest: int = 0

    def play(self) -> Scene:
        self.slots = (_Forgetful if self.forget_void else MaskedSlots)(PLAN, self)
        self.steps = self._read()
        self._silent = True
        self.slots.fill(np.array([0]))
        self._silent = False
        self._stop()
        self.slots.change(ResidencyChanges(np.array([0]), np.array([1])))
        self._stop()
        self.slots.refresh(1)
        self._stop()
        for _ in self.steps:
            pass
        return self

    def mask(self, items: np.ndarray) -> None:
        self._stop()
        for item in items:
            self.directory[item] = -1
        self._stop()

    def wait_for_readers(self) -> None:
        self._stop()
        skipped = self.skip_invalidation_wait if self.changing else self.skip_wait
        while self.inside and not skipped:
            next(self.steps, None)
        self._stop()

    def write(self, items: np.ndarray, slots: np.ndarray) -> None:
        if self.unmask_first:
            self.unmask(items, slots)
        for word in range(2):
            self.slot[word] = self.table[items[0]][word]
            self._stop()

    def unmask(self, items: np.ndarray, slots: np.ndarray) -> None:
        for item, slot in zip(items, slots, strict=True):
            self.directory[item] = int(slot)

    def _read(self) -> Iterator[None]:
        self.inside = True
        yield
        slot = self.directory[self.wanted]
        yield
        oldest, first = self.oldest, self.slot[0]
        yield
        second = self.slot[1]
        self.inside = False
        self.seen = Seen(self.wanted, (first, second) if slot >= 0 else None, oldest)

    def _stop(self) -> None:
        if self._silent:
            return
        for stop in self.reader_at:
            if stop == self.stops:
                next(self.steps, None)
        self.stops += 1
        # Where the writer holds its lock, an invalidation would wait for it.
        if self.changes_at is not None and self.stops > self.changes_at and not self.slots._lock.locked():
            self.changes_at = None
            self.changing = True
            for word in range(2):
                self.table[self.wanted][word] += AGED
            self.slots.invalidate(np.array([self.wanted]))
            self.oldest = self.table[self.wanted][0]
            self.changing = False


class _Forgetful(MaskedSlots):
    def invalidate(self, nodes: np.ndarray) -> None:
        """Does not tell the copy under way."""
        copying, self._copying = self._copying, NO_ITEMS
        void, self._void = self._void, np.zeros(0, dtype=np.bool_)
        super().invalidate(nodes)
        self._copying, self._void = copying, void


def all_scenes(make: Callable[..., Scene]) -> Iterator[Scene]:
    """Every order, with a row that changes at each of the stops or never; never first, where most mistakes show."""
    changing = [(stop, wanted) for wanted in range(2) for stop in range(_stops(wanted, None))]
    for changes_at, wanted in [(None, 0), (None, 1), *sorted(changing)]:
        for reader_at in combinations_with_replacement(range(_stops(wanted, changes_at)), READER_STEPS):
            yield make(wanted=wanted, changes_at=changes_at, reader_at=reader_at)


def _stops(wanted: int, changes_at: int | None) -> int:
    return Scene(wanted=wanted, changes_at=changes_at, reader_at=()).play().stops
