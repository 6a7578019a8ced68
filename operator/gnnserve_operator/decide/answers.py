"""Do workers, and the endpoint that clients use, answer as declared?

The only proof that something is served: pods that are ready may still answer from another revision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import UNSET

from gnnserve_api.reasons import Reason
from gnnserve_api.routing import Route, RoutingMode, RoutingTable
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.decide.problem import Problem
from gnnserve_operator.desired.labels import SERVICE
from gnnserve_operator.observed import Observed, ObservedPod
from gnnserve_routing.verdict import sentence


def decide_answers(
    service: str, declared: RoutingTable, compacted: str, ready: Sequence[ObservedPod], observed: Observed
) -> Problem | None:
    """Why some ready worker or the endpoint does not answer with what is declared; None: all do. `compacted`: the
    revision that the declared one was made of, which has the same graph and the same networks; empty: none."""
    answers = {answer.pod: answer for answer in observed.answers}
    for pod in ready:
        answer = answers.get(pod.name)
        if answer is None or answer.route is None:
            words = f": {sentence(answer.problem)}" if answer is not None and answer.problem else ""
            return _waiting(f"Worker {pod.name} has not said what it answers from{words}.")
        if answer.route.problem:
            return Problem(
                Reason.REVISION_NOT_LOADED,
                f"Worker {pod.name} answers from revision {answer.route.revision}: {sentence(answer.route.problem)}. "
                f"{repair_words(service)}",
                needs_person=False,
            )
        if (difference := _difference(declared, compacted, answer.route)) is not None:
            return _waiting(f"Worker {pod.name} {difference}.")
    endpoint = observed.endpoint_answers
    if endpoint is None:
        return Problem(
            Reason.ENDPOINT_UNREACHABLE,
            "Workers are ready, and the Service's address does not answer the operator. If it lasts, look at DNS, "
            "kube-proxy and network policies.",
            needs_person=False,
        )
    if (difference := _difference(declared, compacted, endpoint)) is not None:
        return _waiting(f"The endpoint {difference}.")
    return None


def find_open_worker(ready: Sequence[ObservedPod], observed: Observed) -> Problem | None:
    """A worker that answers without a token although spec.endpoint.tokens is declared: its image is older than tokens,
    and ignores the operator's setting."""
    names = {pod.name: pod.image for pod in ready}
    for answer in observed.answers:
        if answer.pod in names and answer.route is not None and not answer.route.needs_token:
            return Problem(
                Reason.TOKENS_NOT_CHECKED,
                f"Worker {answer.pod} answers requests without a token: its image {names[answer.pod]} is too old for "
                "spec.endpoint.tokens. Set spec.image to one of the operator's version, or take spec.endpoint.tokens "
                "away.",
                needs_person=True,
            )
    return None


def describe_devices(spec: GNNServiceSpec, ready: Sequence[ObservedPod], observed: Observed) -> str:
    """The first ready worker's message about its GPU; empty: it has none, or no GPU was asked for."""
    if spec.worker.gpu is None:
        return ""
    routes = {answer.pod: answer.route for answer in observed.answers if answer.route is not None}
    for pod in ready:
        route = routes.get(pod.name)
        if route is not None and isinstance(route.device_problem, str):
            device = route.device if isinstance(route.device, str) else "its device"
            return f" Worker {pod.name} computes on {device}: {sentence(route.device_problem)}."
    return ""


def repair_words(service: str) -> str:
    """What to do about a revision that a worker cannot load."""
    return (
        "It tries again by itself, and damaged files are generated again. If it lasts, look at the repository's "
        "volume; if the revision is lost, "
        f"`kubectl delete configmap,job --selector {SERVICE}={service}` has it generated again."
    )


def decide_base_variant(ready: Sequence[ObservedPod], observed: Observed, before: str | None) -> str | None:
    """The base variant that ready workers report; the previous one stays as long as one of them reports it, so that it
    is stable."""
    said: Mapping[str, str] = {
        answer.pod: answer.route.base_variant for answer in observed.answers if answer.route is not None
    }
    counts = Counter(said[pod.name] for pod in ready if pod.name in said)
    if not counts or before in counts:
        return before
    return max(sorted(counts), key=counts.__getitem__)


def find_switching(
    declared: RoutingTable, compacted: str, ready: Sequence[ObservedPod], observed: Observed
) -> Problem | None:
    """A ready worker that answers from the revision that the declared one was made of: as well, and it is loading."""
    names = {pod.name for pod in ready}
    for answer in observed.answers:
        if answer.pod in names and answer.route is not None and compacted and answer.route.revision == compacted:
            return _waiting(f"Worker {answer.pod} {_words_of_loading(declared, answer.route)}.")
    return None


def _words_of_loading(declared: RoutingTable, route: Route) -> str:
    return f"answers from revision {route.revision or 'none'} and is to load {declared.revision}"


def _difference(declared: RoutingTable, compacted: str, route: Route) -> str | None:
    if route.revision != declared.revision and (not compacted or route.revision != compacted):
        return _words_of_loading(declared, route)
    for setting, is_taken_on in (
        ("the objective", route.objective == declared.objective),
        ("spec.worker.batching", route.batching == declared.batching),
        # Workers that know no overlays refuse a table with limits of its own, and tell that as their problem.
        ("spec.endpoint.overlay", route.overlay in {declared.overlay, UNSET}),
        ("spec.model.program.limits", _has_limits(declared, route)),
        ("spec.routing.mode", route.mode == declared.mode),
    ):
        if not is_taken_on:
            return f"has yet to take on {setting}"
    # A variant that the service's tolerance excludes never answers, though the worker has taken it on.
    is_static = declared.mode is RoutingMode.STATIC and declared.base_variant in route.allowed_variants
    if is_static and route.base_variant != declared.base_variant:
        return "has yet to take on spec.routing.variant"
    return None


def _has_limits(declared: RoutingTable, route: Route) -> bool:
    """A worker that runs no program tells of none."""
    return route.program is UNSET or route.program.limits in {declared.program_limits, UNSET}


def _waiting(message: str) -> Problem:
    return Problem(Reason.REVISION_SWITCHING, message, needs_person=False)
