"""One HTTP exchange with a server: the command line's client, for its commands and for `--prometheus`.

Each exchange has a connection of its own. Proxies of the environment are not used and redirections not followed: the
server that a user names is the one that is asked. httpx is imported with the first exchange, since most commands make
none. The load generator has its own connections; `loadgen/transport.py` says why.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

_NO_HEADERS: Mapping[str, str] = {}


class NoAnswerError(Exception):
    """No complete answer came; the text is the reason."""


class NotTrustedError(NoAnswerError):
    """The server's certificate is not trusted; the text is what is wrong with it."""


@cache
def prepare() -> None:
    """Import what the first exchange needs, which takes 0.1 s, so that a caller can time the exchange alone."""
    import httpx  # noqa: PLC0415

    httpx.Client(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), trust_env=False).close()


class Connected:
    """A server that several exchanges are made with, over one connection as long as it holds."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (names in lower case) and body. Raises NoAnswerError."""
        with _as_no_answer():
            answer = self._client.request(method, url, headers={"Accept-Encoding": "identity", **headers}, content=body)
        return answer.status_code, dict(answer.headers), answer.content


@contextmanager
def connected(timeout_s: float, tls: ssl.SSLContext | None) -> Iterator[Connected]:
    """`timeout_s` and `tls` as `exchange` takes them; `tls` is None for plain HTTP."""
    import httpx  # noqa: PLC0415

    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if tls is None else tls
    with httpx.Client(verify=verify, trust_env=False, timeout=timeout_s) as client:
        yield Connected(client)


@contextmanager
def exchange(
    method: str, url: str, *, timeout_s: float, headers: Mapping[str, str] = _NO_HEADERS, body: bytes | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[httpx.Response]:  # fmt: skip
    """The answer, whose body is still to be read. An OSError inside the block becomes a NoAnswerError too.

    `timeout_s` is for each step: connecting, and each wait for more bytes. `tls`: whom to trust; None: those whom the
    machine trusts.
    """
    import httpx  # noqa: PLC0415

    if tls is None:
        # For plain HTTP, where none is used, an empty context spares loading the machine's certificates.
        tls = ssl.create_default_context() if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    sent = {"Accept-Encoding": "identity", **headers}
    with (
        _as_no_answer(),
        httpx.Client(verify=tls, trust_env=False, timeout=timeout_s) as client,
        client.stream(method, url, headers=sent, content=body) as response,
    ):
        yield response


@contextmanager
def _as_no_answer() -> Iterator[None]:
    import httpx  # noqa: PLC0415

    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        if untrusted := _untrusted(error):
            raise NotTrustedError(untrusted.verify_message) from error
        raise NoAnswerError(str(error) or type(error).__name__) from error


def _untrusted(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error
