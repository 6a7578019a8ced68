"""Several services and one operator, in simulated time: limits hold, and every service's turn comes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.control.campaign.control_plane import MISSING_IMAGE
from tests.control.campaign.play import SETTINGS
from tests.control.campaign.sim_operator import RESYNC_S
from tests.control.campaign.trouble import Trouble
from tests.control.campaign.world import World
from tests.support.kubernetes.fake_cluster import Fault, Refusal
from tests.support.operator.operator import gnnservice

from gnnserve_operator.fleet import ALL_IDLE, IDLE, UNDER_WAY, Fleet, Line, Stance, Standing, Standings, Turn
from gnnserve_operator.kinds import ServiceKey

NAMES = ("a", "b", "c", "d", "e", "f")
FEW = NAMES[:4]
LIMITED = SETTINGS.model_copy(update={"max_concurrent_jobs": 2, "max_concurrent_rollouts": 2})
NEW_IMAGE = LIMITED.model_copy(update={"worker_image": "registry.example/worker:2"})


class _Later(dict[str, float]):
    """When generations are done: so many seconds later than usual."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self._delay_s = delay_s

    def __setitem__(self, uid: str, due: float) -> None:
        super().__setitem__(uid, due + self._delay_s)


class Crowd(World):
    """Several services; how many Jobs ran and how many Deployments rolled at once is noted after every step."""

    def __init__(self) -> None:
        super().__init__(LIMITED, Trouble())
        self.plane._due = _Later(10)
        self.most_jobs = self.most_rolls = 0
        self.started: list[str] = []
        """Services, in the order in which their Jobs began."""

    def apply(self, *names: str, **spec: Any) -> None:
        for name in names:
            self.cluster.create(gnnservice(name, **spec))

    def reasons(self, kind: str = "Ready") -> dict[str, str]:
        return {
            found["metadata"]["name"]: next(
                (
                    f"{c['status']} {c['reason']}"
                    for c in found.get("status", {}).get("conditions", ())
                    if c["type"] == kind
                ),
                "",
            )
            for found in self.plane.of_kind("GNNService")
        }

    def message(self, name: str, kind: str = "Ready") -> str:
        conditions = self.cluster.get("GNNService", name)["status"]["conditions"]
        return str(next(c["message"] for c in conditions if c["type"] == kind))

    def serves(self, *names: str) -> bool:
        return all(self.reasons().get(name) == "True Serving" for name in names)

    def running(self) -> list[str]:
        return [
            job["metadata"]["labels"]["gnnserve.dev/service"] for job in self.plane.of_kind("Job")
            if not job["spec"].get("suspend")
            and not any(c["type"] in {"Complete", "Failed"} for c in (job.get("status") or {}).get("conditions") or ())
        ]  # fmt: skip

    def rolling(self) -> list[str]:
        """By their pods: those that have some of two templates."""
        images: dict[str, set[str]] = {}
        for pod in self.plane.of_kind("Pod"):
            labels = pod["metadata"]["labels"]
            if labels["app.kubernetes.io/component"] == "worker" and not pod["metadata"].get("deletionTimestamp"):
                images.setdefault(labels["gnnserve.dev/service"], set()).add(pod["spec"]["containers"][0]["image"])
        return [name for name, found in images.items() if len(found) > 1]

    def images(self) -> dict[str, str]:
        return {
            found["metadata"]["labels"]["gnnserve.dev/service"]: found["spec"]["template"]["spec"]["containers"][0][
                "image"
            ]
            for found in self.plane.of_kind("Deployment")
        }

    async def step(self, latest: float | None = None) -> None:
        await World.step(self, latest)
        running = self.running()
        self.most_jobs = max(self.most_jobs, len(running))
        self.most_rolls = max(self.most_rolls, len(self.rolling()))
        self.started += [name for name in sorted(running) if name not in self.started]


