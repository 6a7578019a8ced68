"""The metrics APIs that a HorizontalPodAutoscaler asks, served by this process as an extension of the API server.

`metrics.k8s.io` has what metrics-server would have of it: the processor time of pods, as the kubelet measures it.
`external.metrics.k8s.io` has whatever figures a test gives it. The autoscaler's controller is the node's real one.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.cluster.harness.client import Cluster, wait_for
from tests.cluster.harness.layout import HOST_IP, NODE
from tests.support.serving.certificates import make_key_pair

NAME = "test-metrics"
RESOURCE_GROUP, EXTERNAL_GROUP = "metrics.k8s.io", "external.metrics.k8s.io"
_SCRAPE_S = 3.0
_USED = re.compile(
    r'^pod_cpu_usage_seconds_total\{(?:.*,)?namespace="([^"]+)",pod="([^"]+)"\} (\S+)(?: (\d+))?$', re.MULTILINE
)


@dataclass(slots=True)
class MetricsApi:
    cluster: Cluster
    external: dict[str, float] = field(default_factory=dict)
    """Figures by the name of the metric."""
    cores: dict[tuple[str, str], tuple[float, datetime]] = field(default_factory=dict)
    """Processors that each pod uses, by namespace and name, and when that was measured."""
    _used: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    _stopping: threading.Event = field(default_factory=threading.Event)

    def scrape_until_stopped(self) -> None:
        while not self._stopping.wait(_SCRAPE_S):
            self._scrape()

    def stop(self) -> None:
        self._stopping.set()

    def _scrape(self) -> None:
        text = self.cluster.kubectl("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/metrics/resource")
        for namespace, pod, used, stamp in _USED.findall(text):
            at_s = int(stamp) / 1000 if stamp else time.time()
            before_used, before_s = self._used.get((namespace, pod), (float(used), at_s))
            if at_s - before_s >= 1:
                rate = max(float(used) - before_used, 0) / (at_s - before_s)
                self.cores[namespace, pod] = rate, datetime.fromtimestamp(at_s, UTC)
            if at_s > before_s or (namespace, pod) not in self._used:
                self._used[namespace, pod] = float(used), at_s

    def answer(self, path: str, query: dict[str, list[str]]) -> dict[str, Any] | None:
        steps = path.strip("/").split("/")
        match steps:
            case ["apis", group]:
                versions = [{"groupVersion": f"{group}/v1beta1", "version": "v1beta1"}]
                return {
                    "kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": versions,
                    "preferredVersion": versions[0],
                }  # fmt: skip
            case ["apis", group, version]:
                return {
                    "kind": "APIResourceList",
                    "apiVersion": "v1",
                    "groupVersion": f"{group}/{version}",
                    "resources": self._resources(group),
                }
            case ["apis", "metrics.k8s.io", _, "namespaces", namespace, "pods"]:
                return self._pods(namespace, query.get("labelSelector", [""])[0])
            case ["apis", "external.metrics.k8s.io", version, "namespaces", _, name]:
                items = [
                    {
                        "metricName": name,
                        "metricLabels": {},
                        "timestamp": _stamp(datetime.now(UTC)),
                        "value": f"{round(self.external[name] * 1000)}m",
                    }
                ]
                return {
                    "kind": "ExternalMetricValueList", "apiVersion": f"{EXTERNAL_GROUP}/{version}", "metadata": {},
                    "items": items if name in self.external else [],
                }  # fmt: skip
            case _:
                return None

    def _resources(self, group: str) -> list[dict[str, Any]]:
        names = {"pods": "PodMetrics"} if group == RESOURCE_GROUP else dict.fromkeys(self.external, "ExternalMetric")
        return [
            {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get", "list"]}
            for name, kind in names.items()
        ]

    def _pods(self, namespace: str, selector: str) -> dict[str, Any]:
        pods = self.cluster.get("pods", f"--namespace={namespace}", f"--selector={selector}")["items"]
        items = []
        for pod in pods:
            name = pod["metadata"]["name"]
            found = self.cores.get((namespace, name))
            if found is None:
                continue
            cores, measured = found
            usage = {"cpu": f"{round(cores * 1e9)}n", "memory": "100Mi"}
            items.append(
                {
                    "metadata": {"name": name, "namespace": namespace, "labels": pod["metadata"]["labels"]},
                    "timestamp": _stamp(measured),
                    "window": f"{_SCRAPE_S:.0f}s",
                    "containers": [
                        {"name": container["name"], "usage": usage} for container in pod["spec"]["containers"]
                    ],
                }
            )
        return {"kind": "PodMetricsList", "apiVersion": f"{RESOURCE_GROUP}/v1beta1", "metadata": {}, "items": items}


def _stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def metrics_api(cluster: Cluster, folder: Path) -> Iterator[MetricsApi]:
    """Both APIs, as long as this lasts. `folder`: for the certificate."""
    api = MetricsApi(cluster)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            found = api.answer(asked.path, parse_qs(asked.query))
            body = json.dumps(found or {"kind": "Status", "status": "Failure", "code": 404}).encode()
            self.send_response(200 if found is not None else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((HOST_IP, 0), Handler)
    pair = make_key_pair(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threads = [
        threading.Thread(target=target, daemon=True) for target in (server.serve_forever, api.scrape_until_stopped)
    ]
    for thread in threads:
        thread.start()
    objects = _objects(int(server.server_address[1]))
    try:
        cluster.apply(*objects)
        for group in (RESOURCE_GROUP, EXTERNAL_GROUP):
            wait_for(f"API {group}", lambda group=group: _is_available(cluster, group))  # type: ignore[misc]
        yield api
    finally:
        for found in reversed(objects):
            name = found["metadata"]["name"]
            cluster.kubectl("delete", f"{found['kind'].lower()}/{name}", "--namespace=default", "--ignore-not-found")
        api.stop()
        server.shutdown()
        server.server_close()


def _is_available(cluster: Cluster, group: str) -> bool:
    conditions = cluster.get(f"apiservice/v1beta1.{group}").get("status", {}).get("conditions", ())
    return any(told["type"] == "Available" and told["status"] == "True" for told in conditions)


def _objects(port: int) -> tuple[dict[str, Any], ...]:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "namespace": "default"},
        "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]},
    }
    slice_ = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": NAME, "namespace": "default", "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [HOST_IP], "conditions": {"ready": True}}],
    }
    apis = [
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"v1beta1.{group}"},
            "spec": {
                "group": group,
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": {"name": NAME, "namespace": "default", "port": 443},
            },
        }
        for group in (RESOURCE_GROUP, EXTERNAL_GROUP)
    ]
    return (service, slice_, *apis)
