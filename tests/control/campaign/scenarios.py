"""The scenes of the campaign: what people do to one GNNService, from its first day to its last.

A scene waits for what is visible from outside, never for an operator's internal state, so that the same scene plays in
peace and in trouble.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tests.control.campaign.control_plane import (
    BAD_PATH,
    MISSING_IMAGE,
    NOWHERE,
    QUEUE_LABELS,
    offset_of,
    revision_of,
)
from tests.control.campaign.sim_operator import RESYNC_S
from tests.control.campaign.trouble import PEACE, STOPPED, VIEWS
from tests.control.campaign.world import KEY, MOST_RESTARTS, World
from tests.support.kubernetes.fake_cluster import Fault, Refusal

from gnnserve_api.pods.interface import COMPACT_VARIABLE
from gnnserve_operator.decide.contests import REVERTED
from gnnserve_operator.desired.metadata import ADOPT_ANNOTATION, OWNER_UID, WAITS_ANNOTATION
from gnnserve_operator.kinds import parse_service
from gnnserve_operator.settings import RunAs

Scene = Callable[[World], Awaitable[None]]
Manifest = dict[str, Any]
CLAIM = "PersistentVolumeClaim"
OTHER_MODEL = {"hidden": 32}
BAD_GRAPH = {"source": {"npz": {"uri": BAD_PATH}}, "volume": {"claimName": "graphs"}}
DIGITS = {"source": {"builtin": "Digits"}}
TOLD_S = 5.0
"""Time after a service is applied within which the refusal of its pod is told."""


def expect_ready(world: World) -> None:
    if world.condition("Ready").get("status") != "True":
        world.judge.accuse(f"it does not come to be ready: {world.condition('Ready')}")


def expect_available(world: World) -> None:
    if world.condition("Available").get("status") != "True":
        world.judge.accuse(f"it is not said that requests are answered: {world.condition('Available')}")


def expect_stalled(world: World) -> None:
    if world.condition("Stalled").get("status") != "True":
        world.judge.accuse(f"it is not said that it stands still: {world.condition('Stalled')}")


def is_queued(world: World) -> bool:
    """In line is no stall, however long it lasts."""
    reason, stalled = world.condition("Ready").get("reason"), world.condition("Stalled").get("status")
    return (reason, stalled) == ("Queued", "False")


async def queue_up(world: World) -> None:
    """Until the service says that its Job is in line, and for longer than a resync."""
    await world.until(lambda: is_queued(world))
    await world.run_for(RESYNC_S + 5)


def expect_event(world: World, reason: str) -> None:
    told = {event["reason"] for event in world.cluster.all("Event")}
    if reason not in told:
        world.judge.accuse(f"no event {reason} was told, but {sorted(told)}")


def expect_claim(world: World) -> Manifest:
    """The only claim."""
    claims = world.plane.of_kind(CLAIM)
    if len(claims) != 1:
        world.judge.accuse(f"there are {len(claims)} claims, and not one")
    return next(iter(claims), {})


def annotations_of(found: Manifest) -> Mapping[str, str]:
    return found["metadata"].get("annotations") or {}


def is_bound(world: World) -> bool:
    """Whether a claim is deleted with its service."""
    return any(claim["metadata"].get("ownerReferences") for claim in world.plane.of_kind(CLAIM))


def recipe_of(world: World) -> str:
    assert world.service is not None
    parsed = parse_service(world.service)
    assert not isinstance(parsed, str), parsed
    return parsed.spec.recipe()


def job_of(world: World) -> Manifest | None:
    return next(iter(world.plane.of_kind("Job")), None)


def is_generating(world: World) -> bool:
    return any(
        "batch.kubernetes.io/job-name" in pod["metadata"]["labels"] and pod["status"]["phase"] == "Running"
        for pod in world.plane.of_kind("Pod")
    )


def is_moved_to(world: World) -> bool:
    """Whether a worker mounts a claim that stays."""
    staying = [c for c in world.plane.of_kind(CLAIM) if not c["metadata"].get("deletionTimestamp")]
    mounts = [{"claimName": claim["metadata"]["name"]} for claim in staying]
    return any(
        volume.get("persistentVolumeClaim") in mounts
        for pod in world.plane.of_kind("Pod") if "-worker-" in pod["metadata"]["name"]
        for volume in pod["spec"]["volumes"]
    )  # fmt: skip


async def serve(world: World, **spec: Any) -> None:
    world.create(**spec)
    await world.settled()


def names_user(pod: Manifest) -> bool:
    return "runAsUser" in pod["spec"]["securityContext"]


def delete_child(world: World, kind: str, name: str) -> None:
    """If it is there: in trouble, it may not be yet."""
    if world.cluster.find(kind, name) is not None:
        world.cluster.delete(kind, name)


def delete_claim(world: World) -> None:
    """The present one. It goes when the last pod that uses it has gone."""
    for claim in world.plane.of_kind(CLAIM):
        if not claim["metadata"].get("deletionTimestamp"):
            world.cluster.delete(CLAIM, claim["metadata"]["name"])


def lose_claim(world: World) -> None:
    """The claim is lost under pods that use it: its protection was removed."""
    for claim in world.plane.of_kind(CLAIM):
        name = claim["metadata"]["name"]
        world.cluster.replace(CLAIM, name, lambda found: found["metadata"].pop("finalizers", None))
        delete_child(world, CLAIM, name)


# --- what is asked for


async def first_apply(world: World) -> None:
    await serve(world)


async def objective(world: World) -> None:
    await serve(world)
    world.set(objective={"latencyMs": 20, "accuracyTolerancePermille": 10})
    await world.settled()


async def batching(world: World) -> None:
    await serve(world)
    world.set(worker={"batching": {"maxSeeds": 64}})
    await world.settled()


async def replicas(world: World) -> None:
    await serve(world)
    world.set(worker={"replicas": 3})
    await world.settled()
    world.set(worker={"replicas": 0})
    await world.settled()
    world.set(worker={"replicas": 1})
    await world.settled()


async def scaled_through_the_service(world: World) -> None:
    """As an autoscaler of the service's scale subresource does, step by step."""
    await serve(world)
    world.judge.guarded = revision_of(recipe_of(world))
    for wanted in (2, 4, 3, 1):
        world.cluster.replace(
            "GNNService", KEY.name, lambda found, n=wanted: found["spec"].setdefault("worker", {}).update(replicas=n)
        )
        await world.run_for(5)
    await world.settled()
    expect_ready(world)


