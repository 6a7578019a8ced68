"""Refreshes the worst of the stale rows of stored layers when the engine is idle, for a share of a core."""

from __future__ import annotations

import time
from collections.abc import Callable

from gnnserve_api.limits import MOST_BACKGROUND_PERMILLE
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.idle.idle_jobs import pause_ms
from gnnserve_worker.serving.requests import Lane


class RowRefresh:
    """All of it belongs to the event loop's thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` tells the engine that there is something to compute; any thread may call it."""
        self._wake = wake
        self._living: LivingRevision | None = None
        self._next_turn_ms = 0.0

    def follow(self, revision: ServedRevision) -> None:
        """Refresh rows of this revision from now on."""
        self._living = living = revision.changes.living
        if living is not None:
            living.refreshing.on_marked = self._wake
            self._wake()  # for what was marked before

    def forget_revision(self) -> None:
        """The revision answers no more."""
        self._living = None

    def take_turn(self, lane: Lane) -> None:
        """Refresh rows for a turn, if one is due: too short to hand it to another thread as a job."""
        living = self._living
        if living is None or lane.revision.changes.living is not living:
            return
        budget = living.refreshing.budget
        permille = MOST_BACKGROUND_PERMILLE if budget is None else budget.background_permille
        if not permille or not living.refreshing.is_any_stale:
            return
        begun_ms = time.perf_counter() * 1000
        if begun_ms >= self._next_turn_ms:
            living.refresh_worst()
            ended_ms = time.perf_counter() * 1000
            self._next_turn_ms = ended_ms + pause_ms(ended_ms - begun_ms, permille)
        self._wake()
