"""Metadata that all children share: names, labels and annotations, the reference to their owner, and their queue; and
what a live object's metadata tells: which GNNService or GNNWorkerPool it belongs to, and which fields the operator
declared itself.

No other module composes a name, a label or an annotation. Names are deterministic, so that an operator which starts
anew finds what its predecessor made, and fit the 63 characters of a DNS label whatever the service's length. A
service's own name is at most 63 characters.

An owner reference binds an object to its owner: Kubernetes deletes the one with the other. A claim that is to stay has
none. It names the uid of its owner in a label instead, which deletes nothing, so that the operator knows its own claim
and never takes that of an earlier service of the same name for it.

The cluster's queue for Jobs, such as Kueue's, is named by labels of the GNNService, which its Jobs get. A queue
suspends a Job that names it, and lifts that when there is room. So `spec.suspend` of a Job is declared only while the
operator itself wants the Job suspended, and its labels follow the GNNService's only until it runs: a queue accepts no
other name of a Job that it has let go. A person may suspend a Job, too. `managedFields` tell who declared what. They
are most of an object's text, so the index keeps of them the two answers that are needed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from gnnserve_api.spec.pool import POOL_KIND
from gnnserve_api.spec.service import API_VERSION, KIND
from gnnserve_operator.kinds import CLAIM, GNNSERVICE, GNNWORKERPOOL, JOB, Manifest, ObjectRef, Raw, controller_of

NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
MANAGED_BY = "app.kubernetes.io/managed-by"
SERVICE = "gnnserve.dev/service"
POOL = "gnnserve.dev/pool"
"""Label in the place of SERVICE on what belongs to a GNNWorkerPool, its pods among it."""
RECIPE = "gnnserve.dev/recipe"
"""On Jobs and their pods: the recipe that they generate."""
OWNER_UID = "gnnserve.dev/owner-uid"
"""On a claim that is retained: uid of the GNNService or GNNWorkerPool that it was made for, in the place of an owner
reference, which would delete it. SERVICE or POOL says the kind."""

MANAGER = "gnnserve-operator"
FIELD_MANAGER = MANAGER
STATUS_FIELD_MANAGER = "gnnserve-operator-status"
CHILDREN_SELECTOR = f"{MANAGED_BY}={MANAGER}"
"""Selector of watches: the API server sends only the operator's objects."""

DIGEST_ANNOTATION = "gnnserve.dev/digest"
"""On the routing ConfigMap: SHA-256 of what the operator wrote, so that an edit by hand is noticed."""
CLAIM_ANNOTATION = "gnnserve.dev/claim"
"""On the routing ConfigMap: uid of the claim that the revision lies in, so that an empty successor is noticed.
On the Deployment: uid of the claim that its pods mount; on their template too if that took the place of another, so
that the pods are replaced."""
REPAIR_ANNOTATION = "gnnserve.dev/repair"
"""On the routing ConfigMap: how often a damaged revision was generated again (`desired/routing.py`). On a Job: the
number of the repair that it was made for."""
WAITS_ANNOTATION = "gnnserve.dev/waits-for"
"""On a Job that is under way and does not compute: what it waits for, in words. At its deadline Kubernetes deletes the
pods that would tell it. It may stay on one that was done before it was seen to compute, of which it is not read."""
TEMPLATE_ANNOTATION = "gnnserve.dev/template"
"""On the Deployment: SHA-256 of the pod template that was applied, so that a rollout which has not begun is noticed."""
APPLIED_ANNOTATION = "gnnserve.dev/applied"
"""On every child: digest of what was applied last, so that a field which is no longer declared is noticed, even if
another operator applied it."""
BRING_BACK_ANNOTATION = "gnnserve.dev/to-bring-back"
"""On a claim that is retained: the fields by which a GNNService or GNNWorkerPool that is made again goes on with it."""
ADOPT_ANNOTATION = "gnnserve.dev/adopt"
"""On an object that has a child's name and no owner: the GNNService that may take it over. On a claim that was retained
when its owner was deleted: the uid of that owner, so that it holds for one successor. A person sets it, which shows the
right to change that object; it is not part of the desired state, and stays."""
TERM_ANNOTATION = "gnnserve.dev/term"
"""On every child: the term of the leader that wrote it last, for the chart's ValidatingAdmissionPolicy. No part of what
is desired, so that a new leader rewrites nothing."""

