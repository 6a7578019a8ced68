"""A web server of files on 127.0.0.1 that keeps to HTTP, or breaks as a test tells it to, and remembers what was asked.

Ranges, ETags and redirects work as with the servers that public data sets are on.
"""

from __future__ import annotations

import hashlib
import socketserver
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler


@dataclass(frozen=True, slots=True)
class Fetched:
    path: str
    range: str | None
    """The header of that name."""
    encoding: str | None
    """What of encodings is accepted."""


@dataclass(frozen=True, slots=True)
class Odd:
    """Something else than the file, once."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """Body of the answer; None: the file's."""
    cut_after: int | None = None
    """Bytes of the body, after which the connection is closed."""
    silent_after: int | None = None
    """Bytes of the body, after which nothing more comes until the server ends."""
    reached: threading.Event = field(default_factory=threading.Event)
    """Set when it has come as far as it goes."""


@dataclass(slots=True)
class FileServer:
    port: int
    files: dict[str, bytes] = field(default_factory=dict)
    """Files by path, which may have a query."""
    odd: dict[str, deque[Odd]] = field(default_factory=dict)
    """What the next requests get instead, by path."""
    fetched: list[Fetched] = field(default_factory=list)
    has_validators: bool = True
    """ETag, and ranges."""
    ending: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self, folder: str, files: dict[str, bytes]) -> str:
        """The address of these files."""
        self.files |= {f"/{folder}/{name}": content for name, content in files.items()}
        return f"{self.url}/{folder}"

    def answer_oddly(self, path: str, *answers: Odd) -> None:
        self.odd.setdefault(path, deque()).extend(answers)

    def ranges(self, path: str) -> list[str | None]:
        return [fetched.range for fetched in self.fetched if fetched.path == path]


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


@contextmanager
def file_server(port: int = 0) -> Iterator[FileServer]:
    server = _Server(("127.0.0.1", port), BaseHTTPRequestHandler)
    told = FileServer(server.server_address[1])
    server.RequestHandlerClass = _handler_of(told)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield told
    finally:
        told.ending.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _handler_of(told: FileServer) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:
                self.close_connection = True

        def do_GET(self) -> None:
            told.fetched.append(Fetched(self.path, self.headers["Range"], self.headers["Accept-Encoding"]))
            waiting = told.odd.get(self.path)
            if waiting:
                self._answer_oddly(waiting.popleft())
            elif self.path in told.files:
                self._answer(told.files[self.path])
            else:
                self._send(404, {}, b"no such file\n")

        def _answer(self, content: bytes) -> None:
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            headers = {"ETag": tag, "Accept-Ranges": "bytes"} if told.has_validators else {}
            asked = self.headers["Range"]
            if asked is None or not told.has_validators or self.headers.get("If-Range", tag) != tag:
                self._send(200, headers, content)
                return
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self._send(416, headers | {"Content-Range": f"bytes */{len(content)}"}, b"")
                return
            shown = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self._send(206, headers | {"Content-Range": shown}, content[start:])

        def _answer_oddly(self, odd: Odd) -> None:
            body = odd.body if odd.body is not None else told.files.get(self.path, b"")
            tag = {"ETag": f'"{hashlib.sha256(body).hexdigest()[:16]}"'} if told.has_validators else {}
            stop = odd.cut_after if odd.cut_after is not None else odd.silent_after
            self._send(odd.status, tag | odd.headers, body, stop)
            odd.reached.set()
            if odd.silent_after is not None:
                told.ending.wait()
            if stop is not None:
                self.close_connection = True

        def _send(self, status: int, headers: dict[str, str], body: bytes, stop: int | None = None) -> None:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                if value:  # an empty one leaves it out
                    self.send_header(name, value)
            if not headers.get("Content-Length", "1"):
                self.send_header("Connection", "close")  # the only other way to say where the body ends
            self.end_headers()
            with suppress(ConnectionError):  # who has seen enough may leave
                self.wfile.write(body[:stop])
                self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler
