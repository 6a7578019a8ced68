"""Every label and annotation that children carry, and the selectors over them."""

from __future__ import annotations

from enum import StrEnum

NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
MANAGED_BY = "app.kubernetes.io/managed-by"
SERVICE = "gnnserve.dev/service"
POOL = "gnnserve.dev/pool"
"""In the place of SERVICE on what belongs to a GNNWorkerPool, its pods among it."""
RECIPE = "gnnserve.dev/recipe"
"""On Jobs and their pods: the recipe that they generate."""
OWNER_UID = "gnnserve.dev/owner-uid"
"""On a claim that is retained: uid of the GNNService or GNNWorkerPool that it was made for, in the place of an owner
reference, which would delete it (`belonging.py`). SERVICE or POOL says the kind."""

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
