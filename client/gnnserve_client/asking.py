"""Which failures are worth another attempt, when it is made, and when there is no time left for one.

A request is sent again when that can help and cannot count twice. A pause is at least what the server's `Retry-After`
says, grows from attempt to attempt, and is a little random, so that clients that were refused together come back apart.
No pause is begun that would end after the deadline.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from gnnserve_api import decoding
from gnnserve_api.errors import GnnserveError, InputError
from gnnserve_api.http.tokens import read_client_token
from gnnserve_client.address import Endpoint
from gnnserve_client.errors import (
    FOREIGN,
    OTHER_VERSION,
    AccessError,
    NoAnswerError,
    NotGnnserveError,
    NotTrustedError,
    OverloadedError,
    RefusedError,
    TimedOutError,
    UnavailableError,
    parse_refusal,
)
from gnnserve_client.exchange import Call, Send, ServerReply, Steps

T = TypeVar("T")
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
"""Longest pause that is not the server's wish."""
_SPREAD = 0.25
"""Largest random part of a pause, as a fraction of it."""
_NOTHING_HAPPENED = frozenset({"Loading", "Draining", "OffsetNotReached", "NoIndex", "NoRoom", "TooManyConnections"})
"""Codes of 503 that say that the request had no effect."""
_NOT_BY_WAITING = frozenset({"LogFull"})
"""Codes of 503 that end only when a person does something."""


def _chance() -> float:
    """A random number from 0 to below 1; importing `random` would take longer than all that it is for."""
    return os.urandom(1)[0] / 256


@dataclass(slots=True)
class TokenSource:
    """The token that is shown, from a file or as it is."""

    token: str | None = field(default=None, repr=False)
    file: Path | None = None

    def renew(self, refused: str | None) -> bool:
        """Read the file again. Whether there is another token now than the refused one, as after a rotation."""
        if self.file is not None and self.token == refused:  # another thread may have renewed it
            with suppress(InputError):  # the file is being replaced
                self.token = read_client_token(self.file)
        return self.token != refused


@dataclass(slots=True)
class ClientState:
    """State that all operations of one client share."""

    endpoint: Endpoint
    tokens: TokenSource
    write_tokens: TokenSource
    """The token that may write; the same source where there is one token for all."""
    timeout_s: float
    """Time for an operation, attempts and pauses together, unless the operation says otherwise."""
    is_retrying: bool = True
    has_answered: bool = False
    """Whether the server ever has: one that has not is more likely the wrong one than one that restarts."""
    refused_as_arrays: set[str] = field(default_factory=set)
    """Codes by which the server has refused requests in the binary form."""
    now_s: Callable[[], float] = field(default_factory=lambda: time.monotonic)
    chance: Callable[[], float] = _chance

    def answered(
        self, call: Call, timeout_s: float | None = None, pauses_until_s: float | None = None
    ) -> Steps[ServerReply]:
        """The reply with status 200. Raises RefusedError or NoAnswerError, the last one that came.

        `pauses_until_s`: no pause ends after it, by `now_s`; None: the deadline alone counts.
        """
        end_s = self.now_s() + (self.timeout_s if timeout_s is None else timeout_s)
        latest_s = end_s if pauses_until_s is None else min(end_s, pauses_until_s)
        tokens = self.write_tokens if call.is_writing else self.tokens
        attempts, pause_s = 0, 0.0
        while True:
            attempts += 1
            failure: GnnserveError
            token = tokens.token
            try:
                reply = yield Send(call, token, max(end_s - self.now_s() - pause_s, 0.001), pause_s)
            except NoAnswerError as error:
                failure = error
            else:
                self.has_answered = True
                if reply.status == 200:
                    return reply
                failure = parse_refusal(self.endpoint.url, reply.status, reply.headers, reply.body)
            if isinstance(failure, AccessError) and failure.status == 401 and tokens.renew(token):
                pause_s = 0.0
                continue
            if not self.is_retrying or not is_worth_another(failure, call, self.has_answered):
                raise failure
            pause_s = self._pause_s(failure, attempts)
            if self.now_s() + pause_s > latest_s:
                raise failure

    def _pause_s(self, failure: GnnserveError, attempts: int) -> float:
        if isinstance(failure, NoAnswerError) and attempts == 1:
            return 0.0  # a kept connection that the server has closed meanwhile
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(attempts - 1, 10), _LONGEST_PAUSE_S)
        if isinstance(failure, RefusedError) and failure.retry_after_s is not None:
            pause_s = max(pause_s, failure.retry_after_s)
        return pause_s * (1.0 + _SPREAD * self.chance())

    def decode(self, body: bytes, kind: type[T]) -> T:
        return decode(self.endpoint.url, body, kind)


def is_worth_another(failure: GnnserveError, call: Call, has_answered: bool) -> bool:
    """Whether another attempt can help, and the call counts once all the same."""
    match failure:
        case NotTrustedError() | NotGnnserveError() | TimedOutError():
            return False
        case NoAnswerError():
            return has_answered and (call.is_repeatable or not failure.was_sent)
        case OverloadedError():
            return True
        case UnavailableError():
            return failure.code in _NOTHING_HAPPENED or (call.is_repeatable and failure.code not in _NOT_BY_WAITING)
    return False


def decode(url: str, body: bytes, kind: type[T]) -> T:
    """The answer in JSON as what it has to be. Raises NotGnnserveError."""
    try:
        return decoding.decode(body, kind)
    except msgspec.ValidationError as error:
        raise NotGnnserveError(url, str(error), OTHER_VERSION if _has_revision(body) else FOREIGN) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotGnnserveError(url, str(error)) from error


def _has_revision(body: bytes) -> bool:
    """Whether it is the answer of some gnnserve, if not of this one."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # what did not fit came before what is no JSON
    return isinstance(answer, dict) and isinstance(answer.get("profile"), dict) and "revision" in answer
