"""Jobs among other people's rules: a queue suspends one, takes it back in the middle, and a quota allows it no pod."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from tests.cluster.harness.client import Namespace, wait_for
from tests.cluster.harness.services import SMALL_SPEC, Service
from tests.support.kubernetes.queued_jobs import QUEUE, job_of, runs

pytestmark = pytest.mark.usefixtures("operator")


def suspend_jobs_of_queues(namespace: Namespace) -> tuple[str, str]:
    """A policy that does what Kueue's webhook does: a Job that names a queue is suspended when it is created."""
    name = f"queues-of-{namespace}"
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}},
                "objectSelector": {"matchExpressions": [{"key": QUEUE, "operator": "Exists"}]},
                "resourceRules": [
                    {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}
                ],
            },
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [
                {
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {"expression": "Object{spec: Object.spec{suspend: true}}"},
                }
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name},
    }
    namespace.cluster.apply(policy, binding)
    probe = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "probe", "labels": {QUEUE: "q"}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "a"}]}}},
    }  # fmt: skip

    def is_suspended() -> bool:
        namespace.apply(probe)
        found = namespace.get("job/probe")
        namespace.kubectl("delete", "job/probe")
        return bool(found["spec"].get("suspend"))

    wait_for("the policy to hold", is_suspended)
    return policy["kind"], name


def set_suspend(service: Service, job: str, *, suspend: bool) -> None:
    service.namespace.kubectl(
        *("patch", f"job/{job}", "--type=merge", f'--patch={{"spec":{{"suspend":{str(suspend).lower()}}}}}'),
        "--field-manager=queue",
    )


def test_a_job_in_a_queue_waits_is_taken_back_and_goes_on(namespace: Namespace) -> None:
    kind, policy = suspend_jobs_of_queues(namespace)
    try:
        service = Service(namespace, "queued")
        service.apply(SMALL_SPEC, {QUEUE: "team-a"})
        said = service.wait_for("Ready", "Queued", "False", timeout_s=60)
        assert "waits in queue team-a" in said
        job = wait_for("its Job", lambda: service.children("jobs"))[0]
        name = job["metadata"]["name"]
        assert job["spec"]["suspend"] is True

        namespace.kubectl("label", "gnns/queued", f"{QUEUE}=team-b", "--overwrite")
        wait_for("the other queue's name", lambda: job_of(service)["metadata"]["labels"][QUEUE] == "team-b")
        assert service.condition("Stalled")["status"] == "False"

        set_suspend(service, name, suspend=False)
        wait_for("its pod to run", lambda: runs(service), 120)
        set_suspend(service, name, suspend=True)
        assert "team-b" in service.wait_for("Ready", "Queued", "False", timeout_s=60)
        wait_for("its pod to go", lambda: not service.children("pods"))
        assert not job_of(service)["status"].get("failed"), "no attempt of it"

        set_suspend(service, name, suspend=False)
        service.wait_until_ready()
        after = job_of(service)
        assert (after["metadata"]["uid"], after["metadata"]["labels"][QUEUE]) == (job["metadata"]["uid"], "team-b")
    finally:
        namespace.cluster.kubectl("delete", f"{kind}/{policy}", f"{kind}Binding/{policy}", "--ignore-not-found")


def test_a_quota_that_allows_no_pod_is_quoted_and_goes_on_once_it_is_raised(
    namespace: Namespace, record_property: Any
) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "0"}},
    }
    namespace.apply(quota)
    wait_for("the quota to count", lambda: namespace.get("quota/small").get("status", {}).get("used"))
    service = Service(namespace, "squeezed")
    service.apply(SMALL_SPEC)
    said = service.wait_for("Stalled", "PodsForbidden", timeout_s=60)
    assert "is forbidden: exceeded quota: small, requested: pods=1, used: pods=0, limited: pods=0" in said
    made, told = (
        datetime.fromisoformat(at)
        for at in (
            job_of(service)["metadata"]["creationTimestamp"],
            service.condition("Stalled")["lastTransitionTime"],
        )
    )
    record_property("seconds from the Job to the refusal", (told - made).total_seconds())
    namespace.apply({**quota, "spec": {"hard": {"pods": "10"}}})
    service.wait_for("Ready", "Generating", "False", timeout_s=120)
    wait_for("its pod to run", lambda: runs(service), 120)