# Set by Kubernetes.
JOB_NAME = "batch.kubernetes.io/job-name"


class Component(StrEnum):
    WORKER = "worker"
    GENERATION = "generation"
    EMBEDDINGS = "embeddings"


def labels_for(service: str, component: Component, recipe: str | None = None) -> dict[str, str]:
    labels = {
        NAME: "gnnserve",
        INSTANCE: service,
        COMPONENT: component.value,
        MANAGED_BY: MANAGER,
        SERVICE: service,
    }
    return labels if recipe is None else labels | {RECIPE: recipe}


def selector_for(service: str, component: Component) -> dict[str, str]:
    """The selector of a component. Selectors of a Deployment are immutable: never add to these."""
    return {SERVICE: service, COMPONENT: component.value}


def pool_labels(pool: str) -> dict[str, str]:
    return {
        NAME: "gnnserve",
        INSTANCE: pool,
        COMPONENT: Component.WORKER.value,
        MANAGED_BY: MANAGER,
        POOL: pool,
    }


def pool_selector(pool: str) -> dict[str, str]:
    """The selector of a pool's pods; as immutable as the others."""
    return {POOL: pool, COMPONENT: Component.WORKER.value}


def selector_text(selector: dict[str, str]) -> str:
    """The selector as text, as for `kubectl get pods --selector`."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))


MAX_NAME_LENGTH = 63
JOB_DIGEST_LENGTH = 8


def service_name(service: str) -> str:
    return service


def worker_name(service: str) -> str:
    """Name of the Deployment and of everything else that belongs to the workers alone."""
    return _suffixed(service, "-worker")


def generation_name(service: str) -> str:
    """Name of the NetworkPolicy of generation pods."""
    return _suffixed(service, "-generate")


def job_name(service: str, template_digest: str) -> str:
    """Name of a Job. Each pod template has a Job of its own: a Job's template cannot be changed."""
    return _suffixed(service, f"-generate-{template_digest[:JOB_DIGEST_LENGTH]}")


def embeddings_name(service: str) -> str:
    """Name of the NetworkPolicy of pods that make embeddings."""
    return _suffixed(service, "-embeddings")


def embeddings_job_name(service: str, template_digest: str) -> str:
    """Name of a Job that makes embeddings, one for each pod template."""
    return _suffixed(service, f"-embeddings-{template_digest[:JOB_DIGEST_LENGTH]}")


def routing_name(service: str) -> str:
    return _suffixed(service, "-routing")


def pool_name(pool: str) -> str:
    """Name of the Deployment of a GNNWorkerPool, and of everything else that belongs to its workers."""
    return _suffixed(pool, "-pool")


def pool_services_name(pool: str) -> str:
    """Name of the ConfigMap with the services of a GNNWorkerPool."""
    return _suffixed(pool, "-pool-services")


def pool_claim_name(pool: str) -> str:
    """Name of the claim that the operator makes for a GNNWorkerPool."""
    return _suffixed(pool, "-pool-repository")


def repository_claim_name(service: str, number: int = 1) -> str:
    """Name of a claim that the operator makes. They are numbered: while one is being deleted, its name is not free."""
    return _suffixed(service, "-repository" if number == 1 else f"-repository-{number}")


def is_repository_claim(service: str, claim: str) -> bool:
    """Whether `claim` is a name that the operator gives to a claim of this service."""
    number = re.search(r"-([0-9]{1,3})$", claim)
    return claim in {repository_claim_name(service), repository_claim_name(service, int(number[1]) if number else 1)}


def _suffixed(service: str, suffix: str) -> str:
    if len(service) + len(suffix) <= MAX_NAME_LENGTH:
        return service + suffix
    # Two long names with the same beginning must not share a child.
    mark = "-" + hashlib.sha256(service.encode()).hexdigest()[:6]
    return service[: MAX_NAME_LENGTH - len(suffix) - len(mark)].rstrip("-") + mark + suffix


