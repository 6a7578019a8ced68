"""A batcher without a clock, for tables of who is queued, refused and answered next."""

from __future__ import annotations

import itertools

from tests.support.serving.serving import TRADE_OFF

from gnnserve_api.objective import DEFAULT_PRIORITY, NO_OBJECTIVE, Objective
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_worker.scheduling.batcher import Batch, Batcher
from gnnserve_worker.scheduling.queue import Request
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.scheduling.variants import VariantChooser

ADAPTIVE = RoutingTable(revision="r", recipe="r")


class Queue:
    """A batcher with the defaults that most tests want."""

    def __init__(self, max_queued_seeds: int = 500, table: RoutingTable = ADAPTIVE) -> None:
        self.batcher = Batcher(VariantChooser(TRADE_OFF, max_seeds=100), table, max_queued_seeds)
        self._keys = itertools.count()

    def ask(
        self, seeds: int = 1, objective: Objective = NO_OBJECTIVE, *, at: float = 0, arrived: float | None = None,
        strict: bool = False, priority: int = DEFAULT_PRIORITY,
    ) -> Refusal | None:  # fmt: skip
        arrived_ms = at if arrived is None else arrived
        request = Request(next(self._keys), seeds, objective, arrived_ms, priority=priority)
        return self.batcher.admit(request, strict, at)

    def take(self, at: float = 0) -> Batch:
        batch = self.batcher.take(at).batch
        assert batch is not None
        return batch

    def take_shape(self, at: float = 0) -> tuple[str, list[tuple[int, int, int]]]:
        """The variant, and (request, start, stop) per piece."""
        batch = self.take(at)
        self.batcher.finish()
        return batch.variant, [(piece.request.key, piece.start, piece.stop) for piece in batch.pieces]

    def take_keys(self, at: float = 0) -> tuple[str, list[int]]:
        variant, pieces = self.take_shape(at)
        return variant, [key for key, _, _ in pieces]


def reason(outcome: Refusal | None) -> RefusalReason | None:
    return None if outcome is None else outcome.reason
