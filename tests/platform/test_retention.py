"""Deletion on a real cluster: acknowledged changes outlive their service, and are all answered by the one that is made
again."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.installation import Installation
from tests.cluster.harness.services import SMALL_SPEC, Service
from tests.support.lacks import lacks_own_node

TOKEN = "a-token-that-writes-0123456789"  # noqa: S105 - of the tests
FIRST_NEW, CHANGES = 5000, 20
CLAIM = "persistentvolumeclaims/digits-repository"
SPEC: Mapping[str, Any] = {
    **SMALL_SPEC,
    "updates": {"log": {"sqlite": {}}, "maxDelta": "256Mi"},
    "endpoint": {"writeTokens": {"secretName": "writing"}},
}
_FIELDS = re.compile(r"spec\.repository\.claimName: (\S+) and spec\.updates\.adopt: ([0-9a-f-]{36})")


@pytest.fixture
def service(namespace: Namespace, operator: Installation) -> Service:
    token = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "writing"}, "stringData": {"token": TOKEN}}
    namespace.apply(token)
    return Service(namespace, "digits")


def add_node(service: Service, node: int) -> int:
    """The offset that is acknowledged."""
    connection = http.client.HTTPConnection(service.address(), 80, timeout=30)
    try:
        headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
        batch = {"nodes": [{"id": node, "features": {"27": 15}, "label": 3}], "edges": [[node, 3]]}
        connection.request("POST", "/v1/changes", json.dumps(batch), headers)
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
    finally:
        connection.close()
    assert response.status == http.client.OK, answer
    return int(answer["offset"])


def expect_answered(service: Service, offset: int) -> None:
    nodes = list(range(FIRST_NEW, FIRST_NEW + offset))
    status, answer = service.ask("POST", "/v1/predict", {"nodes": nodes, "minOffset": offset})
    assert status == http.client.OK, answer
    assert answer["offset"] >= offset


def told_of_retained(service: Service) -> str:
    """The message of the event; empty: there is none."""
    return next((event["message"] for event in service.events() if event["reason"] == "RepositoryRetained"), "")


def test_acknowledged_changes_outlive_their_service_and_are_answered_again(service: Service) -> None:
    namespace = service.namespace
    service.apply(SPEC)
    revision = service.wait_until_ready()["revision"]
    for number in range(CHANGES):
        assert add_node(service, FIRST_NEW + number) == number + 1
    expect_answered(service, CHANGES)
    uid, claim = service.read()["metadata"]["uid"], namespace.get(CLAIM)["metadata"]
    assert "ownerReferences" not in claim
    assert "finalizers" not in service.read()["metadata"]

    service.delete()
    ((name, log),) = _FIELDS.findall(wait_for("what stays to be told", lambda: told_of_retained(service)))
    assert (name, log) == ("digits-repository", uid)
    wait_for("all else to go", lambda: not service.children("deployments,jobs,services,configmaps"))
    kept = namespace.get(CLAIM)["metadata"]
    assert (kept["uid"], "deletionTimestamp" in kept) == (claim["uid"], False)
    assert _FIELDS.findall(kept["annotations"]["gnnserve.dev/to-bring-back"]) == [(name, uid)]

    # The same manifest again hides nothing.
    service.apply(SPEC)
    said = service.wait_for("Stalled", "RepositoryRetained", timeout_s=60)
    assert _FIELDS.findall(said) == [(name, uid)]
    assert service.children("jobs") == []
    service.delete()

    service.apply({**SPEC, "repository": {"claimName": name}, "updates": {**SPEC["updates"], "adopt": log}})
    assert service.wait_until_ready()["revision"] == revision, "nothing is trained"
    expect_answered(service, CHANGES)
    assert add_node(service, FIRST_NEW + CHANGES) == CHANGES + 1, "the log goes on"
    service.delete()
    assert namespace.get(CLAIM)["metadata"]["uid"] == claim["uid"], "a claim that a person names is never deleted"


def test_the_policy_is_changed_at_any_time_and_taken_at_its_word(service: Service) -> None:
    namespace = service.namespace
    service.apply(SPEC)
    service.wait_until_ready()
    pods = service.worker_pod_names()

    def has_owners(expected: list[str]) -> bool:
        owners = namespace.get(CLAIM)["metadata"].get("ownerReferences") or ()
        return [owner["uid"] for owner in owners] == expected

    uid = service.read()["metadata"]["uid"]
    for policy, expected in (("Delete", [uid]), ("Retain", []), ("Delete", [uid])):
        service.patch({"repository": {"deletionPolicy": policy}})
        wait_for(f"the claim to follow {policy}", partial(has_owners, expected))
    assert service.worker_pod_names() == pods
    assert service.condition("Ready")["status"] == "True"
    service.delete()
    wait_for("the claim to go", lambda: not namespace.exists(CLAIM))
    assert told_of_retained(service) == ""


def test_a_claim_that_was_bound_is_released_by_the_operator_that_begins(
    service: Service, operator: Installation, cluster: Cluster
) -> None:
    """As after an upgrade, and the service is deleted as soon as the operator answers."""
    if cluster.node is None:
        lacks_own_node("about an operator that is stopped")
    namespace = service.namespace
    service.apply(SMALL_SPEC)
    service.wait_until_ready()
    assert namespace.get(CLAIM)["metadata"]["ownerReferences"]
    with operator.alone():
        operator.scale(0)
        service.patch({"updates": SPEC["updates"], "endpoint": SPEC["endpoint"]})
        operator.scale(1)
        wait_for("the claim to be released", lambda: "ownerReferences" not in namespace.get(CLAIM)["metadata"])
        service.delete()
        wait_for("all else to go", lambda: not service.children("deployments,jobs,services,configmaps"))
        assert "deletionTimestamp" not in namespace.get(CLAIM)["metadata"]
