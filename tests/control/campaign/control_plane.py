"""What a cluster does to the operator's children: Job, Deployment and volume controllers, kubelet, and the workers.

Level-triggered, over the objects themselves, and one small act of each at a time, so that an operator meets every
state in between. Deterministic: what a Job comes to follows from what it was told, and times are fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tests.control.campaign.clock import SimClock
from tests.support.kubernetes import garbage_collector
from tests.support.kubernetes.control_plane import VARIANT_ROUTES, VARIANTS
from tests.support.kubernetes.fake_cluster import FakeCluster

from gnnserve_api.pods.change_log import UpdatesState
from gnnserve_api.pods.generation import GenerationResult, encode_result
from gnnserve_api.pods.interface import COMPACT_VARIABLE, MANIFEST_VARIABLE, MAX_DELTA_VARIABLE, PodExit
from gnnserve_api.pods.routing import ROUTING_KEY, Damage, Route, RoutingTable, decode_routing
from gnnserve_operator.desired.metadata import (
    CLAIM_ANNOTATION,
    COMPONENT,
    JOB_NAME,
    RECIPE,
    Component,
    digest_of,
    routing_name,
    service_name,
)
from gnnserve_operator.kinds import ServiceKey
from gnnserve_operator.observed import ObservedPod, WorkerAnswer
from gnnserve_operator.probe import Answers

Manifest = dict[str, Any]
ACT_S = 0.15
"""Between two acts of a controller."""
GENERATION_S, LOAD_S, SWITCH_S, RETRY_S = 2.0, 0.8, 0.3, 2.0
MISSING_IMAGE = "registry.example/missing:1"
NOWHERE = {"zone": "nowhere"}
"""A node selector that no node has."""
BAD_PATH = "file:///data/bad.npz"
"""A graph whose generation fails."""
CHANGE = 2**28
"""Bytes that a worker takes for a change."""
REFUSED_S = 10.0
"""Until a Job's controller tries again to create a pod that was refused."""
QUEUE_LABELS = {"kueue.x-k8s.io/queue-name": "team-a"}
NO_ROOM = "0/1 nodes are available: 1 Insufficient cpu."
"""What the scheduler says where other pods take what a pod needs."""
AUTOSCALER_S = 15.0
"""Between two looks of an autoscaler."""
DAMAGE = "x1.npy: was altered"
"""What a worker says of a file whose digest differs."""
VARIANT_NAMES = tuple(variant.name for variant in VARIANTS)


def revision_of(recipe: str, offset: int = 0) -> str:
    """As the real one, the revision's name follows from what it is generated from. `offset`: of the log of changes.
    What spec.revision calls it are the first twelve digits of the recipe."""
    return f"r-{recipe[:8]}{f'-{offset}' if offset else ''}"


def offset_of(revision: str) -> int:
    return int(revision.split("-")[2]) if revision.count("-") > 1 else 0


@dataclass(slots=True)
class SimWorker:
    """The process in a worker's pod."""

    claim_uid: str
    follows_changes: bool = False
    table: RoutingTable | None = None
    """In effect; None: it is not ready."""
    problem: str | None = None
    damage: Damage | None = None
    """What it found of the files that it answers from, or is to load."""
    target: str = ""
    """The text of the table that it is to take on."""
    due: float = 0.0
    """When it takes on the target, or tries again; 0: it is done with it."""

    def route(self, log: int) -> Route | None:
        """`log`: the last offset of the log of changes, each of which has the size of `CHANGE`."""
        if self.table is None:
            return None
        table = self.table
        base = offset_of(table.revision)
        state = UpdatesState(
            last=log, applied=log, changes_behind=0, staleness_seconds=0, base=base,
            changes_since_base=log - base, delta_bytes=(log - base) * CHANGE,
        )  # fmt: skip
        return Route(
            table.revision, table.base_variant or "x1", "the most accurate", VARIANT_NAMES, table.objective,
            table.batching, problem=self.problem, mode=table.mode, issued_at=table.issued_at, variants=VARIANT_ROUTES,
            damaged=msgspec.UNSET if self.damage is None else self.damage,
            updates=state if self.follows_changes else msgspec.UNSET,
        )  # fmt: skip


