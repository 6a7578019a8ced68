"""The engine's thread: batches, failures, cancelling, draining. The event loop is real, the revision is not."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.machine.waiting import WAIT_S
from tests.support.serving.serving import (
    FakeWorker,
    Submitted,
    accepted,
    held,
    profile,
    running,
    service,
    submit,
    variant,
)

from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_api.pods.routing import AffineCost
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.serving.engine import engine as engine_module
from gnnserve_worker.serving.engine.engine import ROUND_MS, SHORT_BATCH_MS, Engine
from gnnserve_worker.serving.engine.model import ModelState, monotonic_ms
from gnnserve_worker.serving.metrics.metrics import ServingMetrics
from gnnserve_worker.serving.requests import Answer, Failure, PendingRequest, Question, deliver_all


async def answer(submitted: Submitted) -> Answer:
    outcome = await submitted.outcome
    assert isinstance(outcome, Answer), outcome
    return outcome


def test_requests_that_gather_behind_a_batch_are_computed_together_and_answered_apart() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            first = await held(worker, client)
            others = [accepted(client.model, [node, node + 1], embeddings=True) for node in (5, 8)]
            worker.gate.set()
            await answer(first)
            answers = [await answer(other) for other in others]
        assert worker.batches == [("x1", [0]), ("x1", [5, 6, 8, 9])]
        assert [a.scores.argmax(1).tolist() for a in answers] == [[1, 2], [0, 1]]
        assert [a.embeddings[:, 0].tolist() for a in answers if a.embeddings is not None] == [[5, 6], [8, 9]]

    asyncio.run(scenario())


def test_large_request_comes_back_whole_and_in_order() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            nodes = list(range(249, -1, -1))
            result = await answer(accepted(client.model, nodes, embeddings=True))
        assert [len(seeds) for _, seeds in worker.batches] == [100, 100, 50]
        assert result.embeddings is not None
        assert result.embeddings[:, 0].tolist() == nodes
        assert result.scores.argmax(1).tolist() == [node % 4 for node in nodes]
        assert result.times.total_ms == pytest.approx(3 * 0.006)

    asyncio.run(scenario())


def test_service_objective_holds_for_requests_that_state_nothing_and_is_replaced_as_a_whole() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker, service({"accuracyTolerancePermille": 10})) as client:
            stated = (NO_OBJECTIVE, Objective(accuracy_tolerance_permille=0), Objective(latency_ms=1))
            answers = [await answer(accepted(client.model, [1], o, at=monotonic_ms())) for o in stated]
        assert [a.variant for a in answers] == ["x4", "x1", "x8"]

    asyncio.run(scenario())


def test_failed_batch_fails_its_requests_and_the_next_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_variant: str, seeds: np.ndarray) -> None:
        if 13 in seeds:
            raise ValueError("thirteen")

    async def scenario() -> None:
        async with running(FakeWorker(fail=fail)) as client:
            outcome = await accepted(client.model, [13]).outcome
            assert isinstance(outcome, Failure)
            assert outcome.error_id in caplog.text
            assert "thirteen" in caplog.text
            await answer(accepted(client.model, [12]))
            assert client.engine.alive

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())


def test_failed_piece_drops_the_rest_of_its_request() -> None:
    def fail(_variant: str, seeds: np.ndarray) -> None:
        if len(seeds) == 100:
            raise ValueError

    async def scenario() -> None:
        worker = FakeWorker(fail=fail)
        async with running(worker) as client:
            assert isinstance(await accepted(client.model, [0] * 250).outcome, Failure)
            await answer(accepted(client.model, [1]))
            assert client.engine.queued_seeds == 0
        assert [len(seeds) for _, seeds in worker.batches] == [100, 1]

    asyncio.run(scenario())


def test_scores_that_are_not_finite_fail_only_the_request_that_has_them() -> None:
    async def scenario() -> None:
        worker = FakeWorker(poisoned=7)
        async with running(worker) as client:
            first = await held(worker, client)
            poisoned, healthy = accepted(client.model, [6, 7]), accepted(client.model, [8])
            worker.gate.set()
            assert isinstance(await poisoned.outcome, Failure)
            await answer(healthy)
            await answer(first)
        assert worker.batches[1] == ("x1", [6, 7, 8])

    asyncio.run(scenario())


def test_cancelled_request_is_not_computed() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            first = await held(worker, client)
            gone, stays = accepted(client.model, [1]), accepted(client.model, [2])
            client.model.cancel(gone.pending)
            worker.gate.set()
            await answer(first)
            await answer(stays)
            assert not gone.outcome.done()
        assert worker.batches == [("x1", [0]), ("x1", [2])]

    asyncio.run(scenario())


def test_request_cancelled_while_it_is_computed_harms_nobody() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            first = await held(worker, client)
            client.model.cancel(first.pending)
            second = accepted(client.model, [2])
            worker.gate.set()
            await answer(second)
            assert not first.outcome.done()

    asyncio.run(scenario())


def test_deadline_that_passes_in_the_queue_is_refused() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        now_ms = 0.0
        async with running(worker, clock_ms=lambda: now_ms) as client:
            first = await held(worker, client)
            late = accepted(client.model, [1], Objective(latency_ms=50))
            now_ms = 51.0
            worker.gate.set()
            await answer(first)
            outcome = await late.outcome
        assert isinstance(outcome, Refusal)
        assert outcome.reason is RefusalReason.DEADLINE_PASSED

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("objective", "finished_ms", "met"),
    [
        (NO_OBJECTIVE, 9999, True),
        (Objective(accuracy_tolerance_permille=10), 9999, True),
        (Objective(latency_ms=50), 50, True),
        (Objective(latency_ms=50), 50.001, False),
        (Objective(latency_ms=1), 0.5, True),
    ],
    ids=["nothing stated", "a tolerance alone", "in time", "late", "quicker than the profile thought possible"],
)
def test_objective_is_met_when_the_clock_says_so(objective: Objective, finished_ms: float, met: bool) -> None:
    async def scenario() -> None:
        async with running(FakeWorker(), clock_ms=lambda: 0.0) as client:
            result = await answer(accepted(client.model, [1], objective))
        assert result.objective_met(finished_ms) is met

    asyncio.run(scenario())


def test_engine_without_a_revision_refuses_says_why_and_then_answers() -> None:
    async def scenario() -> None:
        worker = FakeWorker(loaded=False)
        async with running(worker) as client:
            assert client.engine.state is ModelState.LOADING
            client.model.problem = "revision abc cannot be loaded"
            refusal = client.model.refuse()
            assert (refusal.reason, refusal.retry_after_s) == (RefusalReason.LOADING, 1)
            assert "revision abc cannot be loaded" in refusal.message
            client.switch(worker.revision())
            await answer(accepted(client.model, [1]))

    asyncio.run(scenario())


def test_draining_engine_finishes_what_it_accepted_and_refuses_the_rest() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            first = await held(worker, client)
            queued = accepted(client.model, [1] * 150)
            client.engine.drain()
            refusal = submit(client.model, [2])
            assert isinstance(refusal, Refusal)
            assert refusal.reason is RefusalReason.DRAINING
            worker.gate.set()
            await answer(first)
            await answer(queued)
            await asyncio.to_thread(client.engine.join)
            assert client.engine.state is ModelState.STOPPED
            assert client.engine.failure is None

    asyncio.run(scenario())


def test_abandoned_engine_refuses_what_is_queued() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            first = await held(worker, client)
            queued = accepted(client.model, [1])
            client.engine.abandon()
            worker.gate.set()
            await answer(first)
            assert isinstance(await queued.outcome, Refusal)

    asyncio.run(scenario())


def die(_variant: str, _seeds: np.ndarray) -> None:
    raise SystemExit("gone")


def test_engine_that_dies_leaves_nobody_waiting_and_says_why() -> None:
    async def scenario() -> None:
        async with running(FakeWorker(fail=die)) as client:
            assert isinstance(await accepted(client.model, [1]).outcome, Refusal)
            await asyncio.to_thread(client.engine.join)
            assert isinstance(client.engine.failure, SystemExit)
            assert (await client.http.get("/healthz")).status_code == 503
            assert (await client.http.get("/readyz")).status_code == 503
            assert isinstance(submit(client.model, [1]), Refusal)

    asyncio.run(scenario())


def test_refusal_by_costs_that_expired_is_known_no_longer() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        now_ms = 0.0
        async with running(worker, service({"latencyMs": 2500}), clock_ms=lambda: now_ms) as client:
            model = client.model
            assert model.lane is not None and model.table is not None
            slow = {name: AffineCost(fixed_ms=2000, per_seed_ms=0) for name in ("x1", "x4", "x8")}
            model.switch(model.lane.revision, msgspec.structs.replace(model.table, costs=slow, ttl_seconds=1))
            first = await held(worker, client)
            assert isinstance(submit(model, [1]), Refusal)
            now_ms = 999.0
            assert model.would_refuse(1, now_ms) is not None
            now_ms = 1001.0
            model.route()  # as any batch does, notices it
            assert model.would_refuse(1, now_ms) is None
            worker.gate.set()
            await answer(first)

    asyncio.run(scenario())


def test_workers_begin_weights_apart() -> None:
    async def scenario() -> None:
        drawn = set()
        for _ in range(3):
            async with running(FakeWorker()) as client:
                assert client.model.lane is not None
                drawn.add(client.model.lane.batcher.drawn)
        assert len(drawn) > 1

    asyncio.run(scenario())


# Where a batch is computed


def quick_worker() -> FakeWorker:
    """As many seeds as fit SHORT_BATCH_MS are predicted to take just that: 49."""
    return FakeWorker(profile=profile(variant("x1", 0.9, SHORT_BATCH_MS / 50, SHORT_BATCH_MS / 50.001)))


def test_short_batches_are_computed_on_the_event_loop_and_longer_ones_beside_it() -> None:
    async def scenario() -> None:
        worker = quick_worker()
        threads: list[tuple[int, bool]] = []
        here = threading.get_ident()
        now_ms = 0.0

        def compute(_variant: str, seeds: np.ndarray) -> None:
            nonlocal now_ms
            now_ms += SHORT_BATCH_MS / 50 + len(seeds) * SHORT_BATCH_MS / 50.001  # as profiled
            threads.append((len(seeds), threading.get_ident() == here))

        worker.fail = compute
        async with running(worker, clock_ms=lambda: now_ms) as client:
            for seeds in (1, 49, 50, 100, 49):
                await answer(accepted(client.model, [0] * seeds, at=now_ms))
        assert threads == [(1, True), (49, True), (50, False), (100, False), (49, True)]

    asyncio.run(scenario())


def test_a_batch_that_would_wait_for_changes_leaves_the_event_loop_free() -> None:
    async def scenario() -> None:
        worker = quick_worker()
        threads: list[bool] = []
        here = threading.get_ident()
        worker.fail = lambda _variant, _seeds: threads.append(threading.get_ident() == here)
        async with running(worker) as client:
            for worker.is_changing in (True, False):
                await answer(accepted(client.model, [0]))
        assert threads == [False, True]

    asyncio.run(scenario())


def test_requests_of_one_round_of_the_loop_share_a_batch() -> None:
    async def scenario() -> None:
        worker = quick_worker()
        async with running(worker) as client:
            requests = [accepted(client.model, [node]) for node in range(10)]
            assert worker.batches == []
            for request in requests:
                await answer(request)
            later = accepted(client.model, [10])
            await answer(later)
        assert [seeds for _, seeds in worker.batches] == [list(range(10)), [10]]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("batch_ms", "of_first_round"),
    [(0.0, 3), (ROUND_MS / 2, 2), (ROUND_MS, 1)],
    ids=["batches that take no time", "some that do", "one that takes a round"],
)
def test_short_batches_are_computed_one_after_the_other_for_as_long_as_a_round_may_last(
    batch_ms: float, of_first_round: int
) -> None:
    async def scenario() -> None:
        worker, nodes = FakeWorker(profile=profile(variant("x1", 0.9, SHORT_BATCH_MS / 50))), (3, 4, 5)
        now_ms = 0.0

        def compute(_variant: str, _seeds: np.ndarray) -> None:
            nonlocal now_ms
            now_ms += batch_ms

        worker.fail = compute
        async with running(worker, clock_ms=lambda: now_ms) as client:
            requests = [accepted(client.model, [node] * 100) for node in nodes]
            await asyncio.sleep(0)
            assert [seeds[0] for _, seeds in worker.batches] == list(nodes[:of_first_round])
            for request in requests:
                await answer(request)
        assert [seeds for _, seeds in worker.batches] == [[node] * 100 for node in nodes]

    asyncio.run(scenario())


def test_short_batches_wait_while_a_long_one_is_computed_and_gather() -> None:
    async def scenario() -> None:
        worker = quick_worker()
        async with running(worker) as client:
            worker.gate.clear()
            long = accepted(client.model, [0] * 100)
            await worker.batch_started()
            short = []
            for node in range(3):
                short.append(accepted(client.model, [node]))
                await asyncio.sleep(0)
            assert len(worker.batches) == 1
            worker.gate.set()
            for request in (long, *short):
                await answer(request)
        assert [seeds for _, seeds in worker.batches][1:] == [[0, 1, 2]]

    asyncio.run(scenario())


def test_long_batches_follow_each_other_without_waiting_for_the_answers_to_be_encoded() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        order: list[str] = []
        async with running(worker) as client:
            first = await held(worker, client)
            first.outcome.add_done_callback(lambda _: order.append("delivered"))
            second = accepted(client.model, [1] * 100)
            taken = client.model.lane.batcher.take  # type: ignore[union-attr]

            def take(now_ms: float, longest_ms: float) -> Any:
                order.append("taken")
                return taken(now_ms, longest_ms)

            client.model.lane.batcher.take = take  # type: ignore[union-attr, method-assign]
            worker.gate.set()
            await answer(first)
            await answer(second)
        assert order[:2] == ["taken", "delivered"]

    asyncio.run(scenario())


def test_short_batches_fail_alone_too(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_variant: str, seeds: np.ndarray) -> None:
        if 13 in seeds:
            raise ValueError("thirteen")

    async def scenario() -> None:
        worker = quick_worker()
        worker.fail = fail
        async with running(worker) as client:
            outcome = await accepted(client.model, [13]).outcome
            assert isinstance(outcome, Failure)
            assert outcome.error_id in caplog.text
            await answer(accepted(client.model, [12]))

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())


def test_engine_that_dies_on_the_event_loop_leaves_nobody_waiting_and_the_loop_running() -> None:
    async def scenario() -> None:
        worker = quick_worker()
        worker.fail = die
        async with running(worker) as client:
            assert isinstance(await accepted(client.model, [1]).outcome, Refusal)
            await asyncio.to_thread(client.engine.join)
            assert isinstance(client.engine.failure, SystemExit)
            assert (await client.http.get("/healthz")).status_code == 503

    asyncio.run(scenario())


def test_engine_that_stopped_leaves_the_loop_idle_whatever_lanes_its_models_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        worker = quick_worker()
        worker.fail = die
        async with running(worker) as client:
            first = accepted(client.model, [1])
            client.switch(worker.revision())
            assert isinstance(await first.outcome, Refusal)
            rounds: list[int] = []
            serve_next = client.engine._serve_next
            monkeypatch.setattr(client.engine, "_serve_next", lambda: rounds.append(1) or serve_next())
            client.switch(worker.revision())
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(rounds) <= 1

    asyncio.run(scenario())


def test_engine_that_cannot_close_a_batch_dies_rather_than_keep_a_queue_that_nobody_serves() -> None:
    def fail(_now_ms: float, _longest_ms: float) -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        async with running(quick_worker()) as client:
            assert client.model.lane is not None
            client.model.lane.batcher.take = fail
            assert isinstance(await accepted(client.model, [1]).outcome, Refusal)
            await asyncio.to_thread(client.engine.join)
            assert isinstance(client.engine.failure, ZeroDivisionError)

    asyncio.run(scenario())


def test_requests_behind_a_batch_whose_bookkeeping_failed_do_not_wait_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted: list[dict[str, object]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: noted.append(context))
        async with running(quick_worker(), service(max_seeds=1)) as client:
            account, failed = Engine._account, []

            def fail_once(engine: Engine, *given: object) -> None:
                if not failed:
                    failed.append(given)
                    raise KeyError("variant")
                account(engine, *given)  # type: ignore[arg-type]

            monkeypatch.setattr(Engine, "_account", fail_once)
            for submitted in [accepted(client.model, [node]) for node in range(4)]:  # a batch each
                await answer(submitted)

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))
    assert [type(context["exception"]) for context in noted] == [KeyError]


def test_outcome_that_cannot_be_delivered_keeps_nobody_from_theirs(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_outcome: object) -> None:
        raise ValueError("no")

    async def scenario() -> None:
        async with running(quick_worker()) as client:
            lane = client.model.lane
            assert lane is not None
            client.model.submit(Question(lane, np.array([1]), ()), 0.0, refuse)
            await answer(accepted(client.model, [2]))

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "could not be delivered" in caplog.text


def test_request_cancelled_between_its_batch_and_its_turn_hears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(FakeWorker()) as client:
            requests = [accepted(client.model, [node]) for node in (1, 2)]
            delivered: list[object] = []
            lane = client.model.lane
            assert lane is not None
            gone = client.model.submit(Question(lane, np.array([3]), ()), 0.0, delivered.append)
            assert isinstance(gone, PendingRequest)

            def cancel_first(settled: Any) -> None:
                client.model.cancel(gone)
                deliver_all(settled)

            monkeypatch.setattr(engine_module, "deliver_all", cancel_first)
            for request in requests:
                await answer(request)
            assert delivered == []

    asyncio.run(scenario())


# Several models

SLOW = profile(variant("x1", 0.9, 1, 0.1))
"""1 ms for one seed, 0.1 ms for each more."""


class Faults:
    """What callbacks of the loop raised, which it would only log."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def __call__(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.seen.append(context)


