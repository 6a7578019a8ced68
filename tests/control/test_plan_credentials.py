"""Secrets of spec.endpoint that cannot be used: Ready, CredentialsValid and events tell, from what workers say."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.operator.observed import Namespace

from gnnserve_api.pods.routing import CredentialState
from gnnserve_operator.decide.status import is_said_already

TOKENS: dict[str, Any] = {"tokens": {"secretName": "accepted"}}
TLS: dict[str, Any] = {"tls": {"secretName": "pair"}}
SHORT = "/etc/gnnserve/tokens/a: is no token: it has fewer than 16 characters; write 16 to 4096 letters"
EMPTY = "/etc/gnnserve/tokens: holds no token, so that every request is refused; write 16 to 4096 letters"
MISMATCH = (
    "/etc/gnnserve/tls/tls.key: is not the key of /etc/gnnserve/tls/tls.crt; put a valid certificate and its key there"
)
GOOD = tuple(CredentialState(kind, is_usable=True) for kind in ("tokens", "writeTokens", "tls"))


def tell(namespace: Namespace, *states: CredentialState) -> None:
    """Every worker, and the endpoint."""
    told = {state.kind: state for state in (*GOOD, *states)}
    endpoint = namespace.spec["endpoint"]
    namespace.answer(credentials=tuple(told[kind] for kind in endpoint), needs_token="tokens" in endpoint)


def secured(endpoint: dict[str, Any] = TOKENS) -> Namespace:
    namespace = Namespace(endpoint=endpoint)
    namespace.settle()
    namespace.finish_job()
    namespace.settle()
    namespace.roll_out()
    tell(namespace)
    namespace.settle()
    assert namespace.reason() == "True Serving"
    namespace.events.clear()
    return namespace


def message(namespace: Namespace, kind: str = "CredentialsValid") -> str:
    return str(namespace.condition(kind)["message"])


def test_a_service_without_secrets_has_no_such_condition() -> None:
    namespace = Namespace()
    namespace.serve()
    assert namespace.condition("CredentialsValid") == {}
    assert namespace.settle().look_again_s is None


def test_secrets_that_can_be_used_are_said_to_be_and_looked_at_again() -> None:
    """No event tells of a changed Secret."""
    namespace = secured(TOKENS | TLS)
    assert namespace.reason("CredentialsValid") == "True CredentialsInUse"
    assert "pair (spec.endpoint.tls.secretName) and accepted (spec.endpoint.tokens.secretName)" in message(namespace)
    assert namespace.settle().look_again_s == 15.0


def test_without_tokens_that_may_write_requests_are_answered_and_the_condition_tells() -> None:
    namespace = secured(TOKENS | {"writeTokens": {"secretName": "writing"}})
    assert namespace.reason("CredentialsValid") == "True CredentialsInUse"
    tell(
        namespace, CredentialState("writeTokens", is_usable=True, problem="/etc/gnnserve/write-tokens: holds no token")
    )
    namespace.settle()
    assert (namespace.reason(), namespace.reason("CredentialsValid")) == ("True Serving", "False CredentialsRefused")
    assert "Secret writing (spec.endpoint.writeTokens.secretName)" in message(namespace)
    assert "Requests are answered" in message(namespace)


def test_without_the_address_of_the_log_requests_are_answered_and_the_condition_tells() -> None:
    namespace = Namespace(updates={"log": {"postgres": {"secretName": "digits-log"}}})
    namespace.settle()
    namespace.finish_job()
    namespace.settle()
    namespace.roll_out()
    missing = "/etc/gnnserve/log/uri: cannot be read (No such file or directory)"
    namespace.answer(credentials=(CredentialState("log", is_usable=True, problem=missing),))
    namespace.settle()
    assert (namespace.reason(), namespace.reason("CredentialsValid")) == ("True Serving", "False CredentialsRefused")
    words = ["Secret digits-log (spec.updates.log.postgres.secretName)", missing, "its key uri is the address"]
    assert all(word in message(namespace) for word in words)
    namespace.answer(credentials=(CredentialState("log", is_usable=True),))
    namespace.settle()
    assert namespace.reason("CredentialsValid") == "True CredentialsInUse"


UNUSABLE = [
    ("a value replaced by `short`", TOKENS, CredentialState("tokens", is_usable=False, problem=SHORT),
     ["Secret accepted (spec.endpoint.tokens.secretName)", "every request gets 401", SHORT, "openssl rand -hex 32"]),
    ("a Secret of tokens that was deleted", TOKENS, CredentialState("tokens", is_usable=False, problem=EMPTY),
     ["Secret accepted (spec.endpoint.tokens.secretName)", EMPTY, "See that the Secret exists"]),
    ("a pair that does not match, and the old one has expired", TLS,
     CredentialState("tls", is_usable=False, problem=MISMATCH),
     ["Secret pair (spec.endpoint.tls.secretName)", "No client that verifies", MISMATCH, "tls.crt and its tls.key"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("endpoint", "state", "words"), [case[1:] for case in UNUSABLE], ids=[case[0] for case in UNUSABLE]
)
def test_ready_is_false_where_no_request_can_be_answered_and_true_again_afterwards(
    endpoint: dict[str, Any], state: CredentialState, words: list[str]
) -> None:
    namespace = secured(endpoint)
    tell(namespace, state)
    assert namespace.settle().look_again_s == 15.0
    assert namespace.reason("Available") == "False CredentialsUnusable"
    for kind in ("Ready", "CredentialsValid"):
        assert namespace.reason(kind) == "False CredentialsUnusable"
        assert all(word in message(namespace, kind) for word in words)
    assert namespace.reason("Stalled") == "True CredentialsUnusable"
    assert namespace.reason("WorkersAvailable") == "True WorkersReady"
    assert namespace.events == [("Warning", reason) for reason in ("CredentialsUnusable", "Unavailable", "NotReady")]
    tell(namespace)
    namespace.settle()
    assert namespace.reason() == "True Serving"
    assert namespace.reason("CredentialsValid") == "True CredentialsInUse"
    assert namespace.events[3:] == [("Normal", reason) for reason in ("CredentialsInUse", "Available", "Ready")]


def test_what_is_wrong_with_the_other_secret_is_told_too() -> None:
    namespace = secured(TOKENS | TLS)
    of_pair = CredentialState("tls", is_usable=True, problem=f"{MISMATCH}; what was read before stays in use")
    tell(namespace, CredentialState("tokens", is_usable=False, problem=EMPTY), of_pair)
    namespace.settle()
    assert namespace.reason() == "False CredentialsUnusable"
    assert all(word in message(namespace) for word in ("Secret accepted", EMPTY, "Secret pair", MISMATCH))


REFUSED = [
    ("one bad value among good ones", TOKENS, CredentialState("tokens", is_usable=True, problem=SHORT),
     ["Secret accepted", "The other tokens are accepted", SHORT]),
    ("a pair that does not match, while the old one is in use", TLS,
     CredentialState("tls", is_usable=True, problem=f"{MISMATCH}; what was read before stays in use"),
     ["Secret pair", "until it expires or the pod ends", MISMATCH]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("endpoint", "state", "words"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_ready_stays_true_while_requests_are_answered(
    endpoint: dict[str, Any], state: CredentialState, words: list[str]
) -> None:
    namespace = secured(endpoint)
    tell(namespace, state)
    namespace.settle()
    assert namespace.reason() == "True Serving"
    assert namespace.reason("CredentialsValid") == "False CredentialsRefused"
    assert all(word in message(namespace) for word in words)
    assert namespace.events == [("Warning", "CredentialsRefused")]


def test_a_new_pod_that_waits_for_its_secrets_names_each_that_is_missing() -> None:
    namespace = Namespace(endpoint=TOKENS | TLS)
    namespace.settle()
    namespace.finish_job()
    namespace.settle()
    namespace.roll_out(ready=False)
    said = f"the worker is loading: no usable credentials: {EMPTY}; {MISMATCH}"
    namespace.routes = dict.fromkeys(namespace.workers(), said)
    namespace.settle()
    for kind in ("Ready", "WorkersAvailable", "CredentialsValid"):
        assert namespace.reason(kind) == "False CredentialsUnusable"
        for word in ("Secret pair (spec.endpoint.tls.secretName)", "Secret accepted (spec.endpoint.tokens.secretName)"):
            assert word in message(namespace, kind)
    assert namespace.reason("Stalled") == "True CredentialsUnusable"
    namespace.edit(endpoint=TOKENS)  # of what is not declared any more, nothing is said
    namespace.routes = dict.fromkeys(namespace.workers(), said)
    namespace.settle()
    assert "spec.endpoint.tls.secretName" not in message(namespace)


def test_a_worker_of_an_older_image_is_said_not_to_tell() -> None:
    namespace = secured(TLS)
    namespace.answer()
    namespace.settle()
    assert namespace.reason() == "True Serving"
    assert namespace.reason("CredentialsValid") == "Unknown CredentialsUnknown"
    assert "spec.image" in message(namespace)


def test_while_no_worker_answers_nothing_is_known() -> None:
    namespace = Namespace(endpoint=TOKENS)
    namespace.settle()
    assert namespace.reason("CredentialsValid") == "Unknown NotServing"


def test_a_condition_that_is_not_said_any_more_goes() -> None:
    namespace = secured()
    before = namespace.condition("CredentialsValid")
    namespace.edit(endpoint=None)
    namespace.settle()
    namespace.roll_out()
    namespace.answer()
    namespace.settle()
    assert namespace.condition("CredentialsValid") == {}
    stale = namespace.status | {"conditions": [*namespace.status["conditions"], before]}
    assert not is_said_already(namespace.status, stale)
