"""The one corner of a Kubernetes API server that a worker sees: list and watch of a ConfigMap, or of a pool's few.

Every change gets a version; a watch tells what came after the version it names, then what comes. Tests may drop
connections, forget history, refuse tokens or say nothing at all.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gnnserve_api.pods.routing import ROUTING_KEY, RoutingTable, encode_routing

NAMESPACE, NAME = "default", "digits-routing"
_PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps"


@dataclass(slots=True)
class ConfigMapServer:
    version: int = 1
    text: str | None = None
    """Content of the ConfigMap; None: it does not exist."""
    events: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    lists: int = 0
    watches: list[str] = field(default_factory=list)
    """The version that each watch asked from."""
    tokens: list[str] = field(default_factory=list)
    """The token of each request."""
    accepted_token: str | None = None
    """The token that is accepted; None: any."""
    forgotten: int = 0
    """Watches from a version before it get 410."""
    gone_as_event: bool = False
    """410 inside a watch that began well, as API servers say it that learnt it late."""
    drops: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    port: int = 0
    name: str = NAME
    key: str = ROUTING_KEY
    others: dict[str, ConfigMapServer] = field(default_factory=dict)
    """Further ConfigMaps by name, each with a history of its own."""

    def add(self, name: str, key: str = ROUTING_KEY) -> ConfigMapServer:
        """Another ConfigMap, which does not exist yet."""
        self.others[name] = ConfigMapServer(port=self.port, name=name, key=key)
        return self.others[name]

    def named(self, selector: str | None) -> ConfigMapServer | None:
        """The ConfigMap that a field selector names."""
        found = {self.name: self} | self.others
        return found.get((selector or "").removeprefix("metadata.name="))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def put(self, table: RoutingTable | str) -> None:
        with self.changed:
            kind = "ADDED" if self.text is None else "MODIFIED"
            self.text = table if isinstance(table, str) else encode_routing(table)
            self._happen(kind)

    def delete(self) -> None:
        with self.changed:
            self._happen("DELETED")
            self.text = None

    def bookmark(self) -> None:
        with self.changed:
            self._happen("BOOKMARK")

    def fail_watch(self, code: int) -> None:
        with self.changed:
            status = {"kind": "Status", "metadata": {}, "code": code, "message": f"code {code}"}
            self.events.append((self.version + 1, {"type": "ERROR", "object": status}))
            self.changed.notify_all()

    def drop(self) -> None:
        """Every open watch loses its connection."""
        with self.changed:
            self.drops += 1
            self.changed.notify_all()

    def forget(self) -> None:
        with self.changed:
            self.forgotten = self.version + 1
            self.version += 1
            self.events.clear()

    def wait_for_watch(self, number: int) -> None:
        """Waits until that many watches have begun."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.watches) >= number, 60), self.watches

    def object(self) -> dict[str, Any]:
        metadata = {"name": self.name, "namespace": NAMESPACE, "resourceVersion": str(self.version), "labels": {}}
        return {"kind": "ConfigMap", "metadata": metadata, "data": {self.key: self.text, "generation.json": "{}"}}

    def _happen(self, kind: str) -> None:
        self.version += 1
        found = self.object()
        if kind == "BOOKMARK":
            found = {"kind": "ConfigMap", "metadata": {"resourceVersion": str(self.version)}}
        self.events.append((self.version, {"type": kind, "object": found}))
        self.changed.notify_all()


@contextmanager
def configmap_server(port: int = 0) -> Iterator[ConfigMapServer]:
    state = ConfigMapServer()

    class Handler(_Handler):
        api = state

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.daemon_threads = True
        state.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield state
        finally:
            for found in (state, *state.others.values()):
                found.drop()
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    api: ConfigMapServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(split.query).items()}
        api = self.api.named(asked.get("fieldSelector"))
        if split.path != _PATH or api is None:
            self._send(403, {"kind": "Status", "message": "no other ConfigMap is allowed"})
            return
        with api.changed:
            api.tokens.append(self.headers["authorization"].removeprefix("Bearer "))
            refused = api.accepted_token not in {None, api.tokens[-1]}
        if refused:
            self._send(401, {"kind": "Status", "message": "Unauthorized"})
        elif "watch" in asked:
            # A worker that was killed does not listen any more.
            with suppress(ConnectionError):
                self._watch(api, asked["resourceVersion"])
        else:
            with api.changed:
                api.lists += 1
                items = [] if api.text is None else [api.object()]
                version = str(api.version)
            self._send(200, {"kind": "ConfigMapList", "metadata": {"resourceVersion": version}, "items": items})

    def _send(self, status: int, body: dict[str, Any]) -> None:
        encoded = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def _watch(self, api: ConfigMapServer, version: str) -> None:
        with api.changed:
            dropped = api.drops
            told = int(version)
            gone = told < api.forgotten
            api.watches.append(version)
            api.changed.notify_all()
        if gone and not api.gone_as_event:
            self._send(410, {"kind": "Status", "code": 410, "message": "too old resource version"})
            return
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        if gone:
            status = {"kind": "Status", "metadata": {}, "code": 410, "message": "too old resource version"}
            self._chunk({"type": "ERROR", "object": status})
            self.close_connection = True
            return
        while True:
            with api.changed:
                while api.drops == dropped and not (news := [entry for entry in api.events if entry[0] > told]):
                    api.changed.wait()
                if api.drops > dropped:
                    break
            for number, event in news:
                self._chunk(event)
                told = number
        self.close_connection = True

    def _chunk(self, event: dict[str, Any]) -> None:
        # In two parts: a line may come in pieces.
        line = json.dumps(event).encode() + b"\n"
        for part in (line[:10], line[10:]):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Tests read the worker's log, not this one's."""
