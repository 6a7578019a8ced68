"""Changing what is served while it is asked for: no request fails, and each is answered by one revision alone."""

from __future__ import annotations

import asyncio
import gc
import weakref

import httpx
import msgspec
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.serving.serving import (
    CLASSES,
    Client,
    FakeWorker,
    accepted,
    held,
    profile,
    running,
    service,
    submit,
    variant,
)

from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import AffineCost, RoutingMode
from gnnserve_worker.inference.served import TableError
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.serving.engine.model import ModelState
from gnnserve_worker.serving.requests import Answer, Question

OLD, NEW = "old", "new"


def old_worker() -> FakeWorker:
    return FakeWorker(name=OLD)


def new_worker() -> FakeWorker:
    """A smaller graph, whose labels are others."""
    return FakeWorker(name=NEW, shift=1, nodes=10)


def labels_of(nodes: list[int], revision: str) -> list[int]:
    shift = 1 if revision == NEW else 0
    return [CLASSES[(node + shift) % len(CLASSES)] for node in nodes]


def test_no_request_fails_or_mixes_revisions_while_they_are_switched() -> None:
    async def scenario() -> None:
        old, new = old_worker(), new_worker()
        revisions = (new.revision(), old.revision())
        seen: dict[str, int] = {OLD: 0, NEW: 0}
        switching = True

        async def ask(client: Client, number: int) -> None:
            nodes = [number % 10, (number + 3) % 10]
            while switching:
                response = await client.predict(nodes)
                assert response.status_code == 200, response.text
                answer = response.json()
                assert answer["labels"] == labels_of(nodes, answer["revision"])
                seen[answer["revision"]] += 1

        async with running(old) as client:
            clients = [asyncio.create_task(ask(client, number)) for number in range(8)]
            for number in range(100):
                answered = sum(seen.values())
                while sum(seen.values()) < answered + 5:
                    await asyncio.sleep(0)
                client.switch(revisions[number % 2])
            switching = False
            await asyncio.gather(*clients)
        assert min(seen.values()) > 100

    asyncio.run(scenario())


def test_waiting_requests_are_answered_by_the_revision_that_admitted_them_and_first() -> None:
    async def scenario() -> None:
        order: list[str] = []
        old, new = old_worker(), new_worker()
        old.fail = lambda _variant, _seeds: order.append(OLD)
        new.fail = lambda _variant, _seeds: order.append(NEW)
        async with running(old) as client:
            first = await held(old, client)
            # Three batches, with a node that the new graph lacks.
            waiting = accepted(client.model, [500] * 250)
            client.switch(new.revision())
            late = accepted(client.model, [1])
            old.gate.set()
            answers = [await pending.outcome for pending in (first, waiting, late)]
        assert all(isinstance(answer, Answer) for answer in answers)
        assert [request.pending.question.lane.revision.manifest.revision for request in (first, waiting, late)] == [
            OLD,
            OLD,
            NEW,
        ]
        assert order == [OLD] * 4 + [NEW]

    asyncio.run(scenario())


def test_node_ids_are_checked_against_the_graph_that_answers() -> None:
    async def scenario() -> None:
        async with running(old_worker()) as client:
            assert (await client.predict([500])).status_code == 200
            client.switch(new_worker().revision())
            refused = await client.predict([500])
            assert refused.status_code == 400
            assert "node ids are 0 to 9" in refused.json()["error"]["message"]
            assert (await client.http.get("/v1/variants")).json()["nodes"] == 10

    asyncio.run(scenario())


