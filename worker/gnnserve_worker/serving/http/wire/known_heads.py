"""Heads of predictions that were parsed before: clients repeat themselves, byte for byte."""

from __future__ import annotations

import re

import msgspec

from gnnserve_worker.asking.question import RequestError
from gnnserve_worker.serving.http.content_coding import CONTENT_ENCODING
from gnnserve_worker.serving.http.head import Head, read_head
from gnnserve_worker.serving.http.wire.reading import Reader
from gnnserve_worker.serving.security.access import Access

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

    head: Head
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
        if head is None or not self._access.accepts(reader.headers):
            return None
        return KnownHead(head, body_bytes, reader.keeps_alive)


def without_upgrade(data: bytes, end: int) -> bytes:
    """The head, up to `end`, without an offer to speak another protocol, which a server may ignore (RFC 9110, 7.8).

    The parser would stop there and never read the body. Some clients offer HTTP/2 by themselves, as Java's does.
    """
    if end < HEAD_END_BYTES or _UPGRADE.search(data, 0, end) is None:
        return data
    return _UPGRADE.sub(b"ignored", data[:end]) + data[end:]