def two_models(workers: tuple[FakeWorker, FakeWorker], clock_ms: Callable[[], float] = monotonic_ms) -> Engine:
    """Ready, on the running loop."""
    asyncio.get_running_loop().set_exception_handler(Faults())
    engine = Engine({name: ServingMetrics(name) for name in ("first", "second")}, clock_ms)
    for model, worker in zip(engine.models.values(), workers, strict=True):
        revision = worker.revision()
        model.metrics.show_revision(revision.manifest, 0.0)
        model.switch(revision, service(max_seeds=100).spec.routing_table(revision.manifest.revision))
    engine.start()
    return engine


async def end(engine: Engine, *workers: FakeWorker) -> None:
    for worker in workers:
        worker.gate.set()
    engine.drain()
    await asyncio.to_thread(engine.join)
    faults = asyncio.get_running_loop().get_exception_handler()
    assert isinstance(faults, Faults)
    assert faults.seen == []


def test_models_take_turns_on_one_executor() -> None:
    async def scenario() -> None:
        workers = FakeWorker(name="a"), FakeWorker(name="b", shift=1)
        engine = two_models(workers)
        first, second = engine.models.values()
        workers[0].gate.clear()
        many = [accepted(first, [0] * 100) for _ in range(3)]
        await workers[0].batch_started()
        one = accepted(second, [0] * 100)
        assert engine.queued_seeds == 300
        workers[0].gate.set()
        outcomes = [await submitted.outcome for submitted in (*many, one)]
        assert all(isinstance(outcome, Answer) for outcome in outcomes)
        finished = [outcome.finished_ms for outcome in outcomes if isinstance(outcome, Answer)]
        assert finished[3] < finished[2], "it does not wait for all of the other model's"
        scores = [outcome.scores[0].argmax() for outcome in outcomes if isinstance(outcome, Answer)]
        assert scores == [0, 0, 0, 1], "each by its own revision"
        await end(engine, *workers)

    asyncio.run(scenario())