async def new_recipe(world: World) -> None:
    await serve(world)
    world.judge.guarded = None
    world.set(model=OTHER_MODEL)
    await world.settled()


async def recipe_and_back(world: World) -> None:
    """The first recipe is wanted again while the second is being generated."""
    await serve(world)
    world.judge.guarded = revision_of(recipe_of(world))
    world.set(model=OTHER_MODEL)
    await world.until(lambda: is_generating(world))
    world.edit(lambda spec: spec.pop("model"))
    await world.settled()


async def gone_back(world: World) -> None:
    """To the first model by name, and on to the second again."""
    await serve(world)
    first = recipe_of(world)
    world.set(model=OTHER_MODEL)
    await world.settled()
    world.set(revision=first[:12])
    await world.settled()
    expect_ready(world)
    world.set(model={"hidden": 48})
    await world.settled()
    expect_ready(world)
    world.edit(lambda spec: spec.pop("revision"))
    await world.settled()
    expect_ready(world)


async def gone_back_to_nothing(world: World) -> None:
    """To a name that is not published, while what is there answers."""
    await serve(world)
    world.judge.guarded = revision_of(recipe_of(world))
    world.set(revision="0123456789ab")
    await world.settled()
    expect_stalled(world)
    world.edit(lambda spec: spec.pop("revision"))
    await world.settled()
    expect_ready(world)


async def new_image(world: World) -> None:
    await serve(world, worker={"replicas": 2})
    world.judge.guarded = revision_of(recipe_of(world))
    world.set(image="registry.example/worker:2")
    await world.settled()


async def rolled_without_room(world: World) -> None:
    """Nodes have room for the present worker alone, which answers until it may stop before its successor starts."""
    world.plane.room = 1
    await serve(world)
    world.judge.guarded = revision_of(recipe_of(world))
    world.set(image="registry.example/worker:2")
    await world.until(lambda: "spec.worker.rollout.maxUnavailable" in world.condition("Ready").get("message", ""))
    await world.run_for(RESYNC_S + 5)
    expect_available(world)
    world.judge.guarded = None
    world.set(worker={"rollout": {"maxUnavailable": 1}})
    await world.settled()
    expect_ready(world)


async def rolled_one_at_a_time(world: World) -> None:
    """Nodes have no room for one worker more than are wanted; the others answer while one is replaced."""
    world.plane.room = 3
    await serve(world, worker={"replicas": 3, "rollout": {"maxUnavailable": 1}})
    world.judge.guarded = revision_of(recipe_of(world))
    world.set(image="registry.example/worker:2")
    await world.settled()
    expect_ready(world)


async def image_during_generation(world: World) -> None:
    """What computes is not thrown away for another image."""
    world.create()
    await world.until(lambda: is_generating(world))
    world.set(image="registry.example/worker:2")
    await world.settled()


async def suspend_and_resume(world: World) -> None:
    await serve(world)
    world.set(suspend=True)
    await world.settled()
    world.set(suspend=False)
    await world.settled()


async def suspend_generation(world: World) -> None:
    world.create()
    await world.until(lambda: is_generating(world))
    world.set(suspend=True)
    await world.settled()
    world.set(suspend=False)
    await world.settled()


async def routing_modes(world: World) -> None:
    await serve(world)
    world.set(routing={"mode": "Static", "variant": "x2"})
    await world.settled()
    world.set(routing={"mode": "Weights", "weights": {"x1": 9, "x4": 1}})
    await world.settled()
    world.set(routing={"mode": "Adaptive"})
    await world.settled()


# --- mistakes


async def failed_and_mended(world: World) -> None:
    await serve(world, graph=BAD_GRAPH)
    world.set(graph=DIGITS)
    await world.settled()


async def failed_job_deleted(world: World) -> None:
    """What it read was at fault and is mended: deleting the Job has it tried again."""
    world.plane.fails = lambda _: "its graph is empty"
    await serve(world)
    world.plane.fails = lambda _: None
    job = job_of(world)
    assert job is not None
    world.cluster.delete("Job", job["metadata"]["name"])
    await world.settled()


async def failed_recipe_while_serving(world: World) -> None:
    await serve(world)
    world.judge.guarded = revision_of(recipe_of(world))
    world.set(graph=BAD_GRAPH)
    await world.settled()
    world.set(graph=DIGITS)
    await world.settled()


