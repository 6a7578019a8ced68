"""A stand-in of the Hugging Face Hub: its HTTP interface, as far as one file of one commit needs it.

Large files are kept by another host, which addresses with a signature lead to, as the hub's do.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SIGNATURE = "signature-of-the-store"


@dataclass(slots=True)
class HubRepository:
    files: dict[str, bytes]
    large: tuple[str, ...] = ()
    """Names of files that another host keeps (LFS)."""
    token: str | None = None
    """What may read it; None: it is public."""
    gated: bool = False


@dataclass(frozen=True, slots=True)
class HubRequest:
    host: str
    """`hub`, or `store`."""
    path: str
    authorization: str | None
    range: str | None


@dataclass(slots=True)
class StandInHub:
    endpoint: str = ""
    store: str = ""
    repositories: dict[str, HubRepository] = field(default_factory=dict)
    requests: list[HubRequest] = field(default_factory=list)
    sent: dict[str, bytes] = field(default_factory=dict)
    """What is sent in place of a file's content, by its name."""
    broken_off: int | None = None
    """Bytes behind which the next content breaks off. None: it arrives whole."""
    failures: int = 0
    """Answers with 503 that come before others."""
    commit: str = COMMIT

    def put(self, name: str, files: Mapping[str, bytes], **parts: Any) -> HubRepository:
        self.repositories[name] = HubRepository(dict(files), **parts)
        return self.repositories[name]

    def address(self, name: str, file: str = "") -> str:
        return f"hf://{name}@{COMMIT}{f'/{file}' if file else ''}"

    def asked(self, host: str) -> list[str]:
        return [one.path for one in self.requests if one.host == host]


@contextmanager
def running_hub() -> Iterator[StandInHub]:
    hub = StandInHub()
    with _serving(hub, "hub") as hub.endpoint, _serving(hub, "store") as hub.store:
        yield hub


@contextmanager
def _serving(hub: StandInHub, host: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers
            hub.requests.append(HubRequest(host, self.path, given.get("Authorization"), given.get("Range")))
            status, body, headers = _answer(hub, host, self.path, given.get("Authorization"))
            if host == "store":
                headers |= {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "Accept-Ranges": "bytes"}
            if given.get("If-Range", "") == headers.get("ETag"):
                begin, size = int(given["Range"].removeprefix("bytes=").removesuffix("-")), len(body)
                status, body = 206, body[begin:]
                headers["Content-Range"] = f"bytes {begin}-{size - 1}/{size}"
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if host == "store":
                body, hub.broken_off = body[: hub.broken_off], None
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(  # noqa: PLR0911
    hub: StandInHub, host: str, path: str, authorization: str | None
) -> tuple[int, bytes, dict[str, str]]:
    if hub.failures:
        hub.failures -= 1
        return 503, b"", {}
    steps = urlsplit(path).path.strip("/").split("/")
    if host == "store":
        name, file = "/".join(steps[:2]), "/".join(steps[2:])
        return 200, hub.sent.get(file, hub.repositories[name].files[file]), {}
    is_listing = steps[0] == "api"
    name = "/".join(steps[2:4] if is_listing else steps[:2])
    commit = steps[5] if is_listing else steps[3]
    repository = hub.repositories.get(name)
    if repository is None or (repository.token is not None and authorization != f"Bearer {repository.token}"):
        return 401, b"{}", {"X-Error-Code": "RepoNotFound"}
    if commit != hub.commit and hub.commit == COMMIT:
        return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
    if is_listing:
        return 200, json.dumps({"sha": hub.commit, "siblings": _listed(repository)}).encode(), {}
    if repository.gated:
        return 403, b"{}", {"X-Error-Code": "GatedRepo"}
    file = "/".join(steps[4:])
    if file in repository.large:
        return 302, b"", {"Location": f"{hub.store}/{name}/{file}?X-Amz-Signature={SIGNATURE}"}
    return 200, hub.sent.get(file, repository.files[file]), {}


def _listed(repository: HubRepository) -> list[dict[str, Any]]:
    found = []
    for name, content in repository.files.items():
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": blob}
        if name in repository.large:
            entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        found.append(entry)
    return found
