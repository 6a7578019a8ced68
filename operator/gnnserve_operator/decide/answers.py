"""Do workers, and the endpoint that clients use, answer as declared, and what do they tell in `GET /v1/route`?

Their answers are the only proof that something is served: pods that are ready may still answer from another revision.
Beside the revision they tell of

- the second revision of spec.routing.canary, which touches no other condition: whatever becomes of it, the first
  revision answers;
- the program that they run as the model, which touches no other condition either: one request may be what a program
  fails at, and the others are answered;
- the accuracy of variants in service, by the labels that clients send (`gnnserve_api.http.live_accuracy`). Each worker
tells
  of its own labels; one that finds a variant worse is enough, since the intervals of all of them hold together but for
  their stated chance;
- the Secrets that the spec names. The operator reads none: workers that mount them report what cannot be used, ready
  ones in their route, and waiting ones in the text of their 503.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import UNSET

from gnnserve_api.errors import NO_USABLE_CREDENTIALS
from gnnserve_api.http.live_accuracy import InputDrift, ObservedShare, VariantAccuracy
from gnnserve_api.pods import interface as pods
from gnnserve_api.pods.change_log import URI_KEY
from gnnserve_api.pods.routing import (
    Canary,
    CredentialKind,
    CredentialState,
    ProgramState,
    Route,
    RoutingMode,
    RoutingTable,
)
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.verdict import Problem, Verdict
from gnnserve_api.wording import sentence
from gnnserve_operator.decide.log_following import MOST_BEHIND_S, is_behind
from gnnserve_operator.desired.access import TLS_SECRET_FIELD, TOKENS_SECRET_FIELD, WRITE_TOKENS_SECRET_FIELD
from gnnserve_operator.desired.metadata import SERVICE
from gnnserve_operator.desired.storage import LOG_SECRET_FIELD
from gnnserve_operator.observed import ObservedPod, ObservedState


def decide_answers(
    service: str, declared: RoutingTable, compacted: str, ready: Sequence[ObservedPod], observed: ObservedState
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


def find_open_worker(ready: Sequence[ObservedPod], observed: ObservedState) -> Problem | None:
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


def describe_devices(spec: GNNServiceSpec, ready: Sequence[ObservedPod], observed: ObservedState) -> str:
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


def decide_base_variant(ready: Sequence[ObservedPod], observed: ObservedState, before: str | None) -> str | None:
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
    declared: RoutingTable, compacted: str, ready: Sequence[ObservedPod], observed: ObservedState
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
        ("spec.updates.refresh", route.refresh == (UNSET if declared.refresh is None else declared.refresh)),
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


def decide_canary(
    spec: GNNServiceSpec, declared: RoutingTable | None, ready: Sequence[ObservedPod], observed: ObservedState
) -> Verdict | None:
    """None: the spec names no second revision. `declared`: what workers are told; None: nothing yet."""
    wanted = spec.routing.canary
    if wanted is None:
        return None
    if declared is None or not ready:
        return Verdict(None, Reason.NOT_SERVING, "No worker answers; the second revision is loaded beside the first.")
    if declared.canary is None:
        return Verdict(
            False,
            Reason.CANARY_IS_LIVE,
            f"Revision {declared.revision} answers all requests, and spec.routing.canary names the same one. As soon "
            f"as another one is published, {wanted.revision} gets {wanted.percent} % of the requests; else take the "
            "field away, or name another one.",
        )
    routes = {answer.pod: answer.route for answer in observed.answers}
    have_switched = all(_has_switched(routes.get(pod.name), declared.revision) for pod in ready)
    if spec.revision == wanted.revision and declared.recipe == spec.recipe() and have_switched:
        return Verdict(
            False,
            Reason.CANARY_IS_LIVE,
            f"Revision {declared.revision} answers as the first: it has the model of {wanted.revision}, which "
            "spec.revision and spec.routing.canary both name, over a newer version of the graph. Take "
            "spec.routing.canary away.",
        )
    said = (_decide_pod(pod, routes.get(pod.name), declared.revision, declared.canary) for pod in ready)
    return next((verdict for verdict in said if verdict is not None), None) or Verdict(
        True,
        Reason.CANARY_ANSWERS,
        f"Revision {declared.canary.revision} answers {declared.canary.percent} % of the requests, and "
        f"{declared.revision} the others.",
    )


def _decide_pod(pod: ObservedPod, route: Route | None, first: str, canary: Canary) -> Verdict | None:
    """Why a worker does not answer as declared; None: it does. `first`: the declared first revision."""
    revision, percent = canary.revision, canary.percent
    told = None if route is None or route.canary is UNSET else route.canary
    if told is not None and told.revision == revision and told.problem:
        what = f"the share of {revision}, which a restart would not find" if told.answers else "all requests"
        message = f"Worker {pod.name} answers {what}: {sentence(told.problem)}."
        return Verdict(False, Reason.CANARY_NOT_LOADED, message)
    if told is not None and told.updates is not UNSET and is_behind(told.updates):
        message = (
            f"Revision {revision}, which worker {pod.name} answers a share of the requests from, has lacked a part "
            f"of the log of changes for over {MOST_BEHIND_S:.0f} seconds. If it lasts, send fewer changes at a "
            "time, or give workers more processors."
        )
        return Verdict(False, Reason.WORKER_BEHIND, message)
    if (
        _has_switched(route, first)
        and told is not None
        and told.answers
        and (told.revision, told.percent) == (revision, percent)
    ):
        return None
    message = (
        f"Worker {pod.name} has not said yet that it answers {percent} % of the requests from {revision}, and the "
        f"others from {first}. Workers of an image that is older than the operator never will: give "
        "spec.image its version."
    )
    return Verdict(None, Reason.CANARY_LOADING, message)


def _has_switched(route: Route | None, first: str) -> bool:
    """Whether a worker answers from the declared first revision."""
    return route is not None and route.revision == first


def decide_program(ready: Sequence[ObservedPod], observed: ObservedState) -> Verdict | None:
    """None: no ready worker runs a program."""
    routes = {answer.pod: answer.route for answer in observed.answers if answer.route is not None}
    told = [(pod.name, each) for pod in ready if pod.name in routes for each in _programs_of(routes[pod.name])]
    if not told:
        return None
    for name, (revision, program) in told:
        if program.problem:
            again = f" It was started again {program.restarts} times." if program.restarts > 1 else ""
            return Verdict(
                False,
                Reason.PROGRAM_FAILS,
                f"Requests to worker {name}{revision} get 503 as the last one did: {sentence(program.problem)}.{again}",
            )
    names = list(dict.fromkeys(name for name, _ in told))
    workers = "Worker" if len(names) == 1 else "Workers"
    return Verdict(True, Reason.PROGRAM_RUNS, f"{workers} {', '.join(names)}: the last run of the program gave scores.")


def _programs_of(route: Route) -> Iterator[tuple[str, ProgramState]]:
    """Programs of both revisions, with what is said of the second one."""
    if route.program is not UNSET:
        yield "", route.program
    if route.canary is not UNSET and route.canary.program is not UNSET:
        yield f" that revision {route.canary.revision} answers", route.canary.program


_CURE = "Generate from newer data, or see whether what sends features, or labels, has changed."


def decide_accuracy(spec: GNNServiceSpec, observed: ObservedState) -> Verdict | None:
    """None: no labels are taken, since the spec names no tokens that may write."""
    if spec.endpoint.write_tokens is None:
        return None
    told: dict[str, tuple[VariantAccuracy, ...]] = {}
    for answer in sorted(observed.answers, key=lambda answer: answer.pod):
        if answer.route is not None and answer.route.accuracy is not UNSET:
            told[answer.pod] = answer.route.accuracy
    if not told:
        message = "No worker has evaluated labels yet; POST /v1/labels takes them."
        return Verdict(None, Reason.NO_LABELS, message)
    for pod, figures in told.items():
        broken = [figure for figure in figures if figure.is_broken]
        if broken:
            labelled = "pairs" if spec.task.asked().reads_pairs else "nodes"
            message = _describe_accuracy(pod, broken, labelled, _drifted_inputs(observed))
            return Verdict(False, Reason.ACCURACY_BROKEN, message)
    return Verdict(
        True, Reason.ACCURACY_AS_PROMISED, "By the labels, no variant is significantly less accurate than promised."
    )


def accuracies_in_service(observed: ObservedState, revision: str) -> dict[str, str]:
    """For the status: by variant, the share of labelled nodes that it answers correctly, to the percent, since a figure
    that changes with every label would write the status each time. The worker with the most labels tells it."""
    told: dict[str, ObservedShare] = {}
    for answer in observed.answers:
        if answer.route is None or answer.route.accuracy is UNSET or answer.route.revision != revision:
            continue
        for figure in answer.route.accuracy:
            if figure.labels is not None and figure.labels.nodes > _nodes_of(told.get(figure.name)):
                told[figure.name] = figure.labels
    return {name: f"{share.mean:.2f}" for name, share in told.items()}


def _nodes_of(share: ObservedShare | None) -> int:
    return 0 if share is None else share.nodes


def _drifted_inputs(observed: ObservedState) -> tuple[InputDrift, ...]:
    """The columns that the first worker, by name, tells of."""
    for answer in sorted(observed.answers, key=lambda answer: answer.pod):
        if answer.route is not None and answer.route.inputs is not UNSET:
            return answer.route.inputs
    return ()


def _describe_accuracy(pod: str, broken: list[VariantAccuracy], labelled: str, inputs: tuple[InputDrift, ...]) -> str:
    """`labelled`: what the service answers about, in the plural."""
    found = [_words(figure, labelled, figure.labels, figure.promised) for figure in broken]
    names = ", ".join(sorted(each.column for each in inputs))
    cause = (
        f"A likely cause: in what requests bring, these columns have other means than in stored nodes: {names}. "
        if inputs
        else "The graph is no longer what the revision was generated from. "
    )
    return f"By the labels that worker {pod} got, {'; '.join(words for words in found if words)}. {cause}{_CURE}"


def _words(figure: VariantAccuracy, labelled: str, labels: ObservedShare | None, promised: float | None) -> str:
    if labels is None or promised is None:
        return ""
    # Whole percent: figures that change with every label would write the status each time.
    share = f"{labels.high:.0%} of {labelled}"
    return f"{figure.name} is right for at most {share}, where its profile promised {promised:.0%}"


_FOLLOWED = "Workers follow a changed Secret within a minute or two"


@dataclass(frozen=True, slots=True)
class _Words:
    """Parts of the messages about a kind of credentials."""

    field: str
    """The field of the spec that names the Secret."""
    folder: str
    """The folder in which workers find it."""
    unusable: str
    partly: str
    cure: str


_WORDS: Mapping[str, _Words] = {
    CredentialKind.TLS: _Words(
        TLS_SECRET_FIELD,
        pods.TLS_PATH,
        "No client that verifies certificates can be answered",
        "The certificate of before stays in use, until it expires or the pod ends",
        f"See that the Secret exists and holds a valid {pods.TLS_CERTIFICATE_KEY} and its {pods.TLS_PRIVATE_KEY_KEY}",
    ),
    CredentialKind.TOKENS: _Words(
        TOKENS_SECRET_FIELD,
        pods.TOKENS_PATH,
        "No token is accepted: every request gets 401",
        "The other tokens are accepted",
        "See that the Secret exists and that each of its values is a token (`openssl rand -hex 32` makes one)",
    ),
    CredentialKind.WRITE_TOKENS: _Words(
        WRITE_TOKENS_SECRET_FIELD,
        pods.WRITE_TOKENS_PATH,
        "No token may write: labels and changes get 401",
        "Requests are answered, and labels and changes taken with its other tokens, if it has any",
        "See that the Secret exists and that each of its values is a token (`openssl rand -hex 32` makes one)",
    ),
    CredentialKind.LOG: _Words(
        LOG_SECRET_FIELD,
        pods.LOG_SECRET_PATH,
        "Changes are neither taken nor followed",
        "Requests are answered, and changes neither taken nor followed where the address of before does not serve",
        f"See that the Secret exists and that its key {URI_KEY} is the address of the database, "
        "postgresql://user:password@host/database",
    ),
}


def decide_credentials(secrets: Mapping[str, str], is_rolled_out: bool, observed: ObservedState) -> Verdict | None:
    """Whether workers use all that the spec's Secrets hold, by the field that names each; None: it names none."""
    if not secrets:
        return None
    if (unusable := find_unusable(secrets, observed)) is not None:
        return unusable.to_verdict()
    answers = sorted(observed.answers, key=lambda answer: answer.pod)
    routes = [(answer.pod, answer.route) for answer in answers if answer.route is not None]
    for pod, route in routes:
        if found := _describe_all(secrets, pod, route.credentials):
            return Verdict(False, Reason.CREDENTIALS_REFUSED, found)
    if not routes:
        return Verdict(None, Reason.NOT_SERVING, "No worker answers yet: whether the Secrets can be used is not known.")
    wanted = {kind for kind, words in _WORDS.items() if words.field in secrets}
    for pod, route in routes:
        if not wanted <= {state.kind for state in route.credentials}:
            why = (
                "its image is older than this condition. Set spec.image to one of the operator's version"
                if is_rolled_out
                else "it is being replaced"
            )
            return Verdict(None, Reason.CREDENTIALS_UNKNOWN, f"Worker {pod} does not tell of its credentials: {why}.")
    named = " and ".join(f"{name} ({field})" for field, name in secrets.items())
    whole = "the Secrets" if len(secrets) > 1 else "the Secret"
    return Verdict(True, Reason.CREDENTIALS_IN_USE, f"Workers use what is in {whole} {named}.")