def play(scene: Callable[[Crowd], Coroutine[Any, Any, None]]) -> Crowd:
    crowd = Crowd()

    async def run() -> None:
        crowd.start_operator().next_resync = math.inf  # what goes on is woken
        await scene(crowd)
        await crowd.stop_operators()

    asyncio.run(run())
    assert crowd.judge.violations == []
    return crowd


# --- generation


def test_six_services_at_once_are_generated_two_at_a_time_and_in_their_order() -> None:
    async def scene(crowd: Crowd) -> None:
        for name in reversed(NAMES):
            crowd.apply(name)
            await crowd.run_for(1.1)  # the API server counts in seconds
        assert sorted(crowd.running()) == ["e", "f"]
        assert crowd.reasons()["d"] == "False Queued"
        assert "it is next" in crowd.message("d")
        assert "3 wait before it" in crowd.message("a")
        await crowd.until(lambda: crowd.serves(*NAMES), limit_s=RESYNC_S)

    crowd = play(scene)
    assert crowd.most_jobs == 2
    assert sorted(crowd.started[:2]) == ["e", "f"]
    assert crowd.started[2:] == ["d", "c", "b", "a"]


def test_services_in_several_namespaces_count_together() -> None:
    async def scene(crowd: Crowd) -> None:
        for namespace in NAMES:
            manifest = gnnservice("digits")
            manifest["metadata"]["namespace"] = namespace
            crowd.cluster.create(manifest)
        await crowd.until(lambda: crowd.serves("digits"), limit_s=RESYNC_S)

    assert play(scene).most_jobs == 2


def test_a_job_that_fails_and_a_service_that_goes_let_the_next_one_begin() -> None:
    async def scene(crowd: Crowd) -> None:
        crowd.plane.fails = lambda pod: "no graph" if pod["metadata"]["labels"]["gnnserve.dev/service"] == "a" else None
        crowd.apply(*NAMES)
        await crowd.until(lambda: len(crowd.running()) == 2 and "b" in crowd.running())
        crowd.cluster.delete("GNNService", "b")
        await crowd.until(lambda: crowd.serves(*NAMES[2:]), limit_s=RESYNC_S)
        assert crowd.reasons()["a"] == "False GenerationFailed"

    play(scene)


def test_a_service_that_could_not_begin_holds_nobody_up() -> None:
    """Suspended, invalid to this operator, or with a Job that the API server refuses: its turn passes to the next."""

    async def scene(crowd: Crowd) -> None:
        crowd.settings = LIMITED.model_copy(update={"max_concurrent_jobs": 1})
        await crowd.restart_operator(crowd.settings)
        for name in NAMES:
            crowd.apply(name)
            await crowd.run_for(1.1)
        assert crowd.reasons()["b"] == "False Queued"
        crowd.cluster.replace("GNNService", "b", lambda found: found["spec"].update(suspend=True))
        crowd.cluster.replace("GNNService", "c", lambda found: found["spec"].update(model={"layers": -3}))
        (job,) = (j for j in crowd.plane.of_kind("Job") if j["metadata"]["labels"]["gnnserve.dev/service"] == "d")
        crowd.cluster.faults.append(
            Fault("apply", "Job", Refusal(403, "Forbidden", "no Job today"), name=job["metadata"]["name"])
        )
        await crowd.until(lambda: crowd.serves("a", "e", "f"), limit_s=2 * RESYNC_S)
        assert crowd.most_jobs == 1
        crowd.cluster.faults.clear()
        await crowd.until(lambda: crowd.serves("d"), limit_s=2 * RESYNC_S)
        crowd.cluster.replace("GNNService", "b", lambda found: found["spec"].update(suspend=False))
        await crowd.until(lambda: crowd.serves("b"), limit_s=RESYNC_S)

    assert play(scene).most_jobs == 1


