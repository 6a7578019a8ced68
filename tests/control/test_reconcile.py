"""One look after another, in simulated time: what is told survives any answer, and news meanwhile change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.control.campaign.scenarios import LIVING, OTHER_MODEL, delete_claim, is_generating, serve, write
from tests.control.campaign.sim_operator import RESYNC_S, SimProber
from tests.control.campaign.world import KEY
from tests.support import campaigns
from tests.support.kubernetes.api_server import Request
from tests.support.kubernetes.fake_cluster import KINDS
from tests.support.operator.reconcile_scene import Scene

from gnnserve_operator.desired.metadata import CHILDREN_SELECTOR
from gnnserve_operator.errors import ConflictError
from gnnserve_operator.handlers.index import IndexedObject
from gnnserve_operator.kinds import CLAIM, CONFIG_MAP, EVENT, JOB, POD_MONITOR
from gnnserve_operator.probe import Answers

STARTED, PUBLISHED, AVAILABLE, READY = "GenerationStarted", "RevisionPublished", "Available", "Ready"


def play(scene: Scene) -> Scene:
    async def run() -> None:
        scene.start_operator()
        await scene.serve()
        for operator in scene.operators:
            await operator.end()

    asyncio.run(run())
    return scene


def writes_status(request: Request) -> bool:
    return request.method == "PATCH" and request.path.endswith("/status")


def posts_event(request: Request) -> bool:
    return request.method == "POST" and request.path.endswith(EVENT.plural)


def applies_child(request: Request) -> bool:
    return request.method == "PATCH" and not writes_status(request)


def faults() -> Iterator[Any]:
    everything = ("409", "429", "500", "lost", "late")
    most = ("409", "429", "late")
    for matches, kinds in ((writes_status, everything), (posts_event, most), (applies_child, ("500",))):
        requests = range(play(Scene(matches)).matched)
        for fault in kinds:
            for number in requests:
                yield matches, number, fault


@pytest.mark.campaign
def test_every_turning_point_is_told_once_whatever_is_answered_to_a_write() -> None:
    untrue = {}
    for matches, number, fault in campaigns.share([*faults()]):
        told = play(Scene(matches, number, fault)).told()
        if told != {STARTED: 1, PUBLISHED: 1, AVAILABLE: 1, READY: 1}:
            untrue[matches.__name__, number, fault] = told
    assert untrue == {}


def test_a_job_that_never_came_to_be_is_not_told_of() -> None:
    async def run() -> None:
        scene = Scene(lambda request: request.method == "PATCH" and "/jobs/" in request.path, 0, "500")
        scene.start_operator()
        scene.create()
        await scene.until(lambda: scene.matched == 1)
        scene.set(suspend=True)
        await scene.run_for(2 * RESYNC_S)
        assert scene.told()[STARTED] == 0
        await scene.stop_operators()

    asyncio.run(run())


# --- the asking takes seconds


class Asked(SimProber):
    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def ask(self, key: Any, pods: Any, *, tls: bool = False) -> Answers:
        self._scene.annotate(condition=True)
        return self._scene.plane.answer(key, pods)


@pytest.mark.parametrize("while_asking", [True, False])
def test_annotations_that_are_written_meanwhile_do_not_keep_the_status_from_being_written(
    *, while_asking: bool
) -> None:
    async def run() -> None:
        def annotates(request: Request) -> bool:
            if applies_child(request) and not while_asking:
                scene.annotate()
            return False

        scene = Scene(annotates)
        operator = scene.start_operator()
        if while_asking:
            operator.observer._prober = Asked(scene)
        scene.create()
        await scene.until(lambda: scene.told()[STARTED], limit_s=5)
        assert 409 not in scene.codes
        await scene.stop_operators()

    asyncio.run(run())


# --- PodMonitors are listed and not watched


def monitored() -> Scene:
    scene = Scene()
    scene.cluster.kinds = KINDS
    return scene


def test_a_job_that_computes_stays_where_the_watch_of_its_claim_is_behind() -> None:
    """The watch of claims goes back to before a deletion, on account of which a Job generates into the next claim. With
    the first claim unharmed, that Job would not be needed, and would be deleted with all that it has computed."""

    async def run() -> None:
        scene = Scene()
        scene.start_operator()
        await scene.serve()
        (before,) = scene.plane.of_kind(CLAIM.name)
        delete_claim(scene)
        await scene.until(lambda: is_generating(scene))
        (operator,) = scene.operators
        operator.view.index.keep(KEY, IndexedObject.of(before))
        scene.requests.clear()
        with pytest.raises(ConflictError, match=before["metadata"]["name"]):
            await operator.reconciler.reconcile(KEY)
        assert scene.asked("DELETE", f"/{JOB.plural}/") == 0
        await scene.stop_operators()

    asyncio.run(run())


def test_a_job_that_compacts_stays_where_the_watch_of_its_table_is_behind() -> None:
    """An API server is lost, and the next one lists Jobs and the table as they were before the revision that is being
    compacted was published. As of then its compaction is of no use."""

    async def run() -> None:
        scene = Scene()
        operator = scene.start_operator()
        await serve(scene, updates=LIVING)
        (table,) = scene.plane.of_kind(CONFIG_MAP.name)
        scene.set(model=OTHER_MODEL)
        await scene.until(lambda: is_generating(scene))
        generating = next(job for job in scene.plane.of_kind(JOB.name) if not job["status"].get("conditions"))
        await scene.settled()
        await write(scene, 4)
        for before in (table, generating):
            operator.view.index.keep(KEY, IndexedObject.of(before))
        scene.requests.clear()
        with pytest.raises(ConflictError, match=table["metadata"]["name"]):
            await operator.reconciler.reconcile(KEY)
        assert scene.asked("DELETE", f"/{JOB.plural}/") == 0
        await scene.stop_operators()

    asyncio.run(run())


def test_a_pod_monitor_is_made_once_and_then_known_by_one_list_in_each_resync() -> None:
    async def run() -> None:
        scene = monitored()
        scene.start_operator()
        await scene.serve()
        assert len(scene.plane.of_kind("PodMonitor")) == 1
        scene.requests.clear()
        await scene.run_for(10 * RESYNC_S)
        lists = [request for request in scene.requests if request.path == POD_MONITOR.path(None)]
        assert 9 <= len(lists) <= 11
        assert {request.query["labelSelector"] for request in lists} == {CHILDREN_SELECTOR}
        assert scene.asked("GET", f"/{POD_MONITOR.plural}/") == 0
        await scene.stop_operators()

    asyncio.run(run())


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_pod_monitor_that_somebody_deletes_or_edits_is_as_declared_after_two_resyncs(*, is_deleted: bool) -> None:
    async def run() -> None:
        scene = monitored()
        scene.start_operator()
        await scene.serve()
        (name,) = (found["metadata"]["name"] for found in scene.plane.of_kind("PodMonitor"))
        declared = scene.cluster.get("PodMonitor", name)["spec"]
        if is_deleted:
            scene.cluster.delete("PodMonitor", name)
        else:
            scene.cluster.replace("PodMonitor", name, lambda found: found["spec"].update(podMetricsEndpoints=[]))
        await scene.run_for(2 * RESYNC_S + 5)
        assert scene.cluster.get("PodMonitor", name)["spec"] == declared
        await scene.stop_operators()

    asyncio.run(run())


def test_a_pod_monitor_that_was_edited_unseen_is_looked_at_again_where_that_is_in_the_way() -> None:
    async def run() -> None:
        scene = monitored()
        scene.start_operator()
        await scene.serve()
        (name,) = (found["metadata"]["name"] for found in scene.plane.of_kind("PodMonitor"))
        await scene.until(lambda: scene.clock.now() >= scene.operators[0].next_resync)
        await scene.run_for(1)  # just listed
        scene.cluster.replace("PodMonitor", name, lambda found: found["metadata"]["labels"].update(team="a"))
        scene.set(routing={"intervalSeconds": 5})
        await scene.run_for(10)
        (scraped,) = scene.cluster.get("PodMonitor", name)["spec"]["podMetricsEndpoints"]
        assert scraped["interval"] == "5s"
        await scene.stop_operators()

    asyncio.run(run())


def test_a_pod_monitor_that_is_not_wanted_any_more_is_deleted_once() -> None:
    async def run() -> None:
        scene = monitored()
        scene.start_operator()
        await scene.serve()
        (wanted,) = scene.plane.of_kind("PodMonitor")
        metadata = {name: wanted["metadata"][name] for name in ("namespace", "labels", "ownerReferences")}
        scene.cluster.create({**wanted, "metadata": {**metadata, "name": "of-an-older-operator"}})
        await scene.until(lambda: len(scene.plane.of_kind("PodMonitor")) == 1)
        scene.annotate()
        await scene.run_for(5)
        assert scene.asked("DELETE", POD_MONITOR.plural) == 1
        await scene.stop_operators()

    asyncio.run(run())
