"""The operator as a user installs it: the chart, by helm, with this repository's images."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.cluster.harness.client import PACKAGES_CLAIM, Cluster, Namespace
from tests.cluster.harness.commands import HarnessError
from tests.cluster.harness.components import REPOSITORY
from tests.cluster.harness.images import PACKAGES_PATH
from tests.cluster.harness.shared import Use, shared

RELEASE = "gnnserve-tests"
SYSTEM_NAMESPACE = "gnnserve-tests"
"""A namespace that the documentation does not tell users: tests must not take away what is installed on a cluster of
theirs."""
MIRROR_PORT = 8080
MIRROR = f"http://mirror.{SYSTEM_NAMESPACE}.svc:{MIRROR_PORT}"
"""Address from which public data sets are fetched: of a web server that a test starts which needs one."""
CHART = REPOSITORY / "charts/gnnserve"
USERS = Path("/run/lock/gnnserve-tests-operator.users")
RESYNC_S = 5
"""Short, so that a test of "nothing is written" sees several."""


@dataclass(frozen=True, slots=True)
class Installation:
    cluster: Cluster
    namespace: Namespace
    use: Use | None = None
    """This process's share of it; None before it is installed."""
    worker_env: tuple[tuple[str, str], ...] = ()
    """Environment of workers and of generation."""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """The installation for tests that change or stop it, which waits until no other process uses it."""
        assert self.use is not None
        with self.use.alone("the operator"):
            yield
            self.upgrade()

    def upgrade(self, values: Mapping[str, Any] | None = None) -> str:
        """Installs where nothing is installed yet; returns once the operator is ready."""
        wanted = {**default_values(self.cluster, dict(self.worker_env)), **(values or {})}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(wanted, file)
            file.flush()
            return self.cluster.helm(
                *("upgrade", RELEASE, str(CHART), "--install", "--namespace", self.namespace.name),
                *("--values", file.name, "--wait", "--timeout=3m"),
            )

    def remove(self) -> None:
        self.cluster.helm("uninstall", RELEASE, "--namespace", self.namespace.name, "--ignore-not-found", "--wait")

    def pod(self) -> dict[str, Any]:
        (pod,) = self.pods()
        return pod

    def pods(self) -> list[dict[str, Any]]:
        """The pods without those that are about to end: a new one is there before the old one has gone."""
        found = self.namespace.items("pods", "--selector=app.kubernetes.io/component=operator")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def metrics(self) -> str:
        """The operator's /metrics, by way of the API server."""
        pod = self.pod()["metadata"]["name"]
        return self.cluster.kubectl(
            "get", "--raw", f"/api/v1/namespaces/{self.namespace}/pods/{pod}:8080/proxy/metrics"
        )

    def logs(self) -> list[dict[str, Any]]:
        printed = self.namespace.kubectl("logs", f"deployment/{RELEASE}", "--tail=-1")
        return [json.loads(line) for line in printed.splitlines()]

    def scale(self, replicas: int) -> None:
        """Scales the operator to nothing and back, as during an outage."""
        self.namespace.kubectl("scale", f"deployment/{RELEASE}", f"--replicas={replicas}")
        gone_or_back = ("delete", "pod") if replicas == 0 else ("condition=Ready", "pod")
        self.namespace.kubectl(
            *("wait", f"--for={gone_or_back[0]}", gone_or_back[1], "--timeout=120s"),
            "--selector=app.kubernetes.io/component=operator",
        )


def default_values(cluster: Cluster, worker_env: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {
        "image": _image(cluster.operator_image, cluster),
        "worker": {
            "image": _image(cluster.worker_image, cluster),
            "extraEnv": [{"name": name, "value": value} for name, value in worker_env.items()],
        },
        # A dozen services are tried beside each other on two processors.
        "generation": {"resources": {"requests": {"cpu": "50m", "memory": "128Mi"}}},
        "resyncSeconds": RESYNC_S,
    }
    if cluster.node is not None:
        # The thin image finds its packages on a claim, as in any namespace of the harness.
        values["worker"]["extraVolumes"] = [
            {"name": "packages", "persistentVolumeClaim": {"claimName": PACKAGES_CLAIM, "readOnly": True}}
        ]
        values["worker"]["extraVolumeMounts"] = [{"name": "packages", "mountPath": PACKAGES_PATH, "readOnly": True}]
    return values


def _image(reference: str, cluster: Cluster) -> dict[str, Any]:
    repository, _, tag = reference.rpartition(":")
    # No registry has what the harness built.
    return {"repository": repository, "tag": tag, "pullPolicy": "Never" if cluster.node is not None else "IfNotPresent"}


@contextmanager
def installed_operator(cluster: Cluster, worker_env: Mapping[str, str] | None = None) -> Iterator[Installation]:
    """Installed by the first process that uses it, removed by the last one."""
    namespace = Namespace(SYSTEM_NAMESPACE, cluster)
    installation = Installation(cluster, namespace, worker_env=tuple((worker_env or {}).items()))
    with shared(USERS, partial(_begin, installation), installation.remove) as use:
        yield replace(installation, use=use)


def _begin(installation: Installation, is_first: bool) -> None:
    if not is_first:
        return
    cluster = installation.cluster
    refuse_another_operator(cluster)
    if not cluster.kubectl("get", f"namespace/{SYSTEM_NAMESPACE}", "--ignore-not-found", "--output=name").strip():
        cluster.create_namespace(SYSTEM_NAMESPACE)
    # What a killed session left may run an older image of the same name.
    installation.remove()
    installation.upgrade()


def refuse_another_operator(cluster: Cluster) -> None:
    found = cluster.get("deployments", "--all-namespaces", "--selector=app.kubernetes.io/component=operator")["items"]
    others = [
        f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        for item in found
        if item["metadata"]["labels"].get("app.kubernetes.io/name") == "gnnserve"
        and item["metadata"]["namespace"] != SYSTEM_NAMESPACE
    ]
    if others:
        raise HarnessError(
            f"the cluster has a gnnserve operator already ({', '.join(others)}), and two would undo each other's work; "
            "uninstall it, or unset KUBECONFIG to test on a node of this machine"
        )


def example(name: str) -> Path:
    return REPOSITORY / "examples" / f"{name}.yaml"
