"""Tokens: who is answered, on which paths, and what time and messages tell of them (nothing)."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.serving.connections import Server, predict, serving
from tests.support.serving.serving import FakeWorker, running

from gnnserve_worker.serving.security.access import Access, is_open

A, B = "alpha-0123456789abcdef", "beta-0123456789abcdef"
BODY = b'{"nodes":[3]}'


def on_server(scenario: Callable[[Server], Awaitable[None]], *tokens: str) -> None:
    async def run() -> None:
        async with serving(access=Access(tokens)) as server:
            await scenario(server)

    asyncio.run(run())


def bearer(token: str) -> bytes:
    return b"authorization: Bearer " + token.encode()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param([bearer(A)], 200, id="the first token"),
        pytest.param([bearer(B)], 200, id="the second token"),
        pytest.param([b"Authorization: bEARER  " + A.encode()], 200, id="the scheme in any case"),
        pytest.param([], 401, id="missing"),
        pytest.param([b"authorization:"], 401, id="empty header"),
        pytest.param([b"authorization: Bearer"], 401, id="scheme alone"),
        pytest.param([b"authorization: Bearer "], 401, id="empty token"),
        pytest.param([bearer(A[:-1])], 401, id="cut"),
        pytest.param([bearer(A + "x")], 401, id="longer"),
        pytest.param([bearer(A.upper())], 401, id="in another case"),
        pytest.param([b"authorization: " + A.encode()], 401, id="without scheme"),
        pytest.param([b"authorization: Basic " + A.encode()], 401, id="another scheme"),
        pytest.param([b"authorization: Bearer " + "gehe\u00efm-0123456789".encode()], 401, id="beyond ASCII"),
        pytest.param([b"authorization: Bearer " + b"\xff" * 40], 401, id="no UTF-8"),
        pytest.param([bearer("a" * 60_000)], 401, id="very long"),
        pytest.param([bearer("a" * 70_000)], 431, id="longer than a head may be"),
        pytest.param([bearer(A), bearer(A)], 401, id="twice"),
        pytest.param([bearer("x" * 20), bearer(A)], 401, id="two, of which one fits"),
    ],
)
def test_a_prediction_wants_an_accepted_token(headers: list[bytes], status: int) -> None:
    async def scenario(server: Server) -> None:
        for path in (b"", b"?"):  # a query leaves the fast path, a known head takes it
            for _ in range(2):
                wire = server.connect()
                wire.send(predict(BODY, *headers, query=path))
                (response,) = await wire.answers()
                assert response.status == status
                if status == 401:
                    assert response.headers["www-authenticate"] == 'Bearer realm="gnnserve"'
                    assert json.loads(response.body)["error"]["code"] == "Unauthorized"
                    values = [header.rpartition(b" ")[2] for header in headers]
                    assert not any(value in response.body for value in values if len(value) > len("Bearer"))
                wire.leave()

    on_server(scenario, A, B)


def test_without_tokens_everybody_is_answered_and_with_an_empty_set_nobody() -> None:
    headers = [(b"authorization", b"Bearer " + A.encode())]
    assert Access().accepts([])
    assert Access().accepts(headers)
    assert not Access(()).accepts([])
    assert not Access(()).accepts(headers)


def test_all_tokens_are_compared_whichever_fits_and_what_is_kept_is_none_of_them(monkeypatch: Any) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    access = Access((A, B, "gamma-0123456789abcdef"))
    monkeypatch.setattr(hmac, "compare_digest", compare)
    for token in (A, B, "x" * 20, ""):
        compared.clear()
        assert access.accepts([(b"authorization", b"Bearer " + token.encode())]) == (token in {A, B})
        assert len(compared) == 3
        assert {len(value) for pair in compared for value in pair} == {32}  # digests, of one length whatever is sent
    assert A.encode() not in b"".join(one for one, _ in compared)
    assert repr(access) == "Access(3 tokens)"


def test_a_rotation_fails_no_request_and_a_token_that_was_taken_away_is_refused_on_an_open_connection() -> None:
    async def scenario(server: Server) -> None:
        access = server.client.app.access
        old, new = server.connect(), server.connect()
        statuses = []

        async def ask(wire: Any, token: str, number: int) -> int:
            wire.send(predict(BODY, bearer(token)))
            return (await wire.answers(number))[-1].status

        statuses += [await ask(old, A, 1), await ask(old, A, 2)]  # the second by its known head
        access.replace((A, B))
        statuses += [await ask(old, A, 3), await ask(new, B, 1)]
        access.replace((B,))
        statuses += [await ask(new, B, 2)]
        assert statuses == [200] * 5
        assert await ask(old, A, 4) == 401
        access.replace((A,))
        assert await ask(old, A, 5) == 200

    on_server(scenario, A)


def test_each_request_of_a_connection_needs_its_own_token() -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(predict(BODY, bearer(A)) + predict(BODY))
        statuses = [response.status for response in await wire.answers(2)]
        assert statuses == [200, 401]

    on_server(scenario, A)


def test_a_long_body_without_a_token_is_not_waited_for() -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(b"POST /v1/predict HTTP/1.1\r\nhost: w\r\ncontent-length: 16000000\r\n\r\n")
        assert (await wire.answers())[0].status == 401

    on_server(scenario, A)


def paths_of(description: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, item) for path, methods in description["paths"].items() for method, item in methods.items()]


def test_every_path_is_open_by_decision_or_refuses_without_a_token() -> None:
    async def run() -> None:
        async with running(FakeWorker(), access=Access((A,)), write_access=Access((B,))) as client:
            described = (await client.http.get("/openapi.json")).json()
            routes = {route.path for route in client.app._rest.app.routes}  # type: ignore[attr-defined]
            routes |= {"/v1/predict", "/v1/recommend"}
            unlisted = {"/", "/explore", "/docs", "/docs-assets", "/openapi.json"}
            protocol = {path for path in described["paths"] if path.startswith("/v2")}
            assert {path for path, _, _ in paths_of(described)} == routes - unlisted | protocol
            routes |= protocol | {"/v2/nope"}
            open_ones = set()
            for path in sorted(routes | {"/docs-assets/swagger-ui.css"}):
                for method in ("GET", "POST", "HEAD", "PUT"):
                    status = (await client.http.request(method, path)).status_code
                    assert (status != 401) == is_open(path), (method, path, status)
                    if status == 200:
                        open_ones.add(path)
            assert open_ones == {
                "/", "/explore", "/docs", "/docs-assets/swagger-ui.css", "/healthz", "/metrics", "/openapi.json",
                "/readyz", "/v1/history", "/v1/route", "/v2/health/live", "/v2/health/ready",
            }  # fmt: skip
            for path in ("/nope", "/healthz/", "/docs-assets", "/v1/predict/"):
                assert (await client.http.get(path)).status_code == 401, path
            with_token = {"authorization": f"Bearer {A}"}
            for path in ("/v1/variants", "/v1/nodes"):
                assert (await client.http.get(path, headers=with_token)).status_code == 200
            for path, method, operation in paths_of(described):
                assert ("security" in operation) == (not is_open(path)), (path, method)

    asyncio.run(run())


def test_an_open_path_is_none_that_only_looks_like_it() -> None:
    async def scenario(server: Server) -> None:
        for target in (
            b"/v1%2Fnodes",
            b"/healthz%2F..%2F..%2Fv1%2Fnodes",
            b"http://w/v1/nodes",
            b"/v1/nodes#/healthz",
            b"/v1/nodes/../route",
            b"//w/healthz",
            b"/healthz;/../v1/nodes",
            b"/docs-assets",
        ):
            wire = server.connect()
            wire.send(b"GET " + target + b" HTTP/1.1\r\nhost: w\r\n\r\n")
            (response,) = await wire.answers()
            assert response.status in {400, 401}, target
            wire.leave()

    on_server(scenario, A)


def test_open_paths_say_nothing_of_nodes_and_the_description_only_to_those_who_may_ask() -> None:
    async def run() -> None:
        async with running(FakeWorker(nodes=987_654_321), access=Access((A,))) as client:
            for path in ("/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics", "/v1/history", "/v1/route"):
                assert "987654321" not in (await client.http.get(path)).text
            without = (await client.http.get("/openapi.json")).json()
            answer = await client.http.get("/openapi.json", headers={"authorization": f"Bearer {A}"})
            of_nodes = "components", "schemas", "PredictRequest", "properties", "nodes", "items"
            kinds = []
            for found in (without, answer.json()):
                part = found
                for key in of_nodes:
                    part = part[key]
                kinds.append(part)
            assert kinds[0] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
            assert kinds[1]["type"] == "integer"

    asyncio.run(run())


def test_no_answer_metric_or_log_has_the_token(caplog: pytest.LogCaptureFixture) -> None:
    wrong = "wrong-secret-0123456789"

    async def run() -> None:
        def fail(_variant: str, _seeds: object) -> None:
            raise ValueError("a bug")

        async with serving(FakeWorker(fail=fail), access=Access((A,))) as server:
            written = b""
            for request in (
                predict(BODY, bearer(wrong)),
                predict(BODY, bearer(A)),
                predict(b"nonsense", bearer(A)),
                b"GET /nope HTTP/1.1\r\nhost: w\r\n" + bearer(A) + b"\r\n\r\n",
                b"GET /v1/nodes?count=x HTTP/1.1\r\nhost: w\r\n" + bearer(A) + b"\r\n\r\n",
                b"GET /metrics HTTP/1.1\r\nhost: w\r\n" + bearer(wrong) + b"\r\n\r\n",
                b"BREW / HTTP/1.1\r\nhost: w\r\n" + bearer(A) + b"\r\n\r\n",
            ):
                wire = server.connect()
                wire.send(request)
                await wire.answers()
                written += wire.transport.written
                wire.leave()
            assert b'reason="Unauthorized"' in written
            assert A.encode() not in written
            assert wrong.encode() not in written

    with caplog.at_level("DEBUG"):
        asyncio.run(run())
    assert "a bug" in caplog.text
    assert A not in caplog.text
    assert wrong not in caplog.text


@pytest.mark.parametrize("path", [b"/v1/predict", b"/v1/nodes"])
def test_a_token_behind_the_body_is_none(path: bytes) -> None:
    """Who stands in front of the server does not look there."""

    async def scenario(server: Server) -> None:
        wire = server.connect()
        head = b"POST " + path + b" HTTP/1.1\r\nhost: w\r\ntransfer-encoding: chunked\r\n\r\n"
        wire.send(head + b"d\r\n" + BODY + b"\r\n0\r\n" + bearer(A) + b"\r\n\r\n")
        assert (await wire.answers())[0].status == 401

    on_server(scenario, A)


@pytest.mark.parametrize("tokens", [None, [A], []])
def test_a_worker_says_whether_it_wants_tokens(tokens: list[str] | None) -> None:
    async def scenario() -> None:
        async with running(FakeWorker(), access=Access(tokens)) as client:
            assert (await client.http.get("/v1/route")).json()["needsToken"] is (tokens is not None)

    asyncio.run(scenario())
