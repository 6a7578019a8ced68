"""Prometheus and promtool: Debian's programs, unpacked beside the others, and a server of them in the cluster.

Unpacked rather than installed: the package would start a server on the machine. Debian builds it without Kubernetes
discovery, so workers are found by DNS: a headless Service's SRV records name the pods.
"""

from __future__ import annotations

import json
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.harness import packages
from tests.cluster.harness.client import Namespace, wait_for
from tests.cluster.harness.commands import HarnessError, only_one, output_of
from tests.cluster.harness.components import REPOSITORY
from tests.cluster.harness.layout import POD_UID, Layout

PROGRAMS = ("prometheus", "promtool")
RULES = tuple(REPOSITORY / "charts/gnnserve/files" / name for name in ("recording-rules.yaml", "alerts.yaml"))
PORT = 9090


def unpack(layout: Layout) -> Path:
    """The folder with both programs. What is on PATH will do as well."""
    folder = layout.root / "prometheus"
    if _complete(folder):
        return folder
    with only_one(layout.root / "prometheus.lock", "unpack Prometheus"):
        if not _complete(folder):
            unfinished = folder.with_name("prometheus.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            there = [shutil.which(name) for name in PROGRAMS]
            for program in there if all(there) else _from_debian(layout):
                shutil.copy2(str(program), unfinished)
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.replace(folder)
            shutil.rmtree(layout.root / "debian", ignore_errors=True)
    return folder


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in PROGRAMS)


def _from_debian(layout: Layout) -> list[Path]:
    archive = packages.download(layout, "prometheus")
    root = archive.parent / "root"
    output_of("dpkg-deb", "--extract", archive, root)
    return [root / "usr/bin" / name for name in PROGRAMS]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A pod that scrapes the workers of one namespace, and the operator."""

    namespace: Namespace
    operator_address: str
    scrape_interval_s: float

    @property
    def url(self) -> str:
        """The URL for pods."""
        return f"http://prometheus.{self.namespace}.svc:{PORT}"

    def install(self) -> None:
        """Returns once it answers."""
        node = self.namespace.cluster.node
        if node is None:
            raise HarnessError("the programs of this machine cannot be mounted: KUBECONFIG names a cluster elsewhere")
        self.namespace.bind_folder("prometheus", unpack(node.layout))
        self.namespace.apply(*_objects(self))
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        wait_for("Prometheus to answer", self._answers, 120)

    def kill(self) -> None:
        """Ends it at once, with all that it has measured."""
        self.namespace.kubectl("scale", "deployment/prometheus", "--replicas=0")
        self.namespace.kubectl("delete", "pods", "--selector=app=prometheus", "--grace-period=0", "--force")

    def start(self) -> None:
        self.namespace.kubectl("scale", "deployment/prometheus", "--replicas=1")
        self.wait_until_ready()

    @contextmanager
    def killed(self) -> Iterator[None]:
        self.kill()
        try:
            yield
        finally:
            self.start()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """An instant vector: `metric` and `value` of each series."""
        return list(self._get("query", query=expression)["result"])

    def value(self, expression: str) -> float | None:
        """Value of the only series; None without one."""
        found = self.query(expression)
        if len(found) > 1:
            raise HarnessError(f"`{expression}` has {len(found)} series, one was expected: {found}")
        return float(found[0]["value"][1]) if found else None

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, what: str, **arguments: str) -> dict[str, Any]:
        url = f"http://{self._address()}:{PORT}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return dict(json.loads(answer.read())["data"])

    def _address(self) -> str:
        return str(self.namespace.get("service/prometheus")["spec"]["clusterIP"])

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address()}:{PORT}/-/ready", timeout=3) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def _configuration(server: Prometheus) -> dict[str, Any]:
    """The configuration that the two PodMonitors would make: `namespace` and `pod` from the target, the operator's own
    labels kept."""
    interval = f"{server.scrape_interval_s * 1000:.0f}ms"
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": ["/etc/prometheus/*-rules.yaml", "/etc/prometheus/alerts.yaml"],
        "scrape_configs": [
            {
                "job_name": "workers",
                "dns_sd_configs": [
                    {
                        "names": [f"_http._tcp.scraped-workers.{server.namespace}.svc.cluster.local"],
                        "refresh_interval": "1s",
                    }
                ],
                "relabel_configs": [
                    {
                        "source_labels": ["__address__"],
                        "regex": rf"([^.]+)\.scraped-workers\.({server.namespace})\..*",
                        "target_label": label,
                        "replacement": f"${number}",
                    }
                    for number, label in ((1, "pod"), (2, "namespace"))
                ],
            },
            {
                "job_name": "operator",
                "honor_labels": True,
                "static_configs": [{"targets": [server.operator_address]}],
            },
        ],
    }


def _objects(server: Prometheus) -> Sequence[dict[str, Any]]:
    files = {path.name: path.read_text(encoding="utf-8") for path in RULES}
    files["prometheus.yml"] = json.dumps(_configuration(server))  # which is YAML
    labels = {"app": "prometheus"}
    return (
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "scraped-workers"},
            "spec": {
                "clusterIP": "None",
                # Like a PodMonitor, which asks no pod whether it is ready.
                "publishNotReadyAddresses": True,
                "selector": {
                    "app.kubernetes.io/managed-by": "gnnserve-operator",
                    "app.kubernetes.io/component": "worker",
                },
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            },
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prometheus"}, "data": files},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "prometheus"},
            "spec": {"selector": labels, "ports": [{"port": PORT}]},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "prometheus"},
            "spec": {
                "replicas": 1,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": _pod(server)},
            },
        },
    )


def _pod(server: Prometheus) -> Mapping[str, Any]:
    cluster = server.namespace.cluster
    return {
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": POD_UID,
            "runAsGroup": POD_UID,
            "fsGroup": POD_UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "prometheus",
                # For its C library.
                "image": cluster.operator_image,
                "imagePullPolicy": "IfNotPresent",
                "command": [
                    "/prometheus/prometheus",
                    "--config.file=/etc/prometheus/prometheus.yml",
                    "--storage.tsdb.path=/data",
                    f"--web.listen-address=:{PORT}",
                ],
                "ports": [{"name": "http", "containerPort": PORT}],
                "readinessProbe": {"httpGet": {"path": "/-/ready", "port": "http"}, "periodSeconds": 1},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [
                    {"name": "programs", "mountPath": "/prometheus", "readOnly": True},
                    {"name": "configuration", "mountPath": "/etc/prometheus", "readOnly": True},
                    {"name": "data", "mountPath": "/data"},
                ],
            }
        ],
        "volumes": [
            {"name": "programs", "persistentVolumeClaim": {"claimName": "prometheus", "readOnly": True}},
            {"name": "configuration", "configMap": {"name": "prometheus"}},
            {"name": "data", "emptyDir": {}},
        ],
    }