def test_a_job_that_another_suspends_holds_nobody_up_also_when_an_operator_begins_anew() -> None:
    async def scene(crowd: Crowd) -> None:
        crowd.settings = LIMITED.model_copy(update={"max_concurrent_jobs": 1})
        await crowd.restart_operator(crowd.settings)
        crowd.apply("a")
        await crowd.until(lambda: crowd.running() == ["a"])
        (job,) = crowd.plane.of_kind("Job")
        name = job["metadata"]["name"]
        crowd.cluster.replace("Job", name, lambda found: found["spec"].update(suspend=True), manager="queue")
        await crowd.until(lambda: crowd.reasons()["a"] == "False Queued")
        await crowd.restart_operator(crowd.settings)
        crowd.apply("b", "c")
        await crowd.until(lambda: crowd.serves("b", "c"), limit_s=RESYNC_S)
        assert crowd.cluster.get("Job", name)["spec"]["suspend"] is True
        crowd.cluster.replace("Job", name, lambda found: found["spec"].update(suspend=False), manager="queue")
        await crowd.until(lambda: crowd.serves("a"), limit_s=RESYNC_S)

    play(scene)


def test_an_operator_that_begins_anew_keeps_the_limit_and_the_order() -> None:
    async def scene(crowd: Crowd) -> None:
        for name in reversed(NAMES):
            crowd.apply(name)
            await crowd.run_for(1.1)
        before = {name: crowd.message(name) for name in NAMES[:4]}
        await crowd.restart_operator()
        await crowd.run_for(0.5)
        assert {name: crowd.message(name) for name in NAMES[:4]} == before
        await crowd.until(lambda: crowd.serves(*NAMES), limit_s=RESYNC_S)

    crowd = play(scene)
    assert crowd.most_jobs == 2
    assert crowd.started[2:] == ["d", "c", "b", "a"]


def test_statuses_rest_while_services_wait() -> None:
    async def scene(crowd: Crowd) -> None:
        crowd.plane._due = _Later(86_400)
        crowd.apply(*NAMES)
        await crowd.until(lambda: list(crowd.reasons().values()).count("False Queued") == 4)
        await crowd.run_for(RESYNC_S)
        before = crowd.cluster.version
        await crowd.run_for(3 * RESYNC_S)
        assert crowd.cluster.version == before

    play(scene)


# --- rollouts


async def serve(crowd: Crowd, *names: str) -> None:
    crowd.plane._due = {}
    crowd.apply(*names)
    await crowd.until(lambda: crowd.serves(*names), limit_s=2 * RESYNC_S)
    crowd.most_rolls = 0


def test_a_new_worker_image_rolls_two_services_at_a_time_and_all_in_the_end() -> None:
    async def scene(crowd: Crowd) -> None:
        await serve(crowd, *FEW)
        await crowd.restart_operator(NEW_IMAGE)
        await crowd.until(lambda: list(crowd.reasons("Reconciling").values()).count("True RolloutQueued") == 2)
        assert list(crowd.reasons().values()).count("True Serving") == 2
        await crowd.until(
            lambda: set(crowd.images().values()) == {"registry.example/worker:2"} and crowd.serves(*FEW),
            limit_s=RESYNC_S,
        )

    assert play(scene).most_rolls == 2


def test_an_operator_that_begins_anew_in_the_midst_of_it_keeps_the_limit() -> None:
    async def scene(crowd: Crowd) -> None:
        await serve(crowd, *FEW)
        await crowd.restart_operator(NEW_IMAGE)
        await crowd.until(lambda: len(crowd.rolling()) == 2)
        await crowd.restart_operator(NEW_IMAGE)
        await crowd.until(
            lambda: set(crowd.images().values()) == {"registry.example/worker:2"} and crowd.serves(*FEW),
            limit_s=RESYNC_S,
        )

    assert play(scene).most_rolls == 2


