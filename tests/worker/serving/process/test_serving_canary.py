"""A second revision of a service: which requests it answers, and that nothing about it harms the first."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from msgspec import UNSET
from tests.support.changes.fake_updates import FakeUpdates
from tests.support.machine.waiting import WAIT_S
from tests.support.serving.serving import CLASSES, TRADE_OFF, Client, FakeWorker, held, running, service, with_compute
from tests.support.serving.several_services import started
from tests.support.serving.two_revisions import FIRST, SECOND, STAYS, DirectCalls

from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import AffineCost, Canary, RoutingMode, RoutingTable
from gnnserve_worker.following.canary import canary_table
from gnnserve_worker.following.routing import parse_routing
from gnnserve_worker.programs.failure import ProgramFailure
from gnnserve_worker.programs.stats import ProgramStats
from gnnserve_worker.serving.engine.engine import Engine
from gnnserve_worker.serving.engine.model import ServedModel
from gnnserve_worker.serving.engine.shared_time import longest_turn_of
from gnnserve_worker.serving.http.canary import CanaryShare, is_of_canary
from gnnserve_worker.serving.http.predict import Predict
from gnnserve_worker.serving.metrics.metrics import ServingMetrics
from gnnserve_worker.serving.process.canary import ServedCanary
from gnnserve_worker.serving.process.log_follower import LogFollower
from gnnserve_worker.serving.requests import Question
from gnnserve_worker.serving.security.access import Access


@dataclass(frozen=True, slots=True)
class Two:
    """A service whose requests two revisions share."""

    client: Client
    second: ServedModel
    share: CanaryShare

    async def ask(self, nodes: Any = (1,), **fields: Any) -> str:
        """The revision that answers."""
        response = await self.client.predict(nodes, **fields)
        assert response.status_code == 200, response.text
        return str(response.json()["revision"])

    async def count(self, requests: int, **fields: Any) -> Counter[str]:
        return Counter([await self.ask(**fields) for _ in range(requests)])


@asynccontextmanager
async def sharing(percent: int, second: FakeWorker, first: FakeWorker | None = None) -> AsyncIterator[Two]:
    """Each follows its own log, if it has one."""
    async with running(first or FakeWorker(FIRST)) as client:
        metrics, revision = ServingMetrics("digits"), second.revision()
        model = client.engine.add("second", metrics, 1.0)
        metrics.show_revision(revision.manifest, 0.5)
        model.switch(revision, service().spec.routing_table(SECOND))
        share = CanaryShare(client.app.predict, Predict("digits", model, metrics.counters, second.updates), percent)
        client.app.predict.canary = share
        yield Two(client, model, share)


def slow_second() -> FakeWorker:
    return FakeWorker(SECOND, shift=1)


@pytest.mark.parametrize("percent", [0, 5, 50, 100])
def test_shares_hold_after_few_requests(percent: int) -> None:
    async def scenario() -> Counter[str]:
        async with sharing(percent, slow_second()) as two:
            return await two.count(100)

    found = asyncio.run(scenario())
    assert abs(found[SECOND] - percent) <= 1
    assert found[FIRST] + found[SECOND] == 100


def test_a_seed_always_goes_to_the_same_revision_and_a_named_variant_to_the_first() -> None:
    async def scenario() -> tuple[list[Counter[str]], Counter[str]]:
        async with sharing(50, slow_second()) as two:
            seeded = [await two.count(4, seed=seed) for seed in range(40)]
            return seeded, await two.count(8, variant="x4")

    seeded, named = asyncio.run(scenario())
    assert all(len(found) == 1 for found in seeded)
    of_second = [seed for seed, found in enumerate(seeded) if SECOND in found]
    assert of_second == [seed for seed in range(40) if is_of_canary(seed, 50)]
    assert 12 <= len(of_second) <= 28
    assert named == {FIRST: 8}


@pytest.mark.parametrize("is_in_head", [False, True])
def test_a_seed_of_the_second_is_answered_by_it_although_the_first_has_no_room(is_in_head: bool) -> None:
    async def ask(two: Two, seed: int) -> str:
        head, body = ({"gnnserve-seed": str(seed)}, {}) if is_in_head else ({}, {"seed": seed})
        response = await two.client.http.post("/v1/predict", json={"nodes": [1], **body}, headers=head)
        return str(response.json()["revision"]) if response.status_code == 200 else str(response.status_code)

    async def scenario() -> tuple[list[str], int, bytes]:
        async with sharing(50, slow_second()) as two:
            lane = two.client.model.lane
            assert lane is not None
            lane.batcher.admission._max_queued_seeds = 0
            found = [await ask(two, seed) for seed in range(40)]
            return found, two.share.passed_on, two.client.metrics.render()

    found, passed_on, metrics = asyncio.run(scenario())
    assert found == [SECOND if is_of_canary(seed, 50) else "429" for seed in range(40)]
    assert passed_on == 0
    assert f'outcome="refused",service="digits"}} {found.count("429")}.0' in metrics.decode()


def test_seeds_of_a_small_share_stay_in_a_larger_one() -> None:
    seeds = [*range(2000), 2**63 - 1]
    small, large = ({seed for seed in seeds if is_of_canary(seed, percent)} for percent in (5, 50))
    assert small < large
    assert 60 <= len(small) <= 140
    assert not any(is_of_canary(seed, 0) for seed in seeds)
    assert all(is_of_canary(seed, 100) for seed in seeds)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"nodes": [7]}, id="a node that only the first has"),
        pytest.param({"nodes": [1], "return": ["embeddings"]}, id="an output that only the first has"),
        pytest.param({"nodes": [1], "variant": "x8"}, id="a variant that only the first has"),
        pytest.param({"nodes": list(range(5)) * 40}, id="a full queue"),
    ],
)
def test_what_the_second_cannot_answer_the_first_does(fields: dict[str, Any]) -> None:
    only_x1 = msgspec.structs.replace(TRADE_OFF, variants=TRADE_OFF.variants[:1])
    second = FakeWorker(SECOND, nodes=5, layers=1, profile=only_x1)

    async def scenario() -> tuple[str, int]:
        async with sharing(100, second) as two:
            lane = two.second.lane
            assert lane is not None
            lane.batcher.admission._max_queued_seeds = 100
            return await two.ask(**fields), two.share.passed_on

    revision, passed_on = asyncio.run(scenario())
    assert (revision, passed_on) == (FIRST, int("variant" not in fields))


def test_errors_of_clients_are_those_of_the_first() -> None:
    async def scenario() -> list[httpx.Response]:
        async with sharing(100, FakeWorker(SECOND, nodes=5)) as two:
            return [await two.client.predict([node]) for node in (1000, 1001)]

    for response in asyncio.run(scenario()):
        assert response.status_code == 400
        assert "node ids are 0 to 999" in response.json()["error"]["message"]


def test_batches_that_fail_are_computed_by_the_first() -> None:
    def fail(_variant: str, _seeds: np.ndarray) -> None:
        raise OSError("the file is not what it was")

    async def scenario() -> tuple[Counter[str], int, bytes]:
        async with sharing(100, FakeWorker(SECOND, fail=fail)) as two:
            return await two.count(3), two.share.passed_on, two.client.metrics.render()

    found, passed_on, metrics = asyncio.run(scenario())
    assert (found, passed_on) == ({FIRST: 3}, 3)
    assert b"InternalError" not in metrics


def test_requests_of_a_second_that_is_withdrawn_are_answered_by_the_first() -> None:
    first, second = FakeWorker(FIRST), slow_second()

    async def scenario() -> tuple[list[str], Counter[str]]:
        async with sharing(100, second, first) as two:
            before = await held(second, two_client(two))
            asking = [asyncio.ensure_future(two.ask([node])) for node in range(3)]
            await until_accepted(two.second, 4)
            two.second.withdraw("its files changed")
            second.gate.set()
            answered = list(await asyncio.gather(*asking))
            await before.outcome
            return answered, await two.count(2)

    answered, after = asyncio.run(scenario())
    assert answered == [FIRST] * 3
    assert after == {FIRST: 2}


def behind(offset: int, *applied: int) -> tuple[FakeWorker, ...]:
    """Both revisions of a log that ends at that offset, by what each has applied."""
    return tuple(
        FakeWorker(name, shift=shift, updates=FakeUpdates(applied=one, first=offset + 1))
        for shift, (name, one) in enumerate(zip((FIRST, SECOND), applied, strict=True))
    )


@pytest.mark.parametrize(
    ("first_has", "second_has", "percent", "expected"),
    [
        pytest.param(3, 3, 100, SECOND, id="both have it"),
        pytest.param(2, 3, 100, SECOND, id="the second alone has it"),
        pytest.param(3, 2, 0, FIRST, id="the first alone has it"),
        pytest.param(3, 2, 100, FIRST, id="it is the seconds, which does not get it in half of the time"),
    ],
)  # fmt: skip
def test_an_offset_holds_for_the_revision_that_answers(
    first_has: int, second_has: int, percent: int, expected: str
) -> None:
    first, second = behind(3, first_has, second_has)

    async def scenario() -> tuple[str, int, int]:
        async with sharing(percent, second, first) as two:
            response = await two.client.predict([1], minOffset=3, objective={"latencyMs": 400})
            assert response.status_code == 200, response.text
            return response.json()["revision"], response.json()["offset"], two.share.passed_on

    revision, offset, passed_on = asyncio.run(scenario())
    assert (revision, offset) == (expected, 3)
    assert passed_on == int(expected == FIRST and percent == 100)


def test_a_request_waits_for_the_second_which_then_answers_it() -> None:
    first, second = behind(3, 3, 2)
    assert second.updates is not None

    async def scenario() -> tuple[list[str], int]:
        async with sharing(100, second, first) as two:
            asking = [asyncio.ensure_future(two.ask([1], minOffset=3, seed=seed)) for seed in range(3)]
            await asyncio.sleep(0.05)
            assert not any(one.done() for one in asking)
            second.updates.applied = 3
            second.updates.changed.set()
            return list(await asyncio.gather(*asking)), two.share.passed_on

    assert asyncio.run(scenario()) == ([SECOND] * 3, 0)


def test_where_neither_has_an_offset_the_client_learns_it_from_the_first() -> None:
    first, second = behind(3, 1, 2)

    async def scenario() -> httpx.Response:
        async with sharing(100, second, first) as two:
            return await two.client.predict([1], minOffset=3, objective={"latencyMs": 100})

    response = asyncio.run(scenario())
    assert (response.status_code, response.json()["error"]["code"]) == (503, "OffsetNotReached")
    assert "has applied offset 1 of 3" in response.json()["error"]["message"]


def test_a_second_that_cannot_follow_the_log_gets_no_requests_until_it_can() -> None:
    first, second = behind(3, 3, 3)
    assert first.updates is not None and second.updates is not None
    log = LogFollower(second.updates)  # type: ignore[arg-type]

    async def scenario() -> list[tuple[str, bool, str]]:
        said = []
        async with running(first) as client:
            canary = ServedCanary(
                "digits", SECOND, client.engine, client.app.predict, DirectCalls(), 1.0, log, lambda _: None
            )  # fmt: skip
            canary.open(100)
            canary.switch(second.revision(), service().spec.routing_table(SECOND), 0.5)
            for stuck in (None, "changes take all of their memory", None):
                second.updates.why_stuck = stuck
                second.updates.on_followed()
                route = canary.route()
                revision = (await client.predict([1])).json()["revision"]
                said.append((revision, route.answers, str(route.problem)))
                assert route.updates is not UNSET and route.updates.applied == 3
            await canary.stop_following()
        return said

    assert asyncio.run(scenario()) == [
        (SECOND, True, "None"),
        (
            FIRST, False,
            f"revision {SECOND} cannot follow the log of changes, so that it gets no requests: changes take all of "
            "their memory",
        ),
        (SECOND, True, "None"),
    ]  # fmt: skip
    assert second.updates.is_started and second.updates.is_closed and not first.updates.is_closed


def test_recommendations_are_the_firsts_and_not_read_by_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> tuple[httpx.Response, int]:
        async with sharing(100, FakeWorker(SECOND)) as two:
            monkeypatch.setattr(two.share._canary, "read", None)  # to read by it fails
            response = await two.client.http.post("/v1/recommend", json={"node": 1, "count": 3, "seed": 4})
            return response, two.share.passed_on

    response, passed_on = asyncio.run(scenario())
    assert response.status_code != 500, response.text
    assert "index" in response.text, "these revisions have none"
    assert passed_on == 0


def two_client(two: Two) -> Client:
    """The client, whose model is the second revision's."""
    return Client(two.client.http, two.client.engine, two.second, two.client.metrics, two.client.app)


