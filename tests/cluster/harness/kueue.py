"""Kueue as a process of this machine beside the node, for one namespace: its CRDs, its webhooks, a queue with a quota.

Its webhooks are those of its own manifests, called at an address instead of a Service. They ask about Jobs of that
namespace alone, so that no other scene depends on it.
"""

from __future__ import annotations

import base64
import http.client
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.harness import binaries
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.layout import HOST_IP, Layout
from tests.cluster.harness.processes import Background
from tests.support.serving.certificates import make_key_pair

_WEBHOOK_PORT, _HEALTH_PORT = 19443, 18081
_API = "kueue.x-k8s.io/v1beta2"
_NAME = "gnnserve-tests"
_START_S = 120


@dataclass(frozen=True, slots=True)
class Kueue:
    namespace: Namespace

    def make_queue(self, name: str) -> None:
        """A LocalQueue of the namespace."""
        self.namespace.apply(
            {"apiVersion": _API, "kind": "LocalQueue", "metadata": {"name": name}, "spec": {"clusterQueue": _NAME}}
        )

    def share_out(self, cpu: str, memory: str = "64Gi", *, stops: str = "None") -> None:
        """The quota of all queues together. `stops`: `HoldAndDrain` takes what was admitted back."""
        resources = [{"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": memory}]
        group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": _NAME, "resources": resources}]}
        self.namespace.cluster.apply(
            {
                "apiVersion": _API, "kind": "ResourceFlavor", "metadata": {"name": _NAME},
                "spec": {"nodeLabels": {"kubernetes.io/os": "linux"}},
            },
            {
                "apiVersion": _API, "kind": "ClusterQueue", "metadata": {"name": _NAME},
                "spec": {"namespaceSelector": {}, "stopPolicy": stops, "resourceGroups": [group]},
            },
        )  # fmt: skip


@contextmanager
def kueue(cluster: Cluster, namespace: Namespace, folder: Path) -> Iterator[Kueue]:
    """Runs as long as this lasts. `folder`: for its settings and certificate."""
    layout = Layout.of_this_machine()
    binaries.build(layout, ["kueue"])
    files = binaries.module_folder(binaries.KUEUE_MODULE) / "config/components"
    crds = sorted((files / "crd/bases").glob("*.yaml"))
    pair = make_key_pair(folder, also=f"IP:{HOST_IP}")
    settings = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{HOST_IP}:{_HEALTH_PORT}"}, "metrics": {"bindAddress": "0"},
        "webhook": {"host": HOST_IP, "port": _WEBHOOK_PORT, "certDir": str(folder)},
        "internalCertManagement": {"enable": False}, "leaderElection": {"leaderElect": False},
        "integrations": {"frameworks": ["batch/job"]},
    }  # fmt: skip
    (folder / "kueue.yaml").write_text(yaml.safe_dump(settings))
    hooks = [_at_address(found, namespace.name, pair.certificate) for found in _webhooks(files)]
    process = Background("kueue", folder / "kueue.pid", folder / "kueue.log")
    try:
        for crd in crds:
            cluster.kubectl("apply", "--server-side", f"--filename={crd}")
        cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", *(f"--filename={crd}" for crd in crds))
        process.start(
            [
                *_with_own_etc(folder),
                *(str(layout.bin / "kueue"), f"--config={folder / 'kueue.yaml'}"),
                *(f"--kubeconfig={cluster.kubeconfig}", "--feature-gates=VisibilityOnDemand=false"),
            ]
        )
        wait_for("Kueue to be ready", _is_ready, _START_S)
        cluster.apply(*hooks)
        yield Kueue(namespace)
    finally:
        kinds = "clusterqueues,resourceflavors"
        cluster.kubectl("delete", kinds, "--all", "--wait=false", "--ignore-not-found")
        cluster.kubectl(
            "delete", "--ignore-not-found", *(f"{hook['kind']}/{hook['metadata']['name']}" for hook in hooks)
        )
        # Kueue takes its finalizers off what is deleted, as long as it runs.
        cluster.kubectl("delete", "--ignore-not-found", "--timeout=60s", *(f"--filename={crd}" for crd in crds))
        process.stop()


def _with_own_etc(folder: Path) -> tuple[str, ...]:
    """Beginning of a command that sees another /etc than the machine: Kueue reads a certificate there, by a fixed path,
    for metrics that are not served."""
    certificates = folder / "etc/kueue/metrics/certs"
    certificates.mkdir(parents=True)
    for name in ("tls.crt", "tls.key"):
        shutil.copy2(folder / name, certificates)
    return "unshare", "--mount", "sh", "-c", f'mount --bind {folder / "etc"} /etc && exec "$@"', "kueue"


def _is_ready() -> bool:
    connection = http.client.HTTPConnection(HOST_IP, _HEALTH_PORT, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()


def _webhooks(files: Path) -> list[dict[str, Any]]:
    documents = yaml.safe_load_all((files / "webhook/manifests.yaml").read_text())
    return [found for found in documents if found and found["kind"].endswith("WebhookConfiguration")]


def _at_address(hooks: dict[str, Any], namespace: str, certificate: Path) -> dict[str, Any]:
    """The webhooks about Jobs and about Kueue's own objects, called at the process's address."""
    trusted = base64.b64encode(certificate.read_bytes()).decode()
    kept = []
    for hook in json.loads(json.dumps(hooks["webhooks"])):
        path = hook["clientConfig"]["service"]["path"]
        groups = {group for rule in hook["rules"] for group in rule["apiGroups"]}
        if not groups & {"kueue.x-k8s.io"} and not path.endswith("-batch-v1-job"):
            continue
        hook["clientConfig"] = {"url": f"https://{HOST_IP}:{_WEBHOOK_PORT}{path}", "caBundle": trusted}
        if path.endswith("-batch-v1-job"):
            hook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
        kept.append(hook)
    return {**hooks, "metadata": {"name": f"{_NAME}-{hooks['kind'].lower()}"}, "webhooks": kept}
