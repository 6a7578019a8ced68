"""The engine: it turns queued requests of all models into answers, one batch at a time.

`_answer` is the data path, in the order in which it runs. Everything but the computation belongs to the event loop, and
so needs no lock: a request is submitted to its model with a callback, and once per round of the loop, when all that the
sockets delivered has been submitted, the next batch is closed, or several short ones. Models may come and go. They take
turns by their weights (`shared_time.py`), which are short where other services promise a latency. A short batch is
computed on the loop: handing it to another thread and back would cost more than the batch. A longer one, or one that
would wait while changes of the graph are applied, goes to the engine's thread, so that the loop continues to read and
write; requests that arrive meanwhile are queued (`executor.py`). One that another process computes goes to a thread of
its model's own, and other models have their turns meanwhile, however long it takes. The batcher decides which requests
are next and by which variant; `serving/requests.py` fetches their nodes and shares out the results; `model.py` has what
belongs to one model; protocols handle bytes and status codes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from gnnserve_api.errors import DeviceLostError
from gnnserve_worker.parallel import own_threads
from gnnserve_worker.scheduling.batcher import Batch
from gnnserve_worker.serving.engine.executor import BatchExecutor
from gnnserve_worker.serving.engine.inlet import Inlet
from gnnserve_worker.serving.engine.model import ModelState, ServedModel, monotonic_ms
from gnnserve_worker.serving.engine.shared_time import SharedTime, longest_turn_of
from gnnserve_worker.serving.idle.idle_jobs import LOOK_AGAIN_MS, QUIET_AFTER_MS, IdleTask, IdleTimer, pause_ms
from gnnserve_worker.serving.metrics.metrics import ServingMetrics
from gnnserve_worker.serving.requests import (
    DRAW_KEY_STEP,
    BatchInputs,
    ComputedBatch,
    Lane,
    Outcome,
    PendingRequest,
    deliver_all,
    fail,
    fetch_inputs,
    infer,
    note_traced,
    settle,
    share_out,
)
from gnnserve_worker.tasks.deciding import each_alone

SHORT_BATCH_MS = 2.0
"""Expected time up to which a batch is computed on the event loop. Two thread hops cost 0.1 ms, and under load far
more, since both threads then want the interpreter: at 32 connections batches of 1.5 ms are answered 1.4 times as fast
as through the thread, and of open loads as much or more is in time. It also bounds how long the loop does not
listen."""
ROUND_MS = 0.5
"""Time after which a round of the event loop computes no further batch. Several short ones in a row find code and data
in the processor's caches: at 1,024 seeds a request takes a fifth less processor time over HTTP, and a quarter less over
gRPC, than with one batch a round."""
_log = logging.getLogger(__name__)


class Engine:
    """The engine. It belongs to the event loop's thread; only its executor computes in another one."""

    def __init__(
        self,
        metrics: Mapping[str, ServingMetrics],
        clock_ms: Callable[[], float] = monotonic_ms,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """`metrics`: of each model, by its name. `weights`: what each model gets of the worker's time where all of them
        could use it, in relation to the others; None: all the same."""
        self._idle = IdleTimer(self._work_when_idle)
        self.models: dict[str, ServedModel] = {}
        """Each model by its name."""
        self.failure: BaseException | None = None
        """Why the engine stopped by itself, if it did."""
        self._worked_for: ServedModel | None = None
        """The model that the last job in an idle moment was of."""
        self._time = SharedTime(clock_ms)
        self._clock_ms = clock_ms
        self._closing: ModelState | None = None
        """Draining or stopped; None: neither."""
        self._turn_is_due = False
        """Whether `_serve_round` is scheduled for this round of the loop or the next."""
        self._computing: ServedModel | None = None
        """The model whose batch the thread has."""
        self._task: tuple[IdleTask, int] | None = None
        """The job that the thread has, if what it has is no batch, and the permille of the time for such jobs."""
        self._away: dict[ServedModel, BatchExecutor] = {}
        """Threads that wait for other processes, by the model whose batches these compute."""
        self._away_tasks: dict[ServedModel, tuple[IdleTask, int]] = {}
        """Jobs that such threads have, as `_task`."""
        self._answered_ms = -math.inf
        """When the last batch was computed."""
        self._draw_keys = itertools.count(step=DRAW_KEY_STEP)
        """Keys of batches (`BatchInputs.key`)."""
        self._executor = BatchExecutor(clock_ms, self._take_back)
        self._loop: asyncio.AbstractEventLoop | None = None
        for name, of_model in metrics.items():
            self.add(name, of_model, 1.0 if weights is None else weights[name])

    def add(self, name: str, metrics: ServingMetrics, weight: float, service: str | None = None) -> ServedModel:
        """Add a model, which has no revision yet. `service`: what it answers for; None: it has the model's name. Raises
        ValueError where there is a model of that name."""
        if name in self.models:
            raise ValueError(f"there is a model {name}; remove it first")
        self.models[name] = model = ServedModel(
            metrics,
            self._clock_ms,
            self._go_on,
            self._idle.wake,
            self._idle.wake_soon,
            self._idle.call_soon,
            name if service is None else service,
        )
        self._time.add(model, weight)
        if self._closing is not None:
            model.state = self._closing
        return model

    def reweigh(self, name: str, weight: float) -> None:
        """Give a model another weight."""
        self._time.reweigh(self.models[name], weight)

    def inlet_of(self, name: str) -> Inlet:
        """Where the input of this model's service waits for its turns, from now on. One that is alone needs none."""
        return self._time.inlet_of(self.models[name], self._read_on)

    def retire(self, name: str) -> None:
        """Accept nothing more for this model; what it has accepted is answered."""
        model = self.models[name]
        if model.state is not ModelState.STOPPED:
            model.state = ModelState.DRAINING

    def is_done_with(self, name: str) -> bool:
        """Whether the model has nothing to answer any more, and may be removed."""
        model = self.models[name]
        return not model.accepted and not model.has_more and not model.is_away and self._computing is not model

    def remove(self, name: str) -> None:
        """Forget a model, with which the engine is done."""
        model = self.models.pop(name)
        self._time.remove(model)
        model.let_go()
        if (executor := self._away.pop(model, None)) is not None:
            executor.end()

    @property
    def state(self) -> ModelState:
        """Ready once every model is."""
        if self._closing is not None:
            return self._closing
        ready = all(model.state is ModelState.READY for model in self._time.models)
        return ModelState.READY if ready else ModelState.LOADING

    @property
    def answers(self) -> bool:
        """Whether it answers for any model."""
        return any(model.state is ModelState.READY for model in self._time.models)

    @property
    def queued_seeds(self) -> int:
        return sum(model.queued_seeds for model in self._time.models)

    @property
    def alive(self) -> bool:
        return self._executor.alive

    def start(self, on_stopped: Callable[[], None] | None = None) -> None:
        """Start, on the event loop that the engine will belong to. `on_stopped` runs in the engine's thread."""
        self._loop = asyncio.get_running_loop()
        self._idle.start(self._loop)
        self._executor.start(on_stopped)
        if self._time.has_input():
            self._read_on()

    def drain(self) -> None:
        """Accept nothing more, finish what is queued, then stop."""
        if self._closing is not ModelState.STOPPED:
            self._close(ModelState.DRAINING)
        self._go_on()

    def abandon(self) -> None:
        """Stop after the running batch; queued requests are refused now."""
        self.drain()
        for model in self._time.models:
            model.drop_queued()

    def _close(self, state: ModelState) -> None:
        self._closing = state
        for model in self._time.models:
            model.state = state

    def join(self) -> None:
        """Wait until the engine's threads have ended. Any thread but the event loop's may call it."""
        for executor in (self._executor, *self._away.values()):
            executor.join()

    def _go_on(self) -> None:
        """Schedule closing the next batch for when this round of the loop has read all sockets."""
        if not self._turn_is_due and self._computing is None and self._loop is not None:
            self._turn_is_due = True
            self._loop.call_soon(self._serve_round)

    def _read_on(self) -> None:
        """Schedule reading the input that waits, likewise, whatever is being computed."""
        if not self._turn_is_due and self._loop is not None:
            self._turn_is_due = True
            self._loop.call_soon(self._serve_round)

    def _serve_round(self) -> None:
        """Close and compute batches, for as long as a round of the loop may take that."""
        self._turn_is_due, has_more = False, True
        try:
            if self._time.is_divided:
                self._serve_divided_round()
                has_more = self._time.has_more()
            else:
                now_ms = self._clock_ms()
                until_ms = now_ms + ROUND_MS
                while (has_more := self._serve_next(now_ms)) and (now_ms := self._clock_ms()) < until_ms:
                    pass
        finally:
            # Whatever went wrong with one batch, the others have their turn without waiting for the next request. A
            # stopped engine closes no lanes any more, so that a model may seem to have more for ever.
            is_draining = self._closing is ModelState.DRAINING and not self._time.is_any_away()
            if is_draining or (has_more and self._closing is not ModelState.STOPPED):
                # In another round, so that short batches do not starve the sockets.
                self._go_on()

    def _serve_divided_round(self) -> None:
        """Close and compute batches of services that share the worker, and read the input of theirs that waits."""
        until_ms = self._clock_ms() + ROUND_MS
        self._time.begin_round()
        try:
            while self._serve_next(self._clock_ms()) and self._time.may_go_on(until_ms):
                pass
        finally:
            self._time.end_round(is_computing=self._computing is not None)
            if self._time.has_input():
                self._read_on()

    def _serve_next(self, now_ms: float) -> bool:
        """Close the next batch. Whether there is another one to close."""
        if self._computing is not None or self._closing is ModelState.STOPPED:
            return self._time.take_in_beside()
        model, longest_ms = self._time.alone, math.inf
        if model is not None:
            lane = model.first_waiting_lane()
        else:
            model, lane = self._time.next_turn()
            if model is not None:
                now_ms = self._clock_ms()  # input was read meanwhile
                longest_ms = longest_turn_of(self._time.models, model)
        if model is None or lane is None:
            if self._closing is ModelState.DRAINING and not self._time.has_more() and not self._time.is_any_away():
                self._stop()
            return self._time.alone is None and model is not None
        if now_ms >= model.costs_end_ms:
            model.drop_expired_costs(now_ms)
        try:
            taken = lane.batcher.take(now_ms, longest_ms)
        except Exception as error:  # noqa: BLE001 (a queue that is no longer served must not look alive)
            self._die(error)
            return False
        if taken.refused:
            deliver_all(settle(model.accepted, [(request.key, refusal) for request, refusal in taken.refused]))
        if taken.batch is not None:
            self._answer(model, lane, taken.batch)
        if self._computing is not None:
            return False
        return model.has_more if self._time.alone is model else self._time.has_more() or self._time.has_input()

    def _answer(self, model: ServedModel, lane: Lane, batch: Batch) -> None:
        """Fetch the seeds → sample, gather, infer → split → deliver; long batches run in the engine's thread."""
        inputs = fetch_inputs(model.accepted, lane, batch, next(self._draw_keys))
        if lane.revision.compute.is_elsewhere:
            self._hand_away(model, lane, batch, inputs)
        elif batch.predicted_ms > SHORT_BATCH_MS or (lane.changes is not None and lane.changes.would_wait()):
            self._computing = model
            self._executor.hand(lane, batch, inputs)
        else:
            began_ms = ready_ms = model.could_begin_ms(batch)
            if self._time.alone is None:
                began_ms = self._time.began_ms(model, ready_ms)
            computed = infer(lane, batch.variant, inputs, self._clock_ms)
            outcomes = self._split(model, lane, batch, computed)
            deliver_all(outcomes)
            if model.watch.shadows.permille:
                model.show_answer(outcomes)
            released_ms = self._release(model, batch, computed)
            if isinstance(computed, ComputedBatch):
                occupied_ms = released_ms - began_ms
                self._account(model, lane, batch, computed, occupied_ms, occupied_ms, released_ms, began_ms - ready_ms)

    def _take_back(self, lane: Lane, batch: Batch, computed: ComputedBatch | BaseException) -> None:
        model, self._computing = self._computing, None
        assert model is not None  # noqa: S101
        if self._task is not None:
            (task, permille), self._task = self._task, None
            self._idle.wait(pause_ms(self._finish_task(model, task, computed, self._time.models), permille))
            self._go_on()
            return
        began_ms = ready_ms = model.could_begin_ms(batch)
        if self._time.alone is None:
            began_ms = self._time.began_ms(model, ready_ms)
        self._share_out(
            model, lane, batch, computed, began_ms, began_ms - ready_ms, lambda: self._release(model, batch, computed)
        )

    def _release(self, model: ServedModel, batch: Batch, computed: ComputedBatch | BaseException) -> float:
        """Note that the model's batch has released the worker. Returns when, which is now."""
        model.released_ms = model.occupied_ms = released_ms = self._clock_ms()
        if self._time.alone is None:
            self._time.end_turn(model, batch, computed, released_ms)
        return released_ms

    def _hand_away(self, model: ServedModel, lane: Lane, batch: Batch, inputs: BatchInputs) -> None:
        if (executor := self._away.get(model)) is None:
            executor = BatchExecutor(self._clock_ms, partial(self._take_back_away, model), own_threads)
            self._away[model] = executor
            executor.start()
        model.is_away = True
        executor.hand(lane, batch, inputs)

    def _take_back_away(
        self, model: ServedModel, lane: Lane, batch: Batch, computed: ComputedBatch | BaseException
    ) -> None:
        model.is_away = False
        if (handed := self._away_tasks.pop(model, None)) is not None:
            task, permille = handed
            self._idle.wait(pause_ms(self._finish_task(model, task, computed, (model,)), permille))
            self._go_on()
            return
        ready_ms = model.could_begin_ms(batch)
        began_ms = max(ready_ms, computed.started_ms) if isinstance(computed, ComputedBatch) else ready_ms
        self._share_out(
            model, lane, batch, computed, began_ms, began_ms - ready_ms, lambda: self._time.end_away(model, batch)
        )

    def _share_out(
        self,
        model: ServedModel,
        lane: Lane,
        batch: Batch,
        computed: ComputedBatch | BaseException,
        began_ms: float,
        waited_ms: float,
        release: Callable[[], float],
    ) -> None:
        """Deliver the answers of a batch that was handed over, in the loop's next round. `release` notes that it is
        done, and returns when."""
        try:
            outcomes, withdrawals = self._split(model, lane, batch, computed), model.withdrawals
            if model.watch.shadows.permille:
                model.show_answer(outcomes)
        finally:
            # The thread gets its next batch before these are encoded.
            self._go_on()
        released_ms = release()

        def deliver() -> None:
            started_ms = self._clock_ms()
            if model.withdrawals != withdrawals:  # since the last round of the loop
                refusal = model.refuse()
                deliver_all([(pending, refusal) for pending, _ in outcomes])
                return
            deliver_all(outcomes)
            if isinstance(computed, ComputedBatch):
                now_ms, occupied_ms = self._clock_ms(), released_ms - began_ms
                total_ms = occupied_ms + now_ms - started_ms
                self._account(model, lane, batch, computed, occupied_ms, total_ms, now_ms, waited_ms)

        asyncio.get_running_loop().call_soon(deliver)

    def _work_when_idle(self) -> float | None:
        """Compute one job for a model, if no request waits. Returns how long to wait before the next one, in ms;
        None: there is nothing more to compute."""
        if self._closing is not None:
            return None
        if self._computing is not None or self._turn_is_due or self._time.has_more():
            return LOOK_AGAIN_MS
        for model in self._in_idle_order():
            if model.is_away:
                continue
            lane, task = model.lane, model.next_task()
            if lane is None or task is None:
                continue
            self._worked_for = model
            job = task.job
            pairs = each_alone(len(job.seeds)) if job.variant in lane.revision.paired else None
            inputs = BatchInputs(job.seeds, next(self._draw_keys), job.with_embeddings, pairs=pairs)
            batch = Batch(job.variant, (), len(job.seeds), len(job.seeds), job.expected_ms, job.expected_ms)
            is_quiet = self._clock_ms() - self._answered_ms > QUIET_AFTER_MS
            permille = job.quiet_permille if is_quiet else job.permille
            if lane.revision.compute.is_elsewhere:
                self._away_tasks[model] = (task, permille)
                self._hand_away(model, lane, batch, inputs)
                return pause_ms(job.expected_ms, permille)
            if job.expected_ms > SHORT_BATCH_MS or lane.revision.changes.would_wait():
                self._computing, self._task = model, (task, permille)
                self._executor.hand(lane, batch, inputs)
                return pause_ms(job.expected_ms, permille)  # until it ends, and how long it took is known
            computed = infer(lane, job.variant, inputs, self._clock_ms)
            return pause_ms(self._finish_task(model, task, computed, self._time.models), permille)
        return LOOK_AGAIN_MS if self._time.is_any_away() else None

    def _in_idle_order(self) -> list[ServedModel]:
        """Models by whose turn in idle moments is next: one that always has something to compute holds up no other."""
        models = self._time.models
        first = next((place + 1 for place, one in enumerate(models) if one is self._worked_for), 0)
        return [*models[first:], *models[:first]]

    def _finish_task(
        self,
        model: ServedModel,
        task: IdleTask,
        computed: ComputedBatch | BaseException,
        released: Iterable[ServedModel],
    ) -> float:
        """Hand the result of a job to the work that it is of. `released`: models that it kept from their turns. Returns
        how long it took, in ms."""
        work, job = task.work, task.job
        released_ms = self._clock_ms()
        for each in released:
            each.released_ms = released_ms
        if isinstance(computed, ComputedBatch):
            took_ms = computed.finished_ms - computed.started_ms
            work.finish(job, computed.inference, took_ms)
            model.judge_anew()
            return took_ms
        if isinstance(computed, Exception) and not isinstance(computed, DeviceLostError):
            _log.error("%s by %s", work.what, job.variant, exc_info=computed)
            work.drop(job)
        else:
            self._die(computed)
        return job.expected_ms

    def _account(
        self,
        model: ServedModel,
        lane: Lane,
        batch: Batch,
        computed: ComputedBatch,
        occupied_ms: float,
        total_ms: float,
        now_ms: float,
        waited_ms: float,
    ) -> None:
        """Record a batch. `occupied_ms`: time for which it had the worker; `total_ms`: until the last answer;
        `waited_ms`: how long it waited before for turns of other models."""
        self._answered_ms = now_ms
        times = computed.inference.times
        seeds, load = batch.seeds, batch.load
        if load != seeds:
            load = lane.batcher.count_load(batch, times.overlay_ms)
        model.metrics.counters.observe_batch(batch.variant, load, occupied_ms, times, waited_ms)
        compute_ms = computed.finished_ms - computed.started_ms
        lane.batcher.observe(batch, compute_ms, total_ms, now_ms, times.overlay_ms, waited_ms)

    def _split(
        self, model: ServedModel, lane: Lane, batch: Batch, computed: ComputedBatch | BaseException
    ) -> list[tuple[PendingRequest, Outcome]]:
        lane.batcher.finish()
        if isinstance(computed, ComputedBatch):
            if model.tracer is not None:
                try:
                    note_traced(model.tracer, model.accepted, lane, batch, computed)
                except Exception:  # noqa: BLE001  (a trace is lost, and no answer)
                    _log.exception("a batch of %s could not be traced", batch.variant)
            try:
                return share_out(model.accepted, batch, computed)
            except Exception as error:  # noqa: BLE001  (as in the executor)
                computed = error
        if isinstance(computed, Exception) and not isinstance(computed, DeviceLostError):
            return settle(model.accepted, [(piece.request.key, fail(batch, piece, computed)) for piece in batch.pieces])
        self._die(computed)
        return []

    def _die(self, error: BaseException) -> None:
        _log.critical("the engine stopped", exc_info=error)
        self.failure = error
        self._stop()

    def _stop(self) -> None:
        self._close(ModelState.STOPPED)
        for model in self._time.models:
            model.drop_accepted()
        for executor in (self._executor, *self._away.values()):
            executor.end()
