"""Does the endpoint answer, from whatever revision, however much is not as declared?

`readiness.py` asks whether all is as the spec declares. Here only what is observed counts: pods that are ready, what
they answer, and what the endpoint answers. So the same is told where the spec cannot be read and where the pool that it
names is gone, while nothing is changed and workers answer on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gnnserve_api.reasons import Reason
from gnnserve_api.routing import CredentialKind, Route
from gnnserve_operator.decide.answers import decide_base_variant
from gnnserve_operator.decide.problem import Problem, join_words
from gnnserve_operator.decide.workers import Workers
from gnnserve_operator.observed import Observed, ObservedPod
from gnnserve_operator.observed_pool import ObservedMember
from gnnserve_routing.verdict import Verdict, sentence

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
    observed: Observed,
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


def expect_by_children(problem: Problem, observed: Observed, base_variant: str | None) -> Expectation:
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


def decide_availability(expected: Expectation, observed: Observed) -> Verdict:
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


def ready_workers(observed: Observed) -> tuple[ObservedPod, ...]:
    return tuple(sorted((pod for pod in observed.pods if pod.is_worker and pod.ready), key=lambda pod: pod.name))


def _without_endpoint(
    expected: Expectation,
    ready: Sequence[ObservedPod],
    answering: Sequence[ObservedPod],
    routes: Mapping[str, Route],
    observed: Observed,
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


def _is_silent(pod: ObservedPod, observed: Observed) -> bool:
    """Whether nothing at all came back from it, not even a refusal."""
    answer = next((answer for answer in observed.answers if answer.pod == pod.name), None)
    return answer is None or answer.is_silent


def _words_of_silent(ready: Sequence[ObservedPod], answering: Sequence[ObservedPod], observed: Observed) -> str:
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
    return f"from revision{'s' if revisions[1:] else ''} {join_words(revisions)}"


def decide_pool_availability(
    ready: int, wanted: int, absence: Verdict, members: Sequence[ObservedMember]
) -> Verdict:  # fmt: skip
    """Whether at least one worker of a pool is ready: it answers for every service that it has loaded. `absence`: why
    none is."""
    if ready == 0:
        return Verdict(False, absence.reason, f"Nothing answers for the pool's services. {absence.message}")
    silent = sorted(member.name for member in members if member.is_served and not member.available)
    more = [f"{len(silent) - _MOST_NAMED} more"] if silent[_MOST_NAMED:] else []
    named = join_words([*silent[:_MOST_NAMED], *more]) if silent else ""
    count = f"{ready} of {wanted}" if ready <= wanted else f"{ready} ({wanted} asked for)"
    rest = f" Nothing answers for {named}: see the condition Available there." if silent else ""
    return Verdict(True, Reason.ANSWERING, f"{count} workers are ready to answer for the pool's services.{rest}")
