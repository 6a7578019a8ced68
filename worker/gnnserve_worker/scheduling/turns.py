"""Whose turn it is: one worker's time, divided among the models that it answers for.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): each model's turn has a start tag in virtual time, the
model with the smallest one is next, and a turn of t ms moves the model's next tag on by t / weight. Of models that
always have requests, each gets its weight's share of the time, whatever the lengths of their batches; what a model
leaves goes to the others.

Virtual time is where each model would be if it had its share of all time, idle time included: it moves on by t over the
sum of all weights. A model that has had less than its share is behind it, and one that has had more is ahead. It is
never behind all models that wait: what a model had of time that the others left is not held against it.

A model behind it may claim what it left, up to a limit, when its requests come together (as threads warp in borrowed
virtual time; Duda and Cheriton, SOSP 1999). Otherwise a service within its share would wait like one that has a slower
machine to itself: each of its turns would be followed by as much time of the others, although it has left them more
before. Models that are all within their shares are all behind, by the limit where they have been for long, and so take
turns: only those beyond their share have to wait for a claim, and no longer than the limit for the claims of all others
together.

Beside its batches a model has other work of the event loop: its input is read, its answers are written. That is charged
too (`charge_work`), and input is read in turns as well, for so short a time (`input_ms`) that another model's requests,
which come meanwhile, need not wait for all that has arrived.

It is pure: durations are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from gnnserve_worker.scheduling.cost_terms import LARGEST_STEP

TURN_SHARE = 0.05
"""The longest turn that a model gets while others share the worker, as a part of the shortest latency that those
promise: their requests can find a batch running that they do not profit from."""
TURNS_BEFORE_CLAIMS = 2
"""Turns that are left of the shortest latency of the others before claims: the last one by a claim may begin when that
ends, and the model that waited has a turn then."""
MOST_CLAIMED_MS = 250.0
"""The most time that a model may claim, however long the latencies are that are promised."""
STALL_SHARE = 0.05
"""Part of a model's time that its stalls may take without being charged. Batches that take much longer than expected
again and again are no stalls: expectations follow the median."""
MOST_STALLED_MS = 500.0
"""The most that one stall, or several in a row, may take without being charged."""
LEAST_TURN_MS = 1.0
"""No turn is cut shorter: below it, what every batch costs would be most of it."""
INPUT_MS = 0.06
"""How long a turn's input is read while other services are active. The batch of what was read, its answers and their
sockets take about as long again each, and the other service's next requests wait for all of it."""
MOST_INPUT_MS = 1.0
"""How long while no other is active: more brings a batch little, and the next request of another one waits longer."""
ACTIVE_MS = 100.0
"""How long after a turn a service counts as active."""
Model = TypeVar("Model", bound=Hashable)


