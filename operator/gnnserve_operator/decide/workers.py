"""Are there as many ready workers as asked for, does one answer at the endpoint, and may their pods be replaced?

Whether they answer with the declared revision is another question (`answers.py`), and so is whether all is as the spec
declares (`readiness.py`). For whether the endpoint answers, from whatever revision, only what is observed counts: pods
that are ready, what they answer, and what the endpoint answers. So the same is told where the spec cannot be read and
where the pool that it names is gone, while nothing is changed and workers answer on.

A new worker image, or a new operator, must not replace the pods of all services at once: each roll needs one more pod.
Only rolls that come from the operator's side wait for a turn. What a user changes in a GNNService is carried out at
once. Which of the two a change is follows from when it is found: settings and code of the operator change only when its
process starts, so that what this process has once seen as wanted, or what the spec has changed since, is the user's. A
roll has its turn until every pod is new, or until its Deployment tells that it makes no progress (15 minutes): one
service that cannot roll does not keep the others back for ever, and an image that is broken reaches few of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gnnserve_api.errors import NO_GPU
from gnnserve_api.pods.routing import CredentialKind, Route
from gnnserve_api.spec.worker import field_of_pods
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.verdict import Problem, Verdict
from gnnserve_api.wording import in_words, sentence
from gnnserve_operator.decide.answers import decide_base_variant, describe_waiting, repair_words
from gnnserve_operator.decide.pod_problem import lacks_room, pod_problem, remedy_of_refusal
from gnnserve_operator.desired.deployment import MountedClaim, WorkerPods
from gnnserve_operator.fleet import IDLE, UNDER_WAY, Stance, Standing, Turn, place_words
from gnnserve_operator.observed import ObservedDeployment, ObservedMember, ObservedPod, ObservedState

_TROUBLE = ("cannot be loaded", "is not answered from")
"""What a worker's message contains when a revision does not load, or was altered; while one loads, it says something
else."""


_GPU_ADVICE = (
    "If it lasts, look at the node's driver and device plugin and at spec.worker.runtimeClassName, or set "
    "spec.worker.device to Auto to compute on the CPU meanwhile."
)


@dataclass(frozen=True, slots=True)
class Workers:
    wanted: int
    existing: int
    ready: tuple[ObservedPod, ...]
    """Ready pods, sorted by name."""
    is_rolled_out: bool
    """Every pod is of the template that is wanted now."""
    verdict: Verdict
    problem: Problem | None = None
    """What keeps a pod from being ready."""


def decide_workers(given: WorkerPods, template_digest: str, has_revision: bool, observed: ObservedState) -> Workers:
    wanted = given.wanted
    # Pods that have ended on their own stay until they are collected.
    live = [p for p in observed.pods if p.is_worker and not p.deleting and p.phase not in {"Failed", "Succeeded"}]
    live.sort(key=lambda pod: pod.name)
    ready = tuple(pod for pod in live if pod.ready)
    deployment = observed.deployment
    is_rolled_out = (
        deployment is not None
        and not deployment.deleting
        and deployment.template_digest == template_digest
        and deployment.rolled_out
    )
    # Told of by two watches: what only one of them says is not so for sure.
    certain = len(ready) if deployment is None else min(len(ready), deployment.ready_replicas)
    problem = None
    if wanted > 0 and not (is_rolled_out and certain >= wanted):
        problem = _find_problem(given, live, observed)
    return Workers(
        wanted=wanted,
        existing=len(live),
        ready=ready,
        is_rolled_out=is_rolled_out,
        verdict=_verdict(given, certain, has_revision or deployment is not None, live, problem, observed),
        problem=problem,
    )


def _find_problem(given: WorkerPods, live: list[ObservedPod], observed: ObservedState) -> Problem | None:
    deployment = observed.deployment
    found = []
    for pod in live:
        # A running worker knows what is the matter now; how its last container ended may be long ago.
        said = _words_of(pod, observed)
        if said is not None and NO_GPU in said:
            # In mode GPU it waits for one: the scheduler's is there, and the worker cannot compute on it.
            words = f"Worker {pod.name}: {sentence(said)}. It tries again by itself. {_GPU_ADVICE}"
            found.append(Problem(Reason.GPU_UNAVAILABLE, words, needs_person=False))
        elif said is not None and (waiting := describe_waiting(given.secrets, pod.name, said)) is not None:
            found.append(waiting)
        elif said is not None and any(words in said for words in _TROUBLE):
            words = f"Worker {pod.name}: {sentence(said)}. {repair_words(given.template.owner)}"
            found.append(Problem(Reason.REVISION_NOT_LOADED, words, needs_person=False))
        elif (problem := pod_problem(pod, given.template)) is not None:
            advice = _words_without_room(given, live, observed) if lacks_room(pod) else ""
            found.append(replace(problem, message=f"{problem.message}{advice}"))
    if deployment is not None and deployment.replica_failure is not None:
        found.append(
            Problem(
                Reason.PODS_FORBIDDEN,
                f"Worker pods cannot be created: {sentence(deployment.replica_failure)}. "
                f"{remedy_of_refusal(deployment.replica_failure, 'spec.worker')}."
                f"{_words_without_room(given, live, observed)}",
                needs_person=True,
            )
        )
    # Problems that need a person come first; then by pod, so that the order is stable.
    problem = min(found, key=lambda problem: not problem.needs_person, default=None)
    if deployment is None or not deployment.progress_stopped:
        return problem
    if problem is not None:
        return replace(problem, needs_person=True)
    said = _words_of_starting(live, observed)
    words = f"They say: {said}." if said is not None else "Their events and logs say why."
    return Problem(
        Reason.WORKERS_NOT_STARTING,
        f"Worker pods have not become ready for a long time. {words}",
        needs_person=True,
    )


def _words_without_room(given: WorkerPods, live: list[ObservedPod], observed: ObservedState) -> str:
    """Message about the way out where pods are replaced, and there is no room for one more than are wanted; empty:
    nothing is replaced, or a pod stops first anyway."""
    deployment, wanted = observed.deployment, given.wanted
    answering = sum(pod.ready for pod in live)
    is_replacing = deployment is not None and not deployment.rolled_out and len(live) >= wanted and answering
    if not is_replacing or given.most_unavailable > 0 or given.stops_first:
        return ""
    field = field_of_pods(given.template.pool, "rollout.maxUnavailable")
    cost = "no request is answered until its successor is ready" if wanted == 1 else "the others answer meanwhile"
    stay = (
        "the present one answers, and keeps its room" if answering == 1 else "the present ones answer, and keep theirs"
    )
    return (
        f" It is to replace a worker pod, and until it is ready {stay}. Where there is no room for one pod more, set "
        f"{field} to 1: a pod then stops before its successor starts, and {cost}."
    )


def _verdict(
    given: WorkerPods,
    ready: int,
    has_deployment: bool,
    live: list[ObservedPod],
    problem: Problem | None,
    observed: ObservedState,
) -> Verdict:
    wanted = given.wanted
    if given.is_suspended:
        left = f"{len(live)} are still ending" if live else "none runs"
        return Verdict(False, Reason.SUSPENDED, f"spec.suspend is true: no worker is wanted, {left}.")
    if wanted == 0:
        left = f"{len(live)} are still ending" if live else "none runs"
        field = field_of_pods(given.template.pool, "replicas")
        return Verdict(False, Reason.SCALED_TO_ZERO, f"{field} is 0: no worker is wanted, {left}.")
    if ready >= wanted:
        return Verdict(True, Reason.WORKERS_READY, f"{ready} of {wanted} workers are ready.")
    if not has_deployment:
        return Verdict(False, Reason.WAITING_FOR_REVISION, "Workers start with the first published revision.")
    if problem is not None:
        return Verdict(False, problem.reason, f"{ready} of {wanted} workers are ready. {problem.message}")
    said = _words_of_starting(live, observed)
    waiting = next((pod.name for pod in live if not pod.ready), None)
    words = f" Worker {said}." if said else f" See `kubectl describe pod {waiting}`." if waiting else ""
    return Verdict(False, Reason.WORKERS_STARTING, f"{ready} of {wanted} workers are ready.{words}")


def _words_of_starting(live: list[ObservedPod], observed: ObservedState) -> str | None:
    """What the first worker that runs and is not ready says of itself."""
    for pod in live:
        if (said := _words_of(pod, observed)) is not None:
            return f"{pod.name}: {sentence(said)}"
    return None


def _words_of(pod: ObservedPod, observed: ObservedState) -> str | None:
    if not pod.running or pod.ready:
        return None
    answers = (answer for answer in observed.answers if answer.pod == pod.name and answer.route is None)
    return next((answer.problem for answer in answers if answer.problem), None)


_FOR_EVERY_REQUEST = frozenset({CredentialKind.TLS.value, CredentialKind.TOKENS.value})
"""Credentials without which no request is answered; the others are for requests that write."""
_AS_ASKED_FOR: Mapping[Reason, str] = {
    Reason.SUSPENDED: "Set it to false to go on.",
    Reason.SCALED_TO_ZERO: "Raise it to serve.",
}
"""Reasons for which no worker is wanted, each with what brings workers back."""
AWAITED = frozenset({Reason.ENDPOINT_UNREACHABLE, Reason.NOT_SERVING})
"""Reasons that end without an event that a watch tells of, so that it has to be looked for."""
NOT_YET_OR_NOT_WANTED = frozenset({*_AS_ASKED_FOR, Reason.WAITING_FOR_REVISION})
"""Reasons for which nothing answers although nothing is wrong."""
_NO_REVISION = "Workers are told of no revision yet."
_MOST_NAMED = 5
"""Most services of a pool that a message names."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Workers that should answer, for the words of the verdict: it is decided by what is observed."""

    workers: int | None
    """Workers that should answer; None: nothing tells how many."""
    absence: Verdict | None
    """Why no worker should answer yet, or can; told where none does. None: some are ready, and should."""
    not_as_declared: Reason | None = None
    """Reason for which Ready is not true; None: it is."""
    base_variant: str | None = None
    """The base variant that the status tells; None: it tells of none."""
    speaks_tls: bool | None = None
    """Whether the Service leads to workers that speak TLS, and to no others; None: nothing tells it."""