@pytest.mark.parametrize("waiting", [False, True], ids=["idle", "with requests that wait"])
def test_replaced_revision_is_let_go(waiting: bool) -> None:
    async def scenario() -> None:
        old = old_worker()
        gate = old.gate
        gone = weakref.ref(old)
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(old.revision())
            pending = [await held(old, client), accepted(client.model, [1])] if waiting else []
            del old
            client.switch(new_worker().revision())
            gate.set()
            for request in pending:
                assert isinstance(await request.outcome, Answer)
            del pending
            if waiting:
                del request
            # Its thread may still be on its way out of the last batch.
            while gone() is not None:
                gc.collect()
                await asyncio.sleep(0)
            assert (await client.predict([1])).json()["revision"] == NEW

    asyncio.run(scenario())


def test_new_objective_holds_at_once_without_another_revision() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        revision = worker.revision()
        async with running(worker) as client:
            client.switch(revision)
            variants = [(await client.predict([1])).json()["variant"]]
            client.switch(revision, service({"accuracyTolerancePermille": 10}))
            variants.append((await client.predict([1])).json()["variant"])
            route = (await client.http.get("/v1/route")).json()
        assert variants == ["x1", "x4"]
        assert (route["baseVariant"], route["objective"]["accuracyTolerancePermille"]) == ("x4", 10)

    asyncio.run(scenario())


def test_new_batching_holds_at_once() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            assert (await client.predict([1] * 400)).status_code == 200
            client.switch(worker.revision(), service(max_seeds=10, max_queued_seeds=20))
            assert (await client.predict([1] * 21)).json()["error"]["code"] == "TooManyNodes"
            assert (await client.predict([1] * 20)).status_code == 200
            route = (await client.http.get("/v1/route")).json()
        assert [len(seeds) for _, seeds in worker.batches] == [100] * 4 + [10, 10]
        assert route["batching"] == {"maxSeeds": 10, "maxQueuedSeeds": 20}

    asyncio.run(scenario())


def test_deadlines_after_a_switch_count_what_was_accepted_before_it() -> None:
    async def scenario() -> None:
        now_ms = 0.0
        old, new = old_worker(), new_worker()
        async with running(old, clock_ms=lambda: now_ms) as client:
            first = await held(old, client)
            second = accepted(client.model, [1] * 400)  # 80 ms by x1
            client.switch(new.revision())
            refusal = submit(client.model, [1], Objective(latency_ms=50))
            assert isinstance(refusal, Refusal)
            assert refusal.reason is RefusalReason.DEADLINE_OUT_OF_REACH
            old.gate.set()
            for pending in (first, second):
                assert isinstance(await pending.outcome, Answer)
            # Done, in no time by this clock, although it was thought to take long: a new answer shows it.
            assert isinstance(await accepted(client.model, [1]).outcome, Answer)
            outcome = await accepted(client.model, [1], Objective(latency_ms=50)).outcome
            assert isinstance(outcome, Answer)

    asyncio.run(scenario())


def test_renewed_table_is_applied_in_place_and_its_costs_end_in_time() -> None:
    async def scenario() -> None:
        now_ms = 0.0
        worker = FakeWorker()
        revision = worker.revision()
        table = service().spec.routing_table(revision.manifest.revision)
        async with running(worker, clock_ms=lambda: now_ms) as client:
            model = client.model
            model.switch(revision, table)
            lane = model.lane
            first = await held(worker, client)
            waiting = accepted(model, [1])
            slow = AffineCost(fixed_ms=100, per_seed_ms=0)
            measured = msgspec.structs.replace(
                table, mode=RoutingMode.STATIC, base_variant="x4", costs={"x4": slow, "x99": slow}, ttl_seconds=60
            )
            model.switch(revision, measured)
            assert model.lane is lane
            assert (model.route().base_variant, model.route().is_expired) == ("x4", False)
            assert model.route().variants[1].expected == slow
            later = accepted(model, [2])
            worker.gate.set()
            answers = [await request.outcome for request in (first, waiting, later)]
            assert [a.variant for a in answers if isinstance(a, Answer)] == ["x1", "x1", "x4"]
            now_ms = 60_000
            assert (model.route().base_variant, model.is_expired) == ("x4", True)
            assert model.route().variants[1].expected.fixed_ms < 50
            assert set(model.corrections()[0]) == {"x1", "x4", "x8"}
            with pytest.raises(TableError, match="x99"):
                model.switch(revision, msgspec.structs.replace(measured, base_variant="x99"))
            assert model.table == measured

    asyncio.run(scenario())


