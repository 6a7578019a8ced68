"""The engine's thread: batches, failures, cancelling, draining. The event loop is real, the revision is not."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import numpy as np
import pytest
from tests.support.serving import Client, FakeWorker, running, service

from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_worker.serving.batcher import Refusal, RefusalReason
from gnnserve_worker.serving.engine import Answer, Engine, EngineState, Failure, Outcome, Pending, monotonic_ms


def submit(engine: Engine, nodes: list[int], objective: Objective = NO_OBJECTIVE, **options: Any) -> Pending | Refusal:
    embeddings = options.get("embeddings", False)
    assert engine.lane is not None
    return engine.submit(
        engine.lane, np.array(nodes), objective, options.get("strict", False), embeddings, options.get("at", 0.0)
    )


def accepted(engine: Engine, nodes: list[int], objective: Objective = NO_OBJECTIVE, **options: Any) -> Pending:
    pending = submit(engine, nodes, objective, **options)
    assert isinstance(pending, Pending), pending
    return pending


async def answer(pending: Pending) -> Answer:
    outcome: Outcome = await pending.outcome
    assert isinstance(outcome, Answer), outcome
    return outcome


async def held(worker: FakeWorker, client: Client, node: int = 0) -> Pending:
    """A request that is being computed until the gate opens, so that others gather behind it."""
    worker.gate.clear()
    pending = accepted(client.engine, [node])
    await worker.batch_started()
    return pending


def test_requests_that_gather_behind_a_batch_are_computed_together_and_answered_apart() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            first = await held(worker, client)
            others = [accepted(client.engine, [node, node + 1], embeddings=True) for node in (5, 8)]
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
            result = await answer(accepted(client.engine, nodes, embeddings=True))
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
            answers = [await answer(accepted(client.engine, [1], o, at=monotonic_ms())) for o in stated]
        assert [a.variant for a in answers] == ["x4", "x1", "x8"]

    asyncio.run(scenario())


def test_failed_batch_fails_its_requests_and_the_next_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_variant: str, seeds: np.ndarray) -> None:
        if 13 in seeds:
            raise ValueError("thirteen")

    async def scenario() -> None:
        async with running(FakeWorker(fail=fail)) as client:
            outcome = await accepted(client.engine, [13]).outcome
            assert isinstance(outcome, Failure)
            assert outcome.error_id in caplog.text
            assert "thirteen" in caplog.text
            await answer(accepted(client.engine, [12]))
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
            assert isinstance(await accepted(client.engine, [0] * 250).outcome, Failure)
            await answer(accepted(client.engine, [1]))
            assert client.engine.queued_seeds == 0
        assert [len(seeds) for _, seeds in worker.batches] == [100, 1]

    asyncio.run(scenario())


def test_scores_that_are_not_finite_fail_only_the_request_that_has_them() -> None:
    async def scenario() -> None:
        worker = FakeWorker(poisoned=7)
        async with running(worker) as client:
            first = await held(worker, client)
            poisoned, healthy = accepted(client.engine, [6, 7]), accepted(client.engine, [8])
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
            gone, stays = accepted(client.engine, [1]), accepted(client.engine, [2])
            client.engine.cancel(gone)
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
            client.engine.cancel(first)
            second = accepted(client.engine, [2])
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
            late = accepted(client.engine, [1], Objective(latency_ms=50))
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
            result = await answer(accepted(client.engine, [1], objective))
        assert result.objective_met(finished_ms) is met

    asyncio.run(scenario())


def test_engine_without_a_revision_refuses_says_why_and_then_answers() -> None:
    async def scenario() -> None:
        worker = FakeWorker(loaded=False)
        async with running(worker) as client:
            assert client.engine.state is EngineState.LOADING
            client.engine.problem = "revision abc cannot be loaded"
            refusal = client.engine.refuse()
            assert (refusal.reason, refusal.retry_after_s) == (RefusalReason.LOADING, 1)
            assert "revision abc cannot be loaded" in refusal.message
            client.switch(worker.revision())
            await answer(accepted(client.engine, [1]))

    asyncio.run(scenario())


def test_draining_engine_finishes_what_it_accepted_and_refuses_the_rest() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            first = await held(worker, client)
            queued = accepted(client.engine, [1] * 150)
            client.engine.drain()
            refusal = submit(client.engine, [2])
            assert isinstance(refusal, Refusal)
            assert refusal.reason is RefusalReason.DRAINING
            worker.gate.set()
            await answer(first)
            await answer(queued)
            await asyncio.to_thread(client.engine.join)
            assert client.engine.state is EngineState.STOPPED
            assert client.engine.failure is None

    asyncio.run(scenario())


def test_abandoned_engine_refuses_what_is_queued() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            first = await held(worker, client)
            queued = accepted(client.engine, [1])
            client.engine.abandon()
            worker.gate.set()
            await answer(first)
            assert isinstance(await queued.outcome, Refusal)

    asyncio.run(scenario())


def test_engine_that_dies_leaves_nobody_waiting_and_says_why() -> None:
    def die(_variant: str, _seeds: np.ndarray) -> None:
        raise SystemExit("gone")

    async def scenario() -> None:
        async with running(FakeWorker(fail=die)) as client:
            assert isinstance(await accepted(client.engine, [1]).outcome, Refusal)
            await asyncio.to_thread(client.engine.join)
            assert isinstance(client.engine.failure, SystemExit)
            assert (await client.http.get("/healthz")).status_code == 503
            assert (await client.http.get("/readyz")).status_code == 503
            assert isinstance(submit(client.engine, [1]), Refusal)

    asyncio.run(scenario())
