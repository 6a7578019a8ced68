"""Credentials of requests to the API server: when they are loaded again, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import kopf
import pytest
from tests.support.machine.fake_server import Asked, FakeServer, Told, fake_server

from gnnserve_api.errors import ResourceError
from gnnserve_operator.cluster import HttpTransport
from gnnserve_operator.login import ClusterLogin


class Issuer:
    """Issues the tokens `token 0`, `token 1` and so on; the API server accepts those of `accepted`."""

    def __init__(self, lasts_s: float = 60.0, accepted: frozenset[str] | None = None) -> None:
        self.lasts_s, self.accepted = lasts_s, accepted
        self.loads = 0
        self.now_s = 0.0
        self.problem: ResourceError | None = None

    def access(self, url: str) -> ClusterLogin:
        return ClusterLogin(kopf.ConnectionInfo(server=url, token=f"token {self.loads}"), self.lasts_s)

    def answer(self, asked: Asked) -> Told:
        token = asked.headers["authorization"].removeprefix("Bearer ")
        return Told(200 if self.accepted is None or token in self.accepted else 401, {"token": token})

    def use(self, scenario: Callable[[HttpTransport, FakeServer], Awaitable[None]]) -> list[str]:
        """Tokens of the requests that a scenario sends."""

        async def run(server: FakeServer) -> None:
            async def load() -> ClusterLogin:
                self.loads += 1
                if self.problem is not None:
                    raise self.problem
                return self.access(server.url)

            transport = HttpTransport(self.access(server.url), 4, load, lambda: self.now_s)
            try:
                await scenario(transport, server)
            finally:
                await transport.close()

        with fake_server(self.answer) as server:
            asyncio.run(run(server))
            return [asked.headers["authorization"].removeprefix("Bearer ") for asked in server.asked]


async def get(transport: HttpTransport) -> int:
    return (await transport.send("GET", "/api/v1/nodes?limit=1", {"Accept": "application/json"}, None)).code


def test_credentials_are_loaded_again_when_they_end() -> None:
    issuer = Issuer(lasts_s=60)

    async def scenario(transport: HttpTransport, server: FakeServer) -> None:
        for issuer.now_s in (0, 59, 60, 61, 120):
            assert await get(transport) == 200

    assert issuer.use(scenario) == ["token 0", "token 0", "token 1", "token 1", "token 2"]


def test_a_refused_request_is_sent_once_more_with_new_credentials() -> None:
    issuer = Issuer(accepted=frozenset({"token 1"}))

    async def scenario(transport: HttpTransport, server: FakeServer) -> None:
        assert [await get(transport), await get(transport)] == [200, 200]

    assert issuer.use(scenario) == ["token 0", "token 1", "token 1"]


def test_credentials_that_stay_refused_are_not_sent_again() -> None:
    issuer = Issuer(accepted=frozenset())

    async def scenario(transport: HttpTransport, server: FakeServer) -> None:
        issuer.loads = -1  # what is loaded is what was refused
        assert await get(transport) == 401

    assert issuer.use(scenario) == ["token 0"]


def test_requests_that_are_refused_together_load_new_credentials_once() -> None:
    issuer = Issuer(accepted=frozenset({"token 1"}))

    async def scenario(transport: HttpTransport, server: FakeServer) -> None:
        assert await asyncio.gather(*(get(transport) for _ in range(4))) == [200] * 4

    assert issuer.use(scenario).count("token 1") == 4
    assert issuer.loads == 1


def test_credentials_that_cannot_be_loaded_are_an_api_server_that_does_not_answer() -> None:
    issuer = Issuer(accepted=frozenset())

    async def scenario(transport: HttpTransport, server: FakeServer) -> None:
        issuer.problem = ResourceError("the token is gone")
        with pytest.raises(OSError, match="the token is gone"):
            await get(transport)

    assert issuer.use(scenario) == ["token 0"]


def test_another_address_or_certificate_gets_connections_of_its_own() -> None:
    issuer = Issuer(lasts_s=60)

    async def scenario(transport: HttpTransport, server: FakeServer) -> None:
        with fake_server(issuer.answer) as other:
            assert await get(transport) == 200
            before = issuer.access
            issuer.access = lambda url: replace(  # type: ignore[method-assign]
                before(url), connection=kopf.ConnectionInfo(server=other.url, token=f"token {issuer.loads}")
            )
            issuer.now_s = 60
            assert await get(transport) == 200
            assert [asked.headers["authorization"] for asked in other.asked] == ["Bearer token 1"]

    assert issuer.use(scenario) == ["token 0"]
