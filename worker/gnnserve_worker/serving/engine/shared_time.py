"""The time of one worker among its models: whose turn it is, and what of the event loop's work is whose.

A turn is a service's input that waits, read for a short while (`inlet.py`), and then a batch of what is queued. Charged
to a model are its batches, reading its input, encoding its answers, and its part of what the event loop does between
turns: sockets that are read and written. That part is taken from the processor time of the loop's thread, by messages.
The policy is `scheduling/turns.py`; the lengths of turns and claims follow from what the models promise.

With one service in the process nothing waits and nothing is measured. A model that has the worker to itself (`alone`)
is not asked whose turn it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from gnnserve_worker.scheduling.batcher import Batch
from gnnserve_worker.scheduling.turns import RecentModels, Turns, input_ms, longest_turn_ms, most_claimed_ms
from gnnserve_worker.serving.engine.inlet import Inlet
from gnnserve_worker.serving.engine.model import ServedModel
from gnnserve_worker.serving.requests import ComputedBatch, Lane


def thread_ms() -> float:
    """Processor time of the calling thread."""
    return time.thread_time() * 1000


class SharedTime:
    """Belongs to the event loop's thread."""

    def __init__(self, clock_ms: Callable[[], float], busy_ms: Callable[[], float] = thread_ms) -> None:
        """`busy_ms`: processor time of the event loop's thread."""
        self.models: tuple[ServedModel, ...] = ()
        self.alone: ServedModel | None = None
        """The model that has the worker to itself, whose turn it always is; None: there are others, or its input waits
        for turns."""
        self.is_divided = False
        """Whether input waits for turns, since there is more than one service."""
        self._clock_ms = clock_ms
        self._busy_ms = busy_ms
        self._turns: Turns[ServedModel] = Turns()
        self._recent: RecentModels[str] = RecentModels()
        """Services that had turns lately."""
        self._idle_since_ms = math.inf
        """Since when no model has requests; infinite: some has, or time is not divided."""
        self._round_ended_ms: float | None = None
        """Processor time at which the last round ended, or the first input after idle time came; None: it is idle. What
        the loop does then, as jobs, timers and probes of the process, is no service's."""
        self._metered_ms = 0.0
        """What was charged since then."""

    def add(self, model: ServedModel, weight: float) -> None:
        self.models = (*self.models, model)
        self._turns.add(model, weight)
        self._note_models()

    def reweigh(self, model: ServedModel, weight: float) -> None:
        self._turns.reweigh(model, weight)

    def remove(self, model: ServedModel) -> None:
        self._turns.remove(model)
        self._recent.forget(model.service)
        self.models = tuple(other for other in self.models if other is not model)
        self._note_models()

    def _note_models(self) -> None:
        is_alone = len(self.models) == 1 and self.models[0].inlet is None
        self.alone = self.models[0] if is_alone else None
        if is_alone:
            self._idle_since_ms = math.inf

    def inlet_of(self, model: ServedModel, read_on: Callable[[], None]) -> Inlet:
        """Where the input of the model's service waits from now on. `read_on` is called when there is some."""
        self.is_divided = True

        def begin() -> None:
            if self._round_ended_ms is None:
                self._round_ended_ms, self._metered_ms = self._busy_ms(), 0.0
            read_on()

        if model.inlet is None:
            model.inlet = Inlet(begin, lambda took_ms: self._charge(model, took_ms))
            self._note_models()
        return model.inlet

    def _charge(self, model: ServedModel, took_ms: float) -> None:
        if model in self.models:
            self._metered_ms += took_ms
            self._turns.charge_work(model, took_ms)

    # Turns

    def has_more(self) -> bool:
        """Whether requests wait, or a lane can be closed."""
        for model in self.models:  # noqa: SIM110 - a generator would cost more, for every batch
            if model.has_more:
                return True
        return False

    def is_any_away(self) -> bool:
        """Whether another process computes a batch of any model."""
        return any(model.is_away for model in self.models)

    def has_input(self) -> bool:
        """Whether input waits to be read."""
        return self.is_divided and any(model.has_input for model in self.models)

    def next_turn(self) -> tuple[ServedModel | None, Lane | None]:
        """The model whose turn it is, its input read, and its lane with requests that wait. Without a lane, its input
        brought nothing to compute; without a model, none has anything to do."""
        models = self.models
        if len(models) == 1:
            self._idle_since_ms = math.inf
            model = models[0]
            if model.inlet is not None and model.inlet.is_waiting:
                self._take_in(model, model.inlet)
                return model, model.first_waiting_lane()
            lane = model.first_waiting_lane()
            return None if lane is None else model, lane
        waiting: dict[ServedModel, float] = {}
        for model in models:
            lane = model.first_waiting_lane()
            if lane is not None or model.has_input:
                waiting[model] = most_claimed_of(models, model, lane or model.lane)
        if not waiting:
            return None, None
        if self._idle_since_ms < math.inf:
            self._turns.pass_idle(self._clock_ms() - self._idle_since_ms)
            self._idle_since_ms = math.inf
        turn = self._turns.next_of(waiting)
        assert turn is not None  # noqa: S101
        if turn.inlet is not None:
            self._recent.note(turn.service, self._clock_ms())
            if turn.inlet.is_waiting:
                turn.occupied_ms = self._take_in(turn, turn.inlet)
        return turn, turn.first_waiting_lane()

    def take_in_beside(self) -> bool:
        """Read input while a batch is computed in another thread, or nothing is computed any more. Whether there is
        more."""
        waiting = [model for model in self.models if model.has_input]
        model = self._turns.first_of(waiting)
        if model is not None and model.inlet is not None:
            # This is no turn: the batch that is computed has the worker since before, and until it ends.
            self._take_in(model, model.inlet)
        return self.has_input()

    def _take_in(self, model: ServedModel, inlet: Inlet) -> float:
        """Read input for a while. Returns when it ended."""
        clock_ms = self._clock_ms
        began_ms = clock_ms()
        are_others_active = self._recent.has_others(model.service, began_ms)
        until_ms = began_ms + input_ms(are_others_active, longest_turn_of(self.models, model))
        inlet.take_in(lambda: clock_ms() < until_ms)
        ended_ms = clock_ms()
        self._turns.charge_work(model, ended_ms - began_ms)
        return ended_ms

    def end_turn(
        self, model: ServedModel, batch: Batch, computed: ComputedBatch | BaseException, released_ms: float
    ) -> None:
        """Charge the model's batch, which has released the worker now."""
        if len(self.models) > 1:
            took_ms = released_ms - computed.started_ms if isinstance(computed, ComputedBatch) else batch.predicted_ms
            self._turns.charge(model, took_ms, batch.expected_ms)
            self._note_answers(model, batch, released_ms)

    def end_away(self, model: ServedModel, batch: Batch) -> float:
        """Note that another process is done with the model's batch. Returns when, which is now. Nothing is charged for
        it: others had the worker meanwhile, and processors are shared out among processes by the system."""
        model.released_ms = released_ms = self._clock_ms()
        if len(self.models) > 1:
            self._note_answers(model, batch, released_ms)
        return released_ms

    def _note_answers(self, model: ServedModel, batch: Batch, released_ms: float) -> None:
        if model.inlet is not None:
            model.inlet.messages += len(batch.pieces)
        if not self.has_more() and not self.has_input():
            self._idle_since_ms = released_ms

    def began_ms(self, model: ServedModel, ready_ms: float) -> float:
        """Since when the worker was the batch's that the model has computed, and that could have begun at `ready_ms`.
        How long it waited before for turns of other models is in no cost: what others do changes by the second, and is
        learnt apart."""
        return max([ready_ms, *[other.occupied_ms for other in self.models if other is not model]])

    # Rounds of the event loop, where time is divided

    def begin_round(self) -> None:
        """Charge what the loop did since the last round to the services whose messages it read and wrote."""
        if self._round_ended_ms is not None:
            inlets = [(model, model.inlet) for model in self.models if model.inlet is not None]
            messages = sum(inlet.messages for _, inlet in inlets)
            rest_ms = self._busy_ms() - self._round_ended_ms - self._metered_ms
            for model, inlet in inlets:
                if inlet.messages:
                    self._turns.charge_work(model, max(0.0, rest_ms) * inlet.messages / messages)
                    inlet.messages = 0.0
        self._metered_ms = 0.0

    def may_go_on(self, until_ms: float) -> bool:
        """Whether the round has time for another turn: where several services are active, answers are written and
        sockets read between any two turns."""
        now_ms = self._clock_ms()
        return now_ms < until_ms and not (self.is_divided and self._recent.are_several(now_ms))

    def end_round(self, *, is_computing: bool) -> None:
        """`is_computing`: a batch is computed in another thread, whose time is charged when it ends."""
        self._round_ended_ms, self._metered_ms = self._busy_ms(), 0.0
        if is_computing or self.has_more() or self.has_input():
            return
        self._round_ended_ms = None
        if self._idle_since_ms == math.inf:
            self._idle_since_ms = self._clock_ms()


def longest_turn_of(models: Sequence[ServedModel], model: ServedModel) -> float:
    """How long the model's next batch may take, for the sake of the other services. Two revisions of one service do not
    shorten each other's: they have one objective, which their batches keep."""
    service = model.service
    if len(models) == 1:
        return math.inf
    return longest_turn_ms(
        [other.lane.objective.latency_ms for other in models if other.service != service and other.lane is not None]
    )


def most_claimed_of(models: Sequence[ServedModel], model: ServedModel, lane: Lane | None) -> float:
    """How much time the model may claim of what it left. `lane`: the one whose requests are next; None: it has no
    revision, and so no promise."""
    return most_claimed_ms(
        None if lane is None else lane.objective.latency_ms,
        [other.lane.objective.latency_ms for other in models if other is not model and other.lane is not None],
    )
