"""Whose turn it is: one worker's time, divided among the models that it answers for.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): each model's turn has a start tag in virtual time, the
model with the smallest one is next, and a turn of t ms moves the model's next tag on by t / weight. A model that had
nothing to do starts at the virtual time of now, so that it neither saves up time nor owes any. Of models that always
have requests, each gets its weight's share of the time, whatever the lengths of their batches; what a model leaves
goes to the others.

It is pure: durations are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

TURN_SHARE = 0.1
"""The longest turn that a model gets while others share the worker, as a part of the shortest latency that those
promise: their requests can find a batch running that they do not profit from."""
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
        """Start tag of the last turn."""
        self._count = 0

    def add(self, model: Model, weight: float) -> None:
        """`weight`: positive, in relation to the others'."""
        self._weights[model], self._tags[model] = weight, 0.0
        self._note_turn(model)

    def reweigh(self, model: Model, weight: float) -> None:
        """Give a model another weight, from its next turn on."""
        self._weights[model] = weight

    def remove(self, model: Model) -> None:
        for by_model in (self._weights, self._tags, self._last):
            del by_model[model]

    def next_of(self, waiting: Iterable[Model]) -> Model | None:
        """The model among those that wait whose turn is next; None: none waits."""
        best: Model | None = None
        best_tag = math.inf
        for model in waiting:
            tag = max(self._tags[model], self._virtual_ms)
            if best is None or tag < best_tag or (tag == best_tag and self._last[model] < self._last[best]):
                best, best_tag = model, tag
        if best is not None:
            self._virtual_ms = self._tags[best] = best_tag
            self._note_turn(best)
        return best

    def charge(self, model: Model, took_ms: float) -> None:
        """Note how long the turn of this model took."""
        self._tags[model] += max(0.0, took_ms) / self._weights[model]

    def _note_turn(self, model: Model) -> None:
        self._last[model] = self._count
        self._count += 1


def longest_turn_ms(latencies_ms: Iterable[float | None]) -> float:
    """The longest turn of a model, by the latencies that the other models promise; None: no promise."""
    promised_ms = [latency_ms for latency_ms in latencies_ms if latency_ms is not None]
    return max(LEAST_TURN_MS, TURN_SHARE * min(promised_ms)) if promised_ms else math.inf
