"""A graph that changes while it is served, on a real cluster: changes last, are compacted, and outlive their worker."""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.installation import Installation
from tests.cluster.harness.load import Load
from tests.cluster.harness.services import SMALL_SPEC, Service

TOKEN = "a-token-that-writes-0123456789"  # noqa: S105 - of the tests
NODES, NEW = 1797, 5000
EDGES = [[i % NODES, (7 * i + 1) % NODES] for i in range(1000)]
SPEC: Mapping[str, Any] = {
    **SMALL_SPEC,
    "updates": {"log": {"sqlite": {}}, "maxDelta": "256Mi", "compaction": {"changes": 1000}},
    "endpoint": {"writeTokens": {"secretName": "writing"}},
}


@pytest.fixture(scope="module")
def service(cluster: Cluster, operator: Installation) -> Iterator[Service]:
    namespace = cluster.create_workspace(f"updates-{uuid.uuid4().hex[:4]}")
    namespace.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "writing"}, "stringData": {"token": TOKEN}}
    )
    yield Service(namespace, "digits")
    namespace.delete()


@pytest.fixture
def namespace(service: Service) -> Namespace:
    """For the diagnosis of a failed test."""
    return service.namespace


def change(service: Service, **parts: object) -> dict[str, Any]:
    connection = http.client.HTTPConnection(service.address(), 80, timeout=30)
    try:
        headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
        connection.request("POST", "/v1/changes", json.dumps(parts), headers)
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
    finally:
        connection.close()
    assert response.status == 200, answer
    return answer


def ask_about_new(service: Service, offset: int) -> dict[str, Any]:
    status, answer = service.ask("POST", "/v1/predict", {"nodes": [NEW, 0], "minOffset": offset})
    assert status == 200, answer
    return answer


def test_changes_are_compacted_by_a_job_while_workers_answer(service: Service) -> None:
    service.apply(SPEC)
    first = service.wait_until_ready()["revision"]
    service.wait_for("UpdatesFollowed", "Following")
    pods = service.worker_pod_names()
    with Load(service) as load:
        told = change(service, nodes=[{"id": NEW, "features": {"27": 15}, "label": 3}], edges=[[NEW, 3], *EDGES])
        assert told["offset"] == 1
        assert ask_about_new(service, 1)["offset"] == 1
        compacted = wait_for("compaction", lambda: service.status().get("updates", {}).get("base") == 1, 300)
        assert compacted
        second = service.status()["revision"]
        load.until_answered_by(second)
        # It goes on from there.
        assert change(service, removedEdges=[[NEW, 3]])["offset"] == 2
        assert ask_about_new(service, 2)["revision"] == second
    assert second != first
    assert load.failures == []
    assert service.worker_pod_names() == pods
    assert service.restarts() == 0
    assert service.condition("Ready")["status"] == "True"
    assert {"CompactionStarted", "RevisionPublished"} <= {event["reason"] for event in service.events()}


def test_a_worker_that_comes_anew_begins_with_what_is_compacted(service: Service) -> None:
    (before,) = service.worker_pod_names()
    service.namespace.kubectl("delete", "pod", before, "--wait=true")
    service.wait_until_ready()
    wait_for("another worker", lambda: service.worker_pod_names() - {before})

    def told() -> dict[str, Any] | None:
        state = service.route().get("updates")
        return state if state is not None and state["applied"] == 2 else None

    state = wait_for("the log to be applied", told)
    assert (state["base"], state["changesSinceBase"]) == (1, 1)
    assert ask_about_new(service, 2)["offset"] == 2