async def until_accepted(model: ServedModel, requests: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while len(model.accepted) < requests:
            await asyncio.sleep(0)


def test_a_client_that_leaves_takes_along_what_was_asked_of_the_first_in_its_place() -> None:
    first, second = FakeWorker(FIRST), slow_second()

    async def scenario() -> int:
        async with sharing(100, second, first) as two:
            before = await held(first, two.client)
            model = two.client.model
            replies: list[Any] = []
            head = two.client.app.predict  # the callback is never reached
            assert two.second.lane is not None and model.lane is not None
            pending = two.second.submit(Question(two.second.lane, np.array([3]), ()), 0.0, replies.append)
            again = model.submit(Question(model.lane, np.array([3]), ()), 0.0, replies.append)
            pending.successor = again  # type: ignore[union-attr, assignment]
            head.cancel(pending)  # type: ignore[arg-type]
            left = len(model.accepted) + len(two.second.accepted)
            first.gate.set()
            await before.outcome
            assert replies == []
            return left

    assert asyncio.run(scenario()) == 1  # the one that is held


# In a server


def test_a_second_revision_comes_changes_its_share_and_goes_while_requests_are_answered() -> None:
    first, second = FakeWorker(FIRST), slow_second()
    table = service().spec.routing_table(SECOND)
    with started(names=("digits",)) as running_, httpx.Client(base_url=running_.urls["digits"], timeout=WAIT_S) as http:
        running_.switch("digits", first)
        served = running_.server.services["digits"]

        def count(requests: int) -> Counter[str]:
            return Counter(http.post("/v1/predict", json={"nodes": [1]}).json()["revision"] for _ in range(requests))

        assert "canary" not in http.get("/v1/route").json()
        canary = served.open_canary(SECOND, 30)
        assert count(5) == {FIRST: 5}
        canary.report("revision bbbbbbbbbbbb is being loaded")
        assert http.get("/v1/route").json()["canary"] == {
            "revision": SECOND, "percent": 30, "answers": False, "problem": "revision bbbbbbbbbbbb is being loaded",
        }  # fmt: skip
        revision = second.revision()
        canary.switch(revision, table, 0.5)
        assert 29 <= count(100)[SECOND] <= 31
        assert http.get("/v1/route").json()["canary"] == {
            "revision": SECOND, "percent": 30, "answers": True, "problem": None
        }  # fmt: skip
        text = http.get("/metrics").text
        assert f'gnnserve_canary_percent{{revision="{SECOND}",service="digits"}} 30.0' in text
        canary.set_percent(100)
        assert count(5) == {SECOND: 5}

        infer = {"inputs": [{"name": "nodes", "datatype": "INT64", "shape": [1], "data": [1]}]}
        answer = http.post("/v2/models/digits/infer", json=infer).json()
        assert answer["parameters"]["revision"] == SECOND
        pinned = http.post("/v2/models/digits/versions/x4/infer", json=infer).json()
        assert (pinned["parameters"]["revision"], pinned["model_version"]) == (FIRST, "x4")

        running_.switch("digits", FakeWorker("cccccccccccc", classes=(1, 2, 3, 4)))
        assert count(5) == {"cccccccccccc": 5}
        problem = http.get("/v1/route").json()["canary"]["problem"]
        assert problem.startswith("revision bbbbbbbbbbbb has another classes than cccccccccccc")
        running_.switch("digits", first)
        assert count(5) == {SECOND: 5}

        canary.withdraw(revision, "its files changed")
        assert count(5) == {FIRST: 5}
        canary.switch(second.revision(), table, 0.5)
        assert count(5) == {SECOND: 5}
        canary.close()
        assert count(5) == {FIRST: 5}
        assert "canary" not in http.get("/v1/route").json()
        assert "gnnserve_canary" not in http.get("/metrics").text


# What it takes of the worker's time


def test_revisions_of_one_service_do_not_shorten_each_others_turns() -> None:
    engine = Engine({"digits": ServingMetrics("digits"), "other": ServingMetrics("other")})
    second = engine.add("digits/second", ServingMetrics("digits"), 1.0, "digits")
    table = service({"latencyMs": 50}).spec.routing_table(FIRST)
    for model in engine.models.values():
        model.switch(FakeWorker(FIRST).revision(), table)
    assert [longest_turn_of(engine._time.models, model) for model in engine.models.values()] == [2.5] * 3
    engine.remove("other")
    assert [longest_turn_of(engine._time.models, model) for model in (engine.models["digits"], second)] == [
        math.inf
    ] * 2


def test_what_a_second_has_queued_when_it_is_given_up_is_answered_by_the_first() -> None:
    second, calls = slow_second(), DirectCalls()

    async def scenario() -> list[str]:
        async with running(FakeWorker(FIRST)) as client:
            first = client.app.predict
            canary = ServedCanary("digits", SECOND, client.engine, first, calls, 1.0, STAYS, lambda _: None)
            canary.open(100)
            canary.switch(second.revision(), service().spec.routing_table(SECOND), 0.5)
            assert isinstance(first.canary, CanaryShare)
            two = Two(client, client.engine.models[f"digits/{SECOND}"], first.canary)
            before = await held(second, two_client(two))
            asking = [asyncio.ensure_future(two.ask([node])) for node in range(3)]
            await until_accepted(two.second, 4)
            canary.close()
            async with asyncio.timeout(WAIT_S):
                while len(two.second.accepted) > 1:  # but for the one that is held
                    await asyncio.sleep(0)
            second.gate.set()
            answered = list(await asyncio.gather(*asking))
            await before.outcome
            await asyncio.gather(*calls.begun)
            assert [*client.engine.models] == ["digits"]
            return answered

    assert asyncio.run(scenario()) == [FIRST] * 3


def test_labels_tell_the_accuracy_of_both_revisions_apart() -> None:
    token = "writing-0123456789ab"  # noqa: S105
    labels = {"nodes": [*range(100)], "labels": [CLASSES[node % len(CLASSES)] for node in range(100)]}

    async def scenario() -> tuple[dict[str, Any], str]:
        async with running(FakeWorker(FIRST), write_access=Access((token,))) as client:

            def show(shown: ServedCanary | None) -> None:
                client.app.canary = shown
                client.metrics.watch_canary(lambda: None if shown is None else shown.sample())

            canary = ServedCanary("digits", SECOND, client.engine, client.app.predict, DirectCalls(), 1.0, STAYS, show)
            canary.open(0)
            assert canary.watch is None
            canary.switch(slow_second().revision(), service().spec.routing_table(SECOND), 0.5)
            sent = await client.http.post("/v1/labels", json=labels, headers={"authorization": f"Bearer {token}"})
            assert sent.json()["accepted"] == 100
            assert canary.watch is not None
            async with asyncio.timeout(WAIT_S):
                while client.model.watch.waiting or canary.watch.waiting:
                    await asyncio.sleep(0)
            return (await client.http.get("/v1/route")).json(), client.metrics.render().decode()

    route, metrics = asyncio.run(scenario())
    means = [{of["name"]: of["labels"]["mean"] for of in told["accuracy"]} for told in (route, route["canary"])]
    assert means == [{"x1": 1, "x4": 1, "x8": 1}, {"x1": 0, "x4": 0, "x8": 0}]
    about = f'revision="{SECOND}",service="digits",variant="x4"'
    assert f'gnnserve_canary_live_accuracy{{bound="mean",{about}}} 0.0' in metrics
    assert f"gnnserve_canary_live_accuracy_nodes{{{about}}} 100.0" in metrics


def test_the_program_of_the_second_revision_is_told_beside_it() -> None:
    stats = ProgramStats(
        answered=5, failed=3, run_s=2.5, restarts={ProgramFailure.CRASH: 3}, problem="it ended its process"
    )

    async def scenario() -> tuple[dict[str, Any], str]:
        async with running(FakeWorker(FIRST)) as client:

            def show(shown: ServedCanary | None) -> None:
                client.app.canary = shown
                client.metrics.watch_canary(lambda: None if shown is None else shown.sample())

            canary = ServedCanary("digits", SECOND, client.engine, client.app.predict, DirectCalls(), 1.0, STAYS, show)
            canary.open(0)
            assert "gnnserve_canary_program" not in client.metrics.render().decode()
            revision = with_compute(slow_second().revision(), programs=lambda: stats)
            canary.switch(revision, service().spec.routing_table(SECOND), 0.5)
            return (await client.http.get("/v1/route")).json(), client.metrics.render().decode()

    route, metrics = asyncio.run(scenario())
    assert "program" not in route
    assert route["canary"]["program"] == {"problem": "it ended its process", "restarts": 3}
    about = f'revision="{SECOND}",service="digits"'
    assert f"gnnserve_canary_program_healthy{{{about}}} 0.0" in metrics
    assert f'gnnserve_canary_program_restarts_total{{reason="Crash",{about}}} 3.0' in metrics
    assert "gnnserve_program" not in metrics


def test_the_first_has_all_of_the_services_weight_while_the_second_gets_no_requests() -> None:
    metrics, table = ServingMetrics("digits"), service().spec.routing_table(FIRST)
    engine = Engine({"digits": metrics}, weights={"digits": 2.0})
    model = engine.models["digits"]
    model.switch(FakeWorker(FIRST).revision(), table)
    first, revision = Predict("digits", model, metrics.counters), slow_second().revision()
    canary = ServedCanary("digits", SECOND, engine, first, DirectCalls(), 2.0, STAYS, lambda _: None)

    def weights() -> list[float]:
        return [*engine._time._turns._weights.values()]

    canary.open(25)
    assert weights() == [2.0, 0.5]
    canary.switch(revision, table, 0.5)
    assert weights() == [1.5, 0.5]
    canary.set_percent(0)
    assert weights() == pytest.approx([1.98, 0.02])
    model.switch(FakeWorker(FIRST, classes=(1, 2, 3, 4)).revision(), table)
    canary.settle()
    assert weights() == pytest.approx([2.0, 0.02])
    model.switch(FakeWorker(FIRST).revision(), table)
    canary.settle()
    assert weights() == pytest.approx([1.98, 0.02])
    canary.withdraw(revision, "its files changed")
    assert weights() == pytest.approx([2.0, 0.02])


# What it follows


def test_the_second_follows_the_table_but_for_what_is_about_the_first() -> None:
    costs = {"x1": AffineCost(1, 1)}
    table = RoutingTable(
        "first", "r", Objective(latency_ms=5), mode=RoutingMode.METRICS, base_variant="x1", costs=costs, reason="load",
        issued_at="2026", ttl_seconds=30, shadow_permille=5, repair=2, canary=Canary("second", 10),
        makes_index=True,
    )  # fmt: skip
    assert canary_table(table, Canary("second", 10)) == RoutingTable("second", "r", Objective(latency_ms=5))
    weights = RoutingTable("first", "r", mode=RoutingMode.WEIGHTS, weights={"x1": 1}, canary=Canary("second", 10))
    assert canary_table(weights, Canary("second", 10)).weights == {"x1": 1}
    static = RoutingTable("first", "r", mode=RoutingMode.STATIC, base_variant="x4")
    assert canary_table(static, Canary("second", 10)).base_variant == "x4"


@pytest.mark.parametrize(
    ("canary", "problem"),
    [
        ('{"revision": "b", "percent": 101}', "canary.percent: expected 0 to 100, found 101"),
        ('{"revision": "a", "percent": 5}', "canary.revision: expected another one than a, found 'a'"),
        ('{"revision": "", "percent": 5}', "canary.revision: expected another one than a, found ''"),
    ],
)
def test_tables_with_a_wrong_canary_are_refused(canary: str, problem: str) -> None:
    with pytest.raises(ValueError, match="canary") as raised:
        parse_routing(f'{{"revision": "a", "recipe": "r", "canary": {canary}}}')
    assert str(raised.value) == problem
