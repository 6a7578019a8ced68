"""Requests with overlays on their way through the engine: batches, pieces, switches, cancelling, draining, metrics."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import numpy as np
import pytest
from tests.support.overlays.overlays import arrange_overlay
from tests.support.serving.serving import (
    NODES,
    TRADE_OFF,
    Client,
    FakeWorker,
    Submitted,
    accepted,
    held,
    profile,
    running,
    service,
    variant,
    without_overlays,
)

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_worker.asking.question import Wishes
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.serving.engine.model import monotonic_ms
from gnnserve_worker.serving.http.codecs.json import JsonCodec
from gnnserve_worker.serving.requests import Answer, Arrival, Ask, Failure, NodeLeft, PendingRequest, Reply
from gnnserve_worker.tasks.node_items import NodeItems

GRAPH = Graph(np.zeros(NODES + 1, np.int64), np.zeros(0, np.int32))


def overlay(new_nodes: int = 1, neighbour: int = 3) -> Overlay:
    """New nodes, each with one stored neighbour."""
    new = NODES + np.arange(new_nodes)
    edges = np.stack([np.full(new_nodes, neighbour), new], axis=1)
    features = np.ones((new_nodes, 2), np.float32)
    return arrange_overlay(GRAPH, EdgeRules(Direction.DIRECTED), features, np.zeros(0, np.int64), edges, new)[0]


async def answer(submitted: Submitted) -> Answer:
    outcome = await submitted.outcome
    assert isinstance(outcome, Answer), outcome
    return outcome


def has_views(worker: FakeWorker) -> list[bool]:
    return [view is not None for view in worker.views]


def test_requests_with_and_without_overlays_are_one_batch_with_one_view() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            first = await held(worker, client)
            others = [
                accepted(client.model, [NODES, 5], overlay=overlay()),
                accepted(client.model, [8]),
                accepted(client.model, [NODES + 1], overlay=overlay(2)),
            ]
            worker.gate.set()
            await answer(first)
            answers = [await answer(other) for other in others]
        # Those with overlays are a group of their own, so they come first. Overlay nodes are numbered through: the last
        # request's second one comes after the first request's only one.
        assert worker.batches == [("x1", [0]), ("x1", [NODES, 5, NODES + 2, 8])]
        assert has_views(worker) == [False, True]
        assert [a.scores.argmax(1).tolist() for a in answers] == [[0, 1], [0], [2]]

    asyncio.run(scenario())


def test_a_lone_request_keeps_its_own_numbers_and_gets_a_view() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            submitted = accepted(client.model, [NODES, 4], overlay=overlay())
            await answer(submitted)
            assert submitted.pending.question.nodes.tolist() == [NODES, 4]
        assert (worker.batches, has_views(worker)) == ([("x1", [NODES, 4])], [True])

    asyncio.run(scenario())


def test_a_seed_of_a_request_gives_its_batch_a_view() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            await answer(accepted(client.model, [4], seed=0))
            await answer(accepted(client.model, [4]))
        assert has_views(worker) == [True, False]

    asyncio.run(scenario())


def test_each_piece_of_a_large_request_sees_its_overlay() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            nodes = [NODES + node % 2 for node in range(250)]
            result = await answer(accepted(client.model, nodes, overlay=overlay(2)))
        assert [len(seeds) for _, seeds in worker.batches] == [100, 100, 50]
        assert [(len(view.features), view.features.columns) for view in worker.views if view is not None] == [
            (2, 2)
        ] * 3
        assert result.scores.argmax(1).tolist() == [node % 4 for node in nodes]
        assert result.times.total_ms > 3 * 0.006
        assert result.times.overlay_ms == pytest.approx(result.times.total_ms - 3 * 0.006)

    asyncio.run(scenario())


@pytest.mark.parametrize("computed_ms", [0.1, 5.0], ids=["on the event loop", "in the engine's thread"])
def test_views_are_made_wherever_a_batch_is_computed(computed_ms: float) -> None:
    async def scenario() -> None:
        worker = FakeWorker(profile=profile(variant("x1", 0.9, computed_ms)))
        async with running(worker) as client:
            await answer(accepted(client.model, [NODES], overlay=overlay()))
        assert has_views(worker) == [True]

    asyncio.run(scenario())


def test_overlays_get_a_variant_that_can_answer_them_whatever_routing_says() -> None:
    async def scenario() -> None:
        worker = FakeWorker(profile=without_overlays(TRADE_OFF, "x1", "x4"))
        async with running(worker) as client:
            assert (await answer(accepted(client.model, [1]))).variant == "x1"
            assert (await answer(accepted(client.model, [1], seed=7))).variant == "x1"
            assert (await answer(accepted(client.model, [NODES], overlay=overlay()))).variant == "x8"

    asyncio.run(scenario())


def test_a_failed_batch_fails_the_overlays_in_it(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_variant: str, seeds: np.ndarray) -> None:
        if NODES in seeds:
            raise ValueError("no such view")

    async def scenario() -> None:
        async with running(FakeWorker(fail=fail)) as client:
            assert isinstance(await accepted(client.model, [NODES], overlay=overlay()).outcome, Failure)
            assert "no such view" in caplog.text
            await answer(accepted(client.model, [12]))

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())


def test_a_cancelled_overlay_is_not_computed_and_gives_its_place_back() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            first = await held(worker, client)
            gone = accepted(client.model, [NODES], overlay=overlay(100))
            queued = client.engine.queued_seeds
            assert queued > 1
            client.model.cancel(gone.pending)
            assert client.engine.queued_seeds == 0
            worker.gate.set()
            await answer(first)
            await answer(accepted(client.model, [1]))
            assert not gone.outcome.done()
        assert has_views(worker) == [False, False]

    asyncio.run(scenario())


def test_an_overlay_that_is_cancelled_while_it_is_computed_harms_no_other() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            worker.gate.clear()
            gone = accepted(client.model, [NODES], overlay=overlay())
            other = accepted(client.model, [NODES], overlay=overlay())
            await worker.batch_started()
            client.model.cancel(gone.pending)
            worker.gate.set()
            await answer(other)
            assert not gone.outcome.done()

    asyncio.run(scenario())


def test_a_switch_leaves_queued_overlays_to_the_revision_that_they_were_arranged_against() -> None:
    async def scenario() -> None:
        old, new = FakeWorker(), FakeWorker(name="f0eae20c16c00ac0-2", nodes=2 * NODES)
        async with running(old) as client:
            first = await held(old, client)
            before = accepted(client.model, [NODES], overlay=overlay())
            client.switch(new.revision())
            after = accepted(client.model, [2 * NODES], overlay=overlay())
            old.gate.set()
            await answer(first)
            await answer(before)
            await answer(after)
        assert old.batches == [("x1", [0]), ("x1", [NODES])]
        assert new.batches == [("x1", [2 * NODES])]
        assert (has_views(old), has_views(new)) == ([False, True], [True])

    asyncio.run(scenario())


def test_a_withdrawn_revision_answers_no_overlay() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            first = await held(worker, client)
            queued = accepted(client.model, [NODES], overlay=overlay())
            client.model.withdraw("its files have changed")
            for submitted in (first, queued):
                outcome = await submitted.outcome
                assert isinstance(outcome, Refusal)
                assert outcome.reason is RefusalReason.LOADING
            worker.gate.set()
        assert has_views(worker) == [False]

    asyncio.run(scenario())


def test_a_draining_engine_answers_the_overlays_that_it_accepted() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            first = await held(worker, client)
            queued = accepted(client.model, [NODES], overlay=overlay())
            client.engine.drain()
            worker.gate.set()
            await answer(first)
            await answer(queued)
        assert has_views(worker) == [False, True]

    asyncio.run(scenario())


def test_an_overlay_with_an_edge_of_a_node_that_leaves_meanwhile_is_refused() -> None:
    async def scenario() -> None:
        worker = FakeWorker(is_gone=np.zeros(NODES, np.bool_))
        assert worker.is_gone is not None
        async with running(worker) as client:
            first = await held(worker, client)
            about = [accepted(client.model, [NODES], overlay=overlay(neighbour=neighbour)) for neighbour in (3, 4)]
            worker.is_gone[3] = True
            worker.gate.set()
            assert isinstance(await about[0].outcome, NodeLeft)
            await answer(about[1])
            await answer(first)

    asyncio.run(scenario())


# Over HTTP, and in metrics


class _WithOverlay(JsonCodec):
    """Every request brings the same overlay."""

    def decode(self, *_: Any, **__: Any) -> Ask:
        return Ask(NodeItems(), (), ("labels",), Wishes(seed=7), arrange=lambda: (overlay(64), np.array([NODES, 1])))


async def ask(client: Client, arrived_ms: float | None = None) -> Reply:
    replied: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    begun = client.app.predict.start(Arrival(_WithOverlay()), b"", replied.set_result, arrived_ms)
    assert isinstance(begun, PendingRequest)
    return await replied


def test_features_that_give_no_finite_scores_are_the_clients_mistake(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running(FakeWorker(poisoned=NODES)) as client:
            reply = await ask(client)
            assert (reply.status, json.loads(reply.body)["error"]["field"]) == (400, "overlay")
            assert "not finite" in json.loads(reply.body)["error"]["message"]
        assert not caplog.records

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())


def test_overlays_are_counted_and_timed() -> None:
    async def scenario() -> None:
        async with running(FakeWorker(), service()) as client:
            lines = client.metrics.render().decode()
            assert 'gnnserve_overlay_requests_total{service="digits"} 0.0' in lines
            assert 'stage="overlay"' not in lines
            # As where another revision is asked what both have read.
            client.app.predict.read(Arrival(_WithOverlay()), monotonic_ms())
            reply = await ask(client)
            assert reply.status == 200
            assert b", overlay;dur=" in reply.head
            await client.predict([1])
            lines = client.metrics.render().decode()
        for sample in (
            'gnnserve_overlay_requests_total{service="digits"} 1.0',
            'gnnserve_overlay_new_nodes_total{service="digits"} 64.0',
            'gnnserve_overlay_edges_total{service="digits"} 64.0',
            'gnnserve_overlay_admission_seconds_count{service="digits"} 1.0',
            'gnnserve_stage_seconds_count{service="digits",stage="overlay",variant="x1"} 1.0',
            # Two seeds, and 64 new nodes with 64 edges and 512 bytes of features, which count as 4; then one seed.
            'gnnserve_offered_seeds_total{service="digits"} 7.0',
        ):
            assert sample in lines, sample

    asyncio.run(scenario())


def test_reading_an_overlay_counts_as_its_stage_and_not_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(FakeWorker()) as client:
            predicting = client.app.predict
            read = predicting.read
            # As if it had come 5 s ago and had been read since.
            monkeypatch.setattr(predicting, "read", lambda arrival, now_ms: read(arrival, now_ms - 5_000))
            timing = (await ask(client, monotonic_ms() - 5_000)).head.split(b"server-timing: ")[1]
        durations = {part.split(b";dur=")[0]: float(part.split(b"=")[1]) for part in timing.strip().split(b", ")}
        assert durations[b"overlay"] >= 5_000
        assert durations[b"queue"] < 5_000

    asyncio.run(scenario())


def test_answers_without_overlays_state_the_stages_that_they_had() -> None:
    async def scenario() -> None:
        async with running(FakeWorker()) as client:
            timing = (await client.predict([1])).headers["server-timing"]
        assert [entry.split(";")[0] for entry in timing.split(", ")] == ["queue", "sample", "gather", "compute"]

    asyncio.run(scenario())
