"""Requests for a file to the server that has it: made again where a failure may pass, told in the file's own words
where it does not."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Self, TypeVar

import httpx

from gnnserve_worker.downloads.remote_file import RemoteFile

_PASSING = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
_POD_VARIABLE = "KUBERNETES_SERVICE_HOST"
"""Variable that the kubelet sets in every container."""
_POD_CONNECT_PAUSES_S = (1.0, 2.0, 5.0, 10.0)
_Any = TypeVar("_Any")


@dataclass(frozen=True, slots=True)
class DownloadPatience:
    connect_s: float = 15.0
    silence_s: float = 60.0
    """Longest silence of a server."""
    pauses_s: tuple[float, ...] = (1.0, 5.0, 15.0, 30.0)
    """Pause before each further attempt; starts over whenever more has arrived than ever before."""
    connect_pauses_s: tuple[float, ...] = ()
    """Pause before each further attempt to connect to a server that has never answered. Without any, a machine without
    a network is told at once."""

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> DownloadPatience:
        """The patience where this program runs. In a pod a mesh's sidecar may take connections later than it starts."""
        return cls(connect_pauses_s=_POD_CONNECT_PAUSES_S) if _POD_VARIABLE in environ else cls()


class PassingError(Exception):
    """A failure that another attempt may not meet."""


class _UnconnectedError(PassingError):
    """A server that has never answered took no connection."""


class Connection:
    """A client of the server that has a file."""

    def __init__(self, wanted: RemoteFile, patience: DownloadPatience) -> None:
        self._wanted = wanted
        self._patience = patience
        timeout = httpx.Timeout(patience.silence_s, connect=patience.connect_s)
        headers = {"Accept-Encoding": "identity", "User-Agent": "gnnserve", **wanted.headers}
        try:
            # A redirect to another host is followed without the header of authorization.
            self._client = httpx.Client(timeout=timeout, headers=headers, follow_redirects=True)
        # A malformed proxy address or one of a kind that needs a package, or a missing file of certificates.
        except (ValueError, ImportError, OSError, httpx.InvalidURL) as error:
            raise wanted.unreachable(
                "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY or SSL_CERT_FILE of the environment has a value that cannot be "
                f"used: {error}"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def persistently(self, attempt: Callable[[], _Any], arrived: Callable[[], int] = lambda: 0) -> _Any:
        """What `attempt` returns, which is called again, behind a pause, where it fails with PassingError. `arrived`:
        bytes that further attempts need not fetch."""
        most, pauses = arrived(), iter(self._patience.pauses_s)
        connect_pauses = iter(self._patience.connect_pauses_s)
        while True:
            try:
                return attempt()
            except PassingError as error:
                if (found := arrived()) > most:
                    most, pauses = found, iter(self._patience.pauses_s)
                left = connect_pauses if isinstance(error, _UnconnectedError) else pauses
                if (pause := next(left, None)) is None:
                    raise self._wanted.unreachable(str(error)) from error
                time.sleep(pause)

    @contextmanager
    def response(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        taken: Set[int] = frozenset({HTTPStatus.OK}),
        *,
        is_known: bool = False,
    ) -> Iterator[httpx.Response]:
        """The answer to one request, its content not read yet; `taken`: the statuses that it may have. `is_known`: the
        server has answered before. PassingError: another attempt may do better."""
        try:
            with self._client.stream("GET", url, headers=headers) as response:
                if response.status_code not in taken:
                    raise self.refusal(response)
                yield response
        except httpx.TooManyRedirects as error:
            raise self._wanted.unreachable("it redirects in a circle") from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._unconnected(error, is_known) from error
        except httpx.TimeoutException as error:
            raise PassingError(f"it said nothing for {self._patience.silence_s:g} s") from error
        except (httpx.NetworkError, httpx.RemoteProtocolError) as error:  # closed early, or garbled
            raise PassingError(f"the connection broke: {error}") from error
        except (httpx.InvalidURL, httpx.RequestError) as error:  # a proxy that refuses, a redirect to ftp://
            raise self._wanted.unreachable(str(error)) from error
        except UnicodeError as error:  # a label that is empty, or longer than DNS allows
            raise self._wanted.unreachable(f"no host can have such a name: {error}") from error

    def refusal(self, response: httpx.Response) -> Exception:
        """What an answer without content means."""
        status = response.status_code
        told = f"it answers {status} {response.reason_phrase}".rstrip()
        if status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return PassingError(told)
        return self._wanted.refusal(response) or self._wanted.unreachable(told)

    def _unconnected(self, error: httpx.ConnectError | httpx.ConnectTimeout, is_known: bool) -> Exception:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return self._wanted.unreachable(
                    f"its certificate is not trusted ({cause.verify_message}), where SSL_CERT_FILE may name another "
                    "list of authorities"
                )
            cause = cause.__cause__ or cause.__context__
        problem = f"cannot connect: {str(error) or 'no answer'}"
        if is_known:
            return PassingError(problem)
        # One that has timed out was waited for.
        is_waited_for = isinstance(error, httpx.ConnectTimeout)
        return self._wanted.unreachable(problem) if is_waited_for else _UnconnectedError(problem)
