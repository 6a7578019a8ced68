"""HTTP/1.1 of one connection: how bytes become requests, heads that are known already, how responses begin, and flow.

The parser (httptools) calls `on_…`; a `Reader` collects the head, checks it and passes on whole events, and limits how
long what it reads may grow. It does not know what a request is answered with. The parser refuses bytes that are not
HTTP. Heads that it accepts although RFC 9112 requires a refusal are refused by `check_head`: a proxy in front of the
worker may read them differently, and pass on two requests where the worker sees one (request smuggling). Heads of
predictions that were parsed before are not parsed again: clients repeat themselves, byte for byte.
"""

from __future__ import annotations

import asyncio
import http
import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import Protocol

import httptools
import msgspec

from gnnserve_worker.asking.question import ErrorCode, RequestError, cut
from gnnserve_worker.serving.http.codecs.registry import read_head
from gnnserve_worker.serving.http.content_coding import CONTENT_ENCODING
from gnnserve_worker.serving.requests import Arrival
from gnnserve_worker.serving.security.access import Access

MOST_HEAD_BYTES = 64 * 1024
"""Longest head of a request, in bytes: its first line and its headers."""
MOST_HEADERS = 128

_CONTINUE = b"100-continue"
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=:%\[\]-]*")
"""Characters of a name or an address and a port. It may be empty (RFC 9112, 3.2)."""


def large_head() -> RequestError:
    return RequestError(
        ErrorCode.HEAD_TOO_LARGE,
        "head",
        f"over the limit of {MOST_HEAD_BYTES:,} bytes or {MOST_HEADERS} headers",
        "send a shorter address and fewer or shorter headers",
    )


def not_http() -> RequestError:
    """The error for bytes that the parser refuses; it does not tell where."""
    return RequestError(
        ErrorCode.MALFORMED_REQUEST,
        "request",
        "it is not HTTP/1.1",
        "send a request line, headers and a body as RFC 9112 has them",
    )


def wrong_version(version: str) -> RequestError:
    return RequestError(
        ErrorCode.UNSUPPORTED_VERSION, "HTTP version", f"{cut(version)} is not spoken here", "send HTTP/1.1"
    )


