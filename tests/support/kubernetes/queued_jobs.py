"""Jobs that wait in a queue of a cluster."""

from __future__ import annotations

from typing import Any

from tests.cluster.harness.services import Service

QUEUE = "kueue.x-k8s.io/queue-name"


def job_of(service: Service) -> dict[str, Any]:
    (job,) = service.children("jobs")
    return job


def runs(service: Service) -> bool:
    pods = service.children("pods")
    return any(pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"] for pod in pods)
