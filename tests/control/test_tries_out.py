"""What the API server would refuse after training, and names that are taken by then, are found before a Job begins."""

from __future__ import annotations

from typing import Any

import pytest
from tests.control.campaign.play import play_alone
from tests.control.campaign.world import KEY, World
from tests.support.kubernetes.fake_cluster import Fault, Refusal
from tests.support.operator.observed import Namespace

from gnnserve_operator.desired.metadata import Conflict
from gnnserve_operator.kinds import ObjectRef
from gnnserve_operator.observed import Rejection

TO_COME = [("ConfigMap", "digits-routing"), ("Deployment", "digits-worker"), ("PodDisruptionBudget", "digits-worker")]
QUOTA = 'deployments.apps "digits-worker" is forbidden: exceeded quota: objects, used: count/deployments.apps=3'
UNTRIED = 'admission webhook "check.example" does not support dry run'


def jobs(world: World) -> int:
    return len(world.plane.of_kind("Job"))


def refuse(world: World, kind: str, code: int, message: str) -> Fault:
    fault = Fault("apply", kind, Refusal(code, "Forbidden", message))
    world.cluster.faults.append(fault)
    return fault


@pytest.mark.parametrize("kind", [kind for kind, _ in TO_COME])
def test_no_job_begins_for_workers_that_the_api_server_refuses(kind: str) -> None:
    async def scene(world: World) -> None:
        fault = refuse(world, kind, 403, QUOTA)
        world.create()
        await world.until(lambda: world.condition("Stalled").get("status") == "True", limit_s=10)
        await world.run_for(60)
        assert (jobs(world), world.condition("Stalled")["reason"]) == (0, "ChildRefused")
        assert QUOTA in world.condition("Ready")["message"]
        assert world.condition("VariantsGenerated")["reason"] == "ChildRefused"
        assert "GenerationStarted" not in {event["reason"] for event in world.plane.of_kind("Event")}
        fault.times = 0
        await world.until(lambda: world.condition("Ready").get("status") == "True")

    play_alone(scene)


@pytest.mark.parametrize(("kind", "name"), TO_COME)
def test_no_job_begins_where_a_later_name_is_taken(kind: str, name: str) -> None:
    async def scene(world: World) -> None:
        api = {"ConfigMap": "v1", "Deployment": "apps/v1", "PodDisruptionBudget": "policy/v1"}[kind]
        metadata = {"name": name, "namespace": "default"}
        spec = {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {}, "spec": {}}}
        world.cluster.create({"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec})
        world.create()
        await world.until(lambda: world.condition("Stalled").get("status") == "True", limit_s=10)
        await world.run_for(60)
        assert (jobs(world), world.condition("Stalled")["reason"]) == (0, "NameTaken")
        assert f"{kind} {name}" in world.condition("Ready")["message"]
        world.cluster.delete(kind, name)
        await world.until(lambda: world.condition("Ready").get("status") == "True")

    play_alone(scene)


def test_a_webhook_that_cannot_be_tried_out_is_no_refusal() -> None:
    async def scene(world: World) -> None:
        fault = refuse(world, "Deployment", 400, UNTRIED)
        world.create()
        await world.until(lambda: jobs(world), limit_s=10)
        fault.times = 0
        await world.until(lambda: world.condition("Ready").get("status") == "True")

    play_alone(scene)


def test_what_is_tried_out_is_not_made_and_asked_once() -> None:
    async def scene(world: World) -> None:
        asked: list[Any] = []
        respond = world._api.respond

        def note(request: Any) -> Any:
            asked.extend([request.path] if request.is_trial else [])
            return respond(request)

        object.__setattr__(world, "_api", type("Api", (), {"respond": staticmethod(note)})())
        world.create()
        await world.until(lambda: jobs(world))
        assert [world.plane.of_kind(kind) for kind, _ in TO_COME] == [[], [], []]
        await world.until(lambda: world.condition("Ready").get("status") == "True")
        world.set(model={"hidden": 16})
        await world.settled()
        assert [path.rsplit("/", 1)[1] for path in asked] == [name for _, name in TO_COME]

    play_alone(scene)


def test_a_job_that_runs_goes_on_whatever_is_found_later() -> None:
    namespace = Namespace()
    namespace.settle()
    namespace.start_job()
    namespace.conflicts = (Conflict(ObjectRef("v1", "ConfigMap", "shop", "digits-routing")),)
    planned = namespace.reconcile()
    assert "Job" in {manifest["kind"] for manifest in planned.apply}
    assert namespace.jobs()
    assert namespace.reason("Stalled") == "True NameTaken"


def test_a_refusal_of_what_is_made_already_lets_the_job_begin() -> None:
    namespace = Namespace()
    namespace.rejections = (Rejection(ObjectRef("v1", "Service", "shop", KEY.name), "no more Services"),)
    assert "Job" in {manifest["kind"] for manifest in namespace.plan().apply}
