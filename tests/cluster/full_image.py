"""`make test-image`: the images that users run, built whole: `generate`, 5 GB with torch, trains the digits example,
and `worker-cpu`, which has no torch, serves it. Then a pod of each image is started beside it, until it answers.

Not one of the tests that `make test` collects: building takes ten minutes and some 30 GB of disk. The thin image that
those use has the same code and the same packages, mounted.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from tests.cluster.harness import images
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.installation import RELEASE, Installation, example
from tests.cluster.harness.services import Service
from tests.support.lacks import lacks_own_node

IMAGES = {target: f"localhost/gnnserve/{target}:full" for target in ("worker-cpu", "worker-gpu", "generate")}
SERVING = ("worker-cpu", "generate")
MOST_BYTES = {"worker-cpu": 1.5e9}
"""Unpacked."""
PORT = 8080
LOOKS_FOR_A_GPU = """
import os, pathlib
from gnnserve_worker.pods.device import why_no_gpu
print(why_no_gpu(os.environ, pathlib.Path("/dev")))
"""


@pytest.mark.timeout(5400)
def test_the_full_images_generate_and_serve_the_example(
    cluster: Cluster, operator: Installation, namespace: Namespace
) -> None:
    if cluster.node is None:
        lacks_own_node("about images that the harness builds")
    layout = cluster.node.layout
    for target, image in IMAGES.items():
        images.build(layout, image, target)
        print(f"{image}: {images.size(layout, image)}", flush=True)
        assert images.size_bytes(layout, image) <= MOST_BYTES.get(target, float("inf"))
        contents = {component["name"] for component in images.sbom(layout, image)["components"]}
        assert ("torch" in contents, "numba" in contents) == (target != "worker-cpu", True)
    # There is no GPU for it, as it says; a node would keep 15 GB more of it.
    why_no_gpu = images.run(layout, IMAGES["worker-gpu"], "python", "-c", LOOKS_FOR_A_GPU)
    print(f"worker-gpu: {why_no_gpu}")
    assert "none is seen" in why_no_gpu
    for target in SERVING:
        images.load(layout, IMAGES[target])
    worker, generate = (
        {"repository": IMAGES[target].rpartition(":")[0], "tag": "full"} for target in ("worker-cpu", "generate")
    )
    # Without the claim of packages: the images have everything.
    operator.upgrade({"worker": {"image": {**worker, "pullPolicy": "Never"}}, "generation": {"image": generate}})
    try:
        service = Service(namespace, "digits")
        service.apply(yaml.safe_load(example("digits").read_text())["spec"])
        status = service.wait_until_ready(600)
        (pod,) = service.worker_pods()
        assert pod["spec"]["containers"][0]["image"] == IMAGES["worker-cpu"]
        assert "packages" not in {volume["name"] for volume in pod["spec"]["volumes"]}
        said = [line["message"] for line in service.worker_logs()]
        assert not any("compiling kernels" in message for message in said), said
        answer = service.predict(0, 1, 2)
        assert len(answer["labels"]) == 3
        assert (answer["variant"], answer["revision"], answer["objectiveMet"]) == (
            status["baseVariant"], status["revision"], True,
        )  # fmt: skip
        (deployment,) = service.children("deployments")
        for target in SERVING:
            _time_first_answer(
                namespace, target, _with_image(deployment["spec"]["template"], IMAGES[target]), _predicts
            )
        beside = operator.namespace.get(f"deployment/{RELEASE}")["spec"]["template"]
        _time_first_answer(operator.namespace, "operator", beside, _is_ready)
    finally:
        operator.namespace.kubectl("delete", "pod", "alone-operator", "--ignore-not-found", "--wait=false")
        operator.upgrade()


def _with_image(template: dict[str, Any], image: str) -> dict[str, Any]:
    (container,) = template["spec"]["containers"]
    return {**template, "spec": {**template["spec"], "containers": [{**container, "image": image}]}}


def _time_first_answer(
    namespace: Namespace, name: str, template: dict[str, Any], answers: Callable[[str], bool]
) -> None:
    """Start a pod of the template, which no Deployment counts as its own; print how long it took from `kubectl apply`
    until it answered, with its image on the node."""
    began_s = time.monotonic()
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"alone-{name}"}, "spec": template["spec"]}
    namespace.apply(pod)

    def has_answered() -> bool:
        path = f"/api/v1/namespaces/{namespace}/pods/alone-{name}"
        address = namespace.cluster.fetch(path)["status"].get("podIP")
        return bool(address) and answers(address)

    wait_for(f"a pod of {name} to answer", has_answered, 300, every_s=0.05)
    print(f"{name}: answered {time.monotonic() - began_s:.1f} s after `kubectl apply` of a pod", flush=True)


def _predicts(address: str) -> bool:
    return bool(_answer_of(address, "POST", "/v1/predict", json.dumps({"nodes": [0, 1, 2]})))


def _is_ready(address: str) -> bool:
    return bool(_answer_of(address, "GET", "/readyz"))


def _answer_of(address: str, method: str, path: str, body: str | None = None) -> bytes:
    """Empty where there is none, or none that is an answer."""
    connection = http.client.HTTPConnection(address, PORT, timeout=10)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        said = response.read()
    except OSError:
        return b""
    finally:
        connection.close()
    return said if response.status == http.HTTPStatus.OK else b""
