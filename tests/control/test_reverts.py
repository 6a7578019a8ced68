"""Changes of children by others are reverted, and told: what, by whom, where it is set instead, and not too often."""

from __future__ import annotations

import asyncio
import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.control.campaign.play import SETTINGS
from tests.control.campaign.sim_operator import RESYNC_S
from tests.control.campaign.trouble import Trouble
from tests.control.campaign.world import World
from tests.support.operator.operator import child, live

from gnnserve_operator.decide.contests import (
    REVERTED,
    FieldManager,
    Revert,
    RevertLog,
    describe_reverts,
    find_reverts,
    manager_of,
    may_be_reverted,
)
from gnnserve_operator.desired.metadata import APPLIED_ANNOTATION, MANAGER, digest_of
from gnnserve_operator.kinds import ObjectRef, ServiceKey, observed_ref

Manifest = dict[str, Any]
SERVICE, POOL = ServiceKey("shop", "digits"), ServiceKey("shop", "shared", "GNNWorkerPool")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
HPA = FieldManager("kube-controller-manager", "scale")
CONTAINER = {"name": "worker", "image": "gnnserve/worker:1", "env": [{"name": "PROXY", "value": "user:secret"}]}
DEPLOYMENT = child(
    "Deployment", "digits-worker", spec={"replicas": 1, "template": {"spec": {"containers": [CONTAINER]}}}
)


def edited(**spec: Any) -> Manifest:
    found = copy.deepcopy(DEPLOYMENT)
    found["spec"] |= spec
    return live(found)


def with_container(**fields: Any) -> Manifest:
    return edited(template={"spec": {"containers": [{**CONTAINER, **fields}]}})


def reverts_of(before: Manifest, after: Manifest = DEPLOYMENT) -> list[tuple[str, str, str]]:
    found = find_reverts(observed_ref(DEPLOYMENT), DEPLOYMENT, before, live(after, 2))
    return [(revert.field, revert.found, revert.declared) for revert in found]


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        pytest.param(edited(), [], id="nothing was changed"),
        pytest.param(edited(replicas=5), [("spec.replicas", "5", "1")], id="another number of workers"),
        pytest.param(edited(paused=True), [], id="what is not declared stays"),
        pytest.param(
            with_container(image="other:2"),
            [("spec.template.spec.containers[0].image", "other:2", "gnnserve/worker:1")],
            id="another image",
        ),
        pytest.param(
            with_container(image="x" * 99),
            [("spec.template.spec.containers[0].image", "x" * 60 + "…", "gnnserve/worker:1")],
            id="a long value is cut",
        ),
        pytest.param(
            with_container(env=[{"name": "PROXY", "value": "user:other"}]),
            [("spec.template.spec.containers[0].env[0].value", *["a value that is not shown"] * 2)],
            id="values of the environment may be secret",
        ),
        pytest.param(
            with_container(env=[]),
            [("spec.template.spec.containers[0].env", "0 entries", "1 entries")],
            id="a list of another length",
        ),
        pytest.param(edited(template=None), [("spec.template", "nothing", "1 fields")], id="a section that is gone"),
    ],
)
def test_what_was_reverted_is_named_with_both_values(before: Manifest, expected: list[tuple[str, str, str]]) -> None:
    assert reverts_of(before) == expected


def test_what_stays_changed_is_not_said_to_be_reverted() -> None:
    before = with_container(image="other:2", env=[{"name": "PROXY", "value": "mutated by a webhook"}])
    after = with_container(env=[{"name": "PROXY", "value": "mutated by a webhook"}])
    assert [field for field, _, _ in reverts_of(before, after)] == ["spec.template.spec.containers[0].image"]


def test_a_child_of_another_manifest_was_not_changed_by_others() -> None:
    digest = digest_of(DEPLOYMENT)
    assert may_be_reverted(live(DEPLOYMENT, annotations={APPLIED_ANNOTATION: digest}), digest)
    assert not may_be_reverted(live(DEPLOYMENT, annotations={APPLIED_ANNOTATION: "an earlier one"}), digest)
    assert not may_be_reverted(live(DEPLOYMENT), digest)


