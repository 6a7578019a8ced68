"""Common part of exchanges by httpx, and exchanges of threads, over a transport that a user brings."""

from __future__ import annotations

import ssl
import time
from typing import Any

import httpx

from gnnserve_client.address import Endpoint
from gnnserve_client.errors import NoAnswerError
from gnnserve_client.exchange import LONGEST_CONNECTING_S, Connection, Send, ServerReply, no_answer, too_slow

_MOST_CONNECTIONS = 100
FAILURES = (httpx.HTTPError, httpx.InvalidURL, OSError)
"""Errors by which httpx says that no answer came."""


class HttpxConnection(Connection):
    def __init__(self, endpoint: Endpoint, transport: httpx.BaseTransport) -> None:
        self._url = endpoint.url
        self._http = httpx.Client(transport=transport, **settings_of(endpoint))

    def exchange(self, send: Send) -> ServerReply:
        started_s = time.perf_counter()
        try:
            with self._http.stream(**request_of(self._url, send)) as response:
                pieces = []
                for piece in response.iter_bytes():
                    pieces.append(piece)
                    if time.perf_counter() - started_s > send.timeout_s:
                        raise too_slow(self._url, send)
        except FAILURES as error:
            raise failure_of(self._url, send, error) from error
        return reply_of(response, b"".join(pieces), started_s)

    def close(self) -> None:
        self._http.close()


def settings_of(endpoint: Endpoint) -> dict[str, Any]:
    # For plain HTTP, where none is used, an empty context spares loading the machine's certificates.
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if endpoint.tls is None else endpoint.tls
    limits = httpx.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=_MOST_CONNECTIONS)
    return {"verify": verify, "trust_env": False, "limits": limits}


def request_of(url: str, send: Send) -> dict[str, Any]:
    return {
        "method": send.call.method,
        "url": url + send.call.path,
        "headers": send.headers,
        "content": send.call.body,
        "timeout": httpx.Timeout(send.timeout_s, connect=min(send.timeout_s, LONGEST_CONNECTING_S)),
    }


def reply_of(response: httpx.Response, body: bytes, started_s: float) -> ServerReply:
    return ServerReply(response.status_code, dict(response.headers), body, (time.perf_counter() - started_s) * 1000)


def failure_of(url: str, send: Send, error: Exception) -> NoAnswerError:
    if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
        return too_slow(url, send)
    was_sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    return no_answer(url, error, was_sent=was_sent)
