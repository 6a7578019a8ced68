"""Which changes wake a reconcile: those that a decision depends on, and no others."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.control.campaign.sim_operator import SimOperator
from tests.control.campaign.world import KEY
from tests.support.operator.operator import child, gnnservice, live
from tests.support.operator.reconcile_scene import Scene

from gnnserve_operator import observed
from gnnserve_operator.desired.children import WATCHED_CHILDREN
from gnnserve_operator.handlers.index import Index
from gnnserve_operator.handlers.news import READ_OF_STATUS, Intake, is_news
from gnnserve_operator.kinds import GNNWORKERPOOL, ServiceKey

Manifest = dict[str, Any]
SERVICE = live(gnnservice(), 7, labels={"team": "a"}, annotations={"note": "b"}, managedFields=[{"manager": "kubectl"}])
POD = live(child("Pod", "digits-worker-0", spec={"containers": []}), 7)
DEPLOYMENT = live(
    child("Deployment", "digits-worker", spec={"replicas": 2}, status={"readyReplicas": 1, "observedGeneration": 1}), 7
)
JOB = live(child("Job", "digits-generate", spec={}, status={"active": 1}), 7)
CLAIM = live(child("PersistentVolumeClaim", "digits-repository", spec={}, status={"phase": "Pending"}), 7)
BUDGET = live(child("PodDisruptionBudget", "digits-worker", status={"currentHealthy": 1}), 7)
CONFIG = live(child(data={"a": "1"}), 7)


def changed(before: Manifest, **fields: Any) -> Manifest:
    """The object after a change; fields of its metadata are named `metadata_…`."""
    now = copy.deepcopy(before)
    now["metadata"]["resourceVersion"] = "8"
    for name, value in fields.items():
        place, _, inner = name.partition("_")
        if inner:
            now[place] = {**now.get(place, {}), inner: value}
        else:
            now[name] = value
    return now


READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        pytest.param(SERVICE, changed(SERVICE, metadata_labels={"team": "b"}), False, id="a label of a service"),
        pytest.param(SERVICE, changed(SERVICE, metadata_annotations={}), False, id="an annotation of a service"),
        pytest.param(SERVICE, changed(SERVICE, metadata_managedFields=[]), False, id="managed fields of a service"),
        pytest.param(SERVICE, changed(SERVICE, metadata_finalizers=["a.example/b"]), False, id="a finalizer"),
        pytest.param(SERVICE, changed(SERVICE, metadata_generation=2), True, id="the spec of a service"),
        pytest.param(SERVICE, changed(SERVICE, metadata_deletionTimestamp="now"), True, id="a deletion"),
        pytest.param(SERVICE, changed(SERVICE, metadata_labels={"kueue.x-k8s.io/queue-name": "a"}), True,
                     id="a label that Jobs get"),
        pytest.param(CONFIG, changed(CONFIG), False, id="nothing but the version of a child"),
        pytest.param(CONFIG, changed(CONFIG, metadata_managedFields=[{"manager": "a"}]), False, id="managed fields"),
        pytest.param(CONFIG, changed(CONFIG, data={"a": "2"}), True, id="what a child holds"),
        pytest.param(CONFIG, changed(CONFIG, metadata_labels={}), True, id="a label of a child, which is set back"),
        pytest.param(CONFIG, changed(CONFIG, metadata_annotations={"gnnserve.dev/adopt": "digits"}), True,
                     id="an annotation of a child"),
        pytest.param(BUDGET, changed(BUDGET, status={"currentHealthy": 2}), False, id="the status of a budget"),
        pytest.param(DEPLOYMENT, changed(DEPLOYMENT, status_conditions=[{"type": "Available", "status": "True"}]),
                     False, id="what of a Deployment's status is not read"),
        pytest.param(DEPLOYMENT, changed(DEPLOYMENT, status_readyReplicas=2), True, id="ready replicas"),
        pytest.param(DEPLOYMENT, changed(DEPLOYMENT, metadata_generation=2), True,
                     id="a generation that the Deployment's controller has not seen"),
        pytest.param(JOB, changed(JOB, status_ready=1), False, id="ready pods of a Job"),
        pytest.param(JOB, changed(JOB, status_conditions=[{"type": "Complete", "status": "True"}]), True,
                     id="the end of a Job"),
        pytest.param(CLAIM, changed(CLAIM, status={"phase": "Bound"}), False, id="the phase of a claim"),
        pytest.param(CLAIM, changed(CLAIM, status={"capacity": {"storage": "2Gi"}}), True, id="what a claim holds"),
        pytest.param(POD, changed(POD, status={"conditions": [READY]}), True, id="a pod that is ready"),
        pytest.param(POD, changed(POD, status={"hostIP": "10.0.0.1"}), False, id="the address of a pod's node"),
    ],
)  # fmt: skip
def test_what_is_news(before: Manifest, now: Manifest, expected: bool) -> None:
    assert is_news(before, now) is expected


def test_what_is_read_of_a_status_is_known_to_be_read() -> None:
    """A kind that is not in the table wakes no service by its status."""
    reading = {
        function
        for name, function in vars(observed).items()
        if name.startswith("observed_") and '"status"' in inspect.getsource(function)
    }
    assert set(READ_OF_STATUS.values()) == reading
    assert READ_OF_STATUS.keys() <= set(WATCHED_CHILDREN)


# --- the intake


class Woken:
    def __init__(self, *, is_own_status: bool = False) -> None:
        self.index, self.keys = Index(), list[ServiceKey]()
        self.intake = Intake(self.index, self.keys.append, lambda key, body: is_own_status)

    def take(self, body: Manifest, change: str | None = "MODIFIED") -> list[ServiceKey]:
        self.keys.clear()
        self.intake.take(change, body)
        return sorted(self.keys)


MEMBER = live(gnnservice(worker={"poolRef": {"name": "shared"}}), 7)
POOL = live({**gnnservice("shared"), "kind": GNNWORKERPOOL.name, "spec": {}}, 7)
POOL_KEY = ServiceKey("default", "shared", GNNWORKERPOOL.name)


def test_a_change_that_wakes_nothing_is_in_the_index_all_the_same() -> None:
    woken = Woken()
    assert woken.take(SERVICE, None) == [KEY]
    edited = changed(SERVICE, metadata_labels={"team": "b"})
    assert woken.take(edited) == []
    assert woken.index.has_version(KEY, edited)
    assert woken.take(changed(edited, metadata_generation=2)) == [KEY]


def test_another_writer_of_the_number_of_workers_is_news_though_the_number_stays() -> None:
    def scaled_by(manager: str) -> Manifest:
        fields = {"f:spec": {"f:worker": {"f:replicas": {}}}}
        entry = {"manager": manager, "operation": "Update", "subresource": "scale", "fieldsV1": fields}
        return changed(SERVICE, metadata_managedFields=[entry])

    woken = Woken()
    woken.take(SERVICE, None)
    assert woken.take(scaled_by("kube-controller-manager")) == [KEY]
    assert woken.take(scaled_by("kube-controller-manager")) == []


def test_an_object_that_goes_is_news() -> None:
    woken = Woken()
    labels = {"gnnserve.dev/service": KEY.name}
    woken.take(changed(BUDGET, metadata_labels=labels), None)
    assert woken.take(changed(BUDGET, metadata_labels=labels), "DELETED") == [KEY]


def test_a_child_that_another_service_gets_wakes_both() -> None:
    woken = Woken()
    woken.take(changed(CONFIG, metadata_labels={"gnnserve.dev/service": "digits"}), None)
    given = changed(CONFIG, metadata_labels={"gnnserve.dev/service": "other"})
    assert woken.take(given) == [KEY, ServiceKey("default", "other")]


@pytest.mark.parametrize(("is_own_status", "expected"), [(True, [POOL_KEY]), (False, [KEY, POOL_KEY])])
def test_a_status_that_this_operator_wrote_wakes_the_pool_alone(
    *, is_own_status: bool, expected: list[ServiceKey]
) -> None:
    woken = Woken(is_own_status=is_own_status)
    woken.take(POOL, None)
    woken.take(MEMBER, None)
    assert woken.take(changed(MEMBER, status={"conditions": [READY]})) == expected


def test_the_status_of_a_pool_wakes_no_service() -> None:
    woken = Woken(is_own_status=True)
    woken.take(POOL, None)
    woken.take(MEMBER, None)
    assert woken.take(changed(POOL, status={"conditions": [READY]})) == []


# --- with an operator


def play(scene: Callable[[Scene, SimOperator], Awaitable[None]]) -> None:
    async def run() -> None:
        world = Scene()
        operator = world.start_operator()
        await world.serve()
        await scene(world, operator)
        await world.stop_operators()

    asyncio.run(run())


async def until_looked_at(world: Scene, operator: SimOperator) -> int:
    """Reconciles within two seconds, with no resync among them."""
    assert operator.next_resync > world.clock.now() + 2, "the scene begins right after a resync"
    before = operator.reconciles
    await world.run_for(2)
    return operator.reconciles - before


def edit_metadata(found: Manifest) -> None:
    found["metadata"].setdefault("labels", {})["team"] = "a"
    found["metadata"].setdefault("annotations", {})["argocd.argoproj.io/tracking-id"] = "b"


def test_a_label_or_an_annotation_of_a_service_is_not_looked_at_and_is_in_no_writes_way() -> None:
    async def scene(world: Scene, operator: SimOperator) -> None:
        await world.until(lambda: world.clock.now() >= operator.next_resync)
        await world.run_for(1)
        for number in range(30):
            world.cluster.replace("GNNService", KEY.name, edit_metadata)
            world.cluster.replace(
                "GNNService", KEY.name, lambda found: found["metadata"]["labels"].update(team=str(number))  # noqa: B023
            )  # fmt: skip
        assert await until_looked_at(world, operator) == 0
        world.codes.clear()
        world.set(objective={"latencyMs": 20})
        assert await until_looked_at(world, operator) > 0
        assert world.condition("Ready")["observedGeneration"] == 2
        assert 409 not in world.codes

    play(scene)


def test_a_status_is_written_without_being_looked_at_for_it_and_set_back_where_another_writes_it() -> None:
    async def scene(world: Scene, operator: SimOperator) -> None:
        await world.until(lambda: world.clock.now() >= operator.next_resync)
        await world.run_for(1)
        world.cluster.replace("GNNService", KEY.name, lambda found: found["status"].update(revision="another"))
        assert await until_looked_at(world, operator) == 1, "to set it back, and not for what it has written"
        assert world.service is not None
        assert world.service["status"]["revision"] != "another"

    play(scene)


def test_a_budgets_status_wakes_nothing_and_its_spec_is_set_back() -> None:
    async def scene(world: Scene, operator: SimOperator) -> None:
        budget = ("PodDisruptionBudget", "digits-worker")
        await world.until(lambda: world.clock.now() >= operator.next_resync)
        await world.run_for(1)
        world.cluster.replace(*budget, lambda found: found.update(status={"currentHealthy": 1}))
        assert await until_looked_at(world, operator) == 0
        declared = world.cluster.get(*budget)["spec"]
        world.cluster.replace(*budget, lambda found: found["spec"].update(maxUnavailable=7))
        assert await until_looked_at(world, operator) > 0
        assert world.cluster.get(*budget)["spec"] == declared

    play(scene)
