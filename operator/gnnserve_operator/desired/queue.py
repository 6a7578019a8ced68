"""The cluster's queue for Jobs, such as Kueue's: named by labels of the GNNService, which its Jobs get.

A queue suspends a Job that names it, and lifts that when there is room. So `spec.suspend` of a Job is declared only
while the operator itself wants the Job suspended, and its labels follow the GNNService's only until it runs: a queue
accepts no other name of a Job that it has let go.
"""

from __future__ import annotations

from collections.abc import Mapping

from gnnserve_operator.desired.metadata import Manifest
from gnnserve_operator.kinds import Raw

QUEUE_PREFIX = "kueue.x-k8s.io/"
QUEUE_NAME = f"{QUEUE_PREFIX}queue-name"
"""The label that names a LocalQueue of the namespace."""


def queue_labels(raw: Raw) -> dict[str, str]:
    """Labels of a live object that a queue reads. The operator follows no other labels of a GNNService. An empty one,
    as a template leaves it whose value is not set, names nothing."""
    labels: Mapping[str, str] = raw.get("metadata", {}).get("labels") or {}
    return {name: value for name, value in sorted(labels.items()) if name.startswith(QUEUE_PREFIX) and value}


def with_queue_labels(job: Manifest, labels: Mapping[str, str]) -> Manifest:
    """The Job as one that these labels put into a queue."""
    metadata = job["metadata"]
    return {**job, "metadata": {**metadata, "labels": {**metadata["labels"], **labels}}}