async def worker_lost_while_an_edit_is_wrong(world: World) -> None:
    """Ready tells of the edit, Available whether requests are answered."""
    await serve(world)
    world.set(graph=BAD_GRAPH)
    await world.settled()
    expect_stalled(world)
    expect_available(world)
    for pod in world.plane.ready_workers(KEY):
        delete_child(world, "Pod", pod["metadata"]["name"])
    await world.settled()
    expect_stalled(world)
    # Where the watch of the next worker lost a change, until that is noticed.
    await world.until(lambda: world.condition("Available").get("status") == "True")


async def invalid_and_reverted(world: World) -> None:
    """The CRD of a newer operator let it pass."""
    world.let_unknown_fields_pass()
    await serve(world)
    world.judge.guarded = revision_of(recipe_of(world))
    world.set(quantum={"qubits": 3})
    await world.settled()
    world.edit(lambda spec: spec.pop("quantum"))
    await world.settled()


async def invalid_from_the_start(world: World) -> None:
    world.let_unknown_fields_pass()
    await serve(world, quantum={"qubits": 3})
    world.edit(lambda spec: spec.pop("quantum"))
    await world.settled()


async def missing_image(world: World) -> None:
    await serve(world)
    world.judge.guarded = revision_of(recipe_of(world))
    world.set(image=MISSING_IMAGE)
    await world.settled()
    world.edit(lambda spec: spec.pop("image"))
    await world.settled()


async def impossible_nodes(world: World) -> None:
    await serve(world)
    world.judge.guarded = revision_of(recipe_of(world))
    world.set(worker={"nodeSelector": NOWHERE})
    await world.run_for(40)
    world.edit(lambda spec: spec.pop("worker"))
    await world.settled()


async def refused_child(world: World) -> None:
    """A child is refused by a quota, until the quota is raised."""
    sentence = "exceeded quota: compute, requested: count/jobs.batch=1, used: 4, limited: 4"
    world.cluster.faults.append(Fault("apply", "Job", Refusal(403, "Forbidden", sentence)))
    world.create()
    await world.until(lambda: sentence in world.condition("Stalled").get("message", ""))
    world.cluster.faults.clear()
    await world.settled()


async def refused_pod(world: World) -> None:
    """A quota refuses the Job's pod, which the API server tells in an event alone, until it is raised."""
    world.plane.quota = "exceeded quota: compute, requested: requests.memory=1Gi, used: 8Gi, limited: 8Gi"
    world.create()
    await world.until(lambda: str(world.plane.quota) in world.condition("Stalled").get("message", ""))
    if world.trouble.point is PEACE and world.clock.now() > TOLD_S:
        world.judge.accuse(f"the refusal was told after {world.clock.now():.1f} s")
    world.plane.quota = None
    await world.settled()
    expect_ready(world)


async def suspended_job(world: World) -> None:
    """By a person, while it computes."""
    world.create()
    await world.until(lambda: is_generating(world))
    world.plane.hold_jobs()
    await queue_up(world)
    world.plane.let_jobs_go()
    await world.settled()
    expect_ready(world)


async def queued_job(world: World) -> None:
    """A queue lets the Job of another model go after a while; the old one answers meanwhile."""
    world.cluster.default = world.plane.admit
    await serve(world)
    world.judge.guarded = revision_of(recipe_of(world))
    world.label(**QUEUE_LABELS)
    world.plane.is_queue_closed = True
    world.set(model=OTHER_MODEL)
    await queue_up(world)
    world.judge.guarded = None
    world.plane.let_jobs_go()
    await world.settled()
    expect_ready(world)


async def preempted_job(world: World) -> None:
    """A queue suspends what computes for another, and the service is suspended meanwhile too."""
    world.cluster.default = world.plane.admit
    world.create_labelled(QUEUE_LABELS)
    await world.until(lambda: is_generating(world))
    world.plane.hold_jobs()
    await world.run_for(5)
    world.set(suspend=True)
    await world.settled()
    world.set(suspend=False)
    await world.until(lambda: is_queued(world))
    world.plane.let_jobs_go()
    await world.settled()
    expect_ready(world)


async def queue_left(world: World) -> None:
    """The label of a queue that lets nothing go is taken off: the Job is made again outside of it."""
    world.cluster.default = world.plane.admit
    world.plane.is_queue_closed = True
    world.create_labelled(QUEUE_LABELS)
    await world.until(lambda: is_queued(world))
    world.plane.held_jobs.clear()
    world.label()
    await world.settled()
    expect_ready(world)


async def unknown_variant(world: World) -> None:
    await serve(world)
    world.judge.guarded = revision_of(recipe_of(world))
    world.set(routing={"mode": "Static", "variant": "x3"})
    await world.settled()
    world.edit(lambda spec: spec.pop("routing"))
    await world.settled()


# --- other hands


async def foreign_object(world: World) -> None:
    metadata = {"name": KEY.name, "namespace": "default"}
    foreign = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 1}]}}
    before = world.cluster.create(foreign)
    world.create()
    await world.until(lambda: world.condition("Stalled").get("status") == "True")
    await world.settled()
    if world.cluster.get("Service", KEY.name)["spec"] != before["spec"]:
        world.judge.accuse("a foreign object was altered")
    world.cluster.delete("Service", KEY.name)
    await world.settled()


