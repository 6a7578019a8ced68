"""Checks of every request's head: its size, HTTP version, body framing and host.

The parser refuses bytes that are not HTTP. Heads that it accepts although RFC 9112 requires a refusal are refused here:
a proxy in front of the worker may read them differently, and pass on two requests where the worker sees one (request
smuggling).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gnnserve_worker.asking.question import ErrorCode, RequestError, cut

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
