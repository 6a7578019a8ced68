"""A service at rest asks the API server for nothing: what it needs is in the caches, or was looked up before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.control.campaign.clock import SimClock
from tests.control.campaign.play import play_alone
from tests.control.campaign.scenarios import BAD_GRAPH
from tests.control.campaign.sim_operator import RESYNC_S
from tests.control.campaign.world import World
from tests.support.operator.operator import live
from tests.support.operator.pool_scene import Scene as PoolScene

from gnnserve_operator.errors import RetryLaterError
from gnnserve_operator.kinds import CLAIM, POD_MONITOR, ObjectRef, ResourceKind
from gnnserve_operator.observe import UsersClaims

RESYNCS = 4
TO_COME = {"configmaps/digits-routing", "deployments/digits-worker", "poddisruptionbudgets/digits-worker"}
FOREIGN = {
    "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
    "metadata": {"name": "digits-worker", "namespace": "default"}, "spec": {},
}  # fmt: skip


def reads(calls: list[Any]) -> list[str]:
    """Resource and name of what was asked for. The API of PodMonitors is asked for once for all services."""
    asked = [call.asked.split() for call in calls if not call.is_write]
    paths = [path for method, path in asked if method == "GET" and path != POD_MONITOR.api_path]
    return ["/".join(path.rsplit("/", 2)[1:]) for path in paths]


async def reads_at_rest(world: World) -> list[str]:
    await world.settled()
    await world.run_for(RESYNC_S + 1)
    world.calls.clear()
    reconciles = world.reconciles
    await world.run_for(RESYNCS * RESYNC_S)
    assert world.reconciles >= reconciles + RESYNCS
    assert not [call for call in world.calls if call.is_write]
    return reads(world.calls)


# --- states of a service


async def running(world: World) -> None:
    world.create()


async def suspended(world: World) -> None:
    world.create()
    await world.settled()
    world.set(suspend=True)


async def suspended_from_the_start(world: World) -> None:
    world.create(suspend=True)


async def suspended_while_generating(world: World) -> None:
    world.create()
    await world.until(lambda: world.plane.of_kind("Job"))
    world.set(suspend=True)


async def with_a_log_in_its_claim(world: World) -> None:
    world.create(updates={"log": {"sqlite": {}}})


async def scaled_to_zero(world: World) -> None:
    world.create(worker={"replicas": 0})


async def failed(world: World) -> None:
    world.create(graph=BAD_GRAPH)


async def invalid(world: World) -> None:
    world.create()
    await world.settled()
    world.let_unknown_fields_pass()
    world.set(generator={"of": "a later version"})


async def held_by_a_queue(world: World) -> None:
    world.create()
    await world.until(lambda: world.plane.of_kind("Job"))
    name = world.plane.of_kind("Job")[0]["metadata"]["name"]
    world.cluster.replace("Job", name, lambda found: found["spec"].update(suspend=True))


@pytest.mark.parametrize(
    "state",
    [
        held_by_a_queue,
        running,
        suspended,
        suspended_from_the_start,
        suspended_while_generating,
        scaled_to_zero,
        failed,
        invalid,
    ],
)
def test_a_service_at_rest_reads_nothing_at_a_resync(state: Callable[[World], Awaitable[None]]) -> None:
    async def scene(world: World) -> None:
        await state(world)
        assert await reads_at_rest(world) == []

    play_alone(scene)


def test_a_claim_that_the_user_names_is_read_once_in_a_resync_and_its_loss_is_told_by_the_next() -> None:
    async def scene(world: World) -> None:
        metadata = {"name": "shared", "namespace": "default"}
        claim = {"apiVersion": "v1", "kind": CLAIM.name, "metadata": metadata, "spec": {"accessModes": []}}
        world.cluster.create(claim)
        world.create(repository={"claimName": "shared"})
        assert await reads_at_rest(world) == ["persistentvolumeclaims/shared"] * RESYNCS
        world.cluster.delete(CLAIM.name, "shared")
        kept = "RepositoryKept"
        await world.until(
            lambda: world.condition(kept).get("reason") == "VolumeClaimTerminating", limit_s=RESYNC_S + 1
        )  # fmt: skip

    play_alone(scene)


def test_a_pool_and_its_services_read_nothing_at_rest() -> None:
    scene = PoolScene()
    scene.add_pool()
    scene.add("reviews")
    scene.add("papers", suspend=True)
    scene.settle()
    assert reads_of_pool(scene) == []


def test_a_claim_that_a_pool_names_is_read_once_for_all_of_its_services() -> None:
    scene = PoolScene()
    metadata = {"name": "models", "namespace": "default"}
    scene.cluster.create({"apiVersion": "v1", "kind": CLAIM.name, "metadata": metadata, "spec": {}})
    scene.add_pool(repository={"claimName": "models"})
    scene.add("reviews")
    scene.add("papers")
    scene.settle()
    asyncio.run(scene.clock.advance_to(scene.clock.now() + RESYNC_S))
    assert reads_of_pool(scene) == ["persistentvolumeclaims/models"]


def reads_of_pool(scene: PoolScene) -> list[str]:
    scene.cluster.paths.clear()
    scene.settle()
    asked = [path for path in scene.cluster.paths if path != f"GET {POD_MONITOR.api_path}"]
    return ["/".join(path.rsplit("/", 2)[1:]) for path in asked]


# --- names that others have, or may take


@pytest.mark.parametrize(
    ("foreign", "resource"),
    [
        pytest.param(FOREIGN, "poddisruptionbudgets/digits-worker", id="of a child that comes later"),
        pytest.param(
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "digits", "namespace": "default"}, "spec": {}},
            "services/digits",
            id="of a child that is made first",
        ),
    ],
)
def test_of_a_service_whose_name_is_taken_that_name_alone_is_looked_up(foreign: dict[str, Any], resource: str) -> None:
    async def scene(world: World) -> None:
        world.cluster.create(foreign)
        world.create()
        await world.until(lambda: world.condition("Stalled").get("reason") == "NameTaken", limit_s=5)
        await world.run_for(5)
        world.calls.clear()
        await world.run_for(RESYNC_S)
        assert set(reads(world.calls)) == {resource}
        await world.run_for(300)
        world.calls.clear()
        await world.run_for(RESYNC_S)
        assert reads(world.calls) == [resource] * 6
        world.cluster.delete(foreign["kind"], foreign["metadata"]["name"])
        await world.until(lambda: world.condition("Ready").get("status") == "True")

    play_alone(scene)


def test_names_of_later_children_are_looked_up_again_when_a_job_is_about_to_begin() -> None:
    async def scene(world: World) -> None:
        world.create(suspend=True)
        assert await reads_at_rest(world) == []
        world.cluster.create(FOREIGN)
        world.set(suspend=False)
        await world.until(lambda: world.condition("Stalled").get("reason") == "NameTaken", limit_s=5)
        await world.run_for(RESYNC_S)
        assert world.plane.of_kind("Job") == []
        world.cluster.delete("PodDisruptionBudget", "digits-worker")
        await world.until(lambda: world.condition("Ready").get("status") == "True")

    play_alone(scene)


def test_a_name_that_is_taken_while_a_job_computes_is_told_within_minutes() -> None:
    async def scene(world: World) -> None:
        world.plane._due = Never()
        world.create()
        await world.until(lambda: world.condition("VariantsGenerated").get("reason") == "Generating")
        await world.run_for(RESYNC_S)
        world.calls.clear()
        await world.run_for(600)
        assert {name: reads(world.calls).count(name) for name in TO_COME} == dict.fromkeys(TO_COME, 2)
        world.cluster.create(FOREIGN)
        await world.until(lambda: world.condition("Stalled").get("reason") == "NameTaken", limit_s=320)
        assert len(world.plane.of_kind("Job")) == 1

    play_alone(scene)


class Never(dict[str, float]):
    """Times at which generations are done: none is."""

    def __setitem__(self, uid: str, due: float) -> None:
        super().__setitem__(uid, due + 1e6)


# --- claims that users name


@dataclass(slots=True)
class Asked:
    """An API server's claims, and what it was asked for."""

    names: set[str] = field(default_factory=set)
    deleting: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    is_away: bool = False

    async def get(self, ref: ObjectRef) -> dict[str, Any] | None:
        self._note(f"get {ref.namespace}/{ref.name}")
        await asyncio.sleep(0)
        return self._claim(ref.name) if ref.name in self.names else None

    async def list_objects(self, kind: ResourceKind, namespace: str | None, selector: str = "") -> list[dict[str, Any]]:
        self._note(f"list {namespace}")
        await asyncio.sleep(0)
        return [self._claim(name) for name in sorted(self.names)]

    def _note(self, words: str) -> None:
        self.asked.append(words)
        if self.is_away:
            raise RetryLaterError("away")

    def _claim(self, name: str) -> dict[str, Any]:
        claim = live({"apiVersion": "v1", "kind": CLAIM.name, "metadata": {"name": name, "namespace": "a"}}, 1)
        if name in self.deleting:
            claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return claim


