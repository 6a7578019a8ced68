"""Can requests be answered, and changes be kept, with the Secrets that the spec names?

The operator reads no Secret: the workers that mount them report what cannot be used, ready ones in `GET /v1/route`, and
waiting ones in the text of their 503.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gnnserve_api import pods
from gnnserve_api.errors import NO_USABLE_CREDENTIALS
from gnnserve_api.reasons import Reason
from gnnserve_api.routing import CredentialKind, CredentialState
from gnnserve_api.updates import URI_KEY
from gnnserve_operator.decide.problem import Problem
from gnnserve_operator.desired.endpoint import TLS_SECRET_FIELD, TOKENS_SECRET_FIELD, WRITE_TOKENS_SECRET_FIELD
from gnnserve_operator.desired.updates import LOG_SECRET_FIELD
from gnnserve_operator.observed import Observed
from gnnserve_routing.verdict import Verdict, sentence

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


def decide_credentials(secrets: Mapping[str, str], is_rolled_out: bool, observed: Observed) -> Verdict | None:
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


def find_unusable(secrets: Mapping[str, str], observed: Observed) -> Problem | None:
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