def test_client_that_leaves_is_forgotten_in_the_lane_that_admitted_it() -> None:
    async def scenario() -> None:
        old = old_worker()
        async with running(old) as client:
            first = await held(old, client)
            gone = accepted(client.model, [5])
            client.switch(new_worker().revision())
            client.model.cancel(gone.pending)
            assert client.engine.queued_seeds == 0
            old.gate.set()
            assert isinstance(await first.outcome, Answer)
        assert old.batches == [("x1", [0])]

    asyncio.run(scenario())


def test_a_lane_that_is_closed_takes_no_request_of_who_read_it_before() -> None:
    """Nobody would take it from there: who awaits something between reading and asking is told to send it again."""

    async def scenario() -> None:
        async with running(old_worker()) as client:
            model = client.model
            before = model.lane
            assert before is not None
            client.switch(new_worker().revision())
            async with asyncio.timeout(30):
                while model.has_more:
                    await asyncio.sleep(0)
            refused = model.submit(Question(before, np.array([1]), ()), 0.0, lambda _: None)
            assert isinstance(refused, Refusal)
            assert refused.reason is RefusalReason.LOADING
            assert not model.accepted

    asyncio.run(scenario())


@pytest.mark.parametrize("abandoned", [False, True])
def test_stopping_engine_leaves_nobody_waiting_in_any_lane(abandoned: bool) -> None:
    async def scenario() -> None:
        old, new = old_worker(), new_worker()
        async with running(old) as client:
            first = await held(old, client)
            second = accepted(client.model, [1])
            client.switch(new.revision())
            third = accepted(client.model, [2])
            if abandoned:
                client.engine.abandon()
            else:
                client.engine.drain()
            old.gate.set()
            outcomes = [await pending.outcome for pending in (first, second, third)]
            await asyncio.to_thread(client.engine.join)
            assert client.engine.state is ModelState.STOPPED
        kinds = [Answer, Refusal, Refusal] if abandoned else [Answer] * 3
        assert [type(outcome) for outcome in outcomes] == kinds

    asyncio.run(scenario())


def test_metrics_tell_of_the_revision_that_answers_and_keep_what_was_counted() -> None:
    def samples_of(response: httpx.Response) -> dict[tuple[str, ...], float]:
        return {
            (sample.name, *(v for k, v in sorted(sample.labels.items()) if k != "service")): sample.value
            for family in text_string_to_metric_families(response.text)
            for sample in family.samples
        }

    async def scenario() -> None:
        other = FakeWorker(name=NEW, profile=profile(variant("x1", 0.8, 10), variant("x16", 0.7, 1)))
        async with running(old_worker()) as client:
            await client.predict([1], objective={"accuracyTolerancePermille": 10})
            before = samples_of(await client.http.get("/metrics"))
            client.switch(other.revision())
            await client.predict([1], objective={"accuracyTolerancePermille": 100})
            after = samples_of(await client.http.get("/metrics"))
        assert before["gnnserve_variant_accuracy", "validation", "x4"] == 0.89
        assert ("gnnserve_variant_accuracy", "validation", "x4") not in after
        assert after["gnnserve_variant_accuracy", "validation", "x16"] == 0.7
        assert after["gnnserve_batches_total", "x4"] == after["gnnserve_batches_total", "x16"] == 1
        assert [key[-1] for key in after if key[0] == "gnnserve_revision_info"] == [NEW]
        assert (before["gnnserve_revision_switches_total",], after["gnnserve_revision_switches_total",]) == (1, 2)
        assert after["gnnserve_revision_load_seconds",] == 0.5

    asyncio.run(scenario())