async def foreign_claim(world: World) -> None:
    """Nothing may be generated into it, and no worker mount it."""
    metadata = {"name": "digits-repository", "namespace": "default"}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {"accessModes": []}}
    world.cluster.create(claim)
    world.create()
    await world.until(lambda: world.condition("Stalled").get("status") == "True")
    await world.settled()
    if world.plane.of_kind("Job"):
        world.judge.accuse("a Job writes into a foreign claim")
    lose_claim(world)
    await world.settled()


async def lost_claim(world: World) -> None:
    await serve(world)
    await world.run_for(5)
    lose_claim(world)
    await world.settled()


async def lost_claim_and_another_model(world: World) -> None:
    """Workers hold the volume that is lost, where what is generated next will never lie."""
    await serve(world)
    await world.run_for(5)
    lose_claim(world)
    world.set(model={"hidden": 32})
    await world.settled()
    expect_ready(world)


async def lost_claim_at_once(world: World) -> None:
    """Within the second in which the Job was made, which is all that a time stamp tells."""
    world.create()
    await world.until(lambda: job_of(world))
    lose_claim(world)
    await world.settled()


async def claim_deleted(world: World) -> None:
    """Workers go on, and move to another claim."""
    await serve(world, worker={"replicas": 2})
    world.judge.guarded = revision_of(recipe_of(world))
    delete_claim(world)
    await world.settled()
    expect_ready(world)


async def claim_deleted_and_another_model(world: World) -> None:
    await serve(world)
    delete_claim(world)
    world.set(model=OTHER_MODEL)
    await world.settled()
    expect_ready(world)


async def another_model_and_claim_deleted(world: World) -> None:
    """While the second model is being generated into it."""
    await serve(world)
    world.set(model=OTHER_MODEL)
    await world.until(lambda: is_generating(world))
    delete_claim(world)
    await world.settled()
    expect_ready(world)


async def claim_deleted_and_suspended(world: World) -> None:
    await serve(world)
    delete_claim(world)
    world.set(suspend=True)
    await world.settled()
    world.set(suspend=False)
    await world.settled()
    expect_ready(world)


async def claim_deleted_while_suspended(world: World) -> None:
    await serve(world)
    world.set(suspend=True)
    await world.settled()
    delete_claim(world)
    await world.settled()
    world.set(suspend=False)
    await world.settled()
    expect_ready(world)


async def claim_deleted_at_the_first_generation(world: World) -> None:
    world.create()
    await world.until(lambda: is_generating(world))
    delete_claim(world)
    await world.settled()
    expect_ready(world)


async def claims_deleted_one_after_the_other(world: World) -> None:
    """The second while it is being generated into, the third while workers move to it."""
    await serve(world, worker={"replicas": 2})
    delete_claim(world)
    await world.until(lambda: is_generating(world))
    delete_claim(world)
    await world.until(lambda: is_moved_to(world))
    delete_claim(world)
    await world.settled()
    expect_ready(world)


async def damage(world: World) -> None:
    """To files that are answered from, until the operator was told of it."""
    world.plane.damage()
    await world.until(lambda: world.condition("Ready").get("status") == "False")


async def damaged(world: World) -> None:
    """Workers answer on from what they have mapped while the revision is generated again."""
    await serve(world, worker={"replicas": 2})
    world.judge.guarded = revision_of(recipe_of(world))
    await damage(world)
    await world.settled()
    expect_ready(world)


async def damaged_again_and_again(world: World) -> None:
    """Twice it is generated again; then a person is asked, and does what the message says."""
    await serve(world)
    world.judge.guarded = revision_of(recipe_of(world))
    for _ in range(2):
        await damage(world)
        await world.settled()
        expect_ready(world)
    await damage(world)
    await world.settled()
    if world.condition("Stalled").get("reason") != "RevisionDamaged":
        world.judge.accuse(f"it is not said that the volume damages files: {world.condition('Stalled')}")
    job = job_of(world)
    if job is not None:
        delete_child(world, "Job", job["metadata"]["name"])
    delete_child(world, "ConfigMap", "digits-routing")
    await world.settled()
    expect_ready(world)


async def damaged_and_workers_restarted(world: World) -> None:
    """Who has nothing mapped answers again once it is generated again."""
    await serve(world)
    await damage(world)
    for pod in world.plane.ready_workers(KEY):
        delete_child(world, "Pod", pod["metadata"]["name"])
    await world.settled()
    expect_ready(world)


async def damaged_and_suspended(world: World) -> None:
    await serve(world)
    await damage(world)
    world.set(suspend=True)
    await world.settled()
    world.set(suspend=False)
    await world.settled()
    expect_ready(world)


async def damaged_and_another_model(world: World) -> None:
    """And back to the damaged one while the other is generated."""
    await serve(world)
    await damage(world)
    world.set(model=OTHER_MODEL)
    await world.until(lambda: is_generating(world))
    world.edit(lambda spec: spec.pop("model"))
    await world.settled()
    expect_ready(world)


async def damaged_and_claim_deleted(world: World) -> None:
    await serve(world)
    await damage(world)
    await world.until(lambda: is_generating(world))
    delete_claim(world)
    await world.settled()
    expect_ready(world)