def claims_over(cluster: Asked, clock: SimClock) -> UsersClaims:
    return UsersClaims(cluster, 60, clock)  # type: ignore[arg-type]


def test_services_that_name_one_claim_ask_for_it_together() -> None:
    async def scene() -> None:
        cluster, clock = Asked({"shared"}), SimClock()
        claims = claims_over(cluster, clock)
        found = await asyncio.gather(*(claims.get("a", "shared") for _ in range(100)))
        assert {claim["metadata"]["name"] for claim in found if claim is not None} == {"shared"}
        await clock.advance_to(29)
        await claims.get("a", "shared")
        assert cluster.asked == ["get a/shared"]
        await clock.advance_to(31)
        await claims.get("a", "shared")
        assert cluster.asked == ["get a/shared"] * 2

    asyncio.run(scene())


def test_many_claims_of_one_namespace_are_listed_together() -> None:
    async def scene() -> None:
        names = [f"claim-{number}" for number in range(50)]
        cluster, clock = Asked({*names, "of-another"}), SimClock()
        claims = claims_over(cluster, clock)
        for _ in range(4):
            cluster.asked.clear()
            found = await asyncio.gather(*(claims.get("a", name) for name in (*names, "missing")))
            assert [None if claim is None else claim["metadata"]["name"] for claim in found] == [*names, None]
            await clock.advance_to(clock.now() + 60)
        assert cluster.asked == ["list a"]

    asyncio.run(scene())


