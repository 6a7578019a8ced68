"""The node itself: what the tests of the operator take for granted."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.commands import HarnessError
from tests.cluster.harness.images import OPERATOR_IMAGE, size
from tests.cluster.harness.layout import NODE, STORAGE_CLASS
from tests.cluster.harness.pods import python_pod
from tests.support.lacks import lacks_own_node

IMPORTS = """
import json, importlib.metadata, sys
import numba, torch
import gnnserve_worker
print(json.dumps({
    "sum": torch.ones(3).sum().item(),
    "twice": numba.njit(lambda x: 2 * x)(21),
    "code": gnnserve_worker.__file__,
    "gnnserve": importlib.metadata.version("gnnserve"),
    "python": sys.version_info[:2],
}))
"""
ASK = """
import sys, time, urllib.request
for attempt in range(40):
    try:
        print(urllib.request.urlopen(sys.argv[1], timeout=2).read().decode())
        break
    except OSError as refused:  # a Service takes a moment to follow its pods
        last = refused
        time.sleep(0.25)
else:
    sys.exit(f"{sys.argv[1]}: {last}")
"""
SERVE = """
from http.server import BaseHTTPRequestHandler, HTTPServer

class Hello(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

HTTPServer(("", 8080), Hello).serve_forever()
"""
WRITE = "open('/data/kept', 'a').write('x'); print(len(open('/data/kept').read()))"


@pytest.fixture
def own_node(cluster: Cluster) -> None:
    if cluster.node is None:
        lacks_own_node("about the harness's own node")


@pytest.mark.usefixtures("own_node")
def test_every_component_is_ready(cluster: Cluster) -> None:
    assert cluster.node is not None
    assert {name for name, state in cluster.node.status().items() if not state.startswith("ready")} == set()


@pytest.mark.usefixtures("own_node")
def test_starting_a_node_that_runs_changes_nothing(cluster: Cluster) -> None:
    assert cluster.node is not None
    before = cluster.node.status()
    cluster.node.up()
    assert cluster.node.status() == before


def test_a_restricted_pod_computes_with_the_mounted_packages(cluster: Cluster, namespace: Namespace) -> None:
    found = json.loads(namespace.run(python_pod(cluster, "imports", IMPORTS), timeout_s=240))

    assert found["sum"] == 3
    assert found["twice"] == 42
    assert found["python"] == [3, 11]
    assert found["gnnserve"].startswith("0.")
    if cluster.node is not None:
        assert found["code"] == "/app/gnnserve_worker/__init__.py", "not what an editable install points to"


def test_a_service_reaches_its_pod_by_name(cluster: Cluster, namespace: Namespace) -> None:
    server = python_pod(cluster, "server", SERVE, labels={"app": "server"})
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "greeting"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    namespace.apply(server, service)
    namespace.kubectl("wait", "--for=condition=Ready", "pod/server", "--timeout=60s")

    url = f"http://greeting.{namespace}.svc.cluster.local"
    assert namespace.run(python_pod(cluster, "client", ASK, arguments=[url])).strip() == "hello"


@pytest.mark.usefixtures("own_node")
def test_names_outside_the_cluster_are_unknown_at_once(cluster: Cluster, namespace: Namespace) -> None:
    program = (
        "import socket\ntry: socket.gethostbyname('example.com')\nexcept socket.gaierror as unknown: print(unknown)"
    )
    assert "not known" in namespace.run(python_pod(cluster, "outside", program))


def test_a_pod_that_is_not_restricted_is_refused(cluster: Cluster, namespace: Namespace) -> None:
    pod = python_pod(cluster, "root", "print('never')")
    pod["spec"]["securityContext"]["runAsNonRoot"] = False
    with pytest.raises(HarnessError, match="violates PodSecurity"):
        namespace.apply(pod)


@pytest.mark.usefixtures("own_node")
def test_a_claim_gets_a_folder_that_outlives_pods_and_goes_with_the_claim(
    cluster: Cluster, namespace: Namespace
) -> None:
    assert cluster.node is not None
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    namespace.apply(claim)
    printed = [namespace.run(_with_claim(python_pod(cluster, name, WRITE), "data")) for name in ("first", "second")]
    bound = namespace.get("pvc/data")["spec"]
    folder = cluster.node.layout.volumes / bound["volumeName"]

    assert [int(line) for line in printed] == [1, 2]
    assert bound["storageClassName"] == STORAGE_CLASS
    assert folder.is_dir()
    namespace.kubectl("delete", "pods", "--all")
    namespace.kubectl("delete", "pvc/data")
    wait_for(f"{folder} to be removed", lambda: not folder.exists())
    wait_for("its volume to be removed", lambda: not namespace.exists(f"pv/{bound['volumeName']}"))


@pytest.mark.usefixtures("own_node")
def test_an_extended_resource_is_scheduled_until_none_is_left(cluster: Cluster, namespace: Namespace) -> None:
    assert cluster.node is not None
    resource = f"gnnserve.dev/gpu-{uuid.uuid4().hex[:4]}"
    cluster.node.offer(1, resource)
    wait_for(
        f"{resource} to be offered",
        lambda: cluster.get(f"node/{NODE}")["status"]["allocatable"].get(resource) == "1",
    )
    limits = {"limits": {resource: "1"}}
    namespace.apply(python_pod(cluster, "first", SERVE, resources=limits))
    namespace.kubectl("wait", "--for=condition=Ready", "pod/first", "--timeout=60s")
    namespace.apply(python_pod(cluster, "second", SERVE, resources=limits))

    def refused() -> bool:
        conditions = namespace.get("pod/second")["status"].get("conditions", [])
        return any(f"Insufficient {resource}" in condition.get("message", "") for condition in conditions)

    assert wait_for("the second pod to be left waiting", refused)


@pytest.mark.usefixtures("own_node")
def test_the_operator_image_is_small_and_has_no_numpy(cluster: Cluster, namespace: Namespace) -> None:
    assert cluster.node is not None
    megabytes, unit = size(cluster.node.layout, OPERATOR_IMAGE).split()
    assert unit == "MB"
    assert float(megabytes) < 300

    pod = python_pod(
        cluster,
        "operator",
        "import importlib.util as find, kopf, gnnserve_operator\n"
        "others = ('torch', 'numpy', 'kubernetes', 'gnnserve_worker', 'pip')\n"
        "print([name for name in others if find.find_spec(name)])",
    )
    pod["spec"]["containers"][0]["image"] = cluster.operator_image
    assert namespace.run(pod).strip() == "[]"


def _with_claim(pod: dict[str, Any], claim: str) -> dict[str, Any]:
    pod["spec"]["volumes"].append({"name": "data", "persistentVolumeClaim": {"claimName": claim}})
    pod["spec"]["containers"][0]["volumeMounts"].append({"name": "data", "mountPath": "/data"})
    return pod