@dataclass(frozen=True, slots=True)
class Parent:
    """The GNNService, or the GNNWorkerPool, that a child belongs to."""

    name: str
    namespace: str
    uid: str
    kind: str = KIND

    @property
    def is_pool(self) -> bool:
        return self.kind == POOL_KIND

    @property
    def workers_name(self) -> str:
        """Name of what belongs to its workers alone."""
        return pool_name(self.name) if self.is_pool else worker_name(self.name)

    @property
    def workers_selector(self) -> dict[str, str]:
        """Selector of its worker pods."""
        return pool_selector(self.name) if self.is_pool else selector_for(self.name, Component.WORKER)

    def labels(self, component: Component, recipe: str | None = None) -> dict[str, str]:
        """Labels of what belongs to it."""
        return pool_labels(self.name) if self.is_pool else labels_for(self.name, component, recipe)


def child_metadata(
    parent: Parent,
    name: str,
    component: Component,
    *,
    recipe: str | None = None,
    annotations: dict[str, str] | None = None,
    is_retained: bool = False,
) -> Manifest:
    """`is_retained`: it stays when its owner is deleted, and names it in a label alone."""
    labels = parent.labels(component, recipe)
    metadata: Manifest = {"name": name, "namespace": parent.namespace, "labels": labels}
    if is_retained:
        metadata["labels"] = labels | {OWNER_UID: parent.uid}
    else:
        metadata["ownerReferences"] = [
            {
                "apiVersion": API_VERSION,
                "kind": parent.kind,
                "name": parent.name,
                "uid": parent.uid,
                "controller": True,
                # True would need the right to update the owner's finalizers, without any use.
                "blockOwnerDeletion": False,
            }
        ]
    return metadata if not annotations else metadata | {"annotations": annotations}


def digest_of(manifest: Manifest) -> str:
    """Digest of a manifest, independent of the order of its fields.

    Digests are stored in annotations and in names of Jobs, so the text that is hashed must never change. They are
    remembered by a hash of the manifest as it stands: each reconcile asks for the same few manifests of about 3 KB,
    which are too large to be kept for it.
    """
    text = msgspec.json.encode(manifest)
    known_by = hashlib.blake2b(text, digest_size=16).digest()
    digest = _DIGESTS.get(known_by)
    if digest is None:
        if len(_DIGESTS) >= _MOST_DIGESTS:
            _DIGESTS.clear()
        canonical = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
        digest = _DIGESTS[known_by] = hashlib.sha256(canonical.encode()).hexdigest()
    return digest


_MOST_DIGESTS = 8192
"""Most digests that are remembered, about 200 bytes each."""
_DIGESTS: dict[bytes, str] = {}


def as_manifest(parent: Parent, parts: dict[str, Any]) -> str:
    """A GNNService with these parts of its spec, as JSON: what a Job is handed in its environment."""
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": parent.name, "namespace": parent.namespace},
        "spec": parts,
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


QUEUE_PREFIX = "kueue.x-k8s.io/"
QUEUE_NAME = f"{QUEUE_PREFIX}queue-name"
"""The label that names a LocalQueue of the namespace."""


def queue_labels(raw: Raw) -> dict[str, str]:
    """Labels of a live object that a queue reads. The operator follows no other labels of a GNNService. An empty one,
    as a template leaves it whose value is not set, names nothing."""
    labels: Mapping[str, str] = raw.get("metadata", {}).get("labels") or {}
    return {name: value for name, value in sorted(labels.items()) if name.startswith(QUEUE_PREFIX) and value}


def with_queue_labels(job: Manifest, labels: Mapping[str, str]) -> Manifest:
    """The Job as one that these labels put into a queue."""
    metadata = job["metadata"]
    return {**job, "metadata": {**metadata, "labels": {**metadata["labels"], **labels}}}


_AND_LOG = " and spec.updates.adopt: "


def fields_to_bring_back(claim: str, log_uid: str) -> str:
    """The fields by which a GNNService or GNNWorkerPool that is made again under its name goes on with the claim."""
    found = f"spec.repository.claimName: {claim}"
    return f"{found}{_AND_LOG}{log_uid}" if log_uid else found


def log_uid_in(fields: str) -> str:
    """The uid of a log of changes in fields that bring a claim back; empty: they name none."""
    return fields.partition(_AND_LOG)[2]