def expect_by_spec(
    ready: Verdict,
    workers: Workers,
    has_revision: bool,
    observed: ObservedState,
    base_variant: str | None,
    *,
    speaks_tls: bool,
) -> Expectation:
    """The expectation of a spec. `ready`: the condition Ready; `has_revision`: workers are told of one; `speaks_tls`:
    whether the spec has clients reach them over TLS."""
    absence = None
    reason = workers.verdict.reason
    if reason in _AS_ASKED_FOR:
        absence = Verdict(False, reason, f"{workers.verdict.message} {_AS_ASKED_FOR[reason]}")
    elif not has_revision and observed.routing is None:
        absence = Verdict(False, Reason.WAITING_FOR_REVISION, f"{_NO_REVISION} {ready.message}")
    elif not workers.ready:
        absence = Verdict(False, reason, f"Nothing answers. {workers.verdict.message}")
    return Expectation(workers.wanted, absence, None if ready.holds else ready.reason, base_variant, speaks_tls)


def expect_by_children(problem: Problem, observed: ObservedState, base_variant: str | None) -> Expectation:
    """The expectation where the spec, or the pool that it names, says nothing: children stay as they are, so the
    Deployment tells how many workers there should be. `problem`: why nothing is said."""
    deployment = observed.deployment
    absence = None
    if observed.routing is None:
        absence = Verdict(False, Reason.WAITING_FOR_REVISION, f"{_NO_REVISION} {problem.message}")
    elif deployment is not None and deployment.replicas == 0:
        absence = Verdict(False, Reason.SCALED_TO_ZERO, f"No worker was asked for last. {problem.message}")
    elif not ready_workers(observed):
        absence = Verdict(False, problem.reason, f"Nothing answers: no worker is ready. {problem.message}")
    return Expectation(None if deployment is None else deployment.replicas, absence, problem.reason, base_variant)