def owning(manager: str, fields: Manifest, subresource: str = "", time: str = "2026-01-01T00:00:00Z") -> Manifest:
    entry = {"manager": manager, "operation": "Update", "time": time, "fieldsType": "FieldsV1", "fieldsV1": fields}
    return entry | ({"subresource": subresource} if subresource else {})


IMAGE = ("spec", "template", "spec", "containers", 0, "image")
OF_IMAGE = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"worker"}': {".": {}, "f:image": {}}}}}}}


@pytest.mark.parametrize(
    ("entries", "path", "expected"),
    [
        pytest.param([], ("spec", "replicas"), None, id="no one is known"),
        pytest.param(
            [owning("kube-controller-manager", {"f:spec": {"f:replicas": {}}}, "scale")], ("spec", "replicas"), HPA,
            id="an autoscaler",
        ),
        pytest.param(
            [owning(MANAGER, {"f:spec": {"f:replicas": {}}})], ("spec", "replicas"), None, id="the operator itself"
        ),
        pytest.param([owning("kubectl-set", OF_IMAGE)], IMAGE, FieldManager("kubectl-set"), id="of an entry of a list"),
        pytest.param(
            [owning("kubectl-set", OF_IMAGE)], (*IMAGE[:-1], "args"), None, id="another field of the same entry"
        ),
        pytest.param(
            [owning("early", OF_IMAGE), owning("late", OF_IMAGE, time="2026-01-02T00:00:00Z")], IMAGE,
            FieldManager("late"), id="of two the one that wrote last",
        ),
        pytest.param(
            [owning("kubectl-edit", {"f:spec": {"f:selector": {}}})], ("spec", "selector", "matchLabels", "app"),
            FieldManager("kubectl-edit"), id="a field that is owned as a whole",
        ),
    ],
)  # fmt: skip
def test_who_changed_a_field(entries: list[Manifest], path: Any, expected: FieldManager | None) -> None:
    assert manager_of(live(DEPLOYMENT, managedFields=entries), path) == expected


def revert(field: str, found: str = "5", declared: str = "1", kind: str = "Deployment", **fields: Any) -> Revert:
    return Revert(ObjectRef("v1", kind, "shop", "digits-worker"), field, found, declared, **fields)


@pytest.mark.parametrize(
    ("owner", "change", "expected"),
    [
        (SERVICE, revert("spec.replicas"), "kubectl scale -n shop gnns/digits --replicas=5"),
        (SERVICE, revert("spec.replicas"), "Set spec.worker.replicas of GNNService digits"),
        (POOL, revert("spec.replicas"), "Set spec.replicas of GNNWorkerPool shared"),
        (POOL, revert("spec.replicas"), "kubectl scale -n shop gnnp/shared --replicas=5"),
        (SERVICE, revert("spec.template.spec.containers[0].image"), "Set spec.image of GNNService digits"),
        (SERVICE, revert("spec.template.spec.nodeSelector"), "Set spec.worker.nodeSelector of"),
        (POOL, revert("spec.template.spec.tolerations[0].key"), "Set spec.tolerations of"),
        (POOL, revert("spec.template.spec.containers[0].resources.limits.cpu"), "Set spec.resources of"),
        (SERVICE, revert("spec.strategy.rollingUpdate.maxUnavailable"), "Set spec.worker.rollout of"),
        (SERVICE, revert("spec.ports[0].port", kind="Service"), "Set spec.endpoint.service of"),
        (
            SERVICE,
            revert("data[routing.json]", kind="ConfigMap"),
            "It follows from the spec of GNNService digits: objective",
        ),
        (SERVICE, revert("subjects[0].name", kind="RoleBinding"), "It follows from the spec of GNNService digits"),
    ],
)
def test_the_event_says_where_it_is_set_instead(owner: ServiceKey, change: Revert, expected: str) -> None:
    note = describe_reverts(owner, [change])
    assert (note.type, note.reason) == ("Warning", REVERTED)
    assert expected in note.message


