"""Asks a Prometheus for the load of a server, for `--prometheus`. Whatever goes wrong is a `Silence`.

The body is read in pieces, since it may be of any length. Each question has a connection of its own. Proxies of the
environment are not used and redirections not followed: the server that a user names is the one that is asked. httpx is
imported with the first question.
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from pydantic import ValidationError

from gnnserve_api.errors import InputError
from gnnserve_api.spec.routing import PrometheusSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_routing.signals import QueryAnswer, Silence, build_query, parse_answer
from gnnserve_worker.serving.process.served_service import Look

if TYPE_CHECKING:
    import httpx

_PATIENCE_S = 5.0
"""Seconds for the whole answer; the loop has all of its interval, and no request waits for it."""
_MOST_BYTES = 8 * 1024 * 1024
_PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class PrometheusSource:
    url: str
    query: str
    patience_s: float = _PATIENCE_S
    clock_s: Callable[[], float] = time.monotonic

    @staticmethod
    def of_service(url: str, service: str, interval_s: float) -> PrometheusSource:
        """Raises InputError where it cannot be the address of one."""
        try:
            PrometheusSpec.model_validate({"url": url})
            _ = urlsplit(url).port
        except (ValidationError, ValueError) as error:
            # A password is not repeated: errors end up in logs.
            shown = url.rpartition("@")[2]
            raise InputError(
                "--prometheus",
                f"{shown!r} is not the address of a Prometheus",
                "write http://host:port, without a user or password",
            ) from error
        return PrometheusSource(url.rstrip("/"), build_query(service, None, interval_s))

    def ask(self, _look: Look) -> QueryAnswer | Silence:
        import httpx  # noqa: PLC0415

        # For plain HTTP, where none is used, an empty context spares loading the machine's certificates.
        is_secure = self.url.startswith("https:")
        tls = ssl.create_default_context() if is_secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            with httpx.Client(verify=tls, trust_env=False, timeout=self.patience_s) as client:
                status, date, body = self._fetch(client)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            why = str(error) or type(error).__name__
            return Silence(Reason.UNREACHABLE, f"{self.url} does not answer ({why}). Is Prometheus up?")
        if len(body) > _MOST_BYTES:
            return Silence(Reason.INVALID, f"{self.url} answers with more than {_MOST_BYTES // 1024**2} MiB.")
        series = parse_answer(body)
        if isinstance(series, Silence):
            return series
        if status != 200 or math.isnan(date):
            return Silence(Reason.INVALID, f"{self.url} answers {status} without a usable Date. Is this Prometheus?")
        return QueryAnswer(series, date)

    def _fetch(self, client: httpx.Client) -> tuple[int, float, bytes]:
        """Status, the Date as unix time (NaN: none), and the body or the beginning of one that is too long."""
        give_up_at_s = self.clock_s() + self.patience_s
        query = f"{self.url}/api/v1/query?{urlencode({'query': self.query})}"
        with client.stream("GET", query, headers={"Accept-Encoding": "identity"}) as response:
            body = b""
            for piece in response.iter_bytes(_PIECE_BYTES):
                body += piece
                if len(body) > _MOST_BYTES:
                    break
                if self.clock_s() > give_up_at_s:
                    raise TimeoutError(f"no complete answer within {self.patience_s:g} s")
        return response.status_code, _unix_time(response.headers.get("date", "")), body


def _unix_time(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return math.nan