def decide_availability(expected: Expectation, observed: ObservedState) -> Verdict:
    """Whether at least one ready worker answers for the service at its endpoint."""
    ready = ready_workers(observed)
    routes = {
        answer.pod: answer.route for answer in observed.answers if answer.route is not None and answer.route.revision
    }
    answering = [pod for pod in ready if pod.name in routes]
    endpoint = observed.endpoint_answers
    if endpoint is None or not endpoint.revision:
        return _without_endpoint(expected, ready, answering, routes, observed)
    told = [routes[pod.name] for pod in answering] or [endpoint]
    if (locked := _find_locked(told)) is not None:
        return locked
    variant = expected.base_variant
    if all(variant not in route.allowed_variants for route in told):  # of another revision
        variant = decide_base_variant(answering, observed, None) or endpoint.base_variant
    return Verdict(
        True,
        Reason.ANSWERING,
        f"{_count(len(answering), expected.workers)} {_from(told)}, with base variant {variant}."
        f"{_words_of_silent(ready, answering, observed)}{_words_of_rest(expected)}",
    )


def ready_workers(observed: ObservedState) -> tuple[ObservedPod, ...]:
    return tuple(sorted((pod for pod in observed.pods if pod.is_worker and pod.ready), key=lambda pod: pod.name))


