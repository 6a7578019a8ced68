"""One HTTP exchange with the API server, without interpreting it.

It is separate from `cluster.py`, so that tests can replace it by an API server in memory while everything above stays
real.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from gnnserve_operator.kinds import Manifest

REQUEST_LIMIT_S = 15
"""Seconds to wait for an answer."""
CONNECTIONS = 16
"""Most connections at once; the client's default is 100, but asyncio keeps 256 KiB of buffers for each TLS
connection."""
_TIMEOUT = aiohttp.ClientTimeout(total=REQUEST_LIMIT_S, sock_connect=5)


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


class HttpTransport:
    """Transport over kubernetes.aio's client, which handles kubeconfigs and rotated tokens. Requests beyond
    `connections` wait."""

    def __init__(self, connection: Configuration, connections: int = CONNECTIONS) -> None:
        connection.connection_pool_maxsize = connections
        self._client = ApiClient(connection)

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: Manifest | None) -> ApiAnswer:
        request = await self._client.param_serialize(
            method, url, header_params=dict(headers), body=body, auth_settings=["BearerToken"]
        )
        response = await self._client.call_api(*request, _request_timeout=_TIMEOUT)
        text = await response.read()  # type: ignore[no-untyped-call]
        return ApiAnswer(response.status, response.headers, text)

    async def close(self) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]
