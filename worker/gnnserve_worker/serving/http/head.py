"""The head of a request for predictions: its codec, what it asks for, and whose trace it belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gnnserve_worker.asking.wishes import NO_WISHES, WISH_HEADERS, Wishes, check_stated_once, wishes_of_head
from gnnserve_worker.serving.http.codecs.codec import Codec
from gnnserve_worker.serving.http.codecs.registry import CODEC_HEADERS, find_codec
from gnnserve_worker.serving.http.content_coding import ACCEPT_ENCODING, Coding, wanted_coding
from gnnserve_worker.serving.tracing.traces import PARENT_HEADER

READ_HEADERS = WISH_HEADERS | CODEC_HEADERS | {ACCEPT_ENCODING, PARENT_HEADER}
"""The headers that `read_head` looks at."""


class Head(msgspec.Struct, frozen=True):
    """The parsed head of a request."""

    codec: Codec
    query: bytes
    wishes: Wishes
    coding: Coding | None = None
    """How the answer is to be compressed; None: not at all."""
    path: str = ""
    """Path of its URL, or method of gRPC."""
    parent: bytes | None = None
    """Its `traceparent`, unread; None: it has none."""


def read_head(path: str, headers: Sequence[tuple[bytes, bytes]], query: bytes) -> Head | None:
    """`headers`: all of them, names in lower case. None: no predictions at this path."""
    read = {name: value for name, value in headers if name in READ_HEADERS}
    codec = find_codec(path, read)
    if codec is None:
        return None
    if query:
        codec.check_query(query)
    accepted = read.get(ACCEPT_ENCODING)
    coding = None if accepted is None else wanted_coding(accepted)
    wishes = NO_WISHES
    if not WISH_HEADERS.isdisjoint(read):
        check_stated_once(headers)
        wishes = wishes_of_head(read)
    return Head(codec, query, wishes, coding, path, read.get(PARENT_HEADER))
