"""A namespace for the plan: live objects, and the part of Kubernetes' controllers that plans depend on, played by hand.

Objects are what the API server would answer, and are seen through the operator's own parsers. Nothing happens by
itself: a test says when a Job ends, a pod becomes ready or a worker answers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET

from gnnserve_api.pods.generation import GenerationResult, VariantSummary, encode_result
from gnnserve_api.pods.routing import AffineCost, Damage, Route, RoutingTable, VariantRoute, decode_routing
from gnnserve_api.spec.service import GNNService
from gnnserve_api.status.service_status import ConditionType
from gnnserve_operator.decide.contests import NO_WRITERS
from gnnserve_operator.decide.status import NOTHING_KNOWN, condition_in, last_known_in
from gnnserve_operator.desired.metadata import (
    FIELD_MANAGER,
    JOB_NAME,
    Conflict,
    declared_queue_labels,
    declares_suspend,
    queue_labels,
    routing_name,
    worker_name,
)
from gnnserve_operator.fleet import NO_LIMIT
from gnnserve_operator.kinds import ObjectRef, observed_ref
from gnnserve_operator.observed import (
    ObservedState,
    Rejection,
    ServiceWait,
    WorkerAnswer,
    observed_claim,
    observed_deployment,
    observed_jobs,
    observed_pod,
    observed_routing,
)
from gnnserve_operator.plan import Plan, ServiceIdentity, plan
from gnnserve_operator.settings import Settings
from gnnserve_routing.decision import RoutingDecision
from gnnserve_routing.signals import QueryAnswer, Silence

Raw = dict[str, Any]
VARIANT_ROUTES = tuple(
    VariantRoute(name, loss_permille, AffineCost(fixed_ms, per_seed_ms), AffineCost(fixed_ms, per_seed_ms))
    for name, loss_permille, fixed_ms, per_seed_ms in (("x1", 0, 4, 0.04), ("x2", 5, 2, 0.02), ("x4", 20, 1, 0.01))
)
"""With an objective of 88 ms and batches of 1000 seeds, one worker carries 22,727, 45,455 and 90,909 seeds/s."""
START = datetime(2026, 1, 1, tzinfo=UTC)
UID = "uid-of-the-service"


def make_service(name: str = "digits", **spec: Any) -> GNNService:
    return GNNService.model_validate(
        {
            "apiVersion": "gnnserve.dev/v1alpha1",
            "kind": "GNNService",
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"graph": {"source": {"builtin": "Digits"}}, **spec},
        }
    )


def make_settings(**settings: Any) -> Settings:
    return Settings.model_validate({"workerImage": "gnnserve/worker:1", **settings})


def make_result(
    recipe: str, revision: str = "rev-1", names: tuple[str, ...] = ("x1", "x2", "x4"), offset: int = 0
) -> GenerationResult:
    variants = tuple(VariantSummary(name, 64, 970.5, 1.25, 1, 400, 7000, 0) for name in names)
    return GenerationResult(revision=revision, recipe=recipe, graph="graph-1", variants=variants, offset=offset)


def make_route(table: RoutingTable, base_variant: str | None = None, **changes: Any) -> Route:
    route = Route(
        revision=table.revision,
        base_variant=base_variant or table.base_variant or "x1",
        reason="the most accurate",
        allowed_variants=("x1", "x2", "x4"),
        objective=table.objective,
        batching=table.batching,
        overlay=table.overlay,
        refresh=UNSET if table.refresh is None else table.refresh,
        mode=table.mode,
        variants=VARIANT_ROUTES,
    )
    return msgspec.structs.replace(route, **changes)


class Namespace:
    """A namespace with one GNNService."""

    def __init__(self, name: str = "digits", settings: Settings | None = None, **spec: Any) -> None:
        self.name = name
        self.spec = spec
        self.settings = settings or make_settings()
        self.now = START
        self.generation = 1
        self.deleting = False
        self.status: Raw = {}
        self.labels: dict[str, str] = {}
        """Labels of the GNNService."""
        self.refusals: dict[str, str] = {}
        """Why the API server refuses the pod of a Job, by the Job's name."""
        self.objects: dict[tuple[str, str], Raw] = {}
        self.pods: dict[str, Raw] = {}
        self.routes: dict[str, Route | str] = {}
        """What each worker answers: a route, or why there is none."""
        self.damage: dict[str, Damage] = {}
        """What workers without a route found damaged."""
        self.endpoint: Route | None = None
        self.conflicts: tuple[Conflict, ...] = ()
        self.rejections: tuple[Rejection, ...] = ()
        self.pod_monitor_available = False
        self.routed: RoutingDecision | None = None
        """What the operator remembers; a restart forgets it."""
        self.wait: ServiceWait | None = None
        """The same."""
        self.last_known = NOTHING_KNOWN
        """The same."""
        self.writers = NO_WRITERS
        """The managers that set the number of workers."""
        self.measured: QueryAnswer | Silence | None = None
        """What Prometheus answers to the next reconcile."""
        self.turns = NO_LIMIT
        """What the other services leave room for."""
        self.events: list[tuple[str, str]] = []
        self._made = 0

    @property
    def service(self) -> GNNService:
        return make_service(self.name, **self.spec)

    @property
    def recipe(self) -> str:
        return self.service.spec.recipe()

    def edit(self, **spec: Any) -> None:
        """Edits the spec. None takes a field away."""
        self.spec = {key: value for key, value in (self.spec | spec).items() if value is not None}
        self.generation += 1

    # --- seeing and planning

    def observed(self) -> ObservedState:
        routing = self.objects.get(("ConfigMap", routing_name(self.name)))
        deployment = self.objects.get(("Deployment", worker_name(self.name)))
        answers = tuple(
            WorkerAnswer(pod, answer, damaged=answer.damaged if isinstance(answer.damaged, Damage) else None)
            if isinstance(answer, Route)
            else WorkerAnswer(pod, problem=answer, damaged=self.damage.get(pod))
            for pod, answer in self.routes.items()
            if pod in self.pods
        )
        jobs, embeddings_jobs = (
            tuple(replace(job, refusal=self.refusals.get(job.name, "")) for job in found)
            for found in observed_jobs(raw for (kind, _), raw in self.objects.items() if kind == "Job")
        )
        return ObservedState(
            routing=None if routing is None else observed_routing(routing),
            claims=tuple(
                observed_claim(raw) for (kind, _), raw in self.objects.items() if kind == "PersistentVolumeClaim"
            ),
            jobs=jobs,
            embeddings_jobs=embeddings_jobs,
            deployment=None if deployment is None else observed_deployment(deployment),
            pods=tuple(observed_pod(raw) for raw in self.pods.values()),
            answers=answers,
            conflicts=self.conflicts,
            rejections=self.rejections,
            owned=tuple(observed_ref(raw) for raw in self.objects.values()),
            pod_monitor_available=self.pod_monitor_available,
            endpoint_answers=self.endpoint,
            routed=self.routed,
            measured=self.measured,
            wait=self.wait,
            turns=self.turns,
        )

    def plan(self) -> Plan:
        labels = queue_labels({"metadata": {"labels": self.labels}})
        self.last_known = last_known_in(self.status, self.last_known)
        identity = ServiceIdentity(
            UID, self.generation, self.deleting, self.status, labels, self.last_known, self.writers
        )
        return plan(self.service, identity, self.observed(), self.settings, self.now)

    def reconcile(self) -> Plan:
        """Plans, and does it."""
        planned = self.plan()
        self.now += timedelta(seconds=1)
        self.routed, self.measured, self.wait = planned.routed, None, planned.wait
        for manifest in planned.apply:
            self._apply(manifest)
        for ref in planned.delete:
            self._delete(ref)
        if planned.status is not None:
            self.status = planned.status
        self.events += [(event.type, event.reason) for event in planned.events]
        return planned

    def settle(self) -> Plan:
        """Reconciles until nothing is left to do; returns the plan that says so."""
        for _ in range(10):
            before = copy.deepcopy(self.objects)
            planned = self.reconcile()
            if planned.status is None and before == self.objects:
                return planned
        raise AssertionError(f"it does not settle: {self.status}")

    def condition(self, kind: str) -> Mapping[str, Any]:
        return condition_in(self.status, ConditionType(kind))

    def reason(self, kind: str = "Ready") -> str:
        condition = self.condition(kind)
        return f"{condition['status']} {condition['reason']}"

    # --- what is there

    def get(self, kind: str, name: str | None = None) -> Raw:
        """The one of that kind."""
        found = [raw for (k, n), raw in self.objects.items() if k == kind and name in {None, n}]
        assert len(found) == 1, f"{len(found)} of {kind}: {[raw['metadata']['name'] for raw in found]}"
        return found[0]

    def job(self) -> Raw:
        """The newest."""
        return [raw for (kind, _), raw in self.objects.items() if kind == "Job"][-1]

    def kinds(self) -> set[str]:
        return {kind for kind, _ in self.objects}

    def jobs(self) -> list[str]:
        return [name for kind, name in self.objects if kind == "Job"]

    def table(self) -> RoutingTable:
        return decode_routing(self.get("ConfigMap")["data"]["routing.json"])

    # --- what others do

    def start_job(self) -> Raw:
        """Its pod computes."""
        job = self.job()
        return self.add_pod(job, state={"running": {}}, phase="Running")

    def suspend_job(self, job: Raw | None = None, *, suspend: bool = True) -> None:
        """Another than the operator suspends the Job, which ends its pods, or lets it go."""
        job = job or self.job()
        job["spec"]["suspend"] = suspend
        (entry,) = job["metadata"]["managedFields"]
        entry["fieldsV1"].pop("f:spec", None)
        job["status"] = (
            {"conditions": [{"type": "Suspended", "status": "True"}]} if suspend else {"startTime": self._stamp()}
        )
        if suspend:
            name = job["metadata"]["name"]
            self.pods = {pod: raw for pod, raw in self.pods.items() if _labels(raw).get(JOB_NAME) != name}

    def finish_job(self, revision: str = "rev-1", message: str | None = None, offset: int = 0) -> None:
        job = self.job()
        recipe = job["metadata"]["labels"]["gnnserve.dev/recipe"]
        text = encode_result(make_result(recipe, revision, offset=offset)) if message is None else message
        self._end_pods_of(job)
        self.add_pod(job, state={"terminated": {"exitCode": 0, "message": text}}, phase="Succeeded")
        complete = {"type": "Complete", "status": "True", "lastTransitionTime": self._stamp()}
        job["status"] = {"conditions": [complete]}

    def fail_attempt(self, exit_code: int, message: str = "", reason: str = "Error") -> None:
        job = self.job()
        self._end_pods_of(job)
        terminated = {"exitCode": exit_code, "message": message, "reason": reason}
        self.add_pod(job, state={"terminated": terminated}, phase="Failed")

    def fail_job(
        self, exit_code: int = 1, message: str = "", reason: str = "BackoffLimitExceeded", why: str = "Error"
    ) -> None:
        self.fail_attempt(exit_code, message, why)
        condition = {"type": "Failed", "status": "True", "reason": reason, "message": "Job has failed"}
        self.job()["status"] = {"conditions": [{**condition, "lastTransitionTime": self._stamp()}]}

    def add_pod(self, parent: Raw, *, state: Raw | None = None, phase: str = "Pending", **status: Any) -> Raw:
        template = parent["spec"]["template"]
        self._made += 1
        name = f"{parent['metadata']['name']}-{self._made}"
        labels = dict(template["metadata"]["labels"])
        if parent["kind"] == "Job":
            labels["batch.kubernetes.io/job-name"] = parent["metadata"]["name"]
        container = template["spec"]["containers"][0]["name"]
        states = [] if state is None else [{"name": container, "state": state}]
        self.pods[name] = {
            "metadata": {"name": name, "labels": labels, "creationTimestamp": self._stamp()},
            "spec": copy.deepcopy(template["spec"]),
            "status": {"phase": phase, "podIP": f"10.0.0.{self._made}", "containerStatuses": states, **status},
        }
        return self.pods[name]

    def roll_out(self, *, ready: bool = True) -> None:
        """Deployment and ReplicaSet controllers, to the end: pods of the newest template only."""
        deployment = self.get("Deployment")
        replicas, template = deployment["spec"]["replicas"], deployment["spec"]["template"]
        workers = {name: pod for name, pod in self.pods.items() if "batch.kubernetes.io/job-name" not in _labels(pod)}
        current = [name for name, pod in workers.items() if pod["spec"] == template["spec"]]
        for name in set(workers) - set(current[:replicas]):
            del self.pods[name]
            self.routes.pop(name, None)
        for _ in range(replicas - len(current)):
            self.add_pod(deployment, state={"running": {}}, phase="Running")
        deployment["status"] = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": replicas,
            "updatedReplicas": replicas,
        }
        if ready:
            self.make_ready()

    def make_ready(self) -> None:
        for pod in self.workers().values():
            pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        self.get("Deployment")["status"]["readyReplicas"] = len(self.workers())

    def workers(self) -> dict[str, Raw]:
        return {name: pod for name, pod in self.pods.items() if _labels(pod)["app.kubernetes.io/component"] == "worker"}

    def answer(self, **changes: Any) -> None:
        """Every worker and the endpoint answer with what the ConfigMap declares, but for the changes."""
        route = make_route(self.table(), **changes)
        self.routes = dict.fromkeys(self.workers(), route)
        self.endpoint = route if self.workers() else None

    def serve(self, revision: str = "rev-1") -> None:
        """Brings the service from wherever it is to where everything is served."""
        self.settle()
        if self.jobs() and not self.job()["status"].get("conditions"):
            self.finish_job(revision)
            self.settle()
        self.roll_out()
        self.answer()
        self.settle()
        assert self.reason() == "True Serving", self.condition("Ready")

    def _end_pods_of(self, job: Raw) -> None:
        name = job["metadata"]["name"]
        for pod in [p for p, raw in self.pods.items() if _labels(raw).get("batch.kubernetes.io/job-name") == name]:
            if "running" in self.pods[pod]["status"]["containerStatuses"][0]["state"]:
                del self.pods[pod]

    def _apply(self, manifest: Raw) -> None:
        key = (manifest["kind"], manifest["metadata"]["name"])
        live = self.objects.get(key)
        made = copy.deepcopy(manifest)
        if key[0] == "Job":
            _merge_job(live, made)
        if live is None:
            self._made += 1
            given = {"uid": f"uid-{self._made}", "creationTimestamp": self._stamp(), "generation": 1}
        else:
            given = {name: live["metadata"][name] for name in ("uid", "creationTimestamp", "generation")}
            given["generation"] += int(live.get("spec") != made.get("spec"))
            made["status"] = live.get("status", {})
            if key[0] == "Job":
                assert live["spec"]["template"] == made["spec"]["template"], "a Job's template cannot be changed"
        made["metadata"] |= given
        made.setdefault("status", {})
        self.objects[key] = made

    def _delete(self, ref: ObjectRef) -> None:
        self.objects.pop((ref.kind, ref.name), None)
        if ref.kind == "Job":
            self.pods = {
                name: pod
                for name, pod in self.pods.items()
                if _labels(pod).get("batch.kubernetes.io/job-name") != ref.name
            }

    def _stamp(self) -> str:
        return self.now.strftime("%Y-%m-%dT%H:%M:%SZ")


def _merge_job(live: Raw | None, made: Raw) -> None:
    """Server-side apply of the fields of a Job in which others have a say, and the server's default for one of them."""
    spec, labels = made["spec"], made["metadata"]["labels"]
    declared: Raw = {"f:metadata": {"f:labels": {f"f:{name}": {} for name in labels}}}
    if "suspend" in spec:
        declared["f:spec"] = {"f:suspend": {}}
    else:
        spec["suspend"] = live is not None and live["spec"]["suspend"] and not declares_suspend(live)
    if live is not None:
        ours = set(declared_queue_labels(live)) | set(labels)
        labels |= {name: value for name, value in queue_labels(live).items() if name not in ours}
    made["metadata"]["managedFields"] = [{"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": declared}]


def _labels(pod: Raw) -> dict[str, str]:
    labels: dict[str, str] = pod["metadata"]["labels"]
    return labels
