"""Kueue itself decides when a Job runs: no queue, no quota, admitted, taken back, admitted again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.kueue import kueue
from tests.cluster.harness.services import SMALL_SPEC, Service
from tests.support.kubernetes.queued_jobs import QUEUE, job_of, runs
from tests.support.lacks import lacks_own_node

pytestmark = pytest.mark.usefixtures("operator")


def workload_says(namespace: Namespace) -> str:
    found = namespace.items("workloads")
    conditions = [condition for item in found for condition in item.get("status", {}).get("conditions", [])]
    return " ".join(condition["message"] for condition in conditions)


def test_a_jobs_queue_is_kueues_affair_and_its_service_says_so(
    cluster: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    if cluster.node is None:
        lacks_own_node("runs Kueue on this machine")
    # A node selector of the spec beside the flavor's, which Kueue adds to the Job's pod template.
    spec: dict[str, Any] = {**SMALL_SPEC, "generation": {"nodeSelector": {"kubernetes.io/hostname": "node1"}}}
    with kueue(cluster, namespace, tmp_path) as queues:
        queues.share_out("0")
        service = Service(namespace, "digits")
        service.apply(spec, {QUEUE: "team-a"})
        assert "waits in queue team-a" in service.wait_for("Ready", "Queued", "False", timeout_s=60)
        wait_for("Kueue to miss the queue", lambda: "team-a" in workload_says(namespace))

        queues.make_queue("team-a")
        wait_for("Kueue to miss quota", lambda: "quota" in workload_says(namespace))
        name = job_of(service)["metadata"]["name"]
        assert service.condition("Stalled")["status"] == "False"

        queues.share_out("4")
        wait_for("its pod to run", lambda: runs(service), 120)
        selector = job_of(service)["spec"]["template"]["spec"]["nodeSelector"]
        assert selector == {"kubernetes.io/hostname": "node1", "kubernetes.io/os": "linux"}

        queues.share_out("4", stops="HoldAndDrain")
        service.wait_for("Ready", "Queued", "False", timeout_s=60)
        wait_for("its pod to go", lambda: not service.children("pods"))

        queues.share_out("4")
        service.wait_until_ready()
        (job,) = service.children("jobs")
        assert (job["metadata"]["name"], job["status"].get("failed")) == (name, None)
        assert service.predict(1)["labels"]

        # Suspended, it keeps no quota; and a label that is taken off lets the next Job run without Kueue.
        service.patch({"model": {**SMALL_SPEC["model"], "hidden": 24}})
        queues.share_out("0")
        service.patch({"model": {**SMALL_SPEC["model"], "hidden": 32}})
        service.wait_for("Ready", "Queued", "False", timeout_s=60)
        namespace.kubectl("label", "gnns/digits", f"{QUEUE}-")
        service.wait_until_ready()
        service.delete()