def find_unusable(secrets: Mapping[str, str], observed: ObservedState) -> Problem | None:
    """The first worker, by name, that can answer no request for what a Secret holds, or lacks."""
    for answer in sorted(observed.answers, key=lambda answer: answer.pod):
        if answer.route is not None:
            states = answer.route.credentials
            if any(not state.is_usable and _describe(secrets, answer.pod, state) for state in states):
                words = _describe_all(secrets, answer.pod, states)
                return Problem(Reason.CREDENTIALS_UNUSABLE, words, needs_person=True)
        elif answer.problem and (problem := describe_waiting(secrets, answer.pod, answer.problem)) is not None:
            return problem
    return None


def describe_waiting(secrets: Mapping[str, str], pod: str, said: str) -> Problem | None:
    """The credentials that a worker which does not answer yet waits for. None: it does not wait for any."""
    if NO_USABLE_CREDENTIALS not in said:
        return None
    named = [words for words in _WORDS.values() if words.folder in said and words.field in secrets]
    cures = " ".join(f"Secret {secrets[words.field]} ({words.field}): {words.cure}." for words in named)
    return Problem(
        Reason.CREDENTIALS_UNUSABLE,
        f"Worker {pod} does not serve before it can: {sentence(said)}. {cures} {_FOLLOWED}.",
        needs_person=True,
    )


def _describe_all(secrets: Mapping[str, str], pod: str, states: Iterable[CredentialState]) -> str:
    found = (_describe(secrets, pod, state) for state in states if state.problem)
    return " ".join(words for words in found if words)


def _describe(secrets: Mapping[str, str], pod: str, state: CredentialState) -> str:
    """What one worker lacks of a Secret, in words; empty for a kind that the spec does not name, or that this operator
    does not know."""
    words = _WORDS.get(state.kind)
    secret = None if words is None else secrets.get(words.field)
    if words is None or secret is None:
        return ""
    effect = words.partly if state.is_usable else words.unusable
    return (
        f"Secret {secret} ({words.field}) cannot be used as it is. {effect}. Worker {pod} says: "
        f"{sentence(state.problem)}. {words.cure}. {_FOLLOWED}."
    )
