"""One exchange over HTTP with another server than gnnserve's: a Prometheus, for `--prometheus`.

The body is read in pieces, since it may be of any length. Each exchange has a connection of its own. Proxies of the
environment are not used and redirections not followed: the server that a user names is the one that is asked. httpx is
imported with the first exchange. Servers of gnnserve are asked by `gnnserve_client`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

_NO_HEADERS: Mapping[str, str] = {}


class IncompleteAnswerError(Exception):
    """No complete answer came; the text is the reason."""


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
        raise IncompleteAnswerError(str(error) or type(error).__name__) from error
