"""Refreshes the worst of the stale rows of stored layers when the engine is idle, for a share of a core, and says what
stale rows add to the losses of variants."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from gnnserve_api.limits import MOST_BACKGROUND_PERMILLE
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.inference.served_changes import STILL, ServedChanges
from gnnserve_worker.serving.idle.idle_jobs import pause_ms
from gnnserve_worker.serving.requests import Lane
from gnnserve_worker.staleness.loss import LossSteps

_COMPARED_OF = 8
"""One turn of so many compares answers, in place of refreshing the worst rows."""


class RowRefresh:
    """All of it belongs to the event loop's thread."""

    def __init__(self, wake: Callable[[], None], call: Callable[[Callable[[], None]], None]) -> None:
        """`wake` tells the engine that there is something to compute, `call` has the event loop call something soon;
        any thread may call both."""
        self._wake, self._call = wake, call
        self._changes: ServedChanges = STILL
        self._steps = LossSteps()
        self._next_turn_ms = 0.0
        self._turns = 0

    @property
    def losses(self) -> Mapping[str, float]:
        """What stale rows add to losses, in permille, by the variants that read rows that may be stale."""
        return self._steps.permille

    def follow(self, revision: ServedRevision, on_losses: Callable[[], None]) -> None:
        """Refresh rows of this revision from now on. `on_losses` is called where its losses are others."""
        if revision.changes is not self._changes:
            self._changes, self._steps = revision.changes, LossSteps()
        self.judge()
        living = revision.changes.living
        if living is not None:

            def judge() -> None:
                if self.judge():
                    on_losses()

            def note_marked() -> None:
                self._call(judge)
                self._wake()

            living.refreshing.on_marked = note_marked
            self._wake()  # for what was marked before

    def forget_revision(self) -> None:
        """The revision answers no more."""
        self._changes, self._steps = STILL, LossSteps()

    def judge(self) -> bool:
        """Take over what stale rows add to losses now; whether that is something else."""
        living = self._changes.living
        expected = {} if living is None else living.expected_losses()
        return self._steps.follow(expected, time.perf_counter() * 1000)

    def take_turn(self, lane: Lane) -> bool:
        """Refresh rows for a turn, if one is due: too short to hand it to another thread as a job. Whether losses are
        others then."""
        changes, living = self._changes, self._changes.living
        if living is None or lane.revision.changes is not changes:
            return False
        is_other = self.judge()
        if any(self.losses.values()):
            self._wake()  # losses fall when they have been lower for a while
        budget = living.refreshing.budget
        permille = MOST_BACKGROUND_PERMILLE if budget is None else budget.background_permille
        if not permille or not living.refreshing.is_any_stale:
            return is_other
        begun_ms = time.perf_counter() * 1000
        if begun_ms >= self._next_turn_ms:
            self._turns += 1
            if changes.comparison is not None and self._turns % _COMPARED_OF == 0:
                changes.comparison.compare_some()
            else:
                living.refresh_worst()
            ended_ms = time.perf_counter() * 1000
            self._next_turn_ms = ended_ms + pause_ms(ended_ms - begun_ms, permille)
        self._wake()
        return is_other