def test_users_are_not_kept_waiting_by_an_image_that_cannot_be_pulled_and_the_fleet_is_not_for_ever() -> None:
    async def scene(crowd: Crowd) -> None:
        await serve(crowd, *FEW)
        await crowd.restart_operator(LIMITED.model_copy(update={"worker_image": MISSING_IMAGE}))
        await crowd.run_for(3 * RESYNC_S)
        assert sorted(crowd.images().values()).count(MISSING_IMAGE) == 2, "a broken image reaches few"
        assert list(crowd.reasons().values()).count("True Serving") == 2
        (waiting, *_) = (name for name, reason in crowd.reasons().items() if reason == "True Serving")
        crowd.cluster.replace(
            "GNNService", waiting, lambda found: found["spec"].update(image="registry.example/worker:mine")
        )
        await crowd.until(
            lambda: crowd.images()[waiting] == "registry.example/worker:mine" and crowd.serves(waiting), limit_s=10
        )
        stuck = [name for name, image in crowd.images().items() if image == MISSING_IMAGE]
        deadline = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
        for name in stuck:
            crowd.cluster.replace(
                "Deployment", f"{name}-worker", lambda found: found["status"].update(conditions=[deadline])
            )
        await crowd.until(lambda: list(crowd.images().values()).count(MISSING_IMAGE) > 2, limit_s=RESYNC_S)
        await crowd.restart_operator(NEW_IMAGE)
        await crowd.until(lambda: crowd.serves(*FEW), limit_s=2 * RESYNC_S)

    play(scene)


# --- the line itself


def key(name: str) -> ServiceKey:
    return ServiceKey("default", name)


def waits(order: str) -> Standing:
    return Standing(Stance.WAITING, order)


def test_a_line_tells_each_who_goes_before_it() -> None:
    line = Line(2)
    line.note(key("a"), UNDER_WAY)
    line.note(key("b"), waits("2"))
    line.note(key("c"), waits("1"))
    assert line.turn(key("a")) == Turn(2, 0, 2, is_ours=True)
    assert line.turn(key("b")) == Turn(2, 1, 1)
    assert line.turn(key("c")) == Turn(2, 1, 0)
    assert line.turn(key("new")) == Turn(2, 1, 2)
    assert line.first(5) == [key("c"), key("b")]
    assert (line.under_way, line.waiting) == (1, 2)
    assert not line.note(key("b"), waits("2"))
    assert line.note(key("b"), waits("0"))
    assert line.first(5) == [key("b"), key("c")]
    for name in "abc":
        line.note(key(name), IDLE)
    assert line == Line(2), "nothing of those that are gone is kept"


def test_those_that_are_next_are_woken_and_nobody_without_a_limit() -> None:
    woken: list[str] = []
    for limit in (1, 0):
        fleet = Fleet(
            list, lambda _: ALL_IDLE, lambda found: woken.append(found.name), max_jobs=limit, max_rollouts=limit
        )
        fleet.note(key("a"), Standings(UNDER_WAY), None)
        for name in "bcd":
            fleet.note(key(name), Standings(waits(name)), None)
        woken.clear()
        fleet.note(key("a"), Standings(UNDER_WAY), None)
        assert woken == []
        fleet.note(key("a"), Standings(), None)
        assert woken == (["b", "c", "d"] if limit else [])


@pytest.mark.parametrize("standing", [UNDER_WAY, waits("1")], ids=["under way", "waiting"])
def test_a_reconcile_that_fails_leaves_what_may_have_been_written_and_keeps_nobody_waiting(standing: Standing) -> None:
    fleet = Fleet(list, lambda _: ALL_IDLE, lambda _: None, max_jobs=1, max_rollouts=1)
    fleet.note(key("a"), Standings(standing, standing), "digest")
    fleet.step_aside(key("a"))
    assert (fleet.generation.under_way, fleet.generation.waiting) == (int(standing == UNDER_WAY), 0)
    fleet.forget(key("a"))
    assert (fleet.rollout.under_way, fleet.turns(key("a")).followed) == (0, None)
