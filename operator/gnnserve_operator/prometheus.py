"""Asking a Prometheus: one instant query, bounded in time and size, without exceptions.

An answer that cannot be used is an observation like any other; it says why, so that a user can correct the address.
`slow_loop.py` decides for which services to ask, and when.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from gnnserve_api import decoding
from gnnserve_api.status.reasons import Reason
from gnnserve_api.wording import sentence
from gnnserve_operator.metrics import Metrics, PrometheusResult
from gnnserve_routing.signals import QueryAnswer, Silence, parse_answer

_AT_ONCE = 4
"""Concurrent questions to one Prometheus; a slow Prometheus does not delay another one."""
_LARGEST_ANSWER_BYTES = 16 * 1024 * 1024
"""Size of the answer for 300 workers with ten variants each that are scraped every 15 s."""
_LONGEST_WORDS = 300


@dataclass(slots=True)
class Prometheus:
    """Asks Prometheus over one HTTP session; to be used with `async with`."""

    metrics: Metrics
    timeout_s: float = 5.0
    largest_answer_bytes: int = _LARGEST_ANSWER_BYTES
    _session: aiohttp.ClientSession | None = None
    _slots: defaultdict[str, asyncio.Semaphore] = field(
        default_factory=lambda: defaultdict(lambda: asyncio.Semaphore(_AT_ONCE))
    )

    async def __aenter__(self) -> Self:
        # Connections are closed after each answer: hundreds of answers a minute do not justify keeping them until the
        # server closes them.
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=self.timeout_s), trust_env=False
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, url: str, query: str) -> QueryAnswer | Silence:
        """Ask a query. `url`: such as http://prometheus:9090, with or without a path."""
        async with self._slots[url]:
            result, said = await self._ask(url, query)
        self.metrics.prometheus_requests.labels(result.value).inc()
        return said

    async def _ask(self, url: str, query: str) -> tuple[PrometheusResult, QueryAnswer | Silence]:
        try:
            code, date, body = await self._get(f"{url.rstrip('/')}/api/v1/query", query)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            words = f"{url} {self._words_of(error)}."
            return PrometheusResult.UNREACHABLE, Silence(Reason.UNREACHABLE, words)
        if code != 200:
            return PrometheusResult.REFUSED, Silence(Reason.UNREACHABLE, f"{url} answers {code}{_own_words(body)}.")
        # Parsed in a thread: 16 MiB take most of a second.
        said = await asyncio.to_thread(self._read, date, body)
        if isinstance(said, Silence):
            return PrometheusResult.INVALID, Silence(said.reason, f"{url}: {said.message}")
        return PrometheusResult.SUCCESS, said

    def _read(self, date: float | None, body: bytes | None) -> QueryAnswer | Silence:
        if body is None:
            megabytes = self.largest_answer_bytes / 1024 / 1024
            return Silence(Reason.INVALID, f"The answer is larger than {megabytes:g} MiB, which is as much as is read.")
        series = parse_answer(body)
        if isinstance(series, Silence):
            return series
        if date is None:
            return Silence(Reason.INVALID, "The answer has no Date, so the age of its samples is not known.")
        return QueryAnswer(series, date)

    def _words_of(self, error: Exception) -> str:
        match error:
            case TimeoutError():
                return f"does not answer within {self.timeout_s:g} s"
            case aiohttp.ClientConnectorDNSError():
                return "has a host name that is not known"
            case aiohttp.ClientSSLError() | aiohttp.ClientConnectorCertificateError():
                return f"is not trusted: {_first_line(error)}"
            case aiohttp.ClientConnectorError():
                return f"takes no connection: {_first_line(error.os_error)}"
            case aiohttp.ServerDisconnectedError():
                return "hangs up without an answer"
            case _:
                return f"cannot be asked: {_first_line(error)}"

    async def _get(self, url: str, query: str) -> tuple[int, float | None, bytes | None]:
        """Returns status, unix time of the answer, and its body; None for a body that is too large."""
        if self._session is None:
            raise RuntimeError("use `async with Prometheus(…)`")
        limit = self.largest_answer_bytes
        async with self._session.get(url, params={"query": query}, allow_redirects=False) as response:
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                if len(body) > limit:
                    return response.status, None, None
            return response.status, _unix_time(response.headers.get("Date")), bytes(body)


class _Error(msgspec.Struct):
    error: str = ""


def _own_words(body: bytes | None) -> str:
    """Prometheus' own error message, if there is one; a proxy's error page adds nothing to the status."""
    try:
        said = sentence(decoding.decode(body or b"", _Error).error)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = ""
    return f": {said[:_LONGEST_WORDS]}" if said else ""


def _first_line(error: BaseException) -> str:
    return sentence((str(error) or type(error).__name__).splitlines()[0])[:_LONGEST_WORDS]


def _unix_time(date: str | None) -> float | None:
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
