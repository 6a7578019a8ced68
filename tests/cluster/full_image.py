"""`make test-image`: the worker image that users run, 5 GB with torch, built whole and serving the digits example.

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

FULL_IMAGE = "localhost/gnnserve/worker:full"


@pytest.mark.timeout(3600)
def test_the_full_image_serves_the_example(cluster: Cluster, operator: Installation, namespace: Namespace) -> None:
    if cluster.node is None:
        lacks_own_node("about an image that the harness builds")
    layout = cluster.node.layout
    images.build(layout, FULL_IMAGE, "worker")
    images.load(layout, FULL_IMAGE)
    print(f"{FULL_IMAGE}: {images.size(layout, FULL_IMAGE)}")
    repository, _, tag = FULL_IMAGE.rpartition(":")
    # Without the claim of packages: the image has everything.
    operator.upgrade({"worker": {"image": {"repository": repository, "tag": tag, "pullPolicy": "Never"}}})
    try:
        service = Service(namespace, "digits")
        service.apply(yaml.safe_load(example("digits").read_text())["spec"])
        status = service.wait_until_ready(600)
        (pod,) = service.worker_pods()
        assert pod["spec"]["containers"][0]["image"] == FULL_IMAGE
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