async def damaged_and_the_repair_fails(world: World) -> None:
    """For what it reads, until that is mended."""
    await serve(world)
    world.judge.guarded = revision_of(recipe_of(world))
    world.plane.fails = lambda _: "its graph is empty"
    await damage(world)
    await world.settled()
    expect_stalled(world)
    world.plane.fails = lambda _: None
    job = job_of(world)
    if job is not None:
        delete_child(world, "Job", job["metadata"]["name"])
    await world.settled()
    expect_ready(world)


LIVING = {"log": {"postgres": {"secretName": "log"}}}


def is_compacting(world: World) -> bool:
    return is_generating(world) and any(
        variable["name"] == COMPACT_VARIABLE
        for job in world.plane.of_kind("Job")
        for variable in job["spec"]["template"]["spec"]["containers"][0]["env"]
    )


def expect_offset(world: World, offset: int) -> None:
    """Whatever workers answer from has all changes up to there."""
    found = [route.revision if route is not None else "nothing" for route in world.plane.endpoint_routes(KEY)]
    if not found or any(offset_of(revision) != offset for revision in found):
        world.judge.accuse(f"workers answer from {found}, and not from a graph of offset {offset}")


async def write(world: World, changes: int) -> None:
    """Changes come, as many as have the log compacted, and it is."""
    world.plane.log += changes
    await world.until(lambda: is_compacting(world))


async def compacted(world: World) -> None:
    """Twice; workers answer all the while."""
    await serve(world, updates=LIVING, worker={"replicas": 2})
    world.judge.guarded = revision_of(recipe_of(world))
    for offset in (4, 8):
        await write(world, 4)
        await world.settled()
        expect_ready(world)
        expect_offset(world, offset)


async def compacted_while_changes_come(world: World) -> None:
    await serve(world, updates=LIVING)
    world.judge.guarded = revision_of(recipe_of(world))
    await write(world, 4)
    world.plane.log += 3
    await world.settled()
    expect_ready(world)
    expect_offset(world, 7)


async def compaction_fails(world: World) -> None:
    """Until what it reads is mended and its Job deleted."""
    await serve(world, updates=LIVING)
    world.judge.guarded = revision_of(recipe_of(world))
    world.plane.fails = lambda _: "the log has a gap"
    await write(world, 4)
    await world.until(lambda: world.condition("UpdatesFollowed").get("reason") == "CompactionFailed")
    await world.settled()
    expect_ready(world)
    world.plane.fails = lambda _: None
    for job in world.plane.of_kind("Job"):
        if any(found["type"] == "Failed" for found in (job.get("status") or {}).get("conditions") or ()):
            delete_child(world, "Job", job["metadata"]["name"])
    await world.until(lambda: is_compacting(world))
    await world.settled()
    expect_offset(world, 4)


async def compaction_and_another_model(world: World) -> None:
    """The Job that compacts is deleted, as what it makes is of no use; the other model's revision is compacted next."""
    await serve(world, updates=LIVING)
    world.plane.is_held = True
    await write(world, 4)
    world.set(model=OTHER_MODEL)
    await world.until(lambda: is_generating(world) and not is_compacting(world))
    world.plane.is_held = False
    await world.settled()
    expect_ready(world)
    await world.run_for(RESYNC_S)
    await world.settled()
    expect_offset(world, 4)


async def compaction_and_suspended(world: World) -> None:
    await serve(world, updates=LIVING)
    await write(world, 4)
    world.set(suspend=True)
    await world.settled()
    world.set(suspend=False)
    await world.settled()
    expect_ready(world)
    await world.run_for(RESYNC_S)
    await world.settled()
    expect_offset(world, 4)


async def compacted_and_damaged(world: World) -> None:
    await serve(world, updates=LIVING)
    await write(world, 4)
    await world.settled()
    await damage(world)
    await world.settled()
    expect_ready(world)
    expect_offset(world, 4)


async def compacted_and_claim_deleted(world: World) -> None:
    """What is generated into the next claim is made of the source, and of the log again."""
    await serve(world, updates=LIVING)
    await write(world, 4)
    await world.settled()
    delete_claim(world)
    await world.until(lambda: is_moved_to(world))
    await world.settled()
    await world.run_for(RESYNC_S)
    await world.settled()
    expect_ready(world)
    expect_offset(world, 4)


async def users_claim_deleted(world: World) -> None:
    """The operator can make no other: a Job is wanted, and none can start."""
    metadata = {"name": "shared", "namespace": "default"}
    claim = {"apiVersion": "v1", "kind": CLAIM, "metadata": metadata, "spec": {"accessModes": []}}
    world.cluster.create(claim)
    await serve(world, repository={"claimName": "shared"})
    delete_claim(world)
    await world.settled()
    world.set(model=OTHER_MODEL)
    await world.until(lambda: world.condition("Stalled").get("reason") == "VolumeClaimTerminating")
    await world.settled()
    world.set(suspend=True)
    await world.until(lambda: not world.plane.of_kind(CLAIM))
    world.cluster.create(claim)
    world.set(suspend=False)
    await world.settled()
    expect_ready(world)


async def deployment_held_by_a_finalizer(world: World) -> None:
    """Another owner's finalizer stays: the service says so, and goes on as soon as it is removed."""
    await serve(world)
    held = ("Deployment", "digits-worker")
    world.cluster.replace(*held, lambda found: found["metadata"].update(finalizers=["example.dev/audit"]))
    delete_child(world, *held)
    await world.settled()
    expect_stalled(world)
    world.cluster.replace(*held, lambda found: found["metadata"].pop("finalizers"))
    await world.settled()
    expect_ready(world)


