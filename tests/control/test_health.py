"""Health: what makes the operator unwell, and that a quiet cluster or an API server that is away does not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.support.machine.clock import FakeClock, settle
from tests.support.operator.operator import KEY, child, gnnservice, live

from gnnserve_operator.desired.children import WATCHED_CHILDREN
from gnnserve_operator.errors import RetryLaterError
from gnnserve_operator.handlers.index import Index, IndexedObject, service_of
from gnnserve_operator.health import (
    CHECK_EVERY_S,
    WATCH_LIMIT_S,
    Readiness,
    ReadinessAnswer,
    WatchCheck,
    WatchLag,
    build_app,
    find_problems,
)
from gnnserve_operator.kinds import GNNSERVICE, Manifest, ObjectRef, ResourceKind, ServiceKey, kind_of
from gnnserve_operator.loop import Loop
from gnnserve_operator.metrics import Metrics
from gnnserve_operator.namespaces import Namespaces
from gnnserve_operator.slow_loop import RoutingMemory

PODS = kind_of("v1", "Pod")


class TestWatchLag:
    def test_an_index_that_holds_what_is_listed_is_up_to_date(self) -> None:
        lag = WatchLag()
        lag.update(PODS, {"u1": "5"}, {"u1": "5"}, now=0)
        assert lag.longest_s(100)[0] == 0

    @pytest.mark.parametrize(
        ("listed", "indexed"),
        [
            pytest.param({"u1": "6"}, {"u1": "5"}, id="a change that was not told"),
            pytest.param({"u1": "5"}, {}, id="a new object that was not told"),
            pytest.param({}, {"u1": "5"}, id="a deletion that was not told"),
        ],
    )
    def test_an_index_that_stays_behind_is_behind_since_it_was_first_seen(
        self, listed: dict[str, str], indexed: dict[str, str]
    ) -> None:
        lag = WatchLag()
        lag.update(PODS, listed, indexed, now=10)
        lag.update(PODS, listed, indexed, now=40)
        assert lag.longest_s(75) == (65, "pods")

    def test_an_index_that_moves_on_is_alive_however_far_behind(self) -> None:
        lag = WatchLag()
        for now in range(0, 300, 30):
            lag.update(PODS, {"u1": str(now + 100)}, {"u1": str(now)}, now)
        assert lag.longest_s(280)[0] == 10

    def test_an_index_that_fills_by_its_first_list_is_alive_and_one_that_has_stopped_to_is_not(self) -> None:
        lag, listed = WatchLag(), {f"u{number}": "1" for number in range(100)}
        for now in range(0, 300, 30):
            lag.update(PODS, listed, dict(list(listed.items())[: now // 30]), now, is_filling=True)
        assert lag.longest_s(280)[0] == 10
        lag.update(PODS, listed, dict(list(listed.items())[:9]), 300, is_filling=True)
        assert lag.longest_s(300)[0] == 30

    def test_an_object_that_was_not_told_of_is_found_however_many_others_were(self) -> None:
        lag = WatchLag()
        for now in range(0, 90, 30):
            told = {f"u{number}": "1" for number in range(now)}
            lag.update(PODS, told | {"lost": "1"}, told, now)
        assert lag.longest_s(90)[0] == 90

    def test_what_caught_up_is_forgotten_and_kinds_do_not_mix(self) -> None:
        lag = WatchLag()
        lag.update(PODS, {"u1": "6"}, {"u1": "5"}, now=0)
        lag.update(GNNSERVICE, {"u2": "6"}, {"u2": "5"}, now=50)
        lag.update(PODS, {"u1": "6"}, {"u1": "6"}, now=60)
        assert lag.longest_s(70) == (20, "gnnservices")


class ListingCluster:
    """What the API server would list, and say about one object."""

    def __init__(self, *objects: Manifest) -> None:
        self.objects = list(objects)
        self.is_away = False
        self.lists = 0

    async def list_versions(self, kind: ResourceKind, namespace: str | None, selector: str = "") -> Mapping[str, str]:
        self.lists += 1
        if self.is_away:
            raise RetryLaterError("away")
        return {found["metadata"]["uid"]: found["metadata"]["resourceVersion"]
                for found in self.objects if found["kind"] == kind.name}  # fmt: skip

    async def get(self, ref: ObjectRef) -> Manifest | None:
        return next((found for found in self.objects if found["metadata"]["name"] == ref.name), None)


def index_of(*objects: Manifest) -> Index:
    index = Index()
    fill(index, *objects)
    return index


def fill(index: Index, *objects: Manifest) -> None:
    """With these and no others."""
    for kind in (GNNSERVICE, *WATCHED_CHILDREN):
        for uid in index.by_uid(kind):
            index.drop(uid)
    for found in objects:
        index.keep(service_of(found), IndexedObject.of(found))


SERVICE = live(gnnservice(), 5)
CONFIG = live(child(), 7, labels={"gnnserve.dev/service": "digits"})


def checking(cluster: ListingCluster, index: Index, clock: FakeClock, changed: list[ServiceKey]) -> WatchCheck:
    return WatchCheck(cluster, index, Namespaces(), clock, changed.append)  # type: ignore[arg-type]


async def run_check(check: WatchCheck) -> asyncio.Task[None]:
    task = asyncio.create_task(check.run())
    await settle()
    return task


def test_nothing_is_decided_before_the_index_holds_everything() -> None:
    async def scene() -> None:
        index, clock = index_of(SERVICE), FakeClock()
        check = checking(ListingCluster(SERVICE, CONFIG), index, clock, [])
        task = await run_check(check)
        await clock.advance(1)
        assert not check.caught_up.is_set()
        fill(index, SERVICE, CONFIG)
        await clock.advance(1)
        assert check.caught_up.is_set()
        task.cancel()

    asyncio.run(scene())


def test_watches_that_never_begin_make_the_operator_unwell() -> None:
    async def scene() -> None:
        clock = FakeClock()
        check = checking(ListingCluster(SERVICE), index_of(), clock, [])
        task = await run_check(check)
        await clock.advance(WATCH_LIMIT_S + 2)
        assert "gnnservices" in str(check.problem())
        task.cancel()

    asyncio.run(scene())


def test_a_silent_watch_is_found_and_one_that_wakes_up_is_forgiven() -> None:
    async def scene() -> None:
        cluster, index, clock = ListingCluster(SERVICE), index_of(SERVICE), FakeClock()
        check = checking(cluster, index, clock, [])
        task = await run_check(check)
        cluster.objects = [live(gnnservice(), 6)]
        await clock.advance(CHECK_EVERY_S)
        assert check.problem() is None
        await clock.advance(WATCH_LIMIT_S + 1)
        assert check.problem() == "the watch on gnnservices has been silent about a change for 61 s"
        fill(index, live(gnnservice(), 6))
        await clock.advance(CHECK_EVERY_S)
        assert check.problem() is None
        task.cancel()

    asyncio.run(scene())


def test_an_index_that_takes_a_minute_to_fill_is_not_compared_with_hundreds_of_lists() -> None:
    async def scene() -> None:
        cluster, clock = ListingCluster(SERVICE), FakeClock()
        task = await run_check(checking(cluster, index_of(), clock, []))
        first = cluster.lists
        await clock.advance(WATCH_LIMIT_S)
        assert cluster.lists - first < 20
        task.cancel()

    asyncio.run(scene())


def test_lists_do_not_grow_with_the_namespaces_that_are_watched() -> None:
    async def scene() -> None:
        lists, namespaces = [], ("a", "b", "c", "d")
        for watched in ((), namespaces):
            cluster, clock = ListingCluster(), FakeClock()
            check = WatchCheck(cluster, index_of(), Namespaces(watched), clock, lambda _: None)  # type: ignore[arg-type]
            task = await run_check(check)
            cluster.lists = 0
            await clock.advance(40 * CHECK_EVERY_S)
            lists.append(cluster.lists)
            task.cancel()
        assert lists[1] == lists[0]

    asyncio.run(scene())


def test_a_silent_watch_of_many_namespaces_is_looked_at_again_soon_once_it_is_behind() -> None:
    async def scene() -> None:
        cluster, index, clock = ListingCluster(SERVICE), index_of(SERVICE), FakeClock()
        check = WatchCheck(cluster, index, Namespaces(("a", "b", "c", "d")), clock, lambda _: None)  # type: ignore[arg-type]
        task = await run_check(check)
        cluster.objects = [live(gnnservice(), 6)]
        await clock.advance(4 * CHECK_EVERY_S)
        fill(index, live(gnnservice(), 6))
        await clock.advance(CHECK_EVERY_S)
        await clock.advance(WATCH_LIMIT_S - CHECK_EVERY_S + 1)
        assert check.problem() is None
        task.cancel()

    asyncio.run(scene())


def test_an_api_server_that_is_away_says_nothing_about_the_watches() -> None:
    async def scene() -> None:
        cluster, clock = ListingCluster(SERVICE), FakeClock()
        check = checking(cluster, index_of(SERVICE), clock, [])
        task = await run_check(check)
        cluster.is_away = True
        await clock.advance(10 * WATCH_LIMIT_S)
        assert check.problem() is None
        task.cancel()

    asyncio.run(scene())


def test_what_was_deleted_unseen_is_taken_out_of_the_index_and_looked_at() -> None:
    async def scene() -> None:
        cluster, index, clock = ListingCluster(SERVICE, CONFIG), index_of(SERVICE, CONFIG), FakeClock()
        changed: list[ServiceKey] = []
        check = checking(cluster, index, clock, changed)
        task = await run_check(check)
        cluster.objects = [SERVICE]
        await clock.advance(CHECK_EVERY_S)
        assert index.children(KEY) == []
        assert changed == [KEY]
        assert check.problem() is None
        await clock.advance(10 * CHECK_EVERY_S)
        assert changed == [KEY]
        task.cancel()

    asyncio.run(scene())


def test_an_object_that_the_list_does_not_have_yet_stays() -> None:
    async def scene() -> None:
        cluster, index, clock = ListingCluster(SERVICE), index_of(SERVICE, CONFIG), FakeClock()

        async def get(_: ObjectRef) -> Manifest:
            return CONFIG

        cluster.get = get  # type: ignore[assignment]
        task = await run_check(checking(cluster, index, clock, []))
        assert index.children(KEY) == [CONFIG]
        task.cancel()

    asyncio.run(scene())


# --- the loop


def problems_of(loop: Any, check: WatchCheck, clock: FakeClock) -> list[str]:
    return find_problems(loop, check, clock)


def test_a_loop_that_does_not_turn_and_a_reconcile_that_hangs_are_told() -> None:
    async def scene() -> None:
        clock, gate = FakeClock(), asyncio.Event()

        async def reconcile(_: ServiceKey) -> None:
            await gate.wait()

        loop = Loop(reconcile, lambda: [KEY], Metrics(RoutingMemory()), concurrency=1, resync_s=3600, clock=clock)
        check = checking(ListingCluster(), index_of(), clock, [])
        assert problems_of(loop, check, clock) == []
        task = asyncio.create_task(loop.run())
        await clock.advance(100)
        assert problems_of(loop, check, clock) == []
        await clock.advance(250)
        assert problems_of(loop, check, clock) == ["a reconcile has been running for 350 s"]
        clock.seconds += 70  # and nobody is woken
        assert "the loop has not turned for 7" in problems_of(loop, check, clock)[0]
        gate.set()
        loop.stop()
        await task

    asyncio.run(scene())


# --- over HTTP


@pytest.mark.parametrize(
    ("path", "problems", "readiness", "expected"),
    [
        pytest.param("/healthz", [], Readiness.STARTING, (200, "ok\n"), id="well, before it is ready"),
        pytest.param("/healthz", ["one", "two"], Readiness.READY, (503, "one; two\n"), id="unwell, and why"),
        pytest.param("/readyz", [], Readiness.READY, (200, "ok\n"), id="ready"),
        pytest.param("/readyz", [], Readiness.STARTING, (503, "the watches have not begun yet\n"),
                     id="not ready, and why"),
        pytest.param("/readyz", [], Readiness.STANDING_BY, (200, "standing by\n"), id="ready to lead"),
    ],
)  # fmt: skip
def test_probes_answer(path: str, problems: list[str], readiness: Readiness, expected: tuple[int, str]) -> None:
    assert asyncio.run(fetch(path, problems, readiness)) == expected


def test_an_operator_that_is_ready_tells_which_namespaces_it_leaves_out() -> None:
    told = asyncio.run(fetch("/readyz", [], Readiness.READY, "not watched for lack of rights: b"))
    assert told == (200, "ok; not watched for lack of rights: b\n")


def test_metrics_are_in_the_prometheus_format() -> None:
    code, text = asyncio.run(fetch("/metrics", [], Readiness.READY))
    assert code == 200
    for name in ("reconcile_seconds", "queue_depth", "last_event_age_seconds", "api_requests_total"):
        assert f"# HELP gnnserve_operator_{name} " in text
    assert "gnnserve_operator_services" not in text, "no watch has begun, so nobody can tell how many there are"
    assert 'gnnserve_operator_reconciles_total{result="error"} 0.0' in text


async def fetch(path: str, problems: list[str], readiness: Readiness, remark: str = "") -> tuple[int, str]:
    app = build_app(lambda: problems, lambda: ReadinessAnswer(readiness, remark), Metrics(RoutingMemory()))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, await response.text()
    finally:
        await runner.cleanup()


# --- the index


def test_what_is_kept_has_no_managed_fields() -> None:
    kept = IndexedObject.of({**CONFIG, "metadata": {**CONFIG["metadata"], "managedFields": [{"manager": "x"}]}})
    assert kept.body() == CONFIG


def test_what_is_kept_cannot_be_changed_by_its_readers() -> None:
    index = index_of(SERVICE, CONFIG)
    index.children(KEY)[0]["metadata"]["labels"].clear()
    assert index.children(KEY) == [CONFIG]


def test_of_two_services_of_one_name_the_newer_counts() -> None:
    old, new = (live(gnnservice(), 1, creationTimestamp=f"2026-01-0{day}T00:00:00Z", uid=f"u{day}") for day in (1, 2))
    index = index_of(new, old)
    assert index.service(KEY) == new
    index.bury("u2")
    assert index.service(KEY) == old
    assert index.service(ServiceKey("default", "other")) is None


def test_services_are_counted_by_ready() -> None:
    ready = {**SERVICE, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert index_of(ready).count_by_ready() == {"True": 1}
    assert index_of(SERVICE).count_by_ready() == {"Unknown": 1}


def test_conditions_are_told_as_metrics() -> None:
    told = [
        {"type": "Ready", "status": "False", "reason": "RevisionDamaged"},
        {"type": "Stalled", "status": "True", "reason": "RevisionDamaged"},
        {"type": "example.dev/Audited", "status": "True", "reason": "Audited"},
    ]
    index = index_of({**SERVICE, "status": {"conditions": told}})
    metrics = Metrics(RoutingMemory())
    metrics.observe_services(index.count_by_ready, index.declared_workers, index.conditions)
    lines = [line for line in metrics.text().decode().splitlines() if line.startswith("gnnserve_operator_condition{")]
    assert lines == [
        f'gnnserve_operator_condition{{namespace="{KEY.namespace}",reason="RevisionDamaged",service="{KEY.name}",'
        f'status="{status}",type="{kind}"}} 1.0'
        for kind, status in (("Ready", "False"), ("Stalled", "True"))
    ]


@pytest.mark.parametrize(
    ("spec", "revision", "declared"),
    [
        pytest.param({}, "r1", 1, id="the default"),
        pytest.param({"worker": {"replicas": 3}}, "r1", 3, id="as many as the spec says"),
        pytest.param({"worker": {"replicas": 3}}, None, 0, id="before the first revision"),
        pytest.param({"worker": {"replicas": 3}, "suspend": True}, "r1", 0, id="suspended"),
    ],
)
def test_workers_are_declared_while_they_should_answer(spec: Manifest, revision: str | None, declared: int) -> None:
    body = {**SERVICE, "spec": {**SERVICE["spec"], **spec}, "status": {"revision": revision} if revision else {}}
    assert index_of(body).declared_workers() == {KEY: declared}
