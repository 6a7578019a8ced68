"""Why does a Job have no pod? Another than the operator suspends it, or the API server refuses the pod.

Kubernetes tells the second in events alone: a Job has no condition of it, as a Deployment has.
"""

from __future__ import annotations

import re

from gnnserve_api.reasons import Reason
from gnnserve_operator.decide.pod_problem import remedy_of_refusal
from gnnserve_operator.decide.problem import Problem
from gnnserve_operator.desired.queue import QUEUE_NAME
from gnnserve_operator.observed import ObservedJob
from gnnserve_routing.verdict import sentence

_PREFIXES = ("(combined from similar events): ", "Error creating: ")
"""Prefixes that are cut off, in their order: of Kubernetes where many events differ in their message alone, and of the
Job controller."""
_LASTING = ("is forbidden", "is invalid")
"""Words of refusals that last until a person acts; others are of a webhook, or an API server, that is away."""


def words_of_suspension(job: ObservedJob, service: str) -> str:
    """Message about a Job that another suspends."""
    if not job.queue:
        return (
            f"Job {job.name} is suspended, not by the operator, and waits until that is lifted. If a queue of the "
            f"cluster holds Jobs that name none, name one in the label {QUEUE_NAME} of the GNNService. To let it go: "
            f'`kubectl patch job {job.name} --type=merge --patch=\'{{"spec":{{"suspend":false}}}}\'`.'
        )
    leave = (
        f" To have it run outside the queue, take the label off: `kubectl label gnns {service} {QUEUE_NAME}-`."
        if QUEUE_NAME in job.queue_labels
        else ""
    )
    return (
        f"Job {job.name} waits in queue {job.queue} (label {QUEUE_NAME}), which keeps it suspended. "
        f"`kubectl describe workloads` tells why: no quota is left, or there is no such queue "
        f"(`kubectl get localqueues`).{leave}"
    )


def is_in_wrong_queue(job: ObservedJob, queue: str) -> bool:
    """Whether a Job that waits is to be made anew: it has left its queue, which would hold it for ever, or the operator
    holds it where a queue is to decide. Queues take a Job in when it is created. `queue`: the one that the service
    names; empty: none."""
    if not job.suspended:
        return False
    return job.held if queue else QUEUE_NAME in job.queue_labels


def explain_refusal(job: ObservedJob) -> Problem | None:
    """The API server's refusal of the Job's pod, in its own words."""
    if not job.refusal:
        return None
    words = job.refusal
    for prefix in _PREFIXES:
        words = words.removeprefix(prefix)
    # Each attempt has another name.
    words = re.sub(rf'"{re.escape(job.name)}-[a-z0-9]*"', f'"{job.name}-…"', words)
    return Problem(
        Reason.PODS_FORBIDDEN,
        f"Job {job.name} gets no pod: {sentence(words)}. {remedy_of_refusal(words, 'spec.generation')}; it is tried "
        "again by itself.",
        needs_person=any(word in words for word in _LASTING),
    )
