"""Requests off the fast path: each is one exchange with the ASGI application.

What an application may send, and gets, is that of ASGI's specification, "HTTP & WebSocket ASGI Message Format",
version 2.3; there is no lifespan.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import httptools

from gnnserve_worker.serving.http.asgi_predict import AsgiApp, Message, Scope
from gnnserve_worker.serving.http.wire.http1 import (
    LAST_CHUNK,
    Flow,
    Reader,
    ResponseStart,
    encode_chunk,
    expects_continue,
)

_log = logging.getLogger(__name__)
_MOST_UNREAD_BODY_BYTES = 64 * 1024
"""Bytes of a body that wait for the application; beyond them no more is read from the connection."""
_NOT_IN_NAME = re.compile(rb'[\x00-\x1f\x7f()<>@,;:\[\]={} \t\\"]')
_NOT_IN_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_WITHOUT_BODY = frozenset((204, 304))
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FAILED = b"Internal Server Error"


def build_scope(reader: Reader, transport: asyncio.Transport) -> Scope:
    """The ASGI scope of the request whose head is complete. Raises where its address cannot be read."""
    address = httptools.parse_url(reader.url)
    path = address.path.decode("ascii")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": reader.version,
        "method": reader.method.decode("ascii"),
        "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
        "path": unquote(path) if "%" in path else path,
        "raw_path": address.path,
        "query_string": address.query or b"",
        "root_path": "",
        "headers": reader.headers,
        "client": _socket_address(transport, "peername"),
        "server": _socket_address(transport, "sockname"),
    }


def _socket_address(transport: asyncio.Transport, which: str) -> tuple[str, int] | None:
    found = transport.get_extra_info(which)
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) else None


def _nothing(_keep_alive: bool) -> None:
    pass


class AsgiExchange:
    """One request and its answer by an application, as the application sees them: `receive` and `send`."""

    __slots__ = (
        "_body", "_body_bytes_due", "_changed", "_expects_continue", "_flow", "_gone", "_is_chunked", "_is_started",
        "_more_body", "_scope", "_start", "_transport", "_when_answered", "is_answered", "keep_alive",
    )  # fmt: skip

    def __init__(
        self,
        scope: Scope,
        transport: asyncio.Transport,
        flow: Flow,
        start: ResponseStart,
        keep_alive: bool,
        when_answered: Callable[[bool], None],
    ) -> None:
        """`when_answered` is called once the answer is complete, with whether the connection is kept behind it."""
        self.is_answered = False
        self.keep_alive = keep_alive
        self._scope = scope
        self._transport = transport
        self._flow = flow
        self._start = start
        self._when_answered = when_answered
        self._expects_continue = expects_continue(scope["http_version"], scope["headers"])
        self._body = bytearray()
        """Received, and not yet taken by the application."""
        self._more_body = True
        self._changed = asyncio.Event()
        """Set when more of the body came, the answer is complete, or the client is gone."""
        self._gone = False
        self._is_started = False
        """The answer's head was sent."""
        self._is_chunked = False
        self._body_bytes_due = 0
        """Bytes of the answer's body that are still to come, by its content-length."""

    # The connection's side

    async def run(self, application: AsgiApp) -> None:
        try:
            await application(self._scope, self.receive, self.send)
        except BaseException as error:  # noqa: BLE001  (this client gets an answer, and the others theirs)
            if not isinstance(error, asyncio.CancelledError):
                _log.error("Exception in ASGI application", exc_info=error)
            await self._fail()
        else:
            if not self.is_answered and not self._gone:
                _log.error("the ASGI application returned without completing its answer")
                await self._fail()
        finally:
            self._when_answered = _nothing  # else connection and exchange refer to each other

    def take_body(self, body: bytes) -> None:
        if self.is_answered:
            return
        self._body += body
        if len(self._body) > _MOST_UNREAD_BODY_BYTES:
            self._flow.pause_reading()
        self._changed.set()

    def end_body(self) -> None:
        self._more_body = False
        self._changed.set()

    def forget_client(self) -> None:
        """Suppress the rest of the answer, which no client reads any more."""
        if not self.is_answered:
            self._gone = True
            self._changed.set()

    # The application's side

    async def receive(self) -> Message:
        if self._expects_continue and not self._gone and not self._transport.is_closing():
            self._expects_continue = False
            self._transport.write(_CONTINUE)
        if not self._gone and not self.is_answered:
            self._flow.resume_reading()
            await self._changed.wait()
            self._changed.clear()
        if self._gone or self.is_answered:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    async def send(self, message: Message) -> None:
        if self._flow.write_paused and not self._gone:
            await self._flow.drain()
        if self._gone:
            return
        wanted = "http.response.body" if self._is_started else "http.response.start"
        if self.is_answered or message["type"] != wanted:
            raise RuntimeError(f"{message['type']} was sent instead of {'nothing' if self.is_answered else wanted}")
        if self._is_started:
            self._send_body(message.get("body", b""), message.get("more_body", False))
        else:
            self._send_head(message["status"], list(message.get("headers", ())))

    def _send_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        lines = [self._start.encode(status)]
        framing: bytes | None = None
        closes = False
        for given_name, value in headers:
            if _NOT_IN_NAME.search(given_name) or _NOT_IN_VALUE.search(value):
                raise RuntimeError(f"a header that HTTP does not allow: {given_name!r}")
            name = given_name.lower()
            match name:
                case b"content-length" if framing is None:
                    framing, self._body_bytes_due = name, int(value)
                case b"transfer-encoding" if value.lower() == b"chunked":
                    framing, self._body_bytes_due = name, 0
                case b"connection" if b"close" in (token.strip() for token in value.lower().split(b",")):
                    closes = True
                case _:
                    pass
            lines.append(b"%b: %b\r\n" % (name, value))
        self._is_started = True
        self._expects_continue = False
        self.keep_alive = self.keep_alive and not closes
        if not self.keep_alive and not closes:
            lines.append(b"connection: close\r\n")
        if framing is None and self._scope["method"] != "HEAD" and status not in _WITHOUT_BODY:
            framing = b"transfer-encoding"
            lines.append(b"transfer-encoding: chunked\r\n")
        self._is_chunked = framing == b"transfer-encoding"
        lines.append(b"\r\n")
        self._transport.write(b"".join(lines))

    def _send_body(self, body: bytes, more: bool) -> None:
        if self._scope["method"] == "HEAD":
            self._body_bytes_due = 0
        elif self._is_chunked:
            self._transport.write((encode_chunk(body) if body else b"") + (b"" if more else LAST_CHUNK))
        else:
            if len(body) > self._body_bytes_due:
                raise RuntimeError("a body that is longer than its content-length")
            self._body_bytes_due -= len(body)
            self._transport.write(body)
        if more:
            return
        if self._body_bytes_due:
            raise RuntimeError("a body that is shorter than its content-length")
        self.is_answered = True
        self._changed.set()
        self._when_answered(self.keep_alive)

    async def _fail(self) -> None:
        if self._is_started:
            self._transport.close()  # half an answer must not pass for a whole one
            return
        headers: list[tuple[bytes, Any]] = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(_FAILED)),
            (b"connection", b"close"),
        ]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": _FAILED})
