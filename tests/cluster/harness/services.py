"""A GNNService as a user sees it: what was applied, what its status says, what its endpoint answers."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tests.cluster.harness.client import Namespace, wait_for
from tests.cluster.harness.commands import HarnessError

GENERATION_TIMEOUT_S = 300

SMALL_SPEC: Mapping[str, Any] = {
    "graph": {"source": {"builtin": "Digits"}},
    "model": {"hidden": 16, "fanouts": [5, 5], "training": {"epochs": 2, "batchSize": 256}},
    "variants": {"pruning": {"factors": [1, 4]}, "projection": "Disabled"},
}
"""Trained in a second or two: what the tests wait for is Python's imports."""


@dataclass(frozen=True, slots=True)
class Service:
    namespace: Namespace
    name: str

    # What a user does

    def apply(self, spec: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> None:
        self.namespace.apply(
            {
                "apiVersion": "gnnserve.dev/v1alpha1",
                "kind": "GNNService",
                "metadata": {"name": self.name, "labels": dict(labels or {})},
                "spec": dict(spec),
            }
        )

    def patch(self, spec: Mapping[str, Any]) -> None:
        patch = json.dumps({"spec": dict(spec)})
        self.namespace.kubectl("patch", f"gnns/{self.name}", "--type=merge", f"--patch={patch}")

    def delete(self) -> None:
        self.namespace.kubectl("delete", f"gnns/{self.name}", "--wait=true")

    # What its status says

    def read(self) -> dict[str, Any]:
        path = f"/apis/gnnserve.dev/v1alpha1/namespaces/{self.namespace}/gnnservices/{self.name}"
        return self.namespace.cluster.fetch(path)

    def status(self) -> dict[str, Any]:
        return dict(self.read().get("status", {}))

    def condition(self, kind: str) -> dict[str, Any]:
        """The condition, if it is about the spec as it is now; otherwise empty."""
        found = self.read()
        for condition in found.get("status", {}).get("conditions", []):
            if condition["type"] == kind and condition["observedGeneration"] == found["metadata"]["generation"]:
                return dict(condition)
        return {}

    def wait_for(self, kind: str, reason: str, status: str = "True", timeout_s: float = GENERATION_TIMEOUT_S) -> str:
        """The message of the condition, once it has that reason."""

        def look() -> str | None:
            condition = self.condition(kind)
            fits = (condition.get("status"), condition.get("reason")) == (status, reason)
            return condition["message"] if fits else None

        try:
            return wait_for(f"{self.name} to be {kind}={status} for {reason}", look, timeout_s)
        except HarnessError as error:
            raise HarnessError(f"{error}; its status is {json.dumps(self.status(), indent=2)}") from None

    def wait_until_ready(self, timeout_s: float = GENERATION_TIMEOUT_S) -> dict[str, Any]:
        def ready() -> bool:
            return self.condition("Ready").get("status") == "True"

        try:
            wait_for(f"{self.name} to be Ready", ready, timeout_s)
        except HarnessError as error:
            raise HarnessError(f"{error}; its status is {json.dumps(self.status(), indent=2)}") from None
        return self.status()

    # What it is made of

    def children(self, kind: str) -> list[dict[str, Any]]:
        return self.namespace.items(kind, f"--selector=gnnserve.dev/service={self.name}")

    def worker_pods(self) -> list[dict[str, Any]]:
        selector = quote(f"gnnserve.dev/service={self.name},app.kubernetes.io/component=worker")
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={selector}"
        return list(self.namespace.cluster.fetch(path)["items"])

    def worker_pod_names(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.worker_pods() if "deletionTimestamp" not in pod["metadata"]}

    def worker_logs(self) -> list[dict[str, Any]]:
        """What every worker has said, a line each."""
        return [
            json.loads(line)
            for name in sorted(self.worker_pod_names())
            for line in self.namespace.kubectl("logs", name, "--tail=-1").splitlines()
        ]

    def restarts(self) -> int:
        return sum(s["restartCount"] for pod in self.worker_pods() for s in pod["status"].get("containerStatuses", []))

    def events(self) -> list[dict[str, Any]]:
        found = self.namespace.items("events")
        return [event for event in found if event["involvedObject"]["name"] == self.name]

    # What its endpoint answers; from this machine, which reaches the addresses of Services

    def address(self) -> str:
        path = f"/api/v1/namespaces/{self.namespace}/services/{self.name}"
        return str(self.namespace.cluster.fetch(path)["spec"]["clusterIP"])

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, host: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        """`host` saves looking the address up, where time counts."""
        connection = http.client.HTTPConnection(host or self.address(), 80, timeout=10)
        try:
            headers = {"content-type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def route(self) -> dict[str, Any]:
        return self.ask("GET", "/v1/route")[1]

    def predict(self, *nodes: int) -> dict[str, Any]:
        status, answer = self.ask("POST", "/v1/predict", {"nodes": list(nodes)})
        if status != 200:
            raise HarnessError(f"{self.name} answered {status}: {answer}")
        return answer