def test_turns_are_short_beside_a_model_that_promises_a_latency() -> None:
    async def scenario() -> None:
        workers = FakeWorker(name="a", profile=SLOW), FakeWorker(name="b", shift=1)
        engine = two_models(workers)
        first, second = engine.models.values()
        revision = workers[1].revision()
        second.switch(revision, service({"latencyMs": 50}).spec.routing_table(revision.manifest.revision))
        assert isinstance(await accepted(first, [0] * 100).outcome, Answer)
        sizes = [len(seeds) for _, seeds in workers[0].batches]
        assert sum(sizes) == 100
        assert sizes[0] == 15, "what is computed in a twentieth of what the other promises"
        await end(engine, *workers)

    asyncio.run(scenario())


@pytest.mark.parametrize("worker", [quick_worker, FakeWorker], ids=["on the loop", "in the thread"])
def test_turns_of_others_are_counted_as_waits_and_are_in_no_cost(worker: Callable[[], FakeWorker]) -> None:
    async def scenario() -> None:
        workers, now_ms = (worker(), FakeWorker(name="b")), [0.0]
        engine = two_models(workers, lambda: now_ms[0])
        first, second = engine.models.values()
        workers[1].gate.clear()
        before = accepted(second, [0])
        await workers[1].batch_started()
        waiting = accepted(first, [0])
        now_ms[0] = 20.0
        workers[1].gate.set()
        assert isinstance(await before.outcome, Answer)
        assert isinstance(await waiting.outcome, Answer)
        await end(engine, *workers)
        counted = {(counter.name, counter.label): counter.value for counter in first.metrics.load_counters()}
        label = "variant", "x1"
        assert counted["gnnserve_batches_total", label] == 1
        assert counted["gnnserve_batch_wait_seconds_total", label] == pytest.approx(0.02)
        assert counted["gnnserve_batch_seconds_total", label] == 0

    asyncio.run(scenario())


