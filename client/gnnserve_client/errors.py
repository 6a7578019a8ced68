"""Errors between a client and a server.

GnnserveError (gnnserve_api.errors)
├── InputError            an argument cannot be sent: correct it
├── RefusedError          the server answered with an error
│   ├── BadRequestError     the request has to change (most of 4xx)
│   ├── AccessError         a token is missing or not accepted, or may not write (401, 403)
│   ├── ObjectiveError      it is strict, and no variant can ever meet it (422)
│   ├── OverloadedError     send it again later, or slower (429)
│   ├── UnavailableError    the server, or a proxy before it, cannot answer now (502, 503, 504)
│   └── ServerFailedError   an error of the server (other 5xx)
└── ResourceError
    └── NoAnswerError     no complete answer came
        ├── TimedOutError     not within the time that was allowed
        ├── NotTrustedError   the certificate of the server is not trusted
        └── NotGnnserveError  what came is not gnnserve's
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gnnserve_api import decoding
from gnnserve_api.errors import GnnserveError, ResourceError
from gnnserve_api.http.protocol import ErrorAnswer, ErrorDetail

FOREIGN = "does another program listen on that port?"
OTHER_VERSION = "is the server an older or a newer gnnserve than this program?"
_SHOWN_BYTES = 200


class RefusedError(GnnserveError):
    """The server answered with an error; code, message and field are the server's own words."""

    def __init__(self, status: int, code: str, field: str | None, message: str, retry_after: str | None = None) -> None:
        self.status = status
        self.code = code
        """For programs; docs/http.md lists them."""
        self.field = field
        """The first field of the request that is wrong, where one is."""
        self.message = message
        """For people: field, value, what was expected, what to do."""
        self.remedy = message.partition("; ")[2]
        """What to do: the part of the message behind its first semicolon, or nothing."""
        self.retry_after_s = _seconds(retry_after)
        """Seconds after which the server wants to be asked again; None: it does not say."""
        advice = f"; retry after {retry_after} s" if retry_after else ""
        about = f" ({field})" if field and field not in message else ""
        super().__init__(f"the server answered {status} {code}{about}: {message}{advice}")


class BadRequestError(RefusedError):
    pass


class AccessError(RefusedError):
    pass


class ObjectiveError(RefusedError):
    pass


class OverloadedError(RefusedError):
    pass


class UnavailableError(RefusedError):
    pass


class ServerFailedError(RefusedError):
    pass


class NoAnswerError(ResourceError):
    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent
        """Whether some of the request may have reached the server."""


class TimedOutError(NoAnswerError):
    pass


class NotTrustedError(NoAnswerError):
    def __init__(self, url: str, problem: str) -> None:
        super().__init__(
            f"{url}: its certificate is not trusted: {problem}; trust that of its issuer (`ca_file`), or ask by a name "
            "that it is for",
            was_sent=False,
        )
        self.url = url
        self.problem = problem


class NotGnnserveError(NoAnswerError):
    def __init__(self, url: str, problem: str, likely: str = FOREIGN) -> None:
        super().__init__(f"{url}: the answer is not gnnserve's: {printable_line(problem)}; {likely}")


_BY_STATUS: Mapping[int, type[RefusedError]] = {
    401: AccessError,
    403: AccessError,
    422: ObjectiveError,
    429: OverloadedError,
    502: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
}


def refused(status: int, code: str, field: str | None, message: str, retry_after: str | None = None) -> RefusedError:
    """The refusal of the status's own type."""
    kind = _BY_STATUS.get(status, BadRequestError if status < 500 else ServerFailedError)
    return kind(status, code, field, message, retry_after)


def parse_refusal(url: str, status: int, headers: Mapping[str, str], body: bytes) -> GnnserveError:
    """The error that an answer other than 200 is. `headers`: names in lower case."""
    try:
        detail = decoding.decode(body, ErrorAnswer).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        words = " ".join(body[:_SHOWN_BYTES].decode(errors="replace").split())
        said = printable_line(words) or "without an explanation"
        if status < 500 and status != 429:
            return NotGnnserveError(url, f"{status} {said}")
        # A proxy's own: it says nothing of what is behind it.
        detail = ErrorDetail("error", said)
    texts = (detail.code, detail.field, detail.message, headers.get("retry-after"))
    code, about, message, retry_after = (None if text is None else printable_line(text) for text in texts)
    return refused(status, code or "error", about, message or "", retry_after)


def printable_line(text: str) -> str:
    """The text with `?` for what a terminal would obey, such as line feeds and escapes."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _seconds(retry_after: str | None) -> float | None:
    """Whole seconds, as gnnserve writes them; dates, which a proxy may write, are left alone."""
    return float(retry_after) if retry_after is not None and retry_after.isascii() and retry_after.isdigit() else None
