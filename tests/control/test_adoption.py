"""What is there already under a child's name: it is left alone, named, and taken over where a person says so."""

from __future__ import annotations

import re

from tests.control.campaign.play import play_alone
from tests.control.campaign.sim_operator import RESYNC_S
from tests.control.campaign.world import KEY, World
from tests.support.operator.operator import KEY as SERVICE_KEY
from tests.support.operator.operator import gnnservice, live, owner

from gnnserve_operator.handlers.index import Index, IndexedObject
from gnnserve_operator.observe import observed_pods

_COMMAND = re.compile(r"`kubectl annotate -n default (.*) gnnserve\.dev/adopt=digits`")


async def serves(world: World) -> None:
    await world.until(lambda: world.condition("Ready").get("status") == "True", limit_s=RESYNC_S)


async def is_taken(world: World) -> str:
    await world.until(lambda: world.condition("Stalled").get("reason") == "NameTaken", limit_s=10)
    return str(world.condition("Ready")["message"])


def run_command(world: World, message: str) -> int:
    """As a person who copies it; returns how many objects it names."""
    (names,) = _COMMAND.findall(message)
    kinds = {kind.name.lower(): kind.name for kind in world.cluster.kinds}
    for named in names.split():
        kind, _, name = named.partition("/")
        world.cluster.replace(
            kinds[kind], name,
            lambda found: found["metadata"].setdefault("annotations", {}).update({"gnnserve.dev/adopt": "digits"}),
        )  # fmt: skip
    return len(names.split())


def of_gnnserve(world: World) -> dict[tuple[str, str], str]:
    """Every object that the operator or a controller has made, by kind and name: its uid."""
    return {
        (kind, name): found["metadata"]["uid"]
        for (kind, _, name), found in world.cluster.objects.items()
        if kind not in {"GNNService", "Event"}
    }


def test_what_an_orphaned_service_left_is_taken_over_as_it_is() -> None:
    async def scene(world: World) -> None:
        world.cluster.collects_garbage = False  # the controllers do, one act after another
        world.create()
        await serves(world)
        before = of_gnnserve(world)
        world.cluster.delete("GNNService", KEY.name, policy="Orphan")
        await world.run_for(5)
        world.create()
        named = run_command(world, await is_taken(world))
        await serves(world)
        assert named == len([kind for kind, _ in before if kind not in {"Pod", "ReplicaSet"}])
        assert of_gnnserve(world) == before, "nothing is made anew, nothing trains and no worker is replaced"
        uid = world.cluster.get("GNNService", KEY.name)["metadata"]["uid"]
        claim = world.cluster.get("PersistentVolumeClaim", "digits-repository")
        assert [found["uid"] for found in claim["metadata"]["ownerReferences"]] == [uid]

    assert play_alone(scene, resyncs=False) == []


def test_a_later_claim_that_an_orphaned_service_left_is_named_and_taken_over() -> None:
    """It had moved there, when its first claim was deleted."""

    async def scene(world: World) -> None:
        world.cluster.collects_garbage = False
        world.create()
        await serves(world)
        world.cluster.delete("PersistentVolumeClaim", "digits-repository")
        await world.until(lambda: world.cluster.find("PersistentVolumeClaim", "digits-repository") is None)
        await serves(world)
        claim = world.cluster.get("PersistentVolumeClaim", "digits-repository-2")["metadata"]["uid"]
        world.cluster.delete("GNNService", KEY.name, policy="Orphan")
        await world.run_for(5)
        world.create()
        message = await is_taken(world)
        assert "PersistentVolumeClaim digits-repository-2" in message
        run_command(world, message)
        await serves(world)
        (found,) = world.plane.of_kind("PersistentVolumeClaim")
        assert found["metadata"]["uid"] == claim, "nothing is generated anew"

    assert play_alone(scene, resyncs=False) == []


def test_a_blocker_that_no_watch_tells_of_is_noticed_within_seconds_of_its_end() -> None:
    async def scene(world: World) -> None:
        metadata = {"name": "digits", "namespace": "default"}
        foreign = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": []}}
        world.cluster.create(foreign)
        world.create()
        assert "Service digits exists already and has no owner" in await is_taken(world)
        assert world.cluster.get("Service", "digits")["spec"] == foreign["spec"]
        world.cluster.delete("Service", "digits")
        await world.until(lambda: world.cluster.find("Service", "digits") is not None, limit_s=3)
        await serves(world)

    assert play_alone(scene, resyncs=False) == []


def test_a_foreign_object_is_taken_over_within_seconds_and_one_that_another_controls_never() -> None:
    async def scene(world: World) -> None:
        metadata = {"name": "digits", "namespace": "default"}
        world.cluster.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": []}})
        web = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {**metadata, "name": "web"}}
        other = world.cluster.create(web)
        owned = {
            "name": "digits-worker", "namespace": "default", "annotations": {"gnnserve.dev/adopt": "digits"},
            "ownerReferences": [owner("web", other["metadata"]["uid"], "ReplicaSet")],
        }  # fmt: skip
        before = world.cluster.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": owned})
        world.create()
        message = await is_taken(world)
        assert "ServiceAccount digits-worker exists already and belongs to ReplicaSet web" in message
        assert run_command(world, message) == 1
        uid = world.cluster.get("GNNService", KEY.name)["metadata"]["uid"]

        def owners() -> list[str]:
            return [one["uid"] for one in world.cluster.get("Service", "digits")["metadata"].get("ownerReferences", ())]

        await world.until(lambda: owners() == [uid], limit_s=3)
        assert world.cluster.get("Service", "digits")["spec"]["ports"] != []
        assert world.cluster.get("ServiceAccount", "digits-worker") == before

    assert play_alone(scene, resyncs=False) == []


def test_pods_of_a_deployment_that_was_taken_over_count() -> None:
    index = Index()
    service = live(gnnservice(), creationTimestamp="2026-01-01T00:00:05Z", uid="u1")
    for name, created_at in (("older", "2026-01-01T00:00:01Z"), ("ours", "2026-01-01T00:00:03Z")):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": {}}
        index.keep(SERVICE_KEY, IndexedObject.of(live(pod, creationTimestamp=created_at)))
    assert observed_pods(index.children(SERVICE_KEY), service) == ()
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "default"}}
    adopted = live(deployment, creationTimestamp="2026-01-01T00:00:02Z", ownerReferences=[owner(uid="u1")])
    index.keep(SERVICE_KEY, IndexedObject.of(adopted))
    assert [pod.name for pod in observed_pods(index.children(SERVICE_KEY), service)] == ["ours"]
