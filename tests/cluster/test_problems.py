"""What a user does wrong, or somebody else did: a condition names it, and nothing more than mending it is needed."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pytest
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.services import SMALL_SPEC, Service
from tests.support.lacks import lacks_own_node

pytestmark = pytest.mark.usefixtures("operator")

LONG_NAME = "a-graph-service-whose-name-is-as-long-as-kubernetes-lets-it-be1"
assert len(LONG_NAME) == 63


def write_graph(path: Path) -> None:
    """A ring of two classes that its features tell apart, in the format of `npz` sources."""
    nodes = 300
    labels = (np.arange(nodes) // 10) % 2
    draw = np.random.default_rng(0)
    np.savez(
        path,
        indptr=np.arange(0, 2 * nodes + 1, 2),
        indices=np.stack([(np.arange(nodes) - 1) % nodes, (np.arange(nodes) + 1) % nodes], axis=1).ravel(),
        features=(draw.normal(size=(nodes, 8)) + labels[:, None]).astype(np.float32),
        labels=labels,
        train_mask=np.arange(nodes) % 3 == 0,
        val_mask=np.arange(nodes) % 3 == 1,
        test_mask=np.arange(nodes) % 3 == 2,
    )
    path.chmod(0o644)


def test_a_graph_of_ones_own_waits_for_its_claim(cluster: Cluster, namespace: Namespace, tmp_path: Path) -> None:
    """With the longest name there is, which every child's name is made of."""
    if cluster.node is None:
        lacks_own_node("about a folder of this machine")
    service = Service(namespace, LONG_NAME)
    service.apply(
        {
            **SMALL_SPEC,
            "graph": {
                "source": {"npz": {"uri": "file:///data/ring.npz"}},
                "volume": {"claimName": "graphs"},
            },
        }
    )
    said = service.wait_for("Stalled", "VolumeClaimMissing", timeout_s=60)
    assert "PersistentVolumeClaim graphs (named by spec.graph.volume.claimName) does not exist" in said

    folder = tmp_path / "graphs"
    folder.mkdir(mode=0o755)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    namespace.bind_folder("graphs", folder)
    said = service.wait_for("Stalled", "GenerationFailed")
    assert "spec.graph.source.npz.uri" in said
    assert "/data/ring.npz" in said

    write_graph(folder / "ring.npz")
    # As the message says: nothing in the spec was wrong, so the failed Job is what to remove.
    namespace.kubectl("delete", "jobs", f"--selector=gnnserve.dev/service={LONG_NAME}")
    status = service.wait_until_ready()
    assert status["endpoint"].startswith(f"http://{LONG_NAME}.{namespace}.svc")
    assert service.predict(0, 299)["revision"] == status["revision"]


def test_a_taken_name_and_a_missing_gpu_are_named_and_overcome(cluster: Cluster, namespace: Namespace) -> None:
    if cluster.node is None:
        lacks_own_node("about a node that can be changed")
    gpu = f"gnnserve.dev/gpu-{uuid.uuid4().hex[:4]}"
    namespace.kubectl("create", "service", "clusterip", "taken", "--tcp=80")
    service = Service(namespace, "taken")
    service.apply({**SMALL_SPEC, "generation": {"gpu": {"resourceName": gpu, "count": 2}}})

    assert "Service taken" in service.wait_for("Stalled", "NameTaken", timeout_s=60)
    assert "ownerReferences" not in namespace.get("service/taken")["metadata"], "what is not ours is not touched"
    namespace.kubectl("delete", "service/taken")
    said = service.wait_for("Stalled", "GpuUnavailable", timeout_s=120)
    assert f"2 × {gpu}" in said
    assert "spec.generation.gpu" in said

    cluster.node.offer(2, gpu)
    service.wait_until_ready()
    assert service.predict(1)["labels"]


def test_a_missing_image_is_named_with_its_secrets(namespace: Namespace) -> None:
    service = Service(namespace, "no-image")
    service.apply({**SMALL_SPEC, "image": "localhost/gnnserve/worker:none", "imagePullSecrets": ["registry"]})
    said = service.wait_for("Stalled", "ImageUnavailable", timeout_s=120)
    assert "localhost/gnnserve/worker:none" in said
    assert "imagePullSecrets registry" in said
    # The pending Job is of no use any more: another image is another Job.
    service.patch({"image": None, "suspend": True})
    service.wait_for("Ready", "Suspended", "False", timeout_s=60)


def test_two_services_share_a_repository_while_one_is_edited_in_mid_generation(namespace: Namespace) -> None:
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "shared"},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
        }
    )
    one, other = Service(namespace, "one"), Service(namespace, "other")
    for service in (one, other):
        service.apply({**SMALL_SPEC, "repository": {"claimName": "shared"}})
    (first_job,) = wait_for("a Job of the first", lambda: one.children("jobs"))
    wait_for("its pod to run", lambda: any(p["status"]["phase"] == "Running" for p in one.children("pods")), 120)
    one.patch({"model": {"hidden": 24}})
    other.patch({"generation": {"retries": 5}})

    statuses = [service.wait_until_ready() for service in (one, other)]
    assert statuses[0]["revision"] != statuses[1]["revision"]
    assert one.predict(1)["revision"] == statuses[0]["revision"]
    (job,) = one.children("jobs")
    assert job["metadata"]["uid"] != first_job["metadata"]["uid"], "the superseded Job is gone"
    other.delete()
    assert namespace.exists("pvc/shared"), "a claim of the user's outlives the service"
    assert one.predict(1)["revision"] == statuses[0]["revision"]