async def namesakes_claim_held(world: World) -> None:
    """A foreign pod uses the claim of the deleted service of that name."""
    await serve(world)
    metadata = {"name": "copies-files", "namespace": "default", "labels": {"app": "copies"}}
    volume = {"name": "repository", "persistentVolumeClaim": {"claimName": "digits-repository"}}
    spec = {"nodeName": "node", "containers": [{"name": "copy"}], "volumes": [volume]}
    world.cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    world.cluster.replace("Pod", "copies-files", lambda found: found.update(status={"phase": "Running"}))
    world.delete()
    world.create()
    await world.settled()
    expect_stalled(world)
    world.cluster.delete("Pod", "copies-files", grace_s=0)
    await world.settled()
    expect_ready(world)


async def workers_never_ready(world: World) -> None:
    await serve(world)
    world.set(worker={"nodeSelector": NOWHERE})
    await world.settled()
    expect_stalled(world)
    world.edit(lambda spec: spec.pop("worker"))
    await world.settled()
    expect_ready(world)


async def job_finds_no_node(world: World) -> None:
    await serve(world, generation={"nodeSelector": NOWHERE})
    expect_stalled(world)
    world.edit(lambda spec: spec.pop("generation"))
    await world.settled()
    expect_ready(world)


async def job_waits_until_its_deadline(world: World) -> None:
    """For a node; Kubernetes deletes the pod that tells of it."""
    world.create(generation={"nodeSelector": NOWHERE})
    await world.until(lambda: any(WAITS_ANNOTATION in annotations_of(job) for job in world.plane.of_kind("Job")))
    world.plane.pass_deadlines()
    await world.settled()
    if "ended while it did not compute" not in (message := world.condition("Stalled").get("message", "")):
        world.judge.accuse(f"it is not said what the Job waited for: {message}")
    world.edit(lambda spec: spec.pop("generation"))
    await world.settled()
    expect_ready(world)


async def children_deleted(world: World) -> None:
    await serve(world)
    for kind, name in (
        ("ConfigMap", "digits-routing"), ("Service", "digits"), ("ServiceAccount", "digits-worker"),
        ("Role", "digits-worker"), ("RoleBinding", "digits-worker"), ("PodDisruptionBudget", "digits-worker"),
        ("NetworkPolicy", "digits-worker"),
    ):  # fmt: skip
        delete_child(world, kind, name)
        await world.settled()


async def deployment_deleted(world: World) -> None:
    await serve(world)
    delete_child(world, "Deployment", "digits-worker")
    await world.settled()


async def job_deleted_while_it_runs(world: World) -> None:
    world.create()
    await world.until(lambda: is_generating(world))
    job = job_of(world)
    assert job is not None
    world.cluster.delete("Job", job["metadata"]["name"])
    await world.settled()


async def job_and_table_deleted(world: World) -> None:
    """As the message about a lost revision advises."""
    await serve(world)
    job = job_of(world)
    if job is not None:
        world.cluster.delete("Job", job["metadata"]["name"])
    delete_child(world, "ConfigMap", "digits-routing")
    await world.settled()


async def children_edited(world: World) -> None:
    await serve(world)
    world.cluster.replace("Deployment", "digits-worker", lambda found: found["spec"].update(replicas=4))
    await world.settled()
    world.cluster.replace("ConfigMap", "digits-routing", lambda found: found["data"].update({"routing.json": "{}"}))
    await world.settled()
    world.cluster.replace("Service", "digits", lambda found: found["spec"].update(ports=[]))
    await world.settled()


async def deployment_scaled_by_an_autoscaler(world: World) -> None:
    """It sets the Deployment's replicas again and again, each time back to what the service says, and no more often."""
    await serve(world)
    world.judge.guarded = revision_of(recipe_of(world))
    held = ("Deployment", "digits-worker")
    before = world.judge.written[held]
    world.plane.autoscaled = 3
    await world.until(lambda: world.plane.scalings == 6)
    written, scaled = world.judge.written[held] - before, world.plane.scalings
    if written > 2 * scaled + MOST_RESTARTS:
        world.judge.accuse(f"the Deployment was written {written} times, and scaled {scaled} times")
    world.plane.autoscaled = None
    await world.settled()
    expect_ready(world)
    if world.trouble.kind != "422":  # an event that is refused is logged, and the fight told of again in ten minutes
        expect_event(world, REVERTED)


async def only_metadata_changes(world: World) -> None:
    """Labels and annotations of the service are no reason to write."""
    await serve(world)
    before = world.writes
    for change in ({"labels": {"team": "search"}}, {"annotations": {"note": "a"}}, {"labels": {}}):
        world.cluster.replace("GNNService", KEY.name, lambda found, c=change: found["metadata"].update(c))
        await world.settled()
    if world.trouble.point is PEACE and world.writes != before:
        world.judge.accuse(f"{world.writes - before} writes followed changes of metadata alone")


async def labels_taken_away(world: World) -> None:
    """The watch tells no more of such an object; it is there all the same."""
    await serve(world)
    for kind, name in (("Service", "digits"), ("ConfigMap", "digits-routing"), ("Deployment", "digits-worker")):
        world.cluster.replace(kind, name, lambda found: found["metadata"]["labels"].clear())
        await world.settled()


