"""HTTP in front of `api_server.py`, in a thread.

A thread and not a task, because kopf ends every task of its event loop that it does not know when it stops.
"""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import yaml
from tests.support.kubernetes.api_server import ApiServer, Request, Response, Watch
from tests.support.kubernetes.fake_cluster import FakeCluster, Manifest

_BOOKMARK_BEFORE_END_S = 2
"""As the real one, which also sends one a minute."""


@dataclass(slots=True)
class FakeApi:
    cluster: FakeCluster
    port: int
    hold: Callable[[Request], object] | None = None
    """Called before a request other than a watch is carried out, which it may keep waiting."""

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
        server.api = api = FakeApi(cluster, server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield api
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
    api: FakeApi
    is_closing = False


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
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        split = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        request = Request(self.command, split.path, dict(parse_qsl(split.query)), dict(self.headers.items()), body)
        server = ApiServer(self.server.api.cluster)
        if request.query.get("watch") not in {"true", "1"}:
            if self.server.api.hold is not None:
                self.server.api.hold(request)
            self._send(server.respond(request))
            return
        watch = server.watch(request)
        if isinstance(watch, Response):
            self._send(watch)
        else:
            self._follow(watch, float(request.query.get("timeoutSeconds", 60)))

    def _follow(self, watch: Watch, timeout_s: float) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        changed = self.server.api.cluster.changed
        deadline = time.monotonic() + timeout_s
        is_marked = False
        while not watch.is_over and not self.server.is_closing:
            left_s = deadline - time.monotonic()
            with changed:
                lines = watch.poll()
                if not lines and not is_marked and left_s < _BOOKMARK_BEFORE_END_S:
                    lines, is_marked = watch.bookmark(), True
                if not lines and left_s > 0:
                    changed.wait(timeout=min(1.0, left_s))
            for line in lines:
                self._send_line(line)
            if left_s <= 0:
                break
        self.wfile.write(b"0\r\n\r\n")

    def _send_line(self, line: Manifest) -> None:
        data = json.dumps(line).encode() + b"\n"
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _send(self, response: Response) -> None:
        data = json.dumps(response.body).encode()
        self.send_response(response.code)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(data)), **response.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