def test_a_claim_that_is_missing_or_goes_is_asked_for_again_within_seconds() -> None:
    async def scene() -> None:
        cluster, clock = Asked({"goes"}, deleting={"goes"}), SimClock()
        claims = claims_over(cluster, clock)
        assert await claims.get("a", "comes") is None
        assert await claims.get("a", "goes") is not None
        cluster.names = {"comes"}
        await clock.advance_to(6)
        assert await claims.get("a", "comes") is not None
        assert await claims.get("a", "goes") is None

    asyncio.run(scene())


def test_an_api_server_that_is_away_is_no_missing_claim() -> None:
    async def scene() -> None:
        cluster, clock = Asked({"shared"}, is_away=True), SimClock()
        claims = claims_over(cluster, clock)
        with pytest.raises(RetryLaterError):
            await claims.get("a", "shared")
        cluster.is_away = False
        assert await claims.get("a", "shared") is not None

    asyncio.run(scene())


def test_the_claims_of_services_that_are_gone_are_forgotten() -> None:
    async def scene() -> None:
        cluster, clock = Asked({"a", "b", "c", "d"}), SimClock()
        claims = claims_over(cluster, clock)
        for name in sorted(cluster.names):
            await claims.get("a", name)
        await clock.advance_to(600)
        cluster.asked.clear()
        await claims.get("a", "a")
        assert cluster.asked == ["get a/a"], "a list was worth it for four"

    asyncio.run(scene())
