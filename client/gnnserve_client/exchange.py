"""One exchange with a server over HTTP, by httpx; here for threads, in `async_exchange.py` for event loops.

Connections are kept and reused. Proxies of the environment are not used and redirections not followed: the server that
a user names is the one that is asked. httpx is imported with the first connection, which takes 0.1 s.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from gnnserve_client.address import Endpoint
from gnnserve_client.errors import NoAnswerError, NotTrustedError, TimedOutError

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
_MOST_CONNECTIONS = 100
_CONNECTING_S = 5.0
"""Longest time for a connection: a server that is there takes it within milliseconds."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request, without what depends on the moment it is sent."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    is_repeatable: bool = True
    """Whether it counts once when it arrives twice."""
    is_writing: bool = False
    """Whether it takes a token that may write, which may do nothing else."""


@dataclass(frozen=True, slots=True)
class Send:
    """A step of an operation: pause, then send."""

    call: Call
    token: str | None = field(repr=False)
    timeout_s: float
    """Time for the exchange, behind the pause."""
    after_s: float = 0.0
    """The pause."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    elapsed_ms: float
    """Connecting included, where the exchange had to."""


Steps = Generator[Send, Reply, T]
"""An operation: it yields what to send, and is sent the reply or thrown a NoAnswerError. Written once, it is run by a
thread or by an event loop."""


class Connection:
    """Exchanges with one server; threads may share it."""

    def __init__(self, endpoint: Endpoint, transport: httpx.BaseTransport | None = None) -> None:
        import httpx  # noqa: PLC0415

        self._url = endpoint.url
        self._http = httpx.Client(transport=transport, **settings_of(endpoint))

    def run(self, steps: Steps[T]) -> T:
        try:
            send = next(steps)
            while True:
                if send.after_s > 0:
                    time.sleep(send.after_s)
                try:
                    reply = self.exchange(send)
                except NoAnswerError as error:
                    send = steps.throw(error)
                else:
                    send = steps.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result

    def exchange(self, send: Send) -> Reply:
        import httpx  # noqa: PLC0415

        started_s = time.perf_counter()
        try:
            with self._http.stream(**request_of(self._url, send)) as response:
                pieces = []
                for piece in response.iter_bytes():
                    pieces.append(piece)
                    if time.perf_counter() - started_s > send.timeout_s:
                        raise too_slow(self._url, send)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise no_answer(self._url, send, error) from error
        return reply_of(response, b"".join(pieces), started_s)

    def close(self) -> None:
        self._http.close()


def settings_of(endpoint: Endpoint) -> dict[str, Any]:
    import httpx  # noqa: PLC0415

    # For plain HTTP, where none is used, an empty context spares loading the machine's certificates.
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if endpoint.tls is None else endpoint.tls
    limits = httpx.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=_MOST_CONNECTIONS)
    return {"verify": verify, "trust_env": False, "limits": limits}


def request_of(url: str, send: Send) -> dict[str, Any]:
    import httpx  # noqa: PLC0415

    headers = {"Accept-Encoding": "identity", **send.call.headers}
    if send.token is not None:
        headers["Authorization"] = f"Bearer {send.token}"
    return {
        "method": send.call.method,
        "url": url + send.call.path,
        "headers": headers,
        "content": send.call.body,
        "timeout": httpx.Timeout(send.timeout_s, connect=min(send.timeout_s, _CONNECTING_S)),
    }


def reply_of(response: httpx.Response, body: bytes, started_s: float) -> Reply:
    return Reply(response.status_code, dict(response.headers), body, (time.perf_counter() - started_s) * 1000)


def too_slow(url: str, send: Send) -> TimedOutError:
    return TimedOutError(f"{url}: no complete answer within {send.timeout_s:.3g} s; allow more time, or ask for less")


def no_answer(url: str, send: Send, error: Exception) -> NoAnswerError:
    import httpx  # noqa: PLC0415

    if isinstance(error, NoAnswerError):
        return error
    if untrusted := _untrusted(error):
        return NotTrustedError(url, untrusted.verify_message)
    if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
        return too_slow(url, send)
    was_sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    return NoAnswerError(
        f"{url}: no answer: {error or type(error).__name__}; is the server up? `gnnserve run MANIFEST` starts one",
        was_sent=was_sent,
    )


def _untrusted(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error
