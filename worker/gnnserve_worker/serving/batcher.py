"""The queue: who may wait, who is answered next, with whom and by which variant.

Pure: time is an argument, and it knows no torch, HTTP or threads. A request is queued without a variant; the choice
falls when its batch is closed, from what is left of its deadline then.

A batch is closed the moment the worker is free, so an idle worker adds no delay and a busy one gathers. The
request at the head decides the variant; others join, in order, whose own choice is the same at the size that the
batch then has, as long as nobody's deadline breaks. A request beyond `max_seeds` runs as several batches by one
variant, and goes to the back of the queue between them, so that small ones never wait for all of it. While small ones
wait, its pieces are smaller: whoever comes next waits for less.

What is made per request is a msgspec struct: it costs a sixth of a frozen dataclass.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from enum import StrEnum
from itertools import islice

import msgspec

from gnnserve_api.objective import Objective
from gnnserve_worker.serving.choice import VariantChooser

LOOKAHEAD_REQUESTS = 1024
"""Requests looked at when closing a batch: bounds its cost where the queue is long and objectives differ."""
SMALL_SHARE = 4
"""A request is small up to the fourth part of a batch; a large one gets as much of a batch while small ones wait."""
_HASTE = 2
"""A large request whose deadline is nearer than twice its own time is not held up for small ones."""


class RefusalReason(StrEnum):
    OBJECTIVE_INFEASIBLE = "ObjectiveInfeasible"
    """No variant can ever meet it: allow more time or loss, send fewer nodes, or leave out strict."""
    QUEUE_FULL = "QueueFull"
    """Send again after the stated time, or slower."""
    DEADLINE_OUT_OF_REACH = "DeadlineOutOfReach"
    """Send again after the stated time, or allow more."""
    DEADLINE_PASSED = "DeadlinePassed"
    """The worker was slower than its profile: send again after the stated time, or allow more."""
    LOADING = "Loading"
    """The worker prepares itself: send again after the stated time."""
    DRAINING = "Draining"
    """The worker is about to stop: send to another one."""


class Refusal(msgspec.Struct, frozen=True):
    reason: RefusalReason
    message: str
    retry_after_s: int | None
    """None: another attempt would end the same."""


class Request(msgspec.Struct, frozen=True):
    key: int
    """Identity, unique in the process."""
    seeds: int
    objective: Objective
    """The one that holds: the request's own, or the service's."""
    arrived_ms: float


class Admission(msgspec.Struct, frozen=True):
    feasible: bool
    """Whether an idle worker can meet the objective; if not, the nearest variant answers, however late."""


class Piece(msgspec.Struct, frozen=True):
    """Seeds `start` to `stop` of a request."""

    request: Request
    start: int
    stop: int

    last: bool
    whole: bool
    """The request has no other piece."""


class Batch(msgspec.Struct, frozen=True):
    variant: str
    pieces: tuple[Piece, ...]
    seeds: int
    predicted_ms: float


class Taken(msgspec.Struct, frozen=True):
    batch: Batch | None
    """None: nothing was left to compute among the requests looked at."""
    refused: tuple[tuple[Request, Refusal], ...]
    """Requests whose deadline passed while they waited."""


class _Waiting(msgspec.Struct, frozen=True):
    request: Request
    deadline_ms: float
    """Infinite where lateness is no ground for refusal."""
    expected_variant: str
    """The likely choice, for estimating how long the queue takes."""
    remaining: int
    """Seeds that no batch has had yet."""
    variant: str | None = None
    """Fixed by the first piece."""


class Batcher:
    def __init__(
        self, chooser: VariantChooser, max_seeds: int, max_queued_seeds: int, busy_until_ms: float = -math.inf
    ) -> None:
        """`busy_until_ms`: when the worker will have done what it accepted before this queue."""
        self._chooser = chooser
        self._max_seeds = max_seeds
        self._small_seeds = max(1, max_seeds // SMALL_SHARE)
        self._max_queued_seeds = max_queued_seeds
        self._queue: OrderedDict[int, _Waiting] = OrderedDict()
        self._queued_seeds = dict.fromkeys(chooser.names, 0)
        self._queued_seeds_total = 0
        self._running_until_ms = busy_until_ms

    @property
    def queued_seeds(self) -> int:
        return self._queued_seeds_total

    @property
    def waiting(self) -> bool:
        return bool(self._queue)

    def busy_until_ms(self, now_ms: float) -> float:
        """When the worker would be idle if nothing else came."""
        return now_ms + self._backlog_ms(now_ms)

    def admit(self, request: Request, strict: bool, now_ms: float) -> Admission | Refusal:
        objective = request.objective
        idle = self._chooser.choose(objective, request.seeds)
        if strict and not idle.feasible:
            remedy = "allow more time or a larger tolerance, send fewer nodes, or leave out strict"
            return Refusal(RefusalReason.OBJECTIVE_INFEASIBLE, f"{idle.message}; {remedy}", None)
        queued = self._queued_seeds_total
        if queued + request.seeds > self._max_queued_seeds:
            return self._refuse_full(request, queued, now_ms)
        expected, deadline_ms = idle.variant, math.inf
        if idle.feasible and objective.latency_ms is not None:
            deadline_ms = request.arrived_ms + objective.latency_ms
            backlog_ms = self._backlog_ms(now_ms)
            if backlog_ms > 0:
                finish_ms = self._finish_ms(request.seeds, now_ms)
                now = self._chooser.choose_from(objective, request.seeds, finish_ms, deadline_ms - now_ms)
                if not now.feasible:
                    excess_ms = now.predicted_ms - (deadline_ms - now_ms)
                    return Refusal(
                        RefusalReason.DEADLINE_OUT_OF_REACH,
                        f"{objective.latency_ms:g} ms cannot be met now: the worker is busy for another "
                        f"{backlog_ms:.3g} ms, and even {now.variant} would answer {excess_ms:.3g} ms late; "
                        "send again later or allow more time",
                        _retry_after_s(excess_ms),
                    )
                expected = now.variant
        self._enqueue(_Waiting(request, deadline_ms, expected, request.seeds))
        return Admission(idle.feasible)

    def take(self, now_ms: float) -> Taken:
        """Closes the next batch. The worker counts as busy with it until `finish`."""
        refused = self._take_late(now_ms)
        chosen: list[tuple[_Waiting, int]] = []
        variant = ""
        total = 0
        tightest_ms = math.inf
        has_large = False
        for waiting in islice(self._queue.values(), LOOKAHEAD_REQUESTS):
            slack_ms = waiting.deadline_ms - now_ms
            size = waiting.remaining
            if waiting.request.seeds >= self._max_seeds:
                size = min(size, self._most_of_large(waiting, slack_ms))
                if has_large and size < self._max_seeds:
                    continue
            if total + size > self._max_seeds:
                continue
            if not chosen:
                objective = waiting.request.objective
                variant = (
                    waiting.variant or self._chooser.choose(objective, waiting.remaining, _slack(slack_ms)).variant
                )
            elif not self._may_join(waiting, variant, total + size, slack_ms, tightest_ms):
                continue
            chosen.append((waiting, size))
            total += size
            has_large |= waiting.request.seeds >= self._max_seeds
            if slack_ms < tightest_ms and slack_ms >= self._chooser.latency_ms(variant, total):
                # A request that is already too late for its prediction holds nobody back.
                tightest_ms = slack_ms
            if total == self._max_seeds:
                break
        if not chosen:
            return Taken(None, refused)
        predicted_ms = self._chooser.latency_ms(variant, total)
        self._running_until_ms = now_ms + predicted_ms
        pieces = [self._cut(waiting, size, variant) for waiting, size in chosen]
        return Taken(Batch(variant, tuple(pieces), total, predicted_ms), refused)

    def _take_late(self, now_ms: float) -> tuple[tuple[Request, Refusal], ...]:
        looked_at = islice(self._queue.values(), LOOKAHEAD_REQUESTS)
        late = [waiting for waiting in looked_at if waiting.deadline_ms <= now_ms]
        for waiting in late:
            self._dequeue(waiting)
        return tuple([(waiting.request, self._refuse_late(waiting.request, now_ms)) for waiting in late])

    def finish(self) -> None:
        """The batch that `take` returned last is done."""
        self._running_until_ms = -math.inf

    def cancel(self, key: int) -> None:
        """Forgets a request whose client is gone; nothing happens where it does not wait."""
        if waiting := self._queue.get(key):
            self._dequeue(waiting)

    def clear(self) -> list[int]:
        """Forgets everybody who waits, and tells their keys."""
        keys = list(self._queue)
        for key in keys:
            self.cancel(key)
        return keys

    def _most_of_large(self, waiting: _Waiting, slack_ms: float) -> int:
        """Seeds of a large request that a batch may have."""
        if slack_ms < _HASTE * self._chooser.latency_ms(waiting.expected_variant, waiting.remaining):
            return self._max_seeds
        looked_at = islice(self._queue.values(), LOOKAHEAD_REQUESTS)
        small_wait = any(other.request.seeds <= self._small_seeds for other in looked_at)
        return self._small_seeds if small_wait else self._max_seeds

    def _may_join(self, waiting: _Waiting, variant: str, batch_seeds: int, slack_ms: float, tightest_ms: float) -> bool:
        batch_ms = self._chooser.latency_ms(variant, batch_seeds)
        if batch_ms > tightest_ms:
            return False
        if waiting.variant is not None:
            return waiting.variant == variant
        own = self._chooser.choose(waiting.request.objective, batch_seeds, _slack(slack_ms))
        if own.variant != variant:
            return False
        fits_only_alone = batch_ms > slack_ms >= self._chooser.latency_ms(variant, waiting.remaining)
        return not fits_only_alone

    def _cut(self, waiting: _Waiting, size: int, variant: str) -> Piece:
        self._dequeue(waiting)
        request, left = waiting.request, waiting.remaining - size
        if left:
            self._enqueue(_Waiting(request, waiting.deadline_ms, variant, left, variant))
        start = request.seeds - waiting.remaining
        return Piece(request, start, start + size, not left, size == request.seeds)

    def _enqueue(self, waiting: _Waiting) -> None:
        self._queue[waiting.request.key] = waiting
        self._queued_seeds[waiting.expected_variant] += waiting.remaining
        self._queued_seeds_total += waiting.remaining

    def _dequeue(self, waiting: _Waiting) -> None:
        del self._queue[waiting.request.key]
        self._queued_seeds[waiting.expected_variant] -= waiting.remaining
        self._queued_seeds_total -= waiting.remaining

    def _backlog_ms(self, now_ms: float) -> float:
        """Until the worker would be idle if nothing else came."""
        rest_ms = max(0.0, self._running_until_ms - now_ms)
        for variant, seeds in self._queued_seeds.items():
            if seeds:
                rest_ms += self._chooser.latency_ms(variant, seeds)
        return rest_ms

    def _finish_ms(self, seeds: int, now_ms: float) -> list[float]:
        """Per variant, when a new request would be answered by it: it shares batches with those that wait."""
        backlog_ms = self._backlog_ms(now_ms)
        finish_ms = []
        for variant, queued in self._queued_seeds.items():
            shared_ms = self._chooser.latency_ms(variant, queued + seeds)
            alone_ms = self._chooser.latency_ms(variant, queued) if queued else 0.0
            finish_ms.append(backlog_ms + shared_ms - alone_ms)
        return finish_ms

    def _refuse_full(self, request: Request, queued: int, now_ms: float) -> Refusal:
        return Refusal(
            RefusalReason.QUEUE_FULL,
            f"the queue holds {queued:,} nodes of at most {self._max_queued_seeds:,}, so {request.seeds:,} more "
            "do not fit; send again later, or raise spec.worker.batching.maxQueuedSeeds",
            _retry_after_s(self._backlog_ms(now_ms)),
        )

    def _refuse_late(self, request: Request, now_ms: float) -> Refusal:
        return Refusal(
            RefusalReason.DEADLINE_PASSED,
            f"{request.objective.latency_ms:g} ms passed while the request waited for "
            f"{now_ms - request.arrived_ms:.3g} ms; send again later or allow more time",
            _retry_after_s(self._backlog_ms(now_ms)),
        )


def _slack(slack_ms: float) -> float | None:
    """For requests that lateness does not concern, the stated latency stays the measure."""
    return None if slack_ms == math.inf else slack_ms


def _retry_after_s(wait_ms: float) -> int:
    return max(1, math.ceil(wait_ms / 1000))
