"""One HTTP exchange with the API server, without interpreting it.

It is separate from `cluster.py`, so that tests can replace it by an API server in memory while everything above stays
real. It is aiohttp alone, which kopf brings: the package `kubernetes` would add two clients, of which these requests,
to a fixed list of kinds, need nothing.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Protocol

import aiohttp
import kopf

from gnnserve_api.errors import ResourceError
from gnnserve_operator.kinds import Manifest
from gnnserve_operator.login import ClusterLogin, load_access

REQUEST_LIMIT_S = 15
"""Seconds to wait for an answer."""
CONNECTIONS = 16
"""Most connections at once; the client's default is 100, but asyncio keeps 256 KiB of buffers for each TLS
connection."""
_TIMEOUT = aiohttp.ClientTimeout(total=REQUEST_LIMIT_S, sock_connect=5)
_UNAUTHORIZED = 401


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    code: int
    headers: Mapping[str, str]
    body: bytes


class Transport(Protocol):
    async def send(self, method: str, url: str, headers: Mapping[str, str], body: Manifest | None) -> ApiAnswer:
        """`url` is a path with its query. Raises OSError, TimeoutError or aiohttp.ClientError where there is no answer;
        whether the request was carried out is not known then."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Way:
    """An access, with connections that were opened by it."""

    connection: kopf.ConnectionInfo
    session: aiohttp.ClientSession
    ends_s: float
    """Time at which it is to be loaded again."""


class HttpTransport:
    """Transport over aiohttp. Requests beyond `connections` wait. Credentials are loaded again when they end, and once
    when the API server refuses them."""

    def __init__(
        self, access: ClusterLogin, connections: int = CONNECTIONS, load: Callable[[],
        Awaitable[ClusterLogin]] = load_access,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """To be made within an event loop."""
        self._connections, self._load, self._now = connections, load, now
        self._opened = AsyncExitStack()
        self._loading = asyncio.Lock()
        self._way = _Way(access.connection, self._session_of(access.connection), now() + access.lasts_s)

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: Manifest | None) -> ApiAnswer:
        way = self._way
        if self._now() >= way.ends_s:
            way = await self._loaded_after(way)
        answer = await _exchange(way, method, url, headers, body)
        if answer.code != _UNAUTHORIZED:
            return answer
        renewed = await self._loaded_after(way)
        # A refused request was not carried out.
        is_another = renewed.connection != way.connection
        return await _exchange(renewed, method, url, headers, body) if is_another else answer

    async def close(self) -> None:
        await self._opened.aclose()

    async def _loaded_after(self, used: _Way) -> _Way:
        """The way by credentials that were loaded after those of `used`."""
        async with self._loading:
            if self._way is used:
                try:
                    access = await self._load()
                except ResourceError as error:
                    raise ConnectionError(str(error)) from error
                session = used.session
                if _without_token(access.connection) != _without_token(used.connection):
                    # Requests may be under way in the other one, which is closed at the end.
                    session = self._session_of(access.connection)
                self._way = _Way(access.connection, session, self._now() + access.lasts_s)
            return self._way

    def _session_of(self, connection: kopf.ConnectionInfo) -> aiohttp.ClientSession:
        is_encrypted = connection.server.startswith("https:")
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._connections, ssl=connection.as_ssl_context() if is_encrypted else True
            ),
            timeout=_TIMEOUT,
            headers={"User-Agent": "gnnserve-operator"},
            proxy=connection.proxy_url,
            trust_env=connection.trust_env,
        )
        self._opened.push_async_callback(session.close)
        return session


async def _exchange(way: _Way, method: str, url: str, headers: Mapping[str, str], body: Manifest | None) -> ApiAnswer:
    async with way.session.request(
        method,
        way.connection.server + url,
        headers={**headers, **way.connection.as_http_headers()},
        data=None if body is None else json.dumps(body).encode(),
    ) as response:
        return ApiAnswer(response.status, response.headers, await response.read())


def _without_token(connection: kopf.ConnectionInfo) -> kopf.ConnectionInfo:
    return replace(connection, token=None, expiration=None)