@dataclass(slots=True)
class _Rollout:
    """What of one template has become of a Deployment."""

    template: str
    progress: Manifest
    """Its counts of pods."""
    since: float
    limit_s: float
    is_complete: bool = False
    """It was once: its deadline holds no more."""

    def deadline(self) -> float | None:
        return None if self.is_complete else self.since + self.limit_s


@dataclass(slots=True)
class ControlPlane:
    cluster: FakeCluster
    clock: SimClock
    workers: dict[str, SimWorker] = field(default_factory=dict)
    """By the pod's uid."""
    repositories: dict[str, set[str]] = field(default_factory=dict)
    """By the claim's uid: the revisions that lie there."""
    damaged: set[tuple[str, str]] = field(default_factory=set)
    """Uids of claims, and revisions there whose files are not what was published."""
    log: int = 0
    """The last offset of the log of changes."""
    is_held: bool = False
    """Whether generation pods that run come to no end."""
    fails: Callable[[Manifest], str | None] = lambda _: None
    """Why the Job's next attempt fails; None: it does not."""
    quota: str | None = None
    """What the API server says to the pods of Jobs that it refuses; None: it refuses none."""
    is_queue_closed: bool = False
    """Whether Jobs that name a queue are suspended when they are created."""
    held_jobs: set[str] = field(default_factory=set)
    """uids of Jobs that another than the operator suspends."""
    room: int | None = None
    """Workers that the nodes have room for; None: any number."""
    autoscaled: int | None = None
    """Replicas that an autoscaler of the Deployment of workers, rather than of the service, wants; None: there is none.
    """
    scalings: int = 0
    """Number of times that it has set them."""
    _due: dict[str, float] = field(default_factory=dict)
    """By the uid of a generation pod: when it is done."""
    _rollouts: dict[str, _Rollout] = field(default_factory=dict)
    """By the uid of a Deployment."""
    _refused: dict[str, float] = field(default_factory=dict)
    """By the uid of a Job whose pod was refused: when its controller tries again."""
    _scale_at: float = 0.0
    _made: int = 0
    _looked_at: float = -1.0

    def step(self) -> bool:
        """Whether anything was done."""
        self._looked_at = self.clock.now()
        controllers = (self._collect, self._release, self._bind, self._jobs, self._generate, self._scale, self._deploy)
        parts = (*controllers, self._serve)
        done = [part() for part in parts]
        return any(done)

    def next_due(self) -> float | None:
        """The next thing that only time brings."""
        loading = (w.due for uid, w in self.workers.items() if w.due and self._has(uid))
        waiting = (due for uid, due in self._due.items() if self._has(uid))
        scaling = () if self.autoscaled is None else (self._scale_at,)
        # While the quota is as it is, nothing comes of trying again.
        jobs = set() if self.quota is not None else {job["metadata"]["uid"] for job in self.of_kind("Job")}
        refused = (due for uid, due in self._refused.items() if uid in jobs)
        return min((*loading, *waiting, *scaling, *refused), default=None)

    def next_deadline(self) -> float | None:
        """The next deadline of a rollout, at which it reports that there is no progress."""
        there = {found["metadata"]["uid"] for found in self.of_kind("Deployment")}
        ends = (rollout.deadline() for uid, rollout in self._rollouts.items() if uid in there)
        return min((end for end in ends if end is not None and end > self._looked_at), default=None)

    def state(self) -> dict[str, Any]:
        """What workers, volumes and Jobs have come to, and what is about to come of them, by names rather than uids."""
        claims = {c["metadata"]["uid"]: c["metadata"]["name"] for c in self.of_kind("PersistentVolumeClaim")}
        workers = [
            (claims.get(w.claim_uid), w.follows_changes, w.table, w.problem, w.damage, w.target, w.due > 0.0)
            for uid, w in self.workers.items() if self._has(uid)
        ]  # fmt: skip
        jobs = {job["metadata"]["uid"]: job["metadata"]["name"] for job in self.of_kind("Job")}
        rolled = {d["metadata"]["uid"]: d["metadata"]["name"] for d in self.of_kind("Deployment")}
        rollouts = [(rolled[uid], rollout.is_complete) for uid, rollout in self._rollouts.items() if uid in rolled]
        return {
            "workers": sorted(map(repr, workers)),
            "repositories": {name: sorted(self.repositories.get(uid, ())) for uid, name in claims.items()},
            "damaged": sorted((claims[uid], revision) for uid, revision in self.damaged if uid in claims),
            "held": sorted(jobs[uid] for uid in self.held_jobs if uid in jobs),
            "refused": sorted(jobs[uid] for uid in self._refused if uid in jobs),
            "computing": sum(self._has(uid) for uid in self._due),
            "rollouts": sorted(rollouts),
            "others": [
                self.log,
                self.is_held,
                self.quota,
                self.is_queue_closed,
                self.room,
                self.autoscaled,
                self.scalings,
            ],
        }

    # --- what happens to files

    def damage(self) -> None:
        """Damage every revision that workers answer from. They notice it, and answer on from what they have mapped."""
        for worker in self.workers.values():
            if worker.table is not None:
                revision = worker.table.revision
                self.damaged.add((worker.claim_uid, revision))
                worker.problem = DAMAGE
                worker.damage = Damage(revision, worker.table.repair)

    # --- queues

    def admit(self, manifest: Manifest) -> None:
        """As a queue's webhook does: a Job that names the queue is created suspended while the queue is closed."""
        metadata = manifest["metadata"]
        is_new = "resourceVersion" not in metadata
        is_queued = (metadata.get("labels") or {}).items() >= QUEUE_LABELS.items()
        if manifest["kind"] == "Job" and is_new and is_queued and self.is_queue_closed:
            manifest["spec"]["suspend"] = True
            self.held_jobs.add(metadata["uid"])

    def hold_jobs(self) -> None:
        """Suspend every Job that is not done, and such that come."""
        self.is_queue_closed = True
        for job in self.of_kind("Job"):
            if not _has_condition(job, "Complete") and not _has_condition(job, "Failed"):
                self.held_jobs.add(job["metadata"]["uid"])
                self._suspend(job, suspend=True)

    def let_jobs_go(self) -> None:
        self.is_queue_closed = False
        held, self.held_jobs = self.held_jobs, set()
        for job in self.of_kind("Job"):
            if job["metadata"]["uid"] in held:
                self._suspend(job, suspend=False)

    def pass_deadlines(self) -> None:
        """Every Job that is not done reaches its deadline: its pods are deleted before it is said to have failed."""
        for job in self.of_kind("Job"):
            if not _has_condition(job, "Complete") and not _has_condition(job, "Failed"):
                self._set_status(job, {**job["status"], "conditions": [_failed("DeadlineExceeded", "FailureTarget")]})
                for pod in self._pods_of(job):
                    self._delete_pod(pod)
                self._set_status(job, {"conditions": [_failed("DeadlineExceeded")]})

    def _suspend(self, job: Manifest, *, suspend: bool) -> None:
        metadata = job["metadata"]
        self.cluster.replace(
            "Job", metadata["name"], lambda live: live["spec"].update(suspend=suspend), metadata["namespace"], "queue"
        )

    # --- what others ask

    def of_kind(self, kind: str) -> list[Manifest]:
        """Not to be altered."""
        return [found for key, found in self.cluster.objects.items() if key[0] == kind]

    def ready_workers(self, key: ServiceKey) -> list[Manifest]:
        return [
            pod for pod in self.of_kind("Pod")
            if _component(pod) == Component.WORKER and pod["metadata"]["labels"]["gnnserve.dev/service"] == key.name
            and pod["metadata"]["namespace"] == key.namespace and _is_ready(pod)
        ]  # fmt: skip

    def endpoint_routes(self, key: ServiceKey) -> list[Route | None]:
        """Routes that clients may be answered by; empty: no worker answers."""
        if self.cluster.objects.get(("Service", key.namespace, service_name(key.name))) is None:
            return []
        found = (self.workers.get(pod["metadata"]["uid"]) for pod in self.ready_workers(key))
        return [worker.route(self.log) if worker is not None else None for worker in found]

    def answer(self, key: ServiceKey, pods: Iterable[ObservedPod]) -> Answers:
        """To the operator's prober."""
        asked = [pod for pod in pods if pod.can_be_asked]
        uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.of_kind("Pod")}
        said = []
        for pod in asked:
            worker = self.workers.get(uids.get(pod.name, ""))
            route = None if worker is None else worker.route(self.log)
            problem = None if route is not None else "it takes no connection"
            if worker is not None and route is None:
                problem = worker.problem or "its first revision is being loaded"
            said.append(WorkerAnswer(pod.name, route, problem, None if worker is None else worker.damage))
        routes = self.endpoint_routes(key) if any(pod.ready for pod in asked) else []
        return Answers(tuple(said), routes[0] if routes else None)

    # --- controllers

    def _collect(self) -> bool:
        return not self.cluster.collects_garbage and garbage_collector.step(self.cluster)

    def _release(self) -> bool:
        before = self.cluster.version
        self.cluster.release_claims()
        return self.cluster.version != before

    def _bind(self) -> bool:
        for claim in self.of_kind("PersistentVolumeClaim"):
            if not claim.get("status"):
                self.repositories.setdefault(claim["metadata"]["uid"], set())
                return self._set_status(claim, {"phase": "Bound"})
        return False

    def _jobs(self) -> bool:
        return any(self._run_job(job) for job in self.of_kind("Job"))

    def _run_job(self, job: Manifest) -> bool:  # noqa: PLR0911 - a ladder, one rung a state
        status = job.get("status") or {}
        if _has_condition(job, "Complete") or _has_condition(job, "Failed"):
            return False
        pods = [pod for pod in self._pods_of(job) if not pod["metadata"].get("deletionTimestamp")]
        active = [pod for pod in pods if _phase(pod) in {"Pending", "Running"}]
        if job["spec"].get("suspend"):
            for pod in active:
                self._delete_pod(pod)
                return True
            suspended = {"conditions": [{"type": "Suspended", "status": "True"}]}
            return status != suspended and self._set_status(job, suspended)
        if any(_phase(pod) == "Succeeded" for pod in pods):
            done = {"type": "Complete", "status": "True", "lastTransitionTime": self._stamp()}
            return self._set_status(job, {"conditions": [done], "succeeded": 1})
        failed = [pod for pod in pods if _phase(pod) == "Failed"]
        if any(_exit_code(pod) == PodExit.BAD_INPUT for pod in failed):
            return self._set_status(job, {"conditions": [_failed("PodFailurePolicy")], "failed": len(failed)})
        if len(failed) > job["spec"]["backoffLimit"]:
            return self._set_status(job, {"conditions": [_failed("BackoffLimitExceeded")], "failed": len(failed)})
        if active:
            return False
        if not status.get("startTime"):
            return self._set_status(job, {"startTime": self._stamp()})
        if self.quota is not None:
            return self._refuse_pod(job, self.quota)
        self._refused.pop(job["metadata"]["uid"], None)
        self._make_pod(job, job["spec"]["template"], {JOB_NAME: job["metadata"]["name"]})
        return True

    def _refuse_pod(self, job: Manifest, quota: str) -> bool:
        """Told once for each Job, in an event alone."""
        metadata = job["metadata"]
        if metadata["uid"] in self._refused:
            return False
        self._refused[metadata["uid"]] = self.clock.now() + REFUSED_S
        self._made += 1
        self.cluster.create({
            "apiVersion": "v1", "kind": "Event", "reason": "FailedCreate", "lastTimestamp": self._stamp(),
            "metadata": {"name": f"{metadata['name']}.{self._made}", "namespace": metadata["namespace"]},
            "involvedObject": {"kind": "Job", "name": metadata["name"]},
            "message": f'Error creating: pods "{metadata["name"]}-x1y2z" is forbidden: {quota}',
        })  # fmt: skip
        return True

    def _generate(self) -> bool:
        return any(self._run_generation(pod) for pod in self.of_kind("Pod") if _component(pod) == Component.GENERATION)

    def _run_generation(self, pod: Manifest) -> bool:
        uid = pod["metadata"]["uid"]
        if _phase(pod) == "Pending":
            started = self._start(pod)
            if started and uid in self.workers:
                del self.workers[uid]
                self._due[uid] = self.clock.now() + GENERATION_S
            return started
        if _phase(pod) != "Running" or self.is_held or self._due.get(uid, 0.0) > self.clock.now():
            return False
        self._due.pop(uid, None)
        job = self.cluster.objects.get(("Job", pod["metadata"]["namespace"], pod["metadata"]["labels"][JOB_NAME]))
        failure = self.fails(pod) or (f"{BAD_PATH} is no graph" if BAD_PATH in str(pod["spec"]) else None)
        if failure is not None or job is None:
            return self._end_pod(pod, PodExit.BAD_INPUT, failure or "its Job is gone")
        recipe = pod["metadata"]["labels"][RECIPE]
        claim = self._claim_of(pod)
        there = set() if claim is None else self.repositories.setdefault(claim["metadata"]["uid"], set())
        named = _revision_named_by(pod)
        if named is not None and revision_of(named) not in there:
            return self._end_pod(pod, PodExit.BAD_INPUT, f"spec.revision: {named} is not published")
        # Other generation begins from the newest graph that was made of the log.
        compacts = _has_variable(pod, COMPACT_VARIABLE)
        offset = self.log if compacts else max(map(offset_of, there), default=0)
        revision = revision_of(named or recipe, offset)
        if claim is not None:
            there.add(revision)
            self.damaged.discard((claim["metadata"]["uid"], revision))
        result = GenerationResult(revision, recipe, "9" * 16, VARIANTS, offset)
        return self._end_pod(pod, PodExit.OK, encode_result(result))

    def _scale(self) -> bool:
        """An autoscaler that was pointed at the Deployment."""
        if self.autoscaled is None or self.clock.now() < self._scale_at:
            return False
        self._scale_at = self.clock.now() + AUTOSCALER_S
        wanted, before = {"replicas": self.autoscaled}, self.scalings
        for deployment in self.of_kind("Deployment"):
            if deployment["spec"]["replicas"] != self.autoscaled:
                name, namespace = deployment["metadata"]["name"], deployment["metadata"]["namespace"]
                self.cluster.replace(
                    "Deployment", name, lambda live: live["spec"].update(wanted), namespace, "autoscaler"
                )
                self.scalings += 1
        return self.scalings > before

    def _deploy(self) -> bool:
        return any(self._roll(deployment) for deployment in self.of_kind("Deployment"))

    def _roll(self, deployment: Manifest) -> bool:
        """One pod more or one less, within maxSurge and maxUnavailable."""
        metadata, spec = deployment["metadata"], deployment["spec"]
        wanted, template_hash = int(spec["replicas"]), self._template_hash(spec["template"])
        most_above, most_below = _rolling_limits(spec)
        sets = [r for r in self.of_kind("ReplicaSet") if _is_owned(r, metadata["uid"])]
        newest = next((r for r in sets if r["metadata"]["name"].endswith(template_hash)), None)
        if newest is None:
            name = f"{metadata['name']}-{template_hash}"
            owned = {"name": name, "namespace": metadata["namespace"], "ownerReferences": [_owned_by(deployment)]}
            self.cluster.create({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": owned})
            return True
        pods = [pod for r in sets for pod in self._pods_of(r) if not pod["metadata"].get("deletionTimestamp")]
        new = [pod for pod in pods if _is_owned(pod, newest["metadata"]["uid"])]
        old = [pod for pod in pods if pod not in new]
        ready = [pod for pod in pods if _is_ready(pod)]
        dispensable = [pod for pod in old if not _is_ready(pod)] or (old if len(ready) > wanted - most_below else [])
        if wanted == 0:
            dispensable = pods
        elif not old and len(new) > wanted:
            dispensable = sorted(new, key=_is_ready)
        if dispensable and (old or len(pods) > wanted):
            self._delete_pod(dispensable[0])
            return True
        if len(new) < wanted and len(pods) < wanted + (most_above if old else 0):
            self._make_pod(newest, spec["template"], {"pod-template-hash": template_hash})
            return True
        counts = {"replicas": len(pods), "updatedReplicas": len(new), "readyReplicas": len(ready)}
        status = {"observedGeneration": metadata["generation"], **{name: n for name, n in counts.items() if n}}
        is_complete = len(pods) == len(new) == len(ready) == wanted
        if self._is_overdue(
            metadata["uid"], template_hash, counts, float(spec.get("progressDeadlineSeconds", 600)), is_complete
        ):
            late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
            status["conditions"] = [late]
        return deployment.get("status") != status and self._set_status(deployment, status)

    def _is_overdue(self, uid: str, template: str, counts: Manifest, limit_s: float, is_complete: bool) -> bool:
        """Whether a rollout has made no progress within its deadline; one that was complete once has none any more."""
        now, rollout = self.clock.now(), self._rollouts.get(uid)
        if rollout is None or rollout.template != template:
            rollout = self._rollouts[uid] = _Rollout(template, counts, now, limit_s)
        if rollout.progress != counts:
            rollout.progress, rollout.since = counts, now
        rollout.is_complete = rollout.is_complete or is_complete
        end = rollout.deadline()
        return end is not None and now >= end

    def _template_hash(self, template: Manifest) -> str:
        """The same in every run: a claim's uid is not, the number of claims before it is."""
        annotations = dict(template["metadata"].get("annotations") or {})
        if (uid := annotations.get(CLAIM_ANNOTATION)) in self.repositories:
            annotations[CLAIM_ANNOTATION] = str([*self.repositories].index(uid))
        return digest_of({**template, "metadata": {**template["metadata"], "annotations": annotations}})[:8]

    # --- kubelet and workers

    def _serve(self) -> bool:
        return any(self._run_worker(pod) for pod in self.of_kind("Pod") if _component(pod) == Component.WORKER)

    def _run_worker(self, pod: Manifest) -> bool:
        if _phase(pod) == "Pending":
            return self._start(pod)
        metadata = pod["metadata"]
        worker = self.workers[metadata["uid"]]
        self._follow(worker, self._declared(pod))
        if worker.table is not None and not _is_ready(pod):
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": self._stamp()}
            return self._set_status(pod, {**pod["status"], "conditions": [ready]})
        return False

    def _follow(self, worker: SimWorker, declared: str | None) -> None:
        """Takes on the table that the ConfigMap declares, a while after it was written; keeps the last one else."""
        now = self.clock.now()
        if declared is None:
            return
        if declared != worker.target:
            worker.target = declared
            is_loaded = worker.table is not None and f'"revision":"{worker.table.revision}"' in declared
            worker.due = now + (SWITCH_S if is_loaded else LOAD_S)
        if worker.due == 0.0 or now < worker.due:
            return
        try:
            table = decode_routing(declared)
        except msgspec.DecodeError:
            worker.problem, worker.due = "the declared table is not understood", 0.0
            return
        if table.revision not in self.repositories.get(worker.claim_uid, ()):
            worker.problem, worker.due = f"revision {table.revision} cannot be loaded: it is not there", now + RETRY_S
            return
        if (worker.claim_uid, table.revision) in self.damaged:
            worker.problem, worker.due = f"revision {table.revision} cannot be loaded: {DAMAGE}", now + RETRY_S
            worker.damage = Damage(table.revision, table.repair)
            return
        worker.table, worker.problem, worker.damage, worker.due = table, None, None, 0.0

    def _start(self, pod: Manifest) -> bool:
        """Scheduler and kubelet: from Pending to Running, or why not."""
        status, claim = dict(pod.get("status") or {"phase": "Pending"}), self._claim_of(pod)
        image = pod["spec"]["containers"][0]["image"]
        message = None
        if claim is None or claim["metadata"].get("deletionTimestamp"):
            what = "not found" if claim is None else "is being deleted"
            message = f'0/1 nodes are available: persistentvolumeclaim "{_claim_name(pod)}" {what}.'
        elif pod["spec"].get("nodeSelector") == NOWHERE:
            message = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
        elif _component(pod) == Component.WORKER and self.room is not None and self._placed_workers() >= self.room:
            message = NO_ROOM
        if message is not None:
            status["conditions"] = [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            ]
        elif image == MISSING_IMAGE:
            waiting = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
            status |= {"conditions": [], "containerStatuses": [{"name": _container(pod), "state": waiting}]}
        else:
            self._made += 1
            status |= {
                "phase": "Running", "podIP": f"10.0.{self._made // 250}.{self._made % 250 + 1}", "conditions": [],
                "containerStatuses": [{"name": _container(pod), "state": {"running": {}}}],
            }  # fmt: skip
            follows_changes = _has_variable(pod, MAX_DELTA_VARIABLE)
            self.workers[pod["metadata"]["uid"]] = SimWorker(claim["metadata"]["uid"] if claim else "", follows_changes)
        return status != pod.get("status") and self._set_status(pod, status)

    def _placed_workers(self) -> int:
        return sum(_component(pod) == Component.WORKER and _phase(pod) == "Running" for pod in self.of_kind("Pod"))

    def _end_pod(self, pod: Manifest, code: PodExit, message: str) -> bool:
        reason = "Completed" if code == PodExit.OK else "Error"
        terminated = {"exitCode": int(code), "reason": reason, "message": message}
        phase = "Succeeded" if code == PodExit.OK else "Failed"
        states = [{"name": _container(pod), "state": {"terminated": terminated}}]
        return self._set_status(pod, {**pod["status"], "phase": phase, "conditions": [], "containerStatuses": states})

    # --- objects

    def _declared(self, pod: Manifest) -> str | None:
        metadata = pod["metadata"]
        name = routing_name(metadata["labels"]["gnnserve.dev/service"])
        found = self.cluster.objects.get(("ConfigMap", metadata["namespace"], name))
        return None if found is None else (found.get("data") or {}).get(ROUTING_KEY)

    def _claim_of(self, pod: Manifest) -> Manifest | None:
        return self.cluster.objects.get(
            ("PersistentVolumeClaim", pod["metadata"]["namespace"], _claim_name(pod))
        )  # fmt: skip

    def _pods_of(self, owner: Manifest) -> Iterator[Manifest]:
        return (pod for pod in self.of_kind("Pod") if _is_owned(pod, owner["metadata"]["uid"]))

    def _make_pod(self, owner: Manifest, template: Manifest, labels: dict[str, str]) -> None:
        self._made += 1
        metadata = {
            "name": f"{owner['metadata']['name']}-{self._made}",
            "namespace": owner["metadata"]["namespace"],
            "labels": {**template["metadata"]["labels"], **labels},
            "ownerReferences": [_owned_by(owner)],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        self.cluster.create({**pod, "status": {"phase": "Pending"}})

    def _delete_pod(self, pod: Manifest) -> None:
        self.cluster.delete("Pod", pod["metadata"]["name"], pod["metadata"]["namespace"])

    def _set_status(self, found: Manifest, status: Manifest) -> bool:
        metadata = found["metadata"]
        before = self.cluster.version
        self.cluster.replace(
            found["kind"], metadata["name"], lambda live: live.update(status=status), metadata["namespace"]
        )
        return self.cluster.version != before

    def _has(self, uid: str) -> bool:
        return any(key[0] == "Pod" and found["metadata"]["uid"] == uid for key, found in self.cluster.objects.items())

    def _stamp(self) -> str:
        return self.clock.utc().strftime("%Y-%m-%dT%H:%M:%SZ")


def _rolling_limits(spec: Manifest) -> tuple[int, int]:
    """maxSurge and maxUnavailable of a Deployment."""
    rolling = (spec.get("strategy") or {}).get("rollingUpdate") or {}
    return int(rolling.get("maxSurge", 0)), int(rolling.get("maxUnavailable", 1))


def _component(pod: Manifest) -> str:
    return str(pod["metadata"]["labels"].get(COMPONENT, ""))


def _phase(pod: Manifest) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def _container(pod: Manifest) -> str:
    return str(pod["spec"]["containers"][0]["name"])


def _has_variable(pod: Manifest, name: str) -> bool:
    return any(variable["name"] == name for variable in pod["spec"]["containers"][0]["env"])


def _revision_named_by(pod: Manifest) -> str | None:
    """spec.revision of what a generation pod is given."""
    given = next(one["value"] for one in pod["spec"]["containers"][0]["env"] if one["name"] == MANIFEST_VARIABLE)
    named: str | None = msgspec.json.decode(given)["spec"].get("revision")
    return named


def _claim_name(pod: Manifest) -> str:
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    return str(volumes["repository"]["persistentVolumeClaim"]["claimName"])


def _has_condition(found: Manifest, kind: str) -> bool:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any((condition["type"], condition["status"]) == (kind, "True") for condition in conditions)


def _is_ready(pod: Manifest) -> bool:
    return _has_condition(pod, "Ready") and not pod["metadata"].get("deletionTimestamp")


def _exit_code(pod: Manifest) -> int | None:
    terminated = pod["status"]["containerStatuses"][0]["state"].get("terminated")
    return None if terminated is None else int(terminated["exitCode"])


def _failed(reason: str, kind: str = "Failed") -> Manifest:
    return {"type": kind, "status": "True", "reason": reason, "message": "see the pod"}


def _is_owned(found: Manifest, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in found["metadata"].get("ownerReferences") or ())


def _owned_by(parent: Manifest) -> Manifest:
    metadata = parent["metadata"]
    identity = {"apiVersion": parent["apiVersion"], "kind": parent["kind"]}
    return {**identity, "name": metadata["name"], "uid": metadata["uid"], "controller": True}
