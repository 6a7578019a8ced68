"""A GNNService from apply to delete, on a real cluster: every change of its spec does the least that it needs.

One service for most of it, as a user would have one; the tests run in the order of its life.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.images import WORKER_IMAGE
from tests.cluster.harness.installation import Installation
from tests.cluster.harness.load import Load
from tests.cluster.harness.pods import python_pod
from tests.cluster.harness.services import SMALL_SPEC, Service
from tests.support.kubernetes.object_versions import versions
from tests.support.lacks import lacks_own_node
from typer.testing import CliRunner

from gnnserve_cli.main import app

ASK = """
import json, sys, urllib.request
question = json.dumps({"nodes": [0, 1, 2]}).encode()
request = urllib.request.Request(sys.argv[1], question, {"content-type": "application/json"})
print(urllib.request.urlopen(request, timeout=10).read().decode())
"""


@pytest.fixture(scope="module")
def service(cluster: Cluster, operator: Installation) -> Iterator[Service]:
    namespace = cluster.create_workspace(f"life-{uuid.uuid4().hex[:4]}")
    yield Service(namespace, "digits")
    namespace.delete()


@pytest.fixture
def namespace(service: Service) -> Namespace:
    """For the diagnosis of a failed test."""
    return service.namespace


def test_apply_becomes_a_running_endpoint(service: Service, cluster: Cluster) -> None:
    service.apply(SMALL_SPEC)
    status = service.wait_until_ready()

    assert status["endpoint"] == f"http://digits.{service.namespace}.svc.cluster.local"
    assert status["variantNames"] == "x1 x4"
    assert [variant["name"] for variant in status["variants"]] == ["x1", "x4"]
    assert status["workers"]["ready"] == "1/1"
    assert status["revision"] == service.route()["revision"]
    assert status["baseVariant"] == service.route()["baseVariant"]
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "Ready": "True",
        "Available": "True",
        "Reconciling": "False",
        "Stalled": "False",
        "VariantsGenerated": "True",
        "WorkersAvailable": "True",
        "RepositoryKept": "True",
        # Nobody named a Prometheus; test_routing.py does.
        "MetricsAvailable": "False",
        "ObjectiveMet": "Unknown",
        "CapacitySufficient": "Unknown",
    }
    pod = python_pod(cluster, "client", ASK, arguments=[f"http://digits.{service.namespace}.svc/v1/predict"])
    answer = json.loads(service.namespace.run(pod))
    assert answer["revision"] == status["revision"]
    assert len(answer["labels"]) == 3


def test_workers_have_their_kernels_from_the_image(service: Service) -> None:
    """Their root is read-only and they are nobody: nothing they compile could be kept, so they must not need to."""
    said = [line["message"] for line in service.worker_logs()]
    assert any("warmed up" in message for message in said), said
    assert not any("compiling kernels" in message for message in said), said


def test_kubectl_tells_the_story(service: Service) -> None:
    header, line = service.namespace.kubectl("get", "gnns").splitlines()
    assert header.split() == ["NAME", "READY", "AVAILABLE", "REASON", "VARIANTS", "BASE", "LOAD", "WORKERS", "AGE"]
    assert line.split()[:2] == ["digits", "True"]
    assert "x1 x4" in line
    assert "1/1" in line
    service.namespace.kubectl("wait", "gnns/digits", "--for=condition=Ready", "--timeout=5s")
    told = {event["reason"] for event in service.events()}
    assert told == {"GenerationStarted", "RevisionPublished", "Available", "Ready"}


def test_applying_it_again_changes_nothing(service: Service) -> None:
    before = versions(service)
    service.apply(SMALL_SPEC)
    assert service.condition("Ready")["status"] == "True"
    assert versions(service) == before


def test_a_new_objective_reaches_the_workers_without_a_restart(service: Service) -> None:
    pods = service.worker_pod_names()
    service.patch({"objective": {"latencyMs": 5000, "accuracyTolerancePermille": 1000}})
    wait_for("the worker to follow", lambda: service.route()["objective"].get("latencyMs") == 5000)
    service.wait_until_ready()
    assert service.worker_pod_names() == pods
    assert service.restarts() == 0
    assert len(service.children("jobs")) == 1


def test_new_limits_of_the_queue_reach_the_workers_without_a_restart(service: Service) -> None:
    pods = service.worker_pod_names()
    service.patch({"worker": {"batching": {"maxSeeds": 2, "maxQueuedSeeds": 2}}})
    wait_for("the worker to follow", lambda: service.route()["batching"]["maxQueuedSeeds"] == 2)
    assert service.ask("POST", "/v1/predict", {"nodes": [1, 2, 3]})[0] in {400, 413, 422, 429}
    service.patch({"worker": {"batching": {"maxSeeds": 1024, "maxQueuedSeeds": 65536}}})
    wait_for("the worker to follow", lambda: service.route()["batching"]["maxQueuedSeeds"] == 65536)
    assert service.worker_pod_names() == pods


def test_replicas_come_and_the_first_worker_stays(service: Service) -> None:
    (first,) = service.worker_pod_names()
    service.namespace.kubectl("scale", "gnns/digits", "--replicas=2")
    service.wait_until_ready()
    assert first in service.worker_pod_names()
    assert len(service.worker_pod_names()) == 2
    assert service.status()["workers"]["ready"] == "2/2"


def test_a_new_model_is_switched_to_live(service: Service) -> None:
    old, pods = service.status()["revision"], service.worker_pod_names()
    with Load(service) as load:
        service.patch({"model": {"hidden": 24}})
        said = service.wait_for("Ready", "Generating", "False")
        assert old in said, "that the old revision keeps answering"
        status = service.wait_until_ready()
        load.until_answered_by(status["revision"])
    assert status["revision"] != old
    assert load.failures == []
    assert set(load.revisions) == {old, status["revision"]}
    assert service.worker_pod_names() == pods
    assert service.restarts() == 0


def test_a_canary_shares_requests_by_weights_and_a_rollback_makes_it_the_first(
    service: Service, tmp_path: Path
) -> None:
    """The model of before answers half of the requests beside the new one, and then all of them."""
    new, pods = service.status()["revision"], service.worker_pod_names()
    (old,) = published(service) - {new}
    with Load(service) as load:
        weights = {"mode": "Weights", "weights": {"x1": 3, "x4": 1}}
        service.patch({"routing": {**weights, "canary": {"revision": old, "percent": 50}}})
        service.wait_for("CanaryAnswers", "CanaryAnswers")
        before = load.revisions.copy()
        load.until_more_answers(100)
        answered = load.revisions - before
        assert answered.keys() == {old, new}
        assert 0.4 <= answered[old] / answered.total() <= 0.6, answered
        told = set[tuple[str, str]]()

        def is_told_by_all() -> bool:
            told.update((one["revision"], one["variant"]) for one in (service.predict(0) for _ in range(20)))
            return told == {(revision, variant) for revision in (old, new) for variant in ("x1", "x4")}

        wait_for("answers by both variants of both revisions", is_told_by_all)

        manifest = tmp_path / "digits.yaml"
        about = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": service.name}}
        manifest.write_text(yaml.safe_dump({**about, "spec": service.read()["spec"]}))
        rolled_back = CliRunner().invoke(app, ["rollback", str(manifest), old, "--repository", str(tmp_path)])
        assert rolled_back.exit_code == 0, rolled_back.output
        service.patch({"revision": yaml.safe_load(manifest.read_text())["spec"]["revision"]})
        service.wait_for("CanaryAnswers", "CanaryIsLive", "False")
        service.wait_until_ready()
        service.patch({"routing": {"mode": "Adaptive", "weights": None, "canary": None}})
        service.wait_until_ready()
    assert {service.predict(number)["revision"] for number in range(10)} == {old}
    assert load.failures == []
    assert service.worker_pod_names() == pods
    assert service.restarts() == 0


def test_going_back_finds_the_revision_that_is_there(service: Service) -> None:
    named = service.status()["revision"]
    service.patch({"revision": None, "model": {"hidden": 16}})
    status = service.wait_until_ready()
    assert status["revision"] == named, "the model of this spec is the one that was named"
    assert service.predict(1)["revision"] == named
    assert len(service.children("jobs")) == 1, "superseded Jobs are removed"


def test_an_image_rolls_out_without_a_failed_request(service: Service, cluster: Cluster) -> None:
    if cluster.node is None:
        lacks_own_node("about an image that the harness makes")
    other = WORKER_IMAGE.replace(":test", ":again")
    cluster.node.tag(WORKER_IMAGE, other)
    pods = service.worker_pod_names()
    with Load(service) as load:
        service.patch({"image": other})
        wait_for("every worker to be replaced", lambda: not pods & service.worker_pod_names(), 180)
        service.wait_until_ready()
        load.until_more_answers(100)
    assert load.failures == []
    assert len(service.children("jobs")) == 1, "an image retrains nothing"


def test_children_that_are_edited_or_deleted_come_back(service: Service) -> None:
    namespace = service.namespace
    namespace.kubectl("scale", "deployment/digits-worker", "--replicas=1")
    namespace.kubectl("patch", "service/digits", "--type=merge", '--patch={"spec":{"selector":{"app":"mine"}}}')
    namespace.kubectl("delete", "configmap/digits-routing", "poddisruptionbudget/digits-worker", "role/digits-worker")

    def restored() -> bool:
        return (
            namespace.get("deployment/digits-worker")["spec"]["replicas"] == 2
            and "app" not in namespace.get("service/digits")["spec"]["selector"]
            and all(
                namespace.exists(name)
                for name in ("configmap/digits-routing", "pdb/digits-worker", "role/digits-worker")
            )
        )

    wait_for("everything to be as before", restored, 120)
    said = wait_for("events", lambda: set_back(service) if len(set_back(service)) > 1 else None)
    assert any("Deployment digits-worker was changed by kubectl" in message for message in said)
    assert any("spec.replicas from 1 back to 2. Set spec.worker.replicas of GNNService digits" in m for m in said)
    assert any("Service digits was changed by kubectl-patch" in message for message in said)
    namespace.kubectl("set", "image", "deployment/digits-worker", "worker=localhost/none:1")
    wait_for(
        "the image to be named", lambda: any("Set spec.image of GNNService digits" in m for m in set_back(service))
    )
    service.wait_until_ready()
    assert service.predict(1)["labels"]


def test_suspending_stops_the_workers_and_keeps_the_data(service: Service) -> None:
    revision = service.status()["revision"]
    claim = service.namespace.get("pvc/digits-repository")["metadata"]["uid"]
    service.patch({"suspend": True})
    service.wait_for("Ready", "Suspended", "False")
    wait_for("no worker to be left", lambda: not service.worker_pods(), 120)
    assert service.condition("Stalled")["status"] == "False"
    service.patch({"suspend": False, "worker": {"replicas": 1}})
    assert service.wait_until_ready()["revision"] == revision
    assert service.namespace.get("pvc/digits-repository")["metadata"]["uid"] == claim
    assert len(service.children("jobs")) == 1


def test_a_claim_that_is_deleted_is_said_at_once_and_left_for_another(service: Service) -> None:
    """Kubernetes keeps it as long as a pod names it, and starts none with it: the workers wait for no restart."""
    service.namespace.kubectl("delete", "pvc/digits-repository", "--wait=false")
    said = service.wait_for("RepositoryKept", "VolumeClaimTerminating", "False", timeout_s=30)
    assert "digits-repository-2" in said
    assert service.predict(1)["labels"]
    wait_for("the claim to go", lambda: _claims(service) == ["digits-repository-2"], 240)
    assert service.predict(1)["labels"]
    service.wait_until_ready()
    assert service.condition("RepositoryKept")["status"] == "True"
    assert "VolumeClaimTerminating" in {event["reason"] for event in service.events()}


def test_another_model_does_not_wait_for_a_claim_that_waits_for_the_workers(service: Service) -> None:
    service.namespace.kubectl("delete", "pvc/digits-repository-2", "--wait=false")
    old = service.status()["revision"]
    service.patch({"generation": {"retries": 1}, "model": {"hidden": 24}})
    wait_for("another revision", lambda: service.status().get("revision") not in {None, old}, 240)
    service.wait_until_ready()
    wait_for("the claim to go", lambda: _claims(service) == ["digits-repository"], 120)
    assert service.predict(1)["revision"] == service.status()["revision"]


def _claims(service: Service) -> list[str]:
    found = service.namespace.items("pvc", "--selector=gnnserve.dev/service=digits")
    return sorted(claim["metadata"]["name"] for claim in found)


def test_a_failed_generation_says_why_and_leaves_the_old_traffic_alone(service: Service) -> None:
    old, pods = service.status()["revision"], service.worker_pod_names()
    service.patch({"graph": {"source": {"builtin": None, "npz": {"uri": "file:///data/none.npz"}}}})
    said = service.wait_for("Stalled", "GenerationFailed")
    assert "spec.graph.source.npz.uri" in said
    assert "/data/none.npz" in said
    assert service.condition("Available")["status"] == "True"
    assert service.condition("Ready")["status"] == "False"
    assert service.predict(1)["revision"] == old
    failed = [job["status"]["failed"] for job in service.children("jobs") if job["status"].get("failed")]
    assert failed == [1], "bad input is not tried again"
    service.patch({"graph": {"source": {"builtin": "Digits", "npz": None}}})
    assert service.wait_until_ready()["revision"] == old
    assert service.worker_pod_names() == pods


def set_back(service: Service) -> list[str]:
    return [event["message"] for event in service.events() if event["reason"] == "ChangeReverted"]


def published(service: Service) -> set[str]:
    """The revisions that events have told of."""
    told = (re.search(r"Revision (\w+) is published", event["message"]) for event in service.events())
    return {found[1] for found in told if found is not None}