def _without_endpoint(
    expected: Expectation,
    ready: Sequence[ObservedPod],
    answering: Sequence[ObservedPod],
    routes: Mapping[str, Route],
    observed: ObservedState,
) -> Verdict:
    if answering:
        count = "One worker answers" if len(answering) == 1 else f"{len(answering)} workers answer"
        why = (
            "and the Service's address does not answer the operator. If it lasts, look at DNS, kube-proxy and network "
            "policies."
        )
        if expected.speaks_tls is not None and all(pod.speaks_tls is not expected.speaks_tls for pod in answering):
            old, new = ("without TLS", "with it") if expected.speaks_tls else ("over TLS alone", "without it")
            why = (
                f"{old}, and the Service leads to workers {new} (spec.endpoint.tls): none of these is ready yet. Ready "
                "says what they wait for."
            )
        return Verdict(
            False,
            Reason.ENDPOINT_UNREACHABLE,
            f"{count} {_from([routes[pod.name] for pod in answering])} when asked directly, {why}"
            f"{_words_of_rest(expected)}",
        )
    if expected.absence is not None:
        return expected.absence
    if observed.pool is None and all(_is_silent(pod, observed) for pod in ready):
        # The kubelet hears them: the way from the operator to them may be closed, and that of clients open. Readiness
        # of a pool's pods tells nothing of one service.
        count = "One worker is" if len(ready) == 1 else f"{len(ready)} workers are"
        return Verdict(
            None,
            Reason.ENDPOINT_UNREACHABLE,
            f"{count} ready by the kubelet's probes, and nothing answers the operator, neither there nor at the "
            "endpoint: whether clients are answered is not known. If it lasts, look at network policies and meshes "
            "between the operator and the workers.",
        )
    words = f"No ready worker answers for the service.{_words_of_silent(ready, (), observed)}"
    return Verdict(False, Reason.NOT_SERVING, f"{words}{_words_of_rest(expected)}")


def _find_locked(told: Sequence[Route]) -> Verdict | None:
    """Credentials that no answering worker can use, so that every request is refused."""
    locked = [
        {state.kind for state in route.credentials if not state.is_usable} & _FOR_EVERY_REQUEST for route in told
    ]  # fmt: skip
    if not all(locked):
        return None
    return Verdict(
        False,
        Reason.CREDENTIALS_UNUSABLE,
        f"Workers run, and no request can be answered: their {' and '.join(sorted(set().union(*locked)))} cannot be "
        "used. CredentialsValid names the Secret, and what to do.",
    )


def _is_silent(pod: ObservedPod, observed: ObservedState) -> bool:
    """Whether nothing at all came back from it, not even a refusal."""
    answer = next((answer for answer in observed.answers if answer.pod == pod.name), None)
    return answer is None or answer.is_silent


def _words_of_silent(ready: Sequence[ObservedPod], answering: Sequence[ObservedPod], observed: ObservedState) -> str:
    """The first ready worker that does not answer."""
    silent = next((pod for pod in ready if pod not in answering), None)
    if silent is None:
        return ""
    said = next((answer.problem for answer in observed.answers if answer.pod == silent.name), None)
    return f" Worker {silent.name} is ready and does not{f': {sentence(said)}' if said else ''}."


def _words_of_rest(expected: Expectation) -> str:
    if expected.not_as_declared in {None, Reason.ENDPOINT_UNREACHABLE}:
        return ""
    return f" Not all is as declared ({expected.not_as_declared}): see Ready."


def _count(answering: int, wanted: int | None) -> str:
    if answering == 0:  # its workers cannot be asked by their own addresses
        return "The endpoint answers"
    if wanted is None:
        return f"{answering} worker{'s' if answering != 1 else ''} and the endpoint answer"
    if answering > wanted:
        return f"{answering} workers ({wanted} asked for) and the endpoint answer"
    return f"{answering} of {wanted} worker{'s' if wanted != 1 else ''} and the endpoint answer"


def _from(routes: Sequence[Route]) -> str:
    revisions = sorted({route.revision for route in routes})
    return f"from revision{'s' if revisions[1:] else ''} {in_words(revisions)}"


def decide_pool_availability(
    ready: int, wanted: int, absence: Verdict, members: Sequence[ObservedMember]
) -> Verdict:  # fmt: skip
    """Whether at least one worker of a pool is ready: it answers for every service that it has loaded. `absence`: why
    none is."""
    if ready == 0:
        return Verdict(False, absence.reason, f"Nothing answers for the pool's services. {absence.message}")
    silent = sorted(member.name for member in members if member.is_served and not member.available)
    more = [f"{len(silent) - _MOST_NAMED} more"] if silent[_MOST_NAMED:] else []
    named = in_words([*silent[:_MOST_NAMED], *more]) if silent else ""
    count = f"{ready} of {wanted}" if ready <= wanted else f"{ready} ({wanted} asked for)"
    rest = f" Nothing answers for {named}: see the condition Available there." if silent else ""
    return Verdict(True, Reason.ANSWERING, f"{count} workers are ready to answer for the pool's services.{rest}")


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
    given: WorkerPods, declared: str, template_digest: str, mounted: MountedClaim, observed: ObservedState
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
