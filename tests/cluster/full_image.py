"""`make test-image`: the images that users run, built whole: `generate`, 5 GB with torch, trains the digits example,
and `worker-cpu`, which has no torch, serves it.

Not one of the tests that `make test` collects: building takes ten minutes and some 30 GB of disk. The thin image that
those use has the same code and the same packages, mounted.
"""

from __future__ import annotations

import pytest
import yaml
from tests.cluster.harness import images
from tests.cluster.harness.client import Cluster, Namespace
from tests.cluster.harness.installation import Installation, example
from tests.cluster.harness.services import Service
from tests.support.lacks import lacks_own_node

IMAGES = {target: f"localhost/gnnserve/{target}:full" for target in ("worker-cpu", "generate")}
MOST_BYTES = {"worker-cpu": 1.5e9}
"""Unpacked."""


@pytest.mark.timeout(3600)
def test_the_full_images_generate_and_serve_the_example(
    cluster: Cluster, operator: Installation, namespace: Namespace
) -> None:
    if cluster.node is None:
        lacks_own_node("about images that the harness builds")
    layout = cluster.node.layout
    for target, image in IMAGES.items():
        images.build(layout, image, target)
        images.load(layout, image)
        print(f"{image}: {images.size(layout, image)}")
        assert images.size_bytes(layout, image) <= MOST_BYTES.get(target, float("inf"))
        contents = {component["name"] for component in images.sbom(layout, image)["components"]}
        assert ("torch" in contents, "numba" in contents) == (target == "generate", True)
    worker, generate = ({"repository": image.rpartition(":")[0], "tag": "full"} for image in IMAGES.values())
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
        assert service.predict(0, 1, 2) | {"labels": None} == {
            "labels": None,
            "variant": status["baseVariant"],
            "revision": status["revision"],
            "objectiveMet": True,
        }
    finally:
        operator.upgrade()
