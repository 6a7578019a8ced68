"""Compressed bodies: what clients send by `Content-Encoding`, and answers of those who accept them.

Both in steps, with other clients in between, and neither ever holds more than a body may have: a few bytes that would
become gigabytes are refused once they are over the limit.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Iterator, Sequence

from gnnserve_worker.asking.question import ErrorCode, RequestError, cut
from gnnserve_worker.serving.requests import ContentCoding, EncodedAnswer

CONTENT_ENCODING = b"content-encoding"
WORTH_BYTES = 4096
"""Shortest body that is compressed. It takes 12 to 20 ns for each byte that it spares of JSON, which is sooner sent by
a network of 1 Gbit/s, and later by one of 400 Mbit/s; a shorter body has at most three packets."""
LEVEL = 1
"""Level of zlib. Level 6 takes 10 times the time of JSON's digits, for 5 % fewer bytes."""
_AT_ONCE_BYTES = 64 * 1024
"""Bytes that are compressed or decompressed in one go: at most a millisecond."""
_WORTH_RATIO = 0.85
"""Scores and embeddings as arrays stay above it, and take 50 times as long for each byte that is spared."""

GZIP = ContentCoding(b"gzip", 31)
DEFLATE = ContentCoding(b"deflate", 15)
CODINGS = {"gzip": GZIP, "x-gzip": GZIP, "deflate": DEFLATE}
"""By their names; the first is preferred."""


def sent_coding(headers: Sequence[tuple[bytes, bytes]]) -> ContentCoding | None:
    """The coding of a request's body; None: it is as it is. `headers`: names in lower case. Raises RequestError."""
    given = b",".join(value for name, value in headers if name == CONTENT_ENCODING)
    name = given.strip(b" \t").lower().decode("latin-1")
    if name in {"", "identity"}:
        return None
    coding = CODINGS.get(name)
    if coding is None:
        raise RequestError(
            ErrorCode.UNSUPPORTED_ENCODING,
            "Content-Encoding",
            f"{cut(name)!r} is not possible here",
            "send the body as it is, or by gzip or deflate alone",
        )
    return coding


async def decompress(body: bytes, coding: ContentCoding, most_bytes: int, remedy: str) -> bytes:
    """The body of a request. Raises RequestError. `remedy`: what to do about a body of more than `most_bytes`."""
    inflater = zlib.decompressobj(coding.wbits)
    pieces: list[bytes] = []
    size, view = 0, memoryview(body)
    for start in range(0, len(body), _AT_ONCE_BYTES):
        rest: bytes | memoryview = view[start : start + _AT_ONCE_BYTES]
        while rest and not inflater.eof:
            try:
                piece = inflater.decompress(rest, _AT_ONCE_BYTES)
            except zlib.error as error:
                raise _damaged(coding, str(error)) from None
            rest = inflater.unconsumed_tail
            size += len(piece)
            if size > most_bytes:
                raise RequestError(
                    ErrorCode.BODY_TOO_LARGE, "body", f"over the limit of {most_bytes:,} bytes, decompressed", remedy
                )
            pieces.append(piece)
            await asyncio.sleep(0)  # another client's turn
        if inflater.eof:
            if inflater.unused_data or start + _AT_ONCE_BYTES < len(body):
                raise _damaged(coding, "there is more behind its end")
            return b"".join(pieces)
    raise _damaged(coding, "it ends too early")


def _damaged(coding: ContentCoding, why: str) -> RequestError:
    name = coding.name.decode()
    return RequestError(ErrorCode.INVALID_ENCODING, "body", f"it is not {name}: {why}", f"send one {name} stream")


def compress(encoded: EncodedAnswer, coding: ContentCoding) -> EncodedAnswer:
    """The answer, compressed where that spares enough bytes."""
    body = encoded.body
    pieces: Iterable[bytes | memoryview] = (body,) if encoded.pieces is None else encoded.pieces
    if encoded.pieces is None:
        if len(body) < WORTH_BYTES:
            return encoded
        if len(body) <= _AT_ONCE_BYTES:
            packed = b"".join(_packed(pieces, coding))
            if len(packed) > _WORTH_RATIO * len(body):
                return encoded
            return EncodedAnswer(encoded.head + _head_of(coding), packed)
        if len(zlib.compress(body[:WORTH_BYTES], LEVEL)) > _WORTH_RATIO * WORTH_BYTES:
            return encoded
    return EncodedAnswer(encoded.head + _head_of(coding), b"", _packed(pieces, coding))


def _head_of(coding: ContentCoding) -> bytes:
    return b"content-encoding: %b\r\nvary: accept-encoding\r\n" % coding.name


def _packed(pieces: Iterable[bytes | memoryview], coding: ContentCoding) -> Iterator[bytes]:
    """None of them is empty: an empty chunk would end the answer."""
    deflater = zlib.compressobj(LEVEL, zlib.DEFLATED, coding.wbits)
    for piece in pieces:
        for start in range(0, len(piece), _AT_ONCE_BYTES):
            packed = deflater.compress(piece[start : start + _AT_ONCE_BYTES])
            if packed:
                yield packed
    yield deflater.flush()