def test_a_model_that_leaves_the_worker_idle_has_had_less_than_its_share() -> None:
    """Were idle time not counted, what it computed alone would be held against it once the other one comes."""

    async def scenario() -> None:
        order: list[str] = []
        now_ms, batch_ms, idle_ms = 0.0, 2.5, 7.5  # a batch of ten seeds takes as long as a turn may

        def worker_of(name: str) -> FakeWorker:
            def compute(_variant: str, _seeds: np.ndarray) -> None:
                nonlocal now_ms
                now_ms += batch_ms
                order.append(name)

            return FakeWorker(name=name, profile=profile(variant("x1", 0.9, 1.5, 0.1)), fail=compute)

        workers = worker_of("a"), worker_of("b")
        engine = two_models(workers, lambda: now_ms)
        first, second = engine.models.values()
        for model, worker in zip((first, second), workers, strict=True):
            revision = worker.revision()
            table = service({"latencyMs": 50}, max_seeds=100).spec.routing_table(revision.manifest.revision)
            model.switch(revision, table)
        for _ in range(30):
            assert isinstance(await accepted(first, [0] * 10, at=now_ms).outcome, Answer)
            now_ms += idle_ms
        order.clear()
        both = [accepted(model, [0] * 10, at=now_ms) for _ in range(4) for model in (first, second)]
        for submitted in both:
            assert isinstance(await submitted.outcome, Answer)
        assert order == ["b", "a"] * 4
        await end(engine, *workers)

    asyncio.run(scenario())


