"""The parser of one connection (httptools), and how long what it reads may grow.

The parser calls `on_…`; a `Reader` collects the head, checks it and passes on whole events. Neither knows what a
request is answered with.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

import httptools

from gnnserve_worker.asking.question import RequestError
from gnnserve_worker.serving.http.wire.heads import MOST_HEAD_BYTES, MOST_HEADERS, check_head, large_head

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


class Sink(Protocol):
    """What the reader tells of requests, in order."""

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

    def __init__(self, sink: Sink) -> None:
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