def test_one_event_tells_of_all_fields_of_an_object() -> None:
    changes = [revert(f"spec.field{number}", manager=FieldManager("kubectl-edit")) for number in range(5)]
    assert describe_reverts(SERVICE, changes).message == (
        "Deployment digits-worker was changed by kubectl-edit, and is set back to what is declared: spec.field0 from 5 "
        "back to 1; spec.field1 from 5 back to 1; spec.field2 from 5 back to 1, and 2 more. It follows from the spec "
        "of GNNService digits; no field of that sets it otherwise."
    )


def test_an_autoscaler_that_fights_is_told_of_every_ten_minutes() -> None:
    log = RevertLog()
    told = []
    for seconds in range(0, 1300, 15):
        log.note(SERVICE, [revert("spec.replicas", str(3 + seconds % 2), manager=HPA)])
        told += [(seconds, note.message) for note in log.take_events(SERVICE, NOW + timedelta(seconds=seconds))]
    assert [seconds for seconds, _ in told] == [0, 600, 1200]
    assert "So it was" not in told[0][1]
    assert "So it was 39 more times since the last event." in told[1][1]
    assert log.counts() == {(SERVICE, "Deployment"): 87}


def test_another_manager_and_another_field_are_told_of_at_once() -> None:
    log = RevertLog()
    for change in (revert("spec.replicas", manager=HPA), revert("spec.replicas"), revert("spec.paused")):
        log.note(SERVICE, [change])
        assert len(log.take_events(SERVICE, NOW)) == 1
        assert log.take_events(SERVICE, NOW) == ()


def test_a_deleted_service_is_counted_no_longer() -> None:
    log = RevertLog()
    for key in (SERVICE, POOL):
        log.note(key, [revert("spec.replicas")])
    log.forget(SERVICE)
    assert log.take_events(SERVICE, NOW) == ()
    assert log.counts() == {(POOL, "Deployment"): 1}


# --- with an operator


def messages(world: World) -> list[str]:
    return [event["message"] for event in world.plane.of_kind("Event") if event["reason"] == REVERTED]


def play(*changes: tuple[str, str, str, Any]) -> World:
    """A service that is served, and each change one after the other: manager, kind, name, what it does."""
    world = World(SETTINGS, Trouble())

    async def run() -> None:
        world.start_operator()
        world.create()
        await world.settled()
        for manager, kind, name, change in changes:
            world.cluster.replace(kind, name, change, manager=manager)
            await world.settled()
        await world.run_for(2 * RESYNC_S)
        for operator in world.operators:
            await operator.end()

    asyncio.run(run())
    return world


def test_a_scaled_deployment_is_set_back_and_told_once() -> None:
    scaled = ("kubectl", "Deployment", "digits-worker", lambda found: found["spec"].update(replicas=4))
    world = play(scaled, scaled)
    (deployment,) = world.plane.of_kind("Deployment")
    assert deployment["spec"]["replicas"] == 1
    (said,) = messages(world)
    assert "Deployment digits-worker was changed by kubectl, and is set back" in said
    assert "spec.replicas from 4 back to 1. Set spec.worker.replicas of GNNService digits" in said


def test_an_edit_of_any_child_is_told() -> None:
    world = play(
        ("kubectl-edit", "Service", "digits", lambda found: found["spec"].update(ports=[])),
        ("kubectl-edit", "ConfigMap", "digits-routing", lambda found: found["data"].update({"routing.json": "{}"})),
        ("kubectl-label", "Role", "digits-worker", lambda found: found["metadata"]["labels"].clear()),
    )
    service, config, role = sorted(
        messages(world), key=lambda said: ["Service", "ConfigMap", "Role"].index(said.split()[0])
    )
    assert "spec.ports from 0 entries back to 1 entries" in service
    assert "data[routing.json] from a value that is not shown" in config
    assert "metadata.labels" in role


def test_a_change_of_the_spec_is_told_as_no_revert() -> None:
    world = World(SETTINGS, Trouble())

    async def run() -> None:
        world.start_operator()
        world.create()
        await world.settled()
        world.set(worker={"replicas": 3})
        await world.settled()
        world.set(worker={"replicas": 1}, image="gnnserve/worker:other")
        await world.settled()
        for operator in world.operators:
            await operator.end()

    asyncio.run(run())
    assert messages(world) == []