async def settings_change(world: World) -> None:
    """NetworkPolicies are no longer wanted, then they are."""
    await serve(world)
    settings = world.settings
    await world.restart_operator(settings.model_copy(update={"network_policy": False}))
    await world.until(lambda: not world.plane.of_kind("NetworkPolicy"))
    await world.settled()
    await world.restart_operator(settings)
    await world.until(lambda: len(world.plane.of_kind("NetworkPolicy")) == 2)
    await world.settled()


async def user_given_by_the_platform(world: World) -> None:
    """Pods name no user any more: workers are rolled, nothing is generated again, the next Job names none either."""
    await serve(world, worker={"replicas": 2})
    world.judge.guarded = revision_of(recipe_of(world))
    await world.restart_operator(world.settings.model_copy(update={"run_as": RunAs.PLATFORM}))
    await world.until(lambda: not any(names_user(pod) for pod in world.plane.ready_workers(KEY)))
    await world.settled()
    expect_ready(world)
    world.judge.guarded = None
    world.set(model=OTHER_MODEL)
    await world.settled()
    expect_ready(world)
    job = job_of(world)
    if job is None or names_user(job["spec"]["template"]):
        world.judge.accuse("the Job of the other model names a user, or there is none")


# --- the end


async def delete_when_served(world: World) -> None:
    await serve(world)
    world.delete()
    await world.settled()


async def delete_while_generating(world: World) -> None:
    world.create()
    await world.until(lambda: is_generating(world))
    world.delete()
    await world.settled()


async def delete_at_the_first_child(world: World) -> None:
    world.create()
    await world.until(lambda: world.plane.of_kind("ServiceAccount"))
    world.delete()
    await world.settled()


async def delete_while_rolling_out(world: World) -> None:
    await serve(world, worker={"replicas": 3})
    world.set(image="registry.example/worker:2")
    await world.until(lambda: any(
        pod["spec"]["containers"][0]["image"].endswith(":2") for pod in world.plane.of_kind("Pod")))  # fmt: skip
    world.delete()
    await world.settled()


async def delete_while_the_operator_is_away(world: World) -> None:
    await serve(world)
    await world.stop_operators()
    world.delete()
    await world.run_for(5)
    world.resume_operators()
    await world.settled()


async def delete_and_apply_at_once(world: World) -> None:
    await serve(world)
    world.delete()
    world.create()
    await world.settled()


async def delete_and_apply_with_slow_collection(world: World) -> None:
    """The children of the old one are still there when the new one comes."""
    await serve(world)
    world.cluster.collects_garbage = False
    world.delete()
    world.create(model=OTHER_MODEL)
    await world.settled()


async def delete_and_apply_while_away(world: World) -> None:
    await serve(world)
    await world.stop_operators()
    world.delete()
    world.create(worker={"replicas": 2})
    world.resume_operators()
    await world.settled()


async def delete_with_changes(world: World) -> None:
    """Its claim stays, also where it is only just released from its service."""
    await serve(world, repository={"deletionPolicy": "Delete"}, updates=LIVING)
    world.edit(lambda spec: spec.pop("repository"))
    await world.settled()
    world.delete()
    await world.settled()
    expect_claim(world)


async def delete_and_apply_with_changes(world: World) -> None:
    """The log of the first one is not hidden behind an empty one; it is gone on with once a person says so."""
    await serve(world, updates=LIVING)
    claim = expect_claim(world)
    world.delete()
    world.create(updates=LIVING)
    await world.until(lambda: world.condition("Stalled").get("reason") == "RepositoryRetained")
    await world.settled()
    if world.plane.of_kind("Job") or expect_claim(world) != claim:
        world.judge.accuse("something is begun beside what the first service left")
    allowed = {ADOPT_ANNOTATION: claim["metadata"]["labels"][OWNER_UID]}
    world.set(updates={**LIVING, "adopt": allowed[ADOPT_ANNOTATION]})
    world.cluster.replace(
        CLAIM, claim["metadata"]["name"], lambda found: found["metadata"]["annotations"].update(allowed)
    )
    await world.settled()
    expect_ready(world)


async def retention_edited(world: World) -> None:
    """The claim follows the policy, and goes with its service by the last one."""
    await serve(world, repository={"deletionPolicy": "Retain"})
    for policy in ("Delete", "Retain", "Delete"):
        world.set(repository={"deletionPolicy": policy})
        await world.until(lambda p=policy: is_bound(world) == (p == "Delete"))  # type: ignore[misc]
        await world.settled()
        expect_ready(world)
    world.delete()
    await world.settled()
    if world.plane.of_kind(CLAIM):
        world.judge.accuse("the claim stays, and is to be deleted")


async def claim_released_by_an_upgrade(world: World) -> None:
    """An earlier operator gave the claim an owner, and the next one takes it away before the service is deleted."""
    await serve(world, repository={"deletionPolicy": "Delete"}, updates=LIVING)
    await world.stop_operators()
    world.edit(lambda spec: spec.pop("repository"))
    await world.run_for(5)
    world.resume_operators()
    await world.until(lambda: not is_bound(world))
    world.delete()
    await world.settled()
    expect_claim(world)


async def delete_and_begin_anew(world: World) -> None:
    await serve(world, repository={"deletionPolicy": "Retain"})
    world.delete()
    world.create()
    await world.until(lambda: world.condition("Stalled").get("reason") == "RepositoryRetained")
    delete_claim(world)
    await world.settled()
    expect_ready(world)


