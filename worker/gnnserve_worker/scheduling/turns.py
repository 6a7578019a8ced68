"""Whose turn it is: one worker's time, divided among the models that it answers for.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): each model's turn has a start tag in virtual time, the
model with the smallest one is next, and a turn of t ms moves the model's next tag on by t / weight. Of models that
always have requests, each gets its weight's share of the time, whatever the lengths of their batches; what a model
leaves goes to the others.

A model that leaves some of its share may still claim it, up to a limit, when requests come together (as threads warp
in borrowed virtual time; Duda and Cheriton, SOSP 1999). Otherwise a service within its share would wait like one that
has a slower machine to itself: each of its turns would be followed by as much time of the others, although it has left
them more before. By its claim its bursts go first, until it has had its share; by the limit no other waits longer.

It is pure: durations are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from gnnserve_worker.scheduling.curves import LARGEST_STEP

TURN_SHARE = 0.05
"""The longest turn that a model gets while others share the worker, as a part of the shortest latency that those
promise: their requests can find a batch running that they do not profit from."""
CLAIM_SHARE = 1.0
"""The most time that a model may claim of what it left, as a part of the shortest latency that any model promises: the
others may have to wait so long. By simulation, half of it leaves a service within its share twice the tail."""
LEAST_TURN_MS = 1.0
"""No turn is cut shorter: below it, what every batch costs would be most of it."""
Model = TypeVar("Model", bound=Hashable)


class Turns(Generic[Model]):
    """The models that share a worker, which may come and go between turns."""

    def __init__(self) -> None:
        self._weights: dict[Model, float] = {}
        self._tags: dict[Model, float] = {}
        """Where each model's next turn starts in virtual time, if it has requests until then."""
        self._last: dict[Model, int] = {}
        """When each model had its turn last, or came, for ties."""
        self._virtual_ms = 0.0
        """The largest start tag of a turn until now."""
        self._count = 0

    def add(self, model: Model, weight: float) -> None:
        """`weight`: positive, in relation to the others'."""
        self._weights[model], self._tags[model] = weight, self._virtual_ms
        self._note_turn(model)

    def reweigh(self, model: Model, weight: float) -> None:
        """Give a model another weight, from its next turn on."""
        self._weights[model] = weight

    def remove(self, model: Model) -> None:
        for by_model in (self._weights, self._tags, self._last):
            del by_model[model]

    def next_of(self, waiting: Iterable[Model], most_claimed_ms: float = 0.0) -> Model | None:
        """The model among those that wait whose turn is next; None: none waits. `most_claimed_ms`: how much time a
        model may claim of what it left."""
        best: Model | None = None
        best_tag = math.inf
        for model in waiting:
            tag = max(self._tags[model], self._virtual_ms - most_claimed_ms / self._weights[model])
            if best is None or tag < best_tag or (tag == best_tag and self._last[model] < self._last[best]):
                best, best_tag = model, tag
        if best is not None:
            self._tags[best] = best_tag
            self._virtual_ms = max(self._virtual_ms, best_tag)
            self._note_turn(best)
        return best

    def charge(self, model: Model, took_ms: float, expected_ms: float = math.inf) -> None:
        """Note how long the turn of this model took. More than twice of what was expected is a stall, which is no
        model's: whose turn it fell into has not had more of the worker."""
        self._tags[model] += min(max(0.0, took_ms), LARGEST_STEP * expected_ms) / self._weights[model]

    def _note_turn(self, model: Model) -> None:
        self._last[model] = self._count
        self._count += 1


def longest_turn_ms(latencies_ms: Iterable[float | None]) -> float:
    """The longest turn of a model, by the latencies that the other models promise; None: no promise."""
    promised_ms = _shortest_ms(latencies_ms)
    return math.inf if promised_ms is None else max(LEAST_TURN_MS, TURN_SHARE * promised_ms)


def most_claimed_ms(latencies_ms: Iterable[float | None]) -> float:
    """How much time a model may claim of what it left, by the latencies that all models promise; None: no promise."""
    promised_ms = _shortest_ms(latencies_ms)
    return 0.0 if promised_ms is None else CLAIM_SHARE * promised_ms


def _shortest_ms(latencies_ms: Iterable[float | None]) -> float | None:
    return min([latency_ms for latency_ms in latencies_ms if latency_ms is not None], default=None)