def expects_continue(version: str, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether the client waits to be told to go on before it sends the body. One of HTTP/1.0 does not, whatever it
    says (RFC 9110, 10.1.1)."""
    return version != "1.0" and any(_CONTINUE in _expectations(value) for name, value in headers if name == b"expect")


def _expectations(value: bytes) -> list[bytes]:
    return [stripped for each in value.split(b",") if (stripped := each.strip(b" \t").lower())]


def check_head(version: str, headers: Sequence[tuple[bytes, bytes]]) -> RequestError | None:
    """Check a head; None if nothing is wrong. `headers`: names in lower case."""
    hosts = [value for name, value in headers if name == b"host"]
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if version not in {"1.0", "1.1"}:
        return wrong_version(version)
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        return RequestError(
            ErrorCode.MALFORMED_REQUEST,
            "Host",
            f"the request has {len(hosts)} of these headers" if hosts else "the header is missing",
            "send exactly one",
        )
    if hosts and not _HOST.fullmatch(hosts[0]):
        shown = cut(hosts[0].decode("ascii", "replace"))
        return RequestError(
            ErrorCode.MALFORMED_REQUEST, "Host", f"{shown!r} is no host", "send a name or an address, and a port"
        )
    if codings and (wrong := _check_codings(version, codings)) is not None:
        return wrong
    return _check_expectations(version, [value for name, value in headers if name == b"expect"])


def _check_expectations(version: str, values: Sequence[bytes]) -> RequestError | None:
    if version == "1.0":
        return None
    unknown = [each for value in values for each in _expectations(value) if each != _CONTINUE]
    if not unknown:
        return None
    shown = cut(unknown[0].decode("ascii", "replace"))
    return RequestError(
        ErrorCode.EXPECTATION_FAILED, "Expect", f"{shown!r} is not met here", "send 100-continue, or leave it out"
    )


def _check_codings(version: str, codings: Sequence[bytes]) -> RequestError | None:
    if version == "1.0":
        return RequestError(
            ErrorCode.MALFORMED_REQUEST, "Transfer-Encoding", "HTTP/1.0 has no such header", "send Content-Length"
        )
    if b",".join(codings).strip(b" \t").lower() != b"chunked":
        shown = cut(b", ".join(codings).decode("ascii", "replace"))
        return RequestError(
            ErrorCode.UNSUPPORTED_CODING,
            "Transfer-Encoding",
            f"{shown!r} is not possible here",
            "send the body as it is, with Content-Length or chunked alone",
        )
    return None


_KNOWN_VERSIONS = {"0.0", "0.9", "1.0", "1.1", "2.0"}
"""Versions that the parser reads on behind, and 0.0, which it tells before it has read one."""


class Trouble(Enum):
    """Why the rest of a connection cannot be read."""

    NOT_HTTP = auto()
    WRONG_VERSION = auto()
    """A version that the parser does not know, and stops at."""
    LONG_HEAD = auto()
    """A head that is over the limit before its end was seen."""
    LONG_FRAME = auto()
    """Trailers, or what may follow a chunk's length, over the limit of a head. The parser joins them as they come, so
    that an endless one would take ever longer."""


class RequestSink(Protocol):
    """Receiver of what the reader tells of requests, in order."""

    def begin_request(self) -> None: ...

    def take_head(self, wrong: RequestError | None) -> None:
        """The reader's `url` and `headers` are complete. `wrong`: why the request must be refused, if it must."""
        ...

    def take_body(self, body: bytes) -> None: ...

    def end_request(self) -> None: ...


class Reader:
    __slots__ = (
        "_fed_bytes", "_has_come_on", "_parser", "_quiet_bytes", "_sink",
        "begun", "between_messages", "headers", "is_head_open", "url",
    )  # fmt: skip

    def __init__(self, sink: RequestSink) -> None:
        self._sink = sink
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        """Names in lower case."""
        self.between_messages = True
        """Whether only whole messages were read."""
        self.is_head_open = False
        """The request that is being read has no complete head yet."""
        self.begun = 0
        """Requests begun since the caller set it to 0."""
        self._quiet_bytes = 0
        """Read since the request's beginning, or since something of use came of it: the head so far, or what only
        frames a body. Roughly: whole packets are counted."""
        self._has_come_on = False
        """The packet that is being read brought a request's beginning, the end of its head, or some of its body."""
        self._fed_bytes = 0
        """Bytes of the packet that is being read."""
        self._parser = httptools.HttpRequestParser(self)
        # A request behind one that closes the connection must not turn into an error before that one is answered.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def close(self) -> None:
        """Break the reference cycle with the parser."""
        del self._parser

    @property
    def method(self) -> bytes:
        return self._parser.get_method()

    @property
    def version(self) -> str:
        return self._parser.get_http_version()

    @property
    def keeps_alive(self) -> bool:
        """Whether the client wants to keep the connection. HTTP/1.0 is never kept alive."""
        return self._parser.should_keep_alive() and self.version != "1.0"

    @property
    def offers_upgrade(self) -> bool:
        """Whether the parser stops behind this head, since the client offers another protocol."""
        return self._parser.should_upgrade()

    def feed(self, data: bytes) -> Trouble | None:
        was_between_messages = self.between_messages
        self._fed_bytes = len(data)
        self._has_come_on = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # what follows is the body of a request whose connection is closed after its answer
        except httptools.HttpParserError:
            is_version = self.is_head_open and self.version not in _KNOWN_VERSIONS
            return Trouble.WRONG_VERSION if is_version else Trouble.NOT_HTTP
        if self.between_messages:
            return None
        if not self._has_come_on:
            self._quiet_bytes += len(data)
        elif self.is_head_open:
            # Where it began inside the packet, what stands before it is another request's.
            began_first = was_between_messages and self.begun == 1
            self._quiet_bytes = len(data) if began_first else self._count_head()
        if self._quiet_bytes <= MOST_HEAD_BYTES:
            return None
        return Trouble.LONG_HEAD if self.is_head_open else Trouble.LONG_FRAME

    def _count_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    # The parser's callbacks. What they raise makes `feed_data` raise an HttpParserError.

    def on_message_begin(self) -> None:
        self.is_head_open = True
        self.between_messages = False
        self.begun += 1
        self._quiet_bytes = 0
        self._has_come_on = True
        self.url = b""
        self.headers = []
        self._sink.begin_request()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # What comes behind a body is no header: who is answered was decided by what stood before it.
        if self.is_head_open and len(self.headers) <= MOST_HEADERS:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.is_head_open = False
        self._has_come_on = True
        # Not counted where what came so far, bodies included, is less.
        is_long = self._quiet_bytes + self._fed_bytes > MOST_HEAD_BYTES and self._count_head() > MOST_HEAD_BYTES
        self._quiet_bytes = 0
        if is_long or len(self.headers) > MOST_HEADERS:
            self._sink.take_head(large_head())
        else:
            self._sink.take_head(check_head(self.version, self.headers))

    def on_body(self, body: bytes) -> None:
        self._has_come_on = True
        self._quiet_bytes = 0
        self._sink.take_body(body)

    def on_message_complete(self) -> None:
        self.between_messages = True
        self._sink.end_request()


class Flow:
    """Whether a connection is read from and written to."""

    __slots__ = ("_transport", "_writable", "is_held", "read_paused", "write_paused")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._writable: asyncio.Event | None = None
        """An event that is made when writing is paused for the first time: most clients read what they are sent."""
        self.read_paused = False
        """Requests that were read before are to be answered first."""
        self.is_held = False
        """What arrived before is to be read first (`QueuedInput`)."""
        self.write_paused = False

    def pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            if not self.is_held:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            if not self.is_held:
                self._transport.resume_reading()

    def hold_reading(self) -> None:
        if not self.is_held:
            self.is_held = True
            if not self.read_paused:
                self._transport.pause_reading()

    def release_reading(self) -> None:
        if self.is_held:
            self.is_held = False
            if not self.read_paused:
                self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.write_paused = True
        if self._writable is None:
            self._writable = asyncio.Event()
        self._writable.clear()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()

    async def drain(self) -> None:
        """Wait until writing is possible, or the connection is lost."""
        if self._writable is not None:
            await self._writable.wait()


HEAD_END = b"\r\n\r\n"
HEAD_END_BYTES = len(HEAD_END)
_MOST_BODY_BYTES = 1024 * 1024
"""Longest body of the fast path; longer ones are read by the application, under back-pressure."""
_RARE = frozenset((b"transfer-encoding", b"expect", b"upgrade", CONTENT_ENCODING))
_NOTED = _RARE | {b"content-length"}
_UPGRADE = re.compile(rb"^upgrade(?=[ \t]*:)", re.IGNORECASE | re.MULTILINE)
_MOST_HEADS = 1024
_MOST_BYTES = 1024
"""Longest head that is remembered."""


class KnownHead(msgspec.Struct, frozen=True):
    """A request's head on the fast path. Nothing else in it matters to the answer."""

    head: Arrival
    """Without its body."""
    body_bytes: int
    keep_alive: bool


class KnownHeads:
    """The remembered heads, and which request takes the fast path at all."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.by_bytes: dict[bytes, KnownHead] = {}
        """Heads by their bytes, only of requests after which the parser is as it was before, and whose token is
        accepted. Bytes are compared only where all bits of their keyed hash agree, so that time tells nothing of a
        token."""
        access.when_changed(self.by_bytes.clear)

    def remember(self, data: bytes, known: KnownHead) -> None:
        # With a trace of its own a head does not come again, and would push out those that do.
        if len(data) <= _MOST_BYTES and known.keep_alive and known.head.parent is None:
            if len(self.by_bytes) >= _MOST_HEADS:
                self.by_bytes.clear()
            self.by_bytes[data] = known

    def recognize(self, reader: Reader) -> KnownHead | None:
        """The head that was just read; None: it does not take the fast path."""
        if reader.method != b"POST":
            return None
        path, _, query = reader.url.partition(b"?")
        noted = {name: value for name, value in reader.headers if name in _NOTED}
        # The parser has refused a length that is no number.
        body_bytes = int(noted.get(b"content-length", b"0"))
        if body_bytes > _MOST_BODY_BYTES or not _RARE.isdisjoint(noted):
            return None
        try:
            head = read_head(path.decode("latin-1"), reader.headers, query)
        except RequestError:
            return None
        if head is None or (self._access.needs_token and not self._access.accepts(reader.headers)):
            return None
        return KnownHead(head, body_bytes, reader.keeps_alive)


def without_upgrade(data: bytes, end: int) -> bytes:
    """The head, up to `end`, without an offer to speak another protocol, which a server may ignore (RFC 9110, 7.8).

    The parser would stop there and never read the body. Some clients offer HTTP/2 by themselves, as Java's does.
    """
    if end < HEAD_END_BYTES or _UPGRADE.search(data, 0, end) is None:
        return data
    return _UPGRADE.sub(b"ignored", data[:end]) + data[end:]


LAST_CHUNK = b"0\r\n\r\n"


def _encode_status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase.encode()
    except ValueError:
        phrase = b""
    return b"HTTP/1.1 %d %b\r\n" % (status, phrase)


_STATUS_LINES = {status: _encode_status_line(status) for status in range(100, 600)}


class ResponseStart:
    """The beginning of responses, shared by all connections of a server."""

    __slots__ = ("_date_line", "ok")

    def __init__(self, date: bytes) -> None:
        """`date`: as RFC 9110 has it (section 5.6.7)."""
        self.set_date(date)

    def set_date(self, date: bytes) -> None:
        self._date_line = b"date: %b\r\n" % date
        self.ok = _STATUS_LINES[200] + self._date_line
        """`encode(200)`, ready made."""

    def encode(self, status: int) -> bytes:
        return _STATUS_LINES[status] + self._date_line


def encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