def test_withdrawal_of_one_model_leaves_the_others_requests() -> None:
    async def scenario() -> None:
        workers = FakeWorker(name="a"), FakeWorker(name="b")
        engine = two_models(workers)
        first, second = engine.models.values()
        workers[0].gate.clear()
        computed = accepted(first, [0] * 100)
        await workers[0].batch_started()
        waiting = accepted(second, [0])
        first.withdraw("its table was written to")
        assert (first.state, second.state, engine.state) == (ModelState.LOADING, ModelState.READY, ModelState.LOADING)
        assert isinstance(await computed.outcome, Refusal)
        workers[0].gate.set()
        assert isinstance(await waiting.outcome, Answer)
        await end(engine, *workers)
        assert {first.state, second.state, engine.state} == {ModelState.STOPPED}

    asyncio.run(scenario())


# Batches that another process computes


def test_a_batch_that_another_process_computes_holds_up_no_other_model() -> None:
    """However short it is expected to be: it would have been computed on the event loop."""

    async def scenario() -> None:
        workers = FakeWorker(name="a", is_elsewhere=True, profile=quick_worker().profile), FakeWorker(name="b")
        engine = two_models(workers)
        first, second = engine.models.values()
        workers[0].gate.clear()
        hanging = accepted(first, [0])
        await workers[0].batch_started()
        gathering = accepted(first, [1])
        for _ in range(3):
            assert isinstance(await accepted(second, [0] * 100).outcome, Answer)
        assert not engine.is_done_with("first") and engine.is_done_with("second")
        workers[0].gate.set()
        outcomes = [await one.outcome for one in (hanging, gathering)]
        assert all(isinstance(outcome, Answer) for outcome in outcomes)
        assert workers[0].batches == [("x1", [0]), ("x1", [1])]
        await end(engine, *workers)

    asyncio.run(scenario())


