"""An HTTP server in a thread that answers what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
from tests.support.profiles import profile, revision_manifest

from gnnserve_api.files.graph_schema import Classes
from gnnserve_api.files.profile import Profile
from gnnserve_api.files.provenance import provenance_of
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_api.http.protocol import VariantsAnswer

NODES = 1797


@dataclass(frozen=True, slots=True)
class Asked:
    method: str
    path: str
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""


@dataclass(frozen=True, slots=True)
class Told:
    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    hang_up: bool = False
    """Close the connection instead of answering."""
    raw: bytes | None = None
    """Written as it is, instead of an answer."""


def refusal(status: int, code: str, message: str, about: str | None = None, **headers: str) -> Told:
    return Told(status, {"error": {"code": code, "field": about, "message": message}}, headers)


def answer_like_gnnserve(asked: Asked) -> Told:
    if asked.path == "/v1/variants":
        return Told(body=variants_body(profile()))
    if asked.path.startswith("/v1/nodes"):
        return Told(body=nodes_body(asked.path, range(NODES)))
    if asked.path == "/v1/route":
        return Told(body={"revision": "r1", "baseVariant": "x4", "reason": "told so", "allowedVariants": ["x4"]})
    if asked.path == "/healthz":
        return Told(body={"status": "ok"})
    wanted = asked.body.get("return") or ["labels"]
    rows = {
        "labels": [node % 10 for node in asked.body["nodes"]],
        "scores": [[0.1 * column for column in range(10)] for _ in asked.body["nodes"]],
        "embeddings": [[0.5] * 128 for _ in asked.body["nodes"]],
    }
    return Told(
        body={**{name: rows[name] for name in wanted}, "variant": "x4", "revision": "r1", "objectiveMet": True},
        headers={"Server-Timing": "queue;dur=0.012, sample;dur=0.021, gather;dur=0.064, compute;dur=0.128"},
    )


def variants_body(
    shown: Profile,
    nodes: int = NODES,
    node_ids: NodeIdKind = NodeIdKind.POSITIONS,
    classes: Classes = tuple(range(10)),
) -> dict[str, Any]:
    manifest = revision_manifest("r1")
    answer = VariantsAnswer(
        service="default/digits", revision="r1", recipe=manifest.recipe, nodes=nodes, node_ids=node_ids, features=64,
        classes=classes, multi_label=False, profile=shown,
        provenance=provenance_of(manifest, "builtin Digits", 11_000, 1_000),
    )  # fmt: skip
    body: dict[str, Any] = msgspec.to_builtins(answer)
    return body


def nodes_body(path: str, ids: Sequence[int | str], node_ids: NodeIdKind = NodeIdKind.POSITIONS) -> dict[str, Any]:
    """A page of `ids`, as the query of `path` asks."""
    asked = dict(parse_qsl(urlsplit(path).query))
    start, count = int(asked["start"]), int(asked["count"])
    return {"nodes": list(ids[start : start + count]), "start": start, "total": len(ids), "nodeIds": node_ids}


@dataclass(slots=True)
class FakeServer:
    port: int
    asked: list[Asked]
    stop: Callable[[], None]
    """Refuses new connections from now on; answered ones stay open until the client leaves."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128


@contextmanager
def fake_server(answer: Callable[[Asked], Told] = answer_like_gnnserve) -> Iterator[FakeServer]:
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:
                self.close_connection = True

        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            binary = self.headers["Content-Type"] == "application/octet-stream"
            self._answer(body if binary else json.loads(body))

        def _answer(self, body: Any) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            question = Asked(self.command, self.path, body, headers)
            asked.append(question)
            told = answer(question)
            if told.hang_up:
                self.close_connection = True
                return
            if told.raw is not None:
                self.wfile.write(told.raw)
                self.close_connection = True
                return
            content = told.body if isinstance(told.body, bytes) else json.dumps(told.body).encode()
            headers = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in told.headers.items())
            # One write: two would wait for each other's acknowledgement.
            head = f"HTTP/1.1 {told.status} Told\r\nContent-Length: {len(content)}\r\n{headers}\r\n"
            self.wfile.write(head.encode() + content)

    with _Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()

        def stop() -> None:
            server.shutdown()
            thread.join()
            server.server_close()

        try:
            yield FakeServer(server.server_address[1], asked, stop)
        finally:
            stop()