class Turns(Generic[Model]):
    """The models that share a worker, which may come and go between turns."""

    def __init__(self) -> None:
        self._weights: dict[Model, float] = {}
        self._all_weights = 0.0
        self._tags: dict[Model, float] = {}
        """Where each model's next turn starts in virtual time, if it has requests until then."""
        self._last: dict[Model, int] = {}
        """When each model had its turn last, or came, for ties."""
        self._waiting: set[Model] = set()
        """Models that had requests when the last turn began. As long as they have, their tags stay."""
        self._stalls_ms: dict[Model, float] = {}
        """How much time of stalls each model is not charged for."""
        self._debts_ms: dict[Model, float] = {}
        """What each model had of the worker and was not charged for, beyond that."""
        self._virtual_ms = 0.0
        self._count = 0

    def add(self, model: Model, weight: float) -> None:
        """`weight`: positive, in relation to the others'."""
        self._weights[model], self._tags[model] = weight, self._virtual_ms
        self._stalls_ms[model], self._debts_ms[model] = MOST_STALLED_MS, 0.0
        self._all_weights = sum(self._weights.values())
        self._note_turn(model)

    def reweigh(self, model: Model, weight: float) -> None:
        """Give a model another weight, from its next turn on."""
        self._weights[model] = weight
        self._all_weights = sum(self._weights.values())

    def remove(self, model: Model) -> None:
        for by_model in (self._weights, self._tags, self._last, self._stalls_ms, self._debts_ms):
            del by_model[model]
        self._waiting.discard(model)
        self._all_weights = sum(self._weights.values())

    def next_of(self, waiting: Mapping[Model, float]) -> Model | None:
        """The model among those that wait whose turn is next; None: none waits. `waiting`: how much time each may claim
        of what it left, were it the only one to claim any."""
        best: Model | None = None
        best_tag = math.inf
        for model, most_claimed_ms in waiting.items():
            tag = self._tags[model]
            if model not in self._waiting:
                claimed_ms = self._part(model) * most_claimed_ms / self._weights[model]
                self._tags[model] = tag = max(tag, self._virtual_ms - claimed_ms)
            if best is None or tag < best_tag or (tag == best_tag and self._last[model] < self._last[best]):
                best, best_tag = model, tag
        self._waiting = set(waiting)
        if best is not None:
            self._virtual_ms = max(self._virtual_ms, best_tag)
            self._note_turn(best)
        return best

    def charge(self, model: Model, took_ms: float, expected_ms: float = math.inf) -> None:
        """Note how long the turn of this model took. What is more than twice of what was expected is a stall, which is
        no model's: whose turn it fell into has not had more of the worker. Where a model has more of them than machines
        have, the rest is a debt, of which each turn pays as much as was expected of it at most."""
        charged_ms = min(max(0.0, took_ms), LARGEST_STEP * expected_ms)
        stalled_ms = max(0.0, took_ms - charged_ms)
        spared_ms = min(stalled_ms, self._stalls_ms[model])
        paid_ms = min(self._debts_ms[model], expected_ms)
        self._debts_ms[model] += stalled_ms - spared_ms - paid_ms
        charged_ms += paid_ms
        self._stalls_ms[model] = min(MOST_STALLED_MS, self._stalls_ms[model] - spared_ms + STALL_SHARE * charged_ms)
        self._tags[model] += charged_ms / self._weights[model]
        self._virtual_ms += charged_ms / self._all_weights

    def charge_work(self, model: Model, took_ms: float) -> None:
        """Note time that the worker worked for this model beside its batches."""
        self._tags[model] += took_ms / self._weights[model]
        self._virtual_ms += took_ms / self._all_weights

    def first_of(self, models: Iterable[Model]) -> Model | None:
        """The model that has had least of its share, without a turn for it; None: there are none."""
        return min(models, key=lambda model: (self._tags[model], self._last[model]), default=None)

    def pass_idle(self, idle_ms: float) -> None:
        """Note time in which no model had requests: each has left its share of it."""
        self._waiting.clear()
        if self._weights:
            self._virtual_ms += max(0.0, idle_ms) / self._all_weights

    def _part(self, model: Model) -> float:
        """Part of a claim that is this model's where others claim too: the parts of all that a model may have to wait
        for are at most 1 together."""
        weights = self._weights
        if len(weights) <= 2:
            return 1.0
        lightest = min([weight for other, weight in weights.items() if other is not model])
        return weights[model] / (self._all_weights - lightest)

    def _note_turn(self, model: Model) -> None:
        self._last[model] = self._count
        self._count += 1


class RecentModels(Generic[Model]):
    """Which of the models that share a worker had turns lately."""

    def __init__(self) -> None:
        self._turns_ms: dict[Model, float] = {}
        """When each had its last one, the latest last."""

    def note(self, model: Model, now_ms: float) -> None:
        self._turns_ms.pop(model, None)
        self._turns_ms[model] = now_ms

    def forget(self, model: Model) -> None:
        self._turns_ms.pop(model, None)

    def has_others(self, model: Model, now_ms: float) -> bool:
        """Whether others than this one are active."""
        return any(at_ms > now_ms - ACTIVE_MS for other, at_ms in self._turns_ms.items() if other != model)

    def are_several(self, now_ms: float) -> bool:
        """Whether more than one is active."""
        return sum([at_ms > now_ms - ACTIVE_MS for at_ms in self._turns_ms.values()]) > 1


def input_ms(are_others_active: bool, longest_ms: float) -> float:
    """How long a turn's input is read. `longest_ms`: the longest turn, by what the other models promise."""
    return INPUT_MS if are_others_active else min(MOST_INPUT_MS, longest_ms)


def longest_turn_ms(latencies_ms: Iterable[float | None]) -> float:
    """The longest turn of a model, by the latencies that the other models promise; None: no promise."""
    promised_ms = _shortest_ms(latencies_ms)
    return math.inf if promised_ms is None else max(LEAST_TURN_MS, TURN_SHARE * promised_ms)


def most_claimed_ms(own_ms: float | None, others_ms: Iterable[float | None]) -> float:
    """How much time a model may claim of what it left, by the latency that it promises and those of all others; None:
    no promise. A claim serves a promise, and so shortly that it breaks none: it ends before what waits for it is
    late."""
    if own_ms is None:
        return 0.0
    most_ms = min(own_ms, MOST_CLAIMED_MS)
    promised_ms = _shortest_ms(others_ms)
    if promised_ms is None:
        return most_ms
    return max(0.0, min(most_ms, promised_ms - TURNS_BEFORE_CLAIMS * longest_turn_ms([promised_ms])))


def _shortest_ms(latencies_ms: Iterable[float | None]) -> float | None:
    return min([latency_ms for latency_ms in latencies_ms if latency_ms is not None], default=None)