def test_what_another_process_computes_is_in_its_own_models_costs_alone() -> None:
    async def scenario() -> None:
        workers, now_ms = (FakeWorker(name="a", is_elsewhere=True), FakeWorker(name="b")), [0.0]
        engine = two_models(workers, lambda: now_ms[0])
        first, second = engine.models.values()
        workers[0].gate.clear()
        hanging = accepted(first, [0])
        await workers[0].batch_started()
        assert isinstance(await accepted(second, [0]).outcome, Answer)
        now_ms[0] = 20.0
        assert isinstance(await accepted(second, [0], at=20.0).outcome, Answer)
        workers[0].gate.set()
        assert isinstance(await hanging.outcome, Answer)
        await end(engine, *workers)
        for model, seconds in ((first, 0.02), (second, 0.0)):
            counted = {(counter.name, counter.label): counter.value for counter in model.metrics.load_counters()}
            assert counted["gnnserve_batch_seconds_total", ("variant", "x1")] == pytest.approx(seconds)
            assert counted["gnnserve_batch_wait_seconds_total", ("variant", "x1")] == 0

    asyncio.run(scenario())


def test_an_engine_that_drains_waits_for_another_process_and_leaves_the_loop_idle() -> None:
    async def scenario() -> None:
        workers = FakeWorker(name="a", is_elsewhere=True), FakeWorker(name="b")
        engine = two_models(workers)
        first, _ = engine.models.values()
        workers[0].gate.clear()
        hanging = accepted(first, [0])
        await workers[0].batch_started()
        queued = accepted(first, [1])
        engine.drain()
        for _ in range(5):
            await asyncio.sleep(0)
        assert engine.state is ModelState.DRAINING and not engine._turn_is_due
        workers[0].gate.set()
        outcomes = [await one.outcome for one in (hanging, queued)]
        assert all(isinstance(outcome, Answer) for outcome in outcomes)
        await end(engine, *workers)
        assert engine.state is ModelState.STOPPED

    asyncio.run(scenario())


def test_failures_of_another_process_are_its_own_requests(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_variant: str, _seeds: np.ndarray) -> None:
        raise ValueError("away")

    async def scenario() -> None:
        workers = FakeWorker(name="a", is_elsewhere=True, fail=fail), FakeWorker(name="b")
        engine = two_models(workers)
        first, second = engine.models.values()
        assert isinstance(await accepted(first, [0]).outcome, Failure)
        assert isinstance(await accepted(second, [0]).outcome, Answer)
        assert isinstance(await accepted(first, [0]).outcome, Failure)
        engine.retire("first")
        engine.remove("first")
        await end(engine, *workers)

    asyncio.run(scenario())
    assert "away" in caplog.text
