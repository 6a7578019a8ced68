"""Stand-in for nodes and pods, for a fleet that no machine could run: Jobs succeed at once, workers answer at once.

Everything else is real: the API server, the controllers of Jobs and Deployments, the operator. A worker is a path of
one HTTP server, which answers `GET /{service}/v1/route` by the ConfigMap that the operator wrote.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import msgspec

from benchmarks.clusters.kubernetes_api import MERGE_PATCH, KubernetesApi, Manifest
from gnnserve_api.pods.generation import GenerationResult, VariantSummary, encode_result
from gnnserve_api.pods.interface import PodExit
from gnnserve_api.pods.routing import ROUTING_KEY, AffineCost, Route, VariantRoute, decode_routing
from gnnserve_operator.desired.metadata import CHILDREN_SELECTOR, COMPONENT, RECIPE, SERVICE, Component

VARIANTS = (VariantSummary("x1", 64, 972.0, 2.5), VariantSummary("x2", 32, 967.0, 1.75))
COST = AffineCost(1.0, 0.01)
AT_ONCE = 4


class StandInKubelet:
    def __init__(self, api: KubernetesApi, fails: Callable[[str], bool] = lambda service: False) -> None:
        """`fails`: whether the generation of the service of that name fails."""
        self._api = api
        self._fails = fails
        self._tables: dict[str, str] = {}
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def workers_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Runs as long as there is an API server."""
        for work in (self._server.serve_forever, self._follow_tables, self._follow_pods):
            threading.Thread(target=until_it_is_gone, args=(work,), daemon=True).start()

    def _follow_tables(self) -> None:
        for found in self._api.follow("/api/v1/configmaps", CHILDREN_SELECTOR):
            self._tables[found["metadata"]["labels"][SERVICE]] = found["data"][ROUTING_KEY]

    def _follow_pods(self) -> None:
        for pod in self._api.follow("/api/v1/pods", CHILDREN_SELECTOR):
            if pod.get("status", {}).get("phase") == "Pending" and "deletionTimestamp" not in pod["metadata"]:
                self._pool.submit(self._run, pod)

    def _run(self, pod: Manifest) -> None:
        metadata = pod["metadata"]
        is_worker = metadata["labels"][COMPONENT] == Component.WORKER
        is_failing = self._fails(metadata["labels"][SERVICE])
        status = _serving(pod) if is_worker else _failed(pod) if is_failing else _succeeded(pod)
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        try:
            self._api.call("PATCH", path, {"status": status}, MERGE_PATCH)
        except httpx.HTTPStatusError as refused:
            if refused.response.status_code not in {404, 409}:  # gone meanwhile
                raise

    def _handler(self) -> Callable[..., BaseHTTPRequestHandler]:
        tables = self._tables

        class Worker(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                table = tables.get(self.path.split("/")[1])
                body = b"{}" if table is None else msgspec.json.encode(_route(table))
                self.send_response(503 if table is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the library's
                pass

        return Worker


def until_it_is_gone(work: Callable[[], None]) -> None:
    with suppress(httpx.TransportError):
        work()


def _route(encoded: str) -> Route:
    table = decode_routing(encoded)
    base = table.base_variant or VARIANTS[0].name
    variants = tuple(VariantRoute(variant.name, 0, COST, COST) for variant in VARIANTS)
    return Route(
        *(table.revision, base, "the most accurate", tuple(variant.name for variant in VARIANTS)),
        *(table.objective, table.batching),
        mode=table.mode,
        issued_at=table.issued_at,
        variants=variants,
    )


def _succeeded(pod: Manifest) -> Manifest:
    result = GenerationResult("r1", pod["metadata"]["labels"][RECIPE], "9" * 16, VARIANTS)
    ended = {"exitCode": 0, "reason": "Completed", "message": encode_result(result), "finishedAt": _now()}
    return {"phase": "Succeeded", "containerStatuses": [_container(pod, {"terminated": ended}, ready=False)]}


def _failed(pod: Manifest) -> Manifest:
    ended = {"exitCode": int(PodExit.BAD_INPUT), "reason": "Error", "message": "no such file", "finishedAt": _now()}
    return {"phase": "Failed", "containerStatuses": [_container(pod, {"terminated": ended}, ready=False)]}


def _serving(pod: Manifest) -> Manifest:
    return {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}],
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": _now()}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        "containerStatuses": [_container(pod, {"running": {"startedAt": _now()}}, ready=True)],
    }


def _container(pod: Manifest, state: Manifest, *, ready: bool) -> Manifest:
    declared = pod["spec"]["containers"][0]
    known = {"name": declared["name"], "image": declared["image"], "imageID": declared["image"], "restartCount": 0}
    return {**known, "ready": ready, "started": ready, "state": state}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