@dataclass(frozen=True, slots=True)
class Owner:
    kind: str
    name: str
    uid: str
    is_bound: bool = True
    """Whether the object is deleted with its owner; False: it is retained."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Conflict:
    """An object that has a child's name, and is not controlled by this GNNService."""

    ref: ObjectRef
    owner: str | None = None
    """Controller of the object, as `Kind name`; None: it has none."""
    to_bring_back: str = ""
    """Fields by which an owner that is made again goes on with a claim that an earlier one of its name left; empty: it
    is no such claim."""
    owner_uid: str = ""
    """uid of that earlier one."""


def owner_of(raw: Raw) -> Owner | None:
    """The owner of a live object; None: it has none that controls it."""
    controller = controller_of(raw)
    if controller is not None:
        return Owner(str(controller.get("kind")), str(controller.get("name")), str(controller.get("uid")))
    labels = raw.get("metadata", {}).get("labels") or {}
    uid = labels.get(OWNER_UID)
    if raw.get("kind") != CLAIM.name or not uid:
        return None
    if POOL in labels:
        return Owner(GNNWORKERPOOL.name, labels[POOL], uid, is_bound=False)
    return Owner(GNNSERVICE.name, labels.get(SERVICE, ""), uid, is_bound=False)


def bound_to(raw: Raw) -> tuple[Owner, ...]:
    """The objects with which Kubernetes deletes a live object, when the last of them goes."""
    references = raw.get("metadata", {}).get("ownerReferences") or ()
    return tuple(Owner(str(ref.get("kind")), str(ref.get("name")), str(ref.get("uid"))) for ref in references)


def belongs_to(raw: Raw, uid: str) -> bool:
    """Whether the live object belongs to the GNNService or GNNWorkerPool of that uid."""
    owner = owner_of(raw)
    return owner is not None and owner.uid == uid


def observed_conflict(ref: ObjectRef, raw: Raw, uid: str, *, is_retained: bool = False) -> Conflict | None:
    """The conflict, or None where the live object `raw` belongs to the GNNService with that uid. `is_retained`: it is a
    claim that an earlier one of that name left."""
    owner = owner_of(raw)
    if owner is None:
        return Conflict(ref)
    if owner.uid == uid:
        return None
    if not is_retained:
        return Conflict(ref, str(owner))
    annotations = raw.get("metadata", {}).get("annotations") or {}
    told = str(annotations.get(BRING_BACK_ANNOTATION) or fields_to_bring_back(ref.name, ""))
    return Conflict(ref, str(owner), told, owner.uid)


def needed_managed_fields(body: Raw) -> list[Manifest]:
    """The part of `managedFields` that decisions need: the operator's own entry of a Job, without all other fields."""
    if (body.get("apiVersion"), body.get("kind")) != (JOB.api_version, JOB.name):
        return []
    fields: dict[str, Any] = {}
    if declares_suspend(body):
        fields["f:spec"] = {"f:suspend": {}}
    if labels := declared_queue_labels(body):
        fields["f:metadata"] = {"f:labels": {f"f:{name}": {} for name in labels}}
    return [{"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}] if fields else []


def declares_suspend(body: Raw) -> bool:
    """Whether the operator's last apply said that the Job is to be suspended."""
    return "f:suspend" in (_declared(body).get("f:spec") or {}) and bool((body.get("spec") or {}).get("suspend"))


def declared_queue_labels(body: Raw) -> dict[str, str]:
    """Labels of a queue that the operator's last apply gave the Job, as they are now."""
    names = (_declared(body).get("f:metadata") or {}).get("f:labels") or {}
    labels = body.get("metadata", {}).get("labels") or {}
    return {
        name: value for name, value in sorted(labels.items()) if name.startswith(QUEUE_PREFIX) and f"f:{name}" in names
    }


def _declared(body: Raw) -> Manifest:
    entries = body.get("metadata", {}).get("managedFields") or ()
    ours = (FIELD_MANAGER, "Apply")
    return next((dict(e.get("fieldsV1") or {}) for e in entries if (e.get("manager"), e.get("operation")) == ours), {})
