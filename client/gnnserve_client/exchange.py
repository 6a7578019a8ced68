"""One exchange with a server: what is sent, what comes back, and operations as sequences of exchanges.

Who connects is another matter: `direct.py` for threads, `async_exchange.py` for event loops, `httpx_exchange.py` for
transports that a user brings.
"""

from __future__ import annotations

import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from gnnserve_client.errors import NoAnswerError, NotTrustedError, TimedOutError, printable_line
from gnnserve_client.timing import ClientTimes

T = TypeVar("T")
LONGEST_CONNECTING_S = 5.0
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

    @property
    def headers(self) -> dict[str, str]:
        shown = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        return {"Accept-Encoding": "identity", **self.call.headers, **shown}


@dataclass(frozen=True, slots=True)
class ServerReply:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    elapsed_ms: float
    """Connecting included, where the exchange had to."""
    times: ClientTimes | None = None
    """What of it took how long; None: what connects does not know."""


Steps = Generator[Send, ServerReply, T]
"""An operation: it yields what to send, and is sent the reply or thrown a NoAnswerError. Written once, it is run by a
thread or by an event loop."""


class Connection(ABC):
    """Exchanges with one server; threads may share it."""

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

    @abstractmethod
    def exchange(self, send: Send) -> ServerReply:
        """Raises NoAnswerError."""

    @abstractmethod
    def close(self) -> None: ...


def too_slow(url: str, send: Send) -> TimedOutError:
    return TimedOutError(f"{url}: no complete answer within {send.timeout_s:.3g} s; allow more time, or ask for less")


def no_answer(url: str, error: BaseException, *, was_sent: bool) -> NoAnswerError:
    if untrusted := _untrusted(error):
        return NotTrustedError(url, untrusted.verify_message)
    why = printable_line(str(error)) or type(error).__name__
    return NoAnswerError(f"{url}: no answer: {why}; {_remedy(url, why)}", was_sent=was_sent)


def _remedy(url: str, why: str) -> str:
    """What to do where no answer came. A server that speaks the other one of HTTP and HTTPS begins none."""
    scheme, _, rest = url.partition("://")
    if scheme == "https" and "WRONG_VERSION_NUMBER" in why:
        return f"if it speaks plain HTTP, ask http://{rest}"
    up = "is the server up? `gnnserve run MANIFEST` starts one"
    ended_at_once = any(words in why for words in ("without response", "without sending a response"))
    return f"{up}; one with TLS is asked by https://{rest}" if scheme == "http" and ended_at_once else up


def _untrusted(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error
