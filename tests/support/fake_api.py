"""HTTP in front of `FakeCluster`: discovery, get, list, watch, create, server-side apply and delete, in a thread.

A thread and not a task, because kopf ends every task of its event loop that it does not know when it stops.
"""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml
from tests.support.fake_cluster import Change, FakeCluster, Manifest, Refusal, Write

from gnnserve_operator.kinds import Kind

_KOPF_ASKS_FOR = (
    Kind("v1", "Namespace", "namespaces"),
    Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions"),
)


@dataclass(frozen=True, slots=True)
class FakeApi:
    cluster: FakeCluster
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def write_kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig.yaml"
        path.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
            "users": [{"name": "fake", "user": {"token": "not-a-secret"}}],
        }))  # fmt: skip
        return path


@contextmanager
def fake_api(cluster: FakeCluster) -> Iterator[FakeApi]:
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.cluster = cluster
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield FakeApi(cluster, server.server_address[1])
        finally:
            server.is_closing = True
            with cluster.changed:
                cluster.changed.notify_all()
            server.shutdown()
            thread.join()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128
    cluster: FakeCluster
    is_closing = False


@dataclass(frozen=True, slots=True)
class _Target:
    kind: Kind
    namespace: str | None
    name: str | None
    subresource: str | None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._create)

    def do_PATCH(self) -> None:
        self._answer(self._apply)

    def do_DELETE(self) -> None:
        self._answer(self._delete)

    # --- requests

    def _get(self) -> Manifest | None:
        found = self._discovery()
        if found is not None:
            return found
        target = self._target()
        if self._query.get("watch") == "true":
            self._watch(target)
            return None
        if target.name is not None:
            found = self.cluster.find(target.kind.name, target.name, target.namespace or "default")
            if found is None:
                raise Refusal(404, "NotFound", f'{target.kind.plural} "{target.name}" not found')
            return found
        with self.cluster.changed:
            items = [found for found in self.cluster.all(target.kind.name) if self._is_selected(target, found)]
            version = str(self.cluster.version)
        if "PartialObjectMetadataList" in self.headers.get("Accept", ""):
            # As the real one does: null, where other lists are empty.
            metadata_only = [{"metadata": found["metadata"]} for found in items] or None
            return {"kind": "PartialObjectMetadataList", "metadata": {"resourceVersion": version},
                    "items": metadata_only}  # fmt: skip
        return {"apiVersion": target.kind.api_version, "kind": f"{target.kind.name}List",
                "metadata": {"resourceVersion": version}, "items": items}  # fmt: skip

    def _create(self) -> Manifest:
        body, target = self._body(), self._target()
        self._note("create", target, body["metadata"]["name"], body)
        return self.cluster.create(body)

    def _apply(self) -> Manifest:
        body, target = self._body(), self._target()
        assert self.headers["Content-Type"] == "application/apply-patch+yaml"
        assert self._query["force"] == "true"
        assert body["metadata"]["name"] == target.name
        verb = f"apply {target.subresource}" if target.subresource else "apply"
        self._note(verb, target, target.name or "", body)
        return self.cluster.apply(body, self._query["fieldManager"], target.subresource)

    def _delete(self) -> Manifest:
        body, target = self._body(), self._target()
        self._note("delete", target, target.name or "", body)
        self.cluster.delete(target.kind.name, target.name or "", target.namespace or "default")
        return {"kind": "Status", "status": "Success"}

    def _note(self, verb: str, target: _Target, name: str, body: Manifest) -> None:
        with self.cluster.changed:
            self.cluster.writes.append(Write(verb, target.kind.name, name, self._query.get("fieldManager", ""), body))
            self.cluster.changed.notify_all()

    # --- watches

    def _watch(self, target: _Target) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        version = int(self._query["resourceVersion"])
        deadline = time.monotonic() + float(self._query.get("timeoutSeconds", 60))
        while time.monotonic() < deadline and not self.server.is_closing:
            with self.cluster.changed:
                is_broken = target.kind.name in self.cluster.broken_kinds
                if version < self.cluster.oldest_version or is_broken:
                    code = 500 if is_broken else 410
                    self._send_line({"type": "ERROR", "object": {"kind": "Status", "code": code}})
                    break
                news = self._news(target, version)
                if not news:
                    self.cluster.changed.wait(timeout=1)
                    continue
            for change in news:
                version = change.version
                if self._is_selected(target, change.object):
                    self._send_line({"type": change.type, "object": change.object})
        self.wfile.write(b"0\r\n\r\n")

    def _news(self, target: _Target, version: int) -> list[Change]:
        if target.kind.name in self.cluster.frozen_kinds:
            return []
        return [c for c in self.cluster.history if c.version > version and c.object["kind"] == target.kind.name]

    def _send_line(self, line: Manifest) -> None:
        data = json.dumps(line).encode() + b"\n"
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    # --- discovery

    def _discovery(self) -> Manifest | None:
        kinds = (*self.cluster.kinds, *_KOPF_ASKS_FOR)
        groups = sorted({(kind.group, kind.version) for kind in kinds if kind.group})
        if self._path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if self._path == "/apis":
            versions = [
                (group, {"groupVersion": f"{group}/{version}", "version": version}) for group, version in groups
            ]
            return {"kind": "APIGroupList", "groups": [
                {"name": group, "versions": [version], "preferredVersion": version} for group, version in versions
            ]}  # fmt: skip
        resources = [kind for kind in kinds if kind.api_path == self._path]
        if not resources:
            return None
        return {"kind": "APIResourceList", "resources": [
            {"name": kind.plural, "singularName": kind.name.lower(), "kind": kind.name,
             "namespaced": kind not in _KOPF_ASKS_FOR, "verbs": ["get", "list", "watch", "create", "patch", "delete"]}
            for kind in resources
        ]}  # fmt: skip

    # --- HTTP

    @property
    def cluster(self) -> FakeCluster:
        return self.server.cluster

    def _answer(self, act: Any) -> None:
        split = urlsplit(self.path)
        self._path, self._query = split.path, dict(parse_qsl(split.query))
        with self.cluster.changed:
            self.cluster.paths.append(f"{self.command} {self._path}")
            self.cluster.changed.notify_all()
        try:
            answer = act()
        except Refusal as refusal:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": refusal.code,
                      "reason": refusal.reason, "message": refusal.message,
                      "details": {"causes": [{"reason": cause} for cause in refusal.causes]}}  # fmt: skip
            self._send(refusal.code, status, refusal.headers)
        else:
            if answer is not None:
                self._send(200, answer, {})

    def _send(self, code: int, body: Manifest, headers: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> Manifest:
        body: Manifest = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return body

    def _target(self) -> _Target:
        for kind in self.cluster.kinds:
            if not self._path.startswith(f"{kind.api_path}/"):
                continue
            steps = self._path.removeprefix(f"{kind.api_path}/").split("/")
            namespace = steps[1] if steps[0] == "namespaces" and len(steps) > 2 else None
            rest = steps[2:] if namespace else steps
            if rest[0] == kind.plural:
                return _Target(kind, namespace, *(*rest[1:], None, None)[:2])
        raise Refusal(404, "NotFound", "the server could not find the requested resource")

    def _is_selected(self, target: _Target, found: Manifest) -> bool:
        metadata = found["metadata"]
        labels = metadata.get("labels") or {}
        wanted = [term.split("=") for term in self._query.get("labelSelector", "").split(",") if term]
        return target.namespace in {None, metadata.get("namespace")} and all(
            labels.get(name) == value for name, value in wanted
        )
