"""A graph that changes while it is served, on a real cluster: changes last, are compacted, and outlive their worker;
and its embeddings, in a database."""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
import pytest
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.installation import Installation
from tests.cluster.harness.layout import HOST_IP, POD_CIDR
from tests.cluster.harness.load import Load
from tests.cluster.harness.services import SMALL_SPEC, Service
from tests.support.changes.postgres import PostgresServer, postgres_server, programs_with_pgvector
from tests.support.lacks import lacks_own_node

TOKEN = "a-token-that-writes-0123456789"  # noqa: S105 - of the tests
NODES, NEW = 1797, 5000
VIEW = "gnnserve_embeddings.digits"
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


@pytest.fixture
def database(service: Service) -> Iterator[PostgresServer]:
    """A server with pgvector on this machine, whose address is in the Secret `vectors`."""
    if service.namespace.cluster.node is None:
        lacks_own_node("about a server on this machine")
    with postgres_server(programs_with_pgvector()) as server:
        uri = server.listen(HOST_IP, POD_CIDR)
        server.stop()
        server.start()
        service.namespace.apply(
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "vectors"}, "stringData": {"uri": uri}}
        )
        yield server


def test_embeddings_reach_a_database_and_a_killed_writer_leaves_the_old_ones_whole(
    service: Service, database: PostgresServer
) -> None:
    revision = service.status()["revision"]

    def written() -> list[tuple[object, ...]]:
        return database.execute(f'SELECT revision, "offset", count(*), variant FROM {VIEW} JOIN '  # noqa: S608
                                "gnnserve_embeddings.sets USING (revision, \"offset\") GROUP BY 1, 2, 4")  # fmt: skip

    def writers() -> list[dict[str, Any]]:
        selector = f"--selector=gnnserve.dev/service={service.name},app.kubernetes.io/component=embeddings"
        return service.namespace.items("pods", selector)

    sinks = [{"postgres": {"secretName": "vectors", "view": "digits"}}]
    service.patch({"embeddings": {"variant": "x1", "sinks": sinks}})
    said = service.wait_for("EmbeddingsPublished", "EmbeddingsPublished")
    assert f"and 1 database have the embeddings of revision {revision}" in said
    # The node that came by a change has a row too.
    first = (revision, 1, NODES + 1, "x1")
    assert written() == [first]
    asked = {"node": NEW, "count": 3}
    wait_for("the index", lambda: service.ask("POST", "/v1/recommend", asked)[0] == http.HTTPStatus.OK)

    with psycopg.connect(database.uri()) as reader:
        # A reader's transaction holds up the last step, when all rows of the next set are there.
        reader.execute(f"SELECT 1 FROM {VIEW} LIMIT 1")  # noqa: S608
        before = {pod["metadata"]["name"] for pod in writers()}
        service.patch({"embeddings": {"variant": "x4"}})
        waiting = "SELECT pid FROM pg_locks WHERE NOT granted"
        wait_for("a writer that waits for the reader", lambda: database.execute(waiting), 120)
        ((writer,),) = database.execute(waiting)
        (killed,) = {pod["metadata"]["name"] for pod in writers()} - before
        # It ends once the container has: a writer that lived on would get its turn when the reader leaves.
        service.namespace.kubectl("delete", "pod", killed, "--grace-period=1")
        own = f"SELECT 1 FROM pg_stat_activity WHERE pid = {writer}"  # noqa: S608
        wait_for("the writer's connection to end", lambda: not database.execute(own))
        assert written() == [first]
        assert service.condition("EmbeddingsPublished")["reason"] == "Embedding"
        # Without waiting until Kubernetes tries again.
        service.namespace.kubectl("delete", "jobs", "--selector=app.kubernetes.io/component=embeddings")

    wait_for("the next writer's rows", lambda: written() == [(revision, 1, NODES + 1, "x4")])
    service.wait_for("EmbeddingsPublished", "EmbeddingsPublished")
    (tables,) = database.execute("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'digits\\_\\_%'")
    assert tables == (1,)
    assert service.condition("Ready")["status"] == "True"