SCENES: tuple[Scene, ...] = (
    first_apply, objective, batching, replicas, new_recipe, recipe_and_back, gone_back, gone_back_to_nothing,
    new_image, image_during_generation,
    suspend_and_resume, suspend_generation, routing_modes, failed_and_mended, failed_job_deleted,
    failed_recipe_while_serving, invalid_and_reverted, invalid_from_the_start, missing_image, impossible_nodes,
    refused_child, unknown_variant, foreign_object, foreign_claim, lost_claim,
    lost_claim_and_another_model, lost_claim_at_once, claim_deleted, claim_deleted_and_another_model,
    another_model_and_claim_deleted, claim_deleted_and_suspended, claim_deleted_while_suspended,
    claim_deleted_at_the_first_generation, claims_deleted_one_after_the_other, damaged, damaged_again_and_again,
    damaged_and_workers_restarted, damaged_and_suspended, damaged_and_another_model, damaged_and_claim_deleted,
    damaged_and_the_repair_fails, compacted, compacted_while_changes_come, compaction_fails,
    compaction_and_another_model, compaction_and_suspended, compacted_and_damaged, compacted_and_claim_deleted,
    users_claim_deleted,
    deployment_held_by_a_finalizer, namesakes_claim_held, workers_never_ready, job_finds_no_node, children_deleted,
    job_waits_until_its_deadline,
    deployment_deleted, job_deleted_while_it_runs, job_and_table_deleted, children_edited, labels_taken_away,
    settings_change, delete_when_served, delete_while_generating, delete_at_the_first_child, delete_while_rolling_out,
    delete_while_the_operator_is_away, delete_and_apply_at_once, delete_and_apply_with_slow_collection,
    delete_and_apply_while_away, delete_with_changes, delete_and_apply_with_changes, delete_and_begin_anew,
    retention_edited, claim_released_by_an_upgrade, scaled_through_the_service, only_metadata_changes, refused_pod,
    suspended_job, queued_job, preempted_job, queue_left, deployment_scaled_by_an_autoscaler, rolled_without_room,
    rolled_one_at_a_time, worker_lost_while_an_edit_is_wrong, user_given_by_the_platform,
)  # fmt: skip

TIMED: Mapping[Scene, Mapping[str, int]] = {
    children_edited: {"Pod": 3}, lost_claim_at_once: {"Job": 1, "Pod": 1}, delete_at_the_first_child: {"Pod": 1},
    damaged_and_another_model: {"Job": 1}, deployment_scaled_by_an_autoscaler: {"Pod": 14},
}  # fmt: skip
"""So many more of a kind than in peace may be made, and deleted: it depends on how soon the operator looks, rightly. An
edited Deployment has pods too many until then, one that an autoscaler scales again and again each time; a claim that
comes back in a later second than its Job was made in may not have what that generated; a Job that comes to be before
its service is deleted may get its pod; the Job of a repair may have come to be before another model is asked for, but
not its pod."""

LAGGING: Mapping[Scene, Mapping[str, int]] = {
    image_during_generation: {"Job": 1, "Pod": 1}, claim_deleted_and_another_model: {"Job": 1, "Pod": 1},
    claim_deleted_and_suspended: {"Pod": 1}, claim_deleted_at_the_first_generation: {"Pod": 1},
    claim_deleted_while_suspended: {"Pod": 1}, claims_deleted_one_after_the_other: {"Pod": 1},
    damaged_again_and_again: {"Job": 1, "Pod": 1}, lost_claim_and_another_model: {"Job": 1, "Pod": 1},
}  # fmt: skip
"""Known limits while watches are behind (VIEWS). Another image begins anew a Job that is not yet known to compute; what
is lost is what it computed in the time that they are behind. A Job of another model is made for a claim whose deletion
or loss is not known yet; its pod cannot start, and the Job is deleted once it is known: nothing is lost. Neither can a
worker that is wanted again meanwhile, or that moves to a claim whose deletion is not known. A repair that is known to
be done only later has its Job made once more; a second time would be told."""

_BEHIND = frozenset(VIEWS)
EITHER: Mapping[Scene, frozenset[str]] = {
    job_and_table_deleted: _BEHIND | {STOPPED}, image_during_generation: _BEHIND,
    claim_deleted_and_another_model: _BEHIND,
}  # fmt: skip
"""Scenes, and troubles, after which another Job is left, or none: Jobs at the end are not compared. Where one deletion
is told later than the other, or the write of the table comes late, the table is made again from the Job that was there,
and no Job is needed: as if the table had been deleted first."""

NUMBERED: Mapping[Scene, frozenset[str]] = {
    claim_deleted_at_the_first_generation: frozenset({"422"}), claim_deleted_while_suspended: frozenset({"422"}),
    claims_deleted_one_after_the_other: _BEHIND | {"422"},
}  # fmt: skip
"""Scenes, and troubles, after which a claim has another number: a deleted one may have gone by the time the next one is
made, since that was refused or its deletion known later. Then its name is free, and taken again. So many claims, Jobs
and pods as in peace are made and left all the same."""

REPAIRED: Mapping[Scene, frozenset[str]] = {damaged_again_and_again: _BEHIND, damaged_and_claim_deleted: _BEHIND}
"""Scenes, and troubles, after which the table tells of another number of repairs. One is done before the deletion of
its claim is known. Or the table's deletion is told before that of its Job: it is made again from the Job, damage is
found once more, and repaired by the Job that in peace is made for want of a table."""
