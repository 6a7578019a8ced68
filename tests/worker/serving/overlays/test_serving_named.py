"""Requests that name the variant which is to answer: by which they are computed, with whom, and when refused."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from tests.support.changes.changes_reader import revision
from tests.support.changes.fake_updates import FakeUpdates
from tests.support.serving.http_errors import error_of, overload, samples_of, slow_worker
from tests.support.serving.serving import TRADE_OFF, Client, FakeWorker, running, service, without_overlays

from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_api.pods.routing import RoutingMode, RoutingTable
from gnnserve_worker.scheduling.batcher import Batch, Batcher
from gnnserve_worker.scheduling.queue import Request
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.scheduling.variants import VariantChooser

BINARY = {"content-type": "application/octet-stream"}
X1, X4, X8 = range(3)
TABLES = {
    "adaptive": RoutingTable(revision="r", recipe="r"),
    "static": RoutingTable(revision="r", recipe="r", mode=RoutingMode.STATIC, base_variant="x1"),
    "metrics": RoutingTable(revision="r", recipe="r", mode=RoutingMode.METRICS, base_variant="x4"),
    "weights": RoutingTable(revision="r", recipe="r", mode=RoutingMode.WEIGHTS, weights={"x1": 1, "x8": 1}),
}


class Queue:
    """A batcher whose requests may name a variant. TRADE_OFF: one seed costs x1 10.1, x4 4.04, x8 2.02 ms."""

    def __init__(self, table: RoutingTable = TABLES["adaptive"], max_queued_seeds: int = 500) -> None:
        self.batcher = Batcher(VariantChooser(TRADE_OFF, max_seeds=100), table, max_queued_seeds)
        self._keys = itertools.count()

    def ask(
        self, named: int | None, objective: Objective = NO_OBJECTIVE, *, seeds: int = 1, at: float = 0,
        strict: bool = False,
    ) -> Refusal | None:  # fmt: skip
        return self.batcher.admit(Request(next(self._keys), seeds, objective, at, named=named), strict, at)

    def take(self, at: float = 0) -> tuple[str, list[int]]:
        batch = self.batcher.take(at).batch
        assert batch is not None
        self.batcher.finish()
        return batch.variant, [piece.request.key for piece in batch.pieces]


def refused(outcome: Refusal | None) -> Refusal:
    assert isinstance(outcome, Refusal)
    return outcome


# When a batch is closed


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("named", [X1, X4, X8])
@pytest.mark.parametrize(
    "objective",
    [
        pytest.param(NO_OBJECTIVE, id="without objective"),
        pytest.param(Objective(1000, None), id="with a latency"),
        pytest.param(Objective(None, 0), id="with a tolerance that excludes others"),
        pytest.param(Objective(1, 0), id="out of reach"),
    ],
)
def test_the_named_variant_answers_in_every_mode(table: RoutingTable, named: int, objective: Objective) -> None:
    queue = Queue(table)
    assert queue.ask(named, objective) is None
    assert queue.take() == (f"x{(1, 4, 8)[named]}", [0])


def test_batches_hold_no_requests_of_two_variants() -> None:
    queue = Queue()
    for named in (X8, X4, X8, X1, X4):
        assert queue.ask(named) is None
    assert sorted(queue.take() for _ in range(3)) == [("x1", [3]), ("x4", [1, 4]), ("x8", [0, 2])]


def test_requests_that_leave_the_choice_may_join_the_batch_of_a_named_variant() -> None:
    queue = Queue()
    assert queue.ask(X1) is None
    assert queue.ask(None) is None
    assert queue.take() == ("x1", [0, 1])


def test_a_large_request_is_computed_in_pieces_by_the_variant_that_it_names() -> None:
    queue = Queue()
    assert queue.ask(X8, seeds=250) is None
    assert [queue.take() for _ in range(3)] == [("x8", [0])] * 3


def test_named_variants_do_not_change_what_others_get() -> None:
    """With 30 ms an idle worker answers by x1, also after many fast answers of x8 that were asked for by name."""
    queue = Queue()
    for step in range(200):
        assert queue.ask(X8, Objective(50, None), at=20.0 * step) is None
        assert queue.take(20.0 * step)[0] == "x8"
    assert queue.ask(None, Objective(30, None), at=4000) is None
    assert queue.take(4000)[0] == "x1"


def test_what_batches_of_a_named_variant_took_is_learnt() -> None:
    queue = Queue()
    assert queue.ask(X4) is None
    batch = queue.batcher.take(0).batch
    assert isinstance(batch, Batch)
    queue.batcher.finish()
    for at in range(10, 2000, 10):
        queue.batcher.observe(batch, 40.0, 41.0, at)
    costs = queue.batcher._chooser.costs
    assert costs.compute_ms(X4, 1) > 20


# What cannot be met


def test_a_strict_request_is_refused_where_its_variant_is_too_slow() -> None:
    refusal = refused(Queue().ask(X1, Objective(5, None), strict=True))
    assert (refusal.reason, refusal.retry_after_s) == (RefusalReason.OBJECTIVE_INFEASIBLE, None)
    assert refusal.message == (
        "only x1 may answer the request, which needs 10.1 ms for 1 node, more than 5 ms; "
        "allow more time, send fewer nodes, name no variant, or leave out strict"
    )


def test_a_strict_request_is_refused_where_its_variant_loses_more_than_is_tolerated() -> None:
    refusal = refused(Queue().ask(X8, Objective(None, 10), strict=True))
    assert refusal.message == (
        "only x8 may answer the request, which loses 30 permille, more than the 10 that are tolerated; "
        "allow a larger tolerance, name no variant, or leave out strict"
    )
    assert Queue().ask(X4, Objective(None, 10), strict=True) is None


def test_a_deadline_is_out_of_reach_by_the_costs_of_the_named_variant() -> None:
    queue = Queue()
    assert queue.ask(X1, seeds=90) is None
    assert queue.batcher.take(0).batch is not None  # computed for 19 ms
    refusal = refused(queue.ask(X1, Objective(25, None)))
    assert refusal.reason is RefusalReason.DEADLINE_OUT_OF_REACH
    assert queue.ask(X8, Objective(25, None)) is None


def test_refusals_of_named_requests_are_not_remembered_for_others() -> None:
    queue = Queue(TABLES["static"])
    objective = Objective(20, None)
    while queue.ask(X1, objective) is None:
        pass
    assert queue.batcher.would_refuse(objective, 1, 0) is None


# Over HTTP


def on_worker(scenario: Callable[[Client], Awaitable[None]], worker: FakeWorker | None = None, **of: Any) -> None:
    async def run() -> None:
        async with running(worker or FakeWorker(), service(**of)) as client:
            await scenario(client)

    asyncio.run(run())


async def in_json(client: Client, variant: str, **fields: Any) -> httpx.Response:
    return await client.predict([3], variant=variant, **fields)


async def in_json_head(client: Client, variant: str, **fields: Any) -> httpx.Response:
    content = json.dumps({"nodes": [3], **fields})
    return await client.http.post("/v1/predict", content=content, headers={"gnnserve-variant": variant})


async def as_arrays(client: Client, variant: str, **fields: Any) -> httpx.Response:
    query = f"?return={fields['return'][0]}" if "return" in fields else ""
    content, headers = np.array([3], "<i8").tobytes(), {**BINARY, "gnnserve-variant": variant}
    return await client.http.post(f"/v1/predict{query}", content=content, headers=headers)


FORMS = pytest.mark.parametrize("ask", [in_json, in_json_head, as_arrays])


def answered_by(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    told: str = response.headers.get("gnnserve-variant") or response.json()["variant"]
    return told


@FORMS
def test_every_form_can_name_the_variant(ask: Callable[..., Awaitable[httpx.Response]]) -> None:
    async def scenario(client: Client) -> None:
        for name in ("x8", "x1", "x4", "x8"):
            response = await ask(client, name)
            assert answered_by(response) == name
            assert response.headers["server-timing"].startswith("queue;dur=")
        samples = samples_of(await client.http.get("/metrics"))
        assert samples["gnnserve_batches_total", "x8"] == 2

    on_worker(scenario, objective={"latencyMs": 1000.0, "accuracyTolerancePermille": 0.0})


@FORMS
def test_an_unknown_name_is_refused_with_those_that_there_are(ask: Callable[..., Awaitable[httpx.Response]]) -> None:
    async def scenario(client: Client) -> None:
        for name in ("x3", "X1", ""):
            response = await ask(client, name)
            assert response.status_code == 400
            error = error_of(response)
            assert error["code"] == "UnknownVariant"
            assert error["field"] == ("variant" if ask is in_json else "gnnserve-variant")
            assert error["message"] == (
                f'{error["field"]}: revision f0eae20c16c00ac0-1 has no variant "{name}"; '
                "choose from x1, x4, x8, or leave it out"
            )
        samples = samples_of(await client.http.get("/metrics"))
        assert samples["gnnserve_errors_total", "UnknownVariant"] == 3

    on_worker(scenario)


@FORMS
def test_a_variant_without_embeddings_is_refused_with_those_that_have_some(
    ask: Callable[..., Awaitable[httpx.Response]],
) -> None:
    variants = tuple(
        msgspec.structs.replace(variant, family="one-row") if variant.name == "x4" else variant
        for variant in TRADE_OFF.variants
    )

    async def scenario(client: Client) -> None:
        wanted = {"return": ["embeddings"]}
        error = error_of(await ask(client, "x4", **wanted))
        assert (error["code"], error["field"]) == ("VariantUnable", "variant" if ask is in_json else "gnnserve-variant")
        assert error["message"].endswith(
            "variant x4 cannot answer requests with embeddings; choose from x1, x8, or leave it out"
        )
        assert answered_by(await ask(client, "x8", **wanted)) == "x8"
        assert answered_by(await ask(client, "x4")) == "x4"

    on_worker(scenario, FakeWorker(profile=msgspec.structs.replace(TRADE_OFF, variants=variants)))


def test_a_variant_that_follows_no_changes_is_refused_whatever_is_asked() -> None:
    async def scenario(client: Client) -> None:
        for fields in ({}, {"return": ["embeddings"]}):
            error = error_of(await in_json(client, "x4", **fields))
            assert error["code"] == "VariantUnable"
            assert error["message"] == (
                "variant: variant x4 does not follow changes of the graph, and answers nothing; choose from x1, x8, or "
                "leave it out"
            )
        unknown = error_of(await in_json(client, "x3"))
        assert unknown["message"].endswith('has no variant "x3"; choose from x1, x8, or leave it out')

    on_worker(scenario, FakeWorker(profile=without_overlays(TRADE_OFF, "x4"), updates=FakeUpdates()))


def test_a_variant_that_knows_no_overlays_is_refused_with_those_that_do() -> None:
    async def scenario(client: Client) -> None:
        error = error_of(await in_json(client, "x4", overlay={"edges": [[1, 2]]}))
        assert (error["code"], error["field"]) == ("VariantUnable", "variant")
        assert error["message"] == (
            "variant: variant x4 cannot answer requests with an overlay; choose from x1, x8, or leave it out"
        )
        assert answered_by(await in_json(client, "x4", overlay={})) == "x4"

    worker = FakeWorker(profile=without_overlays(TRADE_OFF, "x4"), overlays=revision().compute.overlays.support)
    on_worker(scenario, worker)


def test_the_body_goes_before_the_head() -> None:
    async def scenario(client: Client) -> None:
        content = json.dumps({"nodes": [3], "variant": "x4"})
        response = await client.http.post("/v1/predict", content=content, headers={"gnnserve-variant": "x8"})
        assert answered_by(response) == "x4"
        wrong = await client.predict([3], variant=4)
        assert error_of(wrong)["message"] == (
            "variant: expected text, got 4; give the name of a variant, one of GET /v1/variants, or leave it out"
        )

    on_worker(scenario)


def test_requests_that_name_a_variant_are_read_although_others_are_refused_unread() -> None:
    worker = slow_worker()

    async def scenario(client: Client) -> None:
        await overload(client, worker)
        assert (await client.predict([1] * 40)).status_code == 429
        for ask in (in_json, in_json_head, as_arrays):
            assert error_of(await ask(client, "x9"))["code"] == "UnknownVariant"
        worker.gate.set()

    on_worker(scenario, worker, objective={"latencyMs": 30_000})
