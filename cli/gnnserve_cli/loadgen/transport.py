"""One kept-alive HTTP/1.1 connection, as thin as Python allows: asyncio's protocol and httptools' parser.

httpx, which the other commands use, takes about 20 times the processor time of this for a request: a load test would
find its limit instead of the server's. Knows no schedule and no statistics. One exchange at a time; after any failure
the connection is done for.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import httptools

CONNECT_TIMEOUT_S = 5.0
_TOLD = frozenset((b"retry-after", b"server-timing"))


class TransportError(Exception):
    """No answer; the text is a short reason, the same for every such failure, so that it can be counted."""


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    status: int
    body: bytes
    sent_at_s: float
    answered_at_s: float
    """Both times are on `time.perf_counter`, taken at the socket: the event loop's own queue is not in between."""
    told: Mapping[bytes, bytes]
    """Headers of gnnserve's own, `retry-after` and `server-timing`, names in lower case."""
    written_at_s: float
    """When the operating system had the request, as far as it took all of it at once. Where sending is not timed, when
    the event loop had it."""
    first_at_s: float
    """When the first of the answer was read."""


class LoadConnection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiting: asyncio.Future[TimedAnswer] | None = None
        self._body = bytearray()
        self._told: dict[bytes, bytes] = {}
        self._sent_at_s = self._written_at_s = self._first_at_s = 0.0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, payload: bytes, timeout_s: float, *, is_timed: bool = False) -> TimedAnswer:
        """`is_timed`: send at once, so that it is known when all was sent; event loops may send at the end of their
        round."""
        if self._transport is None or not self.is_open:
            raise TransportError("connection lost")
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        self._body.clear()
        self._told = {}
        timer = loop.call_later(timeout_s, self._fail, f"no answer within {timeout_s:g} s")
        self._first_at_s = 0.0
        self._sent_at_s = time.perf_counter()
        if is_timed:
            payload = self._send_at_once(payload)
        if payload:
            self._transport.write(payload)
        self._written_at_s = time.perf_counter()
        try:
            return await self._waiting
        finally:
            timer.cancel()

    def _send_at_once(self, payload: bytes) -> bytes:
        """What the operating system did not take: all of it, where TLS is in between."""
        transport = self._transport
        assert transport is not None  # noqa: S101
        if transport.get_extra_info("sslcontext") is not None or transport.get_write_buffer_size():
            return payload
        try:
            return payload[os.write(transport.get_extra_info("socket").fileno(), payload) :]
        except OSError:  # it is full, or lost, which the event loop finds out
            return payload

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, reason: str) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(TransportError(reason))
        self.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._first_at_s = self._first_at_s or time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail("not HTTP")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("connection lost")
        self._transport = None

    # httptools.HttpResponseParser

    def on_header(self, name: bytes, value: bytes) -> None:
        if (name := name.lower()).startswith(b"gnnserve-") or name in _TOLD:
            self._told[name] = value

    def on_body(self, part: bytes) -> None:
        self._body += part

    def on_message_complete(self) -> None:
        answered_at_s = time.perf_counter()
        if not self._parser.should_keep_alive():
            self.close()
        if self._waiting is not None and not self._waiting.done():
            status = self._parser.get_status_code()
            self._waiting.set_result(
                TimedAnswer(
                    status, bytes(self._body), self._sent_at_s, answered_at_s, self._told,
                    min(self._written_at_s, self._first_at_s), self._first_at_s,
                )
            )  # fmt: skip


async def connect(host: str, port: int, tls: ssl.SSLContext | None = None) -> LoadConnection:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(LoadConnection, host, port, ssl=tls)
    except ConnectionRefusedError:
        raise TransportError("connection refused") from None
    except ssl.SSLCertVerificationError as error:
        raise TransportError(f"certificate not trusted: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise TransportError(f"no TLS: {error.reason}") from None
    except TimeoutError:
        raise TransportError("no connection in time") from None
    except OSError as error:
        raise TransportError(f"no connection: {error.strerror or error}") from None
    return connection
