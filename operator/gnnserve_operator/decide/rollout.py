"""May the workers' pods be replaced now?

A new worker image, or a new operator, must not replace those of all services at once: each roll needs one more pod.

Only rolls that come from the operator's side wait for a turn. What a user changes in a GNNService is carried out at
once. Which of the two a change is follows from when it is found: settings and code of the operator change only when its
process starts, so that what this process has once seen as wanted, or what the spec has changed since, is the user's.

A roll has its turn until every pod is new, or until its Deployment tells that it makes no progress (15 minutes): one
service that cannot roll does not keep the others back for ever, and an image that is broken reaches few of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnnserve_operator.desired.deployment import MountedClaim, WorkerPods
from gnnserve_operator.observed import Observed, ObservedDeployment
from gnnserve_operator.turns import IDLE, UNDER_WAY, Stance, Standing, Turn, place_words

_FIRST, _LATER = "0", "1"
"""Order in the queue of rollouts: services without a ready worker come first, since new pods may be their cure."""


@dataclass(frozen=True, slots=True)
class Rollout:
    followed: str
    """See `Turns.followed`."""
    standing: Standing = IDLE
    waits: str | None = None
    """Why the Deployment stays as it is for now; None: it is applied."""

    @property
    def is_in_line(self) -> bool:
        """Whether the workers wait for those of other services."""
        return self.standing.stance is Stance.WAITING


def decide_rollout(
    given: WorkerPods, declared: str, template_digest: str, mounted: MountedClaim, observed: Observed
) -> Rollout:
    """`declared`: digest of the spec's part about the pods; `template_digest`: of the wanted pod template, which mounts
    the claim `mounted`."""
    turn, deployment = observed.turns.rollout, observed.deployment
    if deployment is None or deployment.deleting:
        return Rollout(declared)
    is_rolling = not (deployment.rolled_out or deployment.progress_stopped)
    if deployment.template_digest == template_digest:
        return Rollout(declared, UNDER_WAY if is_rolling and turn.is_ours else IDLE)
    followed = observed.turns.followed or declared
    if followed != declared or not _is_only_template(deployment, given.wanted, mounted):
        return Rollout(followed)
    if not is_rolling and any(claim.uid == mounted.uid and claim.deleting for claim in observed.claims):
        # Of several workers with a GPU each, one would go first, and nothing could start in its place.
        return Rollout(followed, waits=_words_without_claim(mounted))
    # One that is being replaced already has its additional pod.
    if turn.may_go or is_rolling:
        return Rollout(followed, UNDER_WAY)
    is_answered = any(pod.is_worker and pod.ready for pod in observed.pods)
    return Rollout(followed, Standing(Stance.WAITING, _LATER if is_answered else _FIRST), _words(turn))


def _is_only_template(deployment: ObservedDeployment, wanted: int, mounted: MountedClaim) -> bool:
    """Whether there are pods to replace, and nothing else about them is to change: pods leave a claim that goes at
    once."""
    is_same_claim = (deployment.claim, deployment.successor_uid) == (mounted.name, mounted.successor_uid)
    return 0 < wanted == deployment.replicas and is_same_claim


def _words_without_claim(mounted: MountedClaim) -> str:
    return (
        f"The worker pods wait to be updated: no pod can start with PersistentVolumeClaim {mounted.name}, which is "
        "being deleted (see RepositoryKept). Until they mount another, the present pods stay."
    )


def _words(turn: Turn) -> str:
    return (
        f"The worker pods wait to be updated: at most {turn.limit} services are updated at a time (the chart's "
        f"rollout.maxConcurrentServices), and {place_words(turn)}. Until then the present pods stay."
    )
