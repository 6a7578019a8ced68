"""A GPU as an extended resource of the node: workers are placed by it, wait for it, and say what they compute on.

No device comes with it (`Node.offer`), as on a node whose driver is missing behind its device plugin.
"""

from __future__ import annotations

import uuid

import pytest
from tests.cluster.harness.client import Cluster, Namespace
from tests.cluster.harness.services import SMALL_SPEC, Service
from tests.support.lacks import lacks_own_node

from gnnserve_api.errors import NO_GPU

pytestmark = pytest.mark.usefixtures("operator")


def test_workers_wait_for_a_gpu_and_tell_where_they_cannot_compute_on_it(
    cluster: Cluster, namespace: Namespace
) -> None:
    if cluster.node is None:
        lacks_own_node("about a node that can be changed")
    gpu = f"gnnserve.dev/gpu-{uuid.uuid4().hex[:4]}"
    service = Service(namespace, "on-gpu")
    worker = {"gpu": {"resourceName": gpu}, "gpuMemory": "1Gi", "cache": {"policy": "LFU"}}
    service.apply({**SMALL_SPEC, "worker": worker})

    said = service.wait_for("Stalled", "GpuUnavailable")
    assert f"1 × {gpu} free (spec.worker.gpu)" in said
    assert service.condition("VariantsGenerated")["status"] == "True", "the Job asked for none"

    cluster.node.offer(2, gpu)
    service.wait_until_ready()
    (pod,) = service.worker_pods()
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {gpu: "1"}
    told = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert (told["GNNSERVE_CACHE"], told["GNNSERVE_GPU_MEMORY"]) == ("LFU", str(2**30))
    # Device Auto: it serves all the same, and says why not on the GPU.
    assert service.predict(1)["labels"]
    route = service.route()
    assert route["device"] == "CPU"
    message = service.condition("Ready")["message"]
    assert f"Worker {pod['metadata']['name']} computes on CPU: {route['deviceProblem'].rstrip('.')}" in message

    # Device GPU: it or nothing, while the worker of before answers on.
    service.patch({"worker": {"device": "GPU"}})
    said = service.wait_for("Ready", "GpuUnavailable", "False")
    assert NO_GPU in said
    assert "Meanwhile 1 of the present workers answer" in said
    assert service.predict(1)["labels"]
    service.patch({"worker": {"device": "Auto"}})
    service.wait_until_ready()
    assert service.restarts() == 0
