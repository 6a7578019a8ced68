"""The Job that makes embeddings: when it is there, what the condition says, and that nothing else waits for it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from tests.support.kubernetes.pod_security import violations
from tests.support.operator.observed import Namespace, make_service, make_settings
from tests.support.operator.planned_embeddings import embedding_jobs, end, serving

from gnnserve_api.manifest import parse_manifest
from gnnserve_api.pods.routing import ROUTING_KEY
from gnnserve_operator.desired.access import build_embeddings_network_policy
from gnnserve_operator.desired.job import build_embeddings_job
from gnnserve_operator.desired.metadata import Parent

SINKS: dict[str, Any] = {"sinks": [{"postgres": {"secretName": "vectors"}}]}
KIND = "EmbeddingsPublished"


def test_without_embeddings_there_is_no_job_and_no_condition() -> None:
    namespace = serving()
    assert embedding_jobs(namespace) == []
    assert namespace.condition(KIND) == {}


@pytest.mark.parametrize(
    ("embeddings", "makes_index"),
    [
        pytest.param(None, False, id="no embeddings"),
        pytest.param({}, True, id="an index"),
        pytest.param({**SINKS, "index": False}, False, id="a database alone"),
    ],
)
def test_workers_are_told_whether_an_index_is_made(embeddings: dict[str, Any] | None, makes_index: bool) -> None:
    namespace = serving(embeddings=embeddings)
    (data,) = [raw["data"] for (kind, _), raw in namespace.objects.items() if kind == "ConfigMap"]
    assert json.loads(data[ROUTING_KEY]).get("makesIndex", False) is makes_index


def test_the_job_comes_after_the_revision_beside_the_workers_and_generates_nothing_anew() -> None:
    namespace = Namespace(embeddings=SINKS)
    assert namespace.recipe == make_service().spec.recipe()
    namespace.settle()
    assert embedding_jobs(namespace) == []
    assert namespace.reason(KIND) == "Unknown WaitingForRevision"
    job = namespace.job()
    assert job["metadata"]["labels"]["app.kubernetes.io/component"] == "generation"
    assert "embeddings" not in json.dumps(job["spec"]["template"])

    namespace.serve()

    (job,) = embedding_jobs(namespace)
    assert (namespace.reason(), namespace.reason(KIND)) == ("True Serving", "Unknown Embedding")
    pod = job["spec"]["template"]["spec"]
    assert violations(pod) == []
    (container,) = pod["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["GNNSERVE_EMBEDDED_REVISION"] == "rev-1"
    manifest = parse_manifest(env["GNNSERVE_MANIFEST"], "")
    assert manifest.spec.embeddings == namespace.service.spec.embeddings
    assert parse_manifest(env["GNNSERVE_SOURCE"], "").spec.recipe() == namespace.recipe
    assert {"name": "embeddings-0", "mountPath": "/etc/gnnserve/embeddings/0", "readOnly": True} in (
        container["volumeMounts"]
    )

    end(namespace)
    namespace.settle()
    assert namespace.reason(KIND) == "True EmbeddingsPublished"
    said = namespace.condition(KIND)["message"]
    assert said == "The index of recommendations and 1 database have the embeddings of revision rev-1."
    assert namespace.plan().apply
    assert len(embedding_jobs(namespace)) == 1


def test_a_sink_that_is_away_is_told_and_tried_again_while_predictions_are_answered() -> None:
    namespace = serving(embeddings=SINKS)
    end(namespace, "spec.embeddings.sinks[0]: the PostgreSQL for embeddings went away", 4)
    namespace.settle()
    assert (namespace.reason(), namespace.reason(KIND)) == ("True Serving", "False EmbeddingsFailed")
    assert "the PostgreSQL for embeddings went away" in namespace.condition(KIND)["message"]
    assert ("Warning", "EmbeddingsFailed") in namespace.events
    assert namespace.plan().look_again_s == 60
    first = embedding_jobs(namespace)[0]["metadata"]["uid"]

    namespace.now += timedelta(minutes=9)
    namespace.settle()
    assert embedding_jobs(namespace)[0]["metadata"]["uid"] == first

    namespace.now += timedelta(minutes=2)
    namespace.settle()
    (again,) = embedding_jobs(namespace)
    assert again["metadata"]["uid"] != first
    end(namespace)
    namespace.settle()
    assert namespace.reason(KIND) == "True EmbeddingsPublished"


def test_another_revision_has_a_job_of_its_own() -> None:
    namespace = serving(embeddings={})
    end(namespace)
    namespace.settle()
    assert namespace.condition(KIND)["message"] == "The index of recommendations has the embeddings of revision rev-1."
    (first,) = embedding_jobs(namespace)

    namespace.edit(model={"hidden": 64})
    namespace.settle()
    generating = next(
        raw for (kind, _), raw in namespace.objects.items()
        if kind == "Job" and raw["metadata"]["labels"].get("gnnserve.dev/recipe") == namespace.recipe
    )  # fmt: skip
    namespace.objects.pop(("Job", generating["metadata"]["name"]))
    namespace.objects["Job", generating["metadata"]["name"]] = generating
    namespace.finish_job("rev-2")
    namespace.settle()

    (second,) = embedding_jobs(namespace)
    assert second["metadata"]["name"] != first["metadata"]["name"]


def test_without_the_section_its_jobs_go_and_a_suspended_service_makes_none() -> None:
    namespace = serving(embeddings={})
    namespace.edit(suspend=True)
    namespace.settle()
    assert embedding_jobs(namespace) == []
    assert namespace.reason(KIND) == "Unknown Suspended"

    namespace.edit(suspend=None)
    namespace.settle()
    assert len(embedding_jobs(namespace)) == 1
    namespace.edit(embeddings=None)
    namespace.settle()
    assert embedding_jobs(namespace) == []
    assert namespace.condition(KIND) == {}


@pytest.mark.parametrize(("embeddings", "ports"), [({}, None), (SINKS, [5432])], ids=["the index alone", "a database"])
def test_its_pods_reach_databases_and_nothing_else(embeddings: dict[str, Any], ports: list[int] | None) -> None:
    service, settings = make_service(embeddings=embeddings), make_settings(networkPolicy=True)
    parent = Parent("digits", "shop", "uid")
    job = build_embeddings_job(parent, service.spec, settings, "claim", "rev-1")
    policy = build_embeddings_network_policy(parent, service.spec, settings)
    assert job is not None
    assert policy is not None
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    egress = policy["spec"].get("egress")
    assert (None if egress is None else [each["port"] for each in egress[1]["ports"]]) == ports


def test_an_endpoints_secret_is_no_sinks() -> None:
    with pytest.raises(ValueError, match="Secrets of their own, and vectors is one of endpoint's"):
        make_service(embeddings=SINKS, endpoint={"tokens": {"secretName": "vectors"}})


def test_a_section_that_asks_for_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="index must be true where there are no sinks"):
        make_service(embeddings={"index": False})


def test_a_sidecar_that_holds_the_job_is_told_and_predictions_are_answered() -> None:
    namespace = serving(embeddings=SINKS)
    (job,) = embedding_jobs(namespace)
    pod = namespace.add_pod(job, phase="Running")
    pod["spec"]["containers"].append({"name": "istio-proxy"})
    ended = {"exitCode": 0, "message": "embeddings by x1"}
    pod["status"]["containerStatuses"] = [{"name": "embeddings", "state": {"terminated": ended}}]
    namespace.settle()
    assert namespace.reason(KIND) == "False SidecarHoldsJob"
    assert "container istio-proxy of pod" in namespace.condition(KIND)["message"]
    assert namespace.reason() == "True Serving"


def test_a_job_for_embeddings_that_waited_until_its_deadline_says_for_what() -> None:
    namespace = serving(embeddings={})
    (job,) = embedding_jobs(namespace)
    refused = "Error creating: pods is forbidden: exceeded quota: small"
    namespace.refusals = {job["metadata"]["name"]: refused}
    namespace.settle()
    namespace.refusals = {}
    namespace.settle()
    (job,) = embedding_jobs(namespace)
    condition = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "Job was active too long"}
    job["status"] = {"conditions": [{**condition, "lastTransitionTime": namespace.now.strftime("%Y-%m-%dT%H:%M:%SZ")}]}
    namespace.settle()
    assert namespace.reason(KIND) == "False EmbeddingsFailed"
    message = namespace.condition(KIND)["message"]
    assert "ended while it did not compute: " in message
    assert "exceeded quota: small" in message
