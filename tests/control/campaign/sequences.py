"""Random lives of a service: edits of the spec, other hands, faults and restarts in between, and then the last spec.

Whatever came before, the end must be what a fresh apply of that last spec leads to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from tests.control.campaign.control_plane import BAD_PATH, MISSING_IMAGE
from tests.control.campaign.judge import differences, without_generation
from tests.control.campaign.play import SETTINGS, rest
from tests.control.campaign.scenarios import delete_child, delete_claim, lose_claim, recipe_of
from tests.control.campaign.trouble import CRASHES, FAULTS, PEACE, VIEWS, Point, Trouble
from tests.control.campaign.world import Hung, World

from gnnserve_api.pods.routing import ROUTING_KEY
from gnnserve_operator.decide.repository import MOST_REPAIRS
from gnnserve_operator.desired.metadata import CLAIM_ANNOTATION, DIGEST_ANNOTATION, RECIPE, REPAIR_ANNOTATION

Manifest = dict[str, Any]
_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "model": (None, {"hidden": 32}, {"hidden": 64}),
    "objective": (None, {"latencyMs": 20}, {"latencyMs": 5.5, "accuracyTolerancePermille": 10}),
    "worker": (None, {"replicas": 2}, {"replicas": 0}, {"batching": {"maxSeeds": 64}},
               {"resources": {"requests": {"cpu": "500m"}}}, {"replicas": 2, "rollout": {"maxUnavailable": 1}}),
    "image": (None, "registry.example/worker:2", MISSING_IMAGE),
    "suspend": (False, True),
    "routing": (None, {"mode": "Static", "variant": "x2"}, {"mode": "Static", "variant": "x9"},
                {"mode": "Weights", "weights": {"x1": 1}}),
    "graph": ({"source": {"builtin": "Digits"}}, {"source": {"npz": {"uri": BAD_PATH}}, "volume": {"claimName": "g"}}),
    "generation": (None, {"retries": 0}, {"resources": {"requests": {"memory": "1Gi"}}}),
}  # fmt: skip
_LAST: Mapping[str, tuple[Any, ...]] = {
    name: tuple(v for v in values if v not in ({"mode": "Static", "variant": "x9"}, MISSING_IMAGE))
    for name, values in _FIELDS.items() if name != "graph"
}  # fmt: skip
"""Specs that can be followed; of others the end depends on what was there before, rightly."""
_CHILDREN = (
    ("ConfigMap", "digits-routing"), ("Service", "digits"), ("Deployment", "digits-worker"), ("Role", "digits-worker"),
)  # fmt: skip
REPOSITORY = "PersistentVolumeClaim digits-repository"
_REPOSITORY_NAME = re.compile(r"digits-repository-\d+")
_REPAIR = re.compile(r',"repair":\d+')
_OTHERS = (
    "delete job", "hold jobs", "let jobs go", "refuse pods", "scale", "delete claim", "lose claim", "damage", "delete",
    "restart", "away",
)  # fmt: skip
_TROUBLES = (*CRASHES, *FAULTS, *VIEWS)


@dataclass(frozen=True, slots=True)
class Act:
    kind: str
    """set, delete child, or one of `_OTHERS`."""
    name: str = ""
    value: str = ""
    """JSON."""
    wait_s: float = 0.0
    """Until the next act; -1: until everything is at rest."""


@dataclass(frozen=True, slots=True)
class Life:
    acts: tuple[Act, ...]
    last: tuple[tuple[str, str], ...]
    trouble: Point


_waits = st.sampled_from((0.0, 0.1, 0.35, 1.0, 2.5, 6.0, -1.0))
_sets = st.sampled_from(sorted(_FIELDS)).flatmap(
    lambda name: st.builds(
        Act, st.just("set"), st.just(name), st.sampled_from([json.dumps(v) for v in _FIELDS[name]]), _waits
    )
)
_children = st.builds(
    lambda child, wait: Act("delete child", child[0], child[1], wait), st.sampled_from(_CHILDREN), _waits
)
_others = st.builds(lambda kind, wait: Act(kind, wait_s=wait), st.sampled_from(_OTHERS), _waits)
lives = st.builds(
    Life,
    st.lists(st.one_of(_sets, _sets, _sets, _children, _others), min_size=1, max_size=7).map(tuple),
    st.tuples(*(
        st.sampled_from([(name, json.dumps(value)) for value in values]) for name, values in sorted(_LAST.items())
    )),
    st.one_of(st.just(PEACE), st.builds(Point, st.sampled_from(_TROUBLES), st.integers(0, 60))),
)  # fmt: skip


async def live(life: Life) -> list[str]:
    """What was violated."""
    world = World(SETTINGS, Trouble(life.trouble))
    try:
        world.start_operator()
        world.create()
        for act in _bounded(life.acts):
            await _do(world, act)
        if world.service is None:
            world.create()
        spec = _last_spec(life)
        world.replace_spec(spec)
        world.plane.quota = None
        world.plane.let_jobs_go()
        await world.settled()
        await _suspend(world, life)
        await rest(world)
    except Hung as hung:
        world.judge.accuse(f"hangs: {hung}")
    finally:
        for operator in world.operators:
            await operator.end()
    fresh = await _fresh(life)
    for words in differences(_comparable(world), _comparable(fresh)):
        world.judge.accuse(words)
    return world.judge.violations


def _bounded(acts: tuple[Act, ...]) -> list[Act]:
    """Without damages beyond those that are mended without a person."""
    spared = [act for act in acts if act.kind == "damage"][MOST_REPAIRS:]
    return [act for act in acts if not any(act is one for one in spared)]


async def _fresh(life: Life) -> World:
    world = World(SETTINGS, Trouble())
    world.start_operator()
    world.cluster.create({
        "apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService",
        "metadata": {"name": "digits", "namespace": "default"}, "spec": _last_spec(life),
    })  # fmt: skip
    await world.settled()
    await _suspend(world, life)
    for operator in world.operators:
        await operator.end()
    return world


async def _suspend(world: World, life: Life) -> None:
    """Only then: what a suspended service has depends on what it had, rightly."""
    if json.loads(dict(life.last)["suspend"]):
        world.set(suspend=True)
        await world.settled()


def _last_spec(life: Life) -> Manifest:
    given = {name: json.loads(value) for name, value in life.last if name != "suspend"}
    return {
        "graph": {"source": {"builtin": "Digits"}},
        **{name: value for name, value in given.items() if value is not None},
    }


async def _do(world: World, act: Act) -> None:
    match act.kind:
        case "set" if world.service is not None:
            value = json.loads(act.value)
            if value is None:
                world.edit(lambda found: found.pop(act.name, None))
            else:
                world.edit(lambda found: found.update({act.name: value}))
        case "delete child":
            delete_child(world, act.name, act.value)
        case "delete job":
            for job in world.plane.of_kind("Job"):
                world.cluster.delete("Job", job["metadata"]["name"])
        case "hold jobs":
            world.plane.hold_jobs()
        case "let jobs go":
            world.plane.let_jobs_go()
        case "refuse pods":
            world.plane.quota = "exceeded quota: compute, requested: pods=1, used: 4, limited: 4"
        case "scale" if world.cluster.find("Deployment", "digits-worker") is not None:
            world.cluster.replace("Deployment", "digits-worker", lambda found: found["spec"].update(replicas=5))
        case "delete claim":
            delete_claim(world)
        case "lose claim":
            lose_claim(world)
        case "damage":
            world.plane.damage()
        case "delete" if world.service is not None:
            world.delete()
            world.create()
        case "restart":
            await world.restart_operator()
        case "away" if world.operators:
            await world.stop_operators()
            await world.run_for(3)
            world.resume_operators()
    if act.wait_s < 0:
        await world.settled()
    else:
        await world.run_for(act.wait_s)


def _comparable(world: World) -> dict[str, Any]:
    """Which Job told of the revision, and with which image, depends on what came before, and so does whether it is
    there still: the ConfigMap tells it too. That there is but one, of the wanted recipe and done, does not."""
    state = world.judge.end_state()
    jobs = world.plane.of_kind("Job")
    if len(jobs) > 1:
        world.judge.accuse(f"{len(jobs)} Jobs are there at the end")
    wanted = recipe_of(world)
    for job in jobs:
        conditions = [found["type"] for found in (job.get("status") or {}).get("conditions") or ()]
        if (job["metadata"]["labels"][RECIPE], conditions) != (wanted, ["Complete"]):
            world.judge.accuse(f"Job {job['metadata']['name']} is left: {conditions}, of another recipe or not done")
    pods = [words for words in state["pods"] if " generation " in words]
    if any(not words.startswith(wanted) for words in pods) or (pods and not jobs):
        world.judge.accuse(f"pods are left: {', '.join(pods)}")
    for name, found in state.items():
        if name.startswith("ConfigMap "):
            _forget_repairs(found)
        if name.startswith("Deployment "):
            # Named if one was lost before, and then the present one.
            claim = (found["spec"]["template"]["metadata"].get("annotations") or {}).pop(CLAIM_ANNOTATION, REPOSITORY)
            if _REPOSITORY_NAME.sub("digits-repository", claim) != REPOSITORY:
                world.judge.accuse(f"workers are to mount a claim that is not there: {claim}")
    return _with_one_name(without_generation(state))


def _forget_repairs(table: Manifest) -> None:
    """How many there were depends on what came before."""
    annotations = table["metadata"]["annotations"]
    for name in (REPAIR_ANNOTATION, DIGEST_ANNOTATION):
        annotations.pop(name, None)
    table["data"][ROUTING_KEY] = _REPAIR.sub("", table["data"][ROUTING_KEY])


def _with_one_name(state: dict[str, Any]) -> dict[str, Any]:
    """Which of its names the claim has depends on those that were deleted before."""
    named: dict[str, Any] = json.loads(_REPOSITORY_NAME.sub("digits-repository", json.dumps(state)))
    return named
