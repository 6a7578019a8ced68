"""The Open Inference Protocol, call by call: `open_inference_calls.py` has them as data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests.conformance.open_inference_calls import ANSWERED, INFER, LENGTH, TOLD, WRONG, Call, asking, nodes
from tests.support.changes.fake_updates import FakeUpdates
from tests.support.serving.open_inference_answers import check
from tests.support.serving.serving import TRADE_OFF, Client, FakeWorker, running, without_overlays

from gnnserve_worker.serving.security.access import Access


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def client(loop: asyncio.Runner) -> Iterator[Client]:
    """One worker for all calls."""
    with serving(loop, FakeWorker()) as client:
        yield client


@contextmanager
def serving(loop: asyncio.Runner, worker: FakeWorker, **options: Any) -> Iterator[Client]:
    context = running(worker, **options)
    client = loop.run(context.__aenter__())
    try:
        yield client
    finally:
        loop.run(context.__aexit__(None, None, None))


def send(loop: asyncio.Runner, client: Client, call: Call) -> httpx.Response:
    method = call.method or ("GET" if call.body is None else "POST")
    return loop.run(client.http.request(method, call.path, content=call.body, headers=dict(call.headers)))


def ids(calls: tuple[Call, ...]) -> list[str]:
    return [call.name for call in calls]


@pytest.mark.parametrize("call", TOLD + ANSWERED, ids=ids(TOLD + ANSWERED))
def test_calls_are_answered(loop: asyncio.Runner, client: Client, call: Call) -> None:
    response = send(loop, client, call)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    assert LENGTH not in response.headers
    check(call.has, response.json())


@pytest.mark.parametrize("call", WRONG, ids=ids(WRONG))
def test_wrong_calls_get_the_protocols_error_with_our_sentence(
    loop: asyncio.Runner, client: Client, call: Call
) -> None:
    response = send(loop, client, call)
    answer = response.json()
    assert (response.status_code, list(answer)) == (call.status, ["error"]), answer
    assert call.error in answer["error"]
    assert response.headers["gnnserve-error"] == call.code


def test_every_wrong_call_is_counted(loop: asyncio.Runner) -> None:
    with serving(loop, FakeWorker()) as client:
        for call in WRONG:
            send(loop, client, call)
        counted = client.metrics.render().decode()
    for code in {call.code for call in WRONG}:
        total = sum(call.code == code for call in WRONG)
        assert f'gnnserve_errors_total{{reason="{code}",service="digits"}} {total}.0' in counted


def test_a_worker_that_loads_says_so(loop: asyncio.Runner) -> None:
    with serving(loop, FakeWorker(loaded=False)) as client:
        for path, told in (
            ("/v2/health/live", {"live": True}),
            ("/v2/health/ready", {"ready": False, "error": "the worker is loading"}),
            ("/v2/models/digits/ready", {"name": "digits", "ready": False, "error": "the worker is loading"}),
        ):
            response = send(loop, client, Call("", path))
            assert (response.status_code, response.json()) == (200 if path.endswith("live") else 503, told)
        for call in (Call("", "/v2/models/digits"), Call("", INFER, asking(nodes(3)))):
            response = send(loop, client, call)
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert response.json() == {"error": "the worker has no revision to answer from yet; send again in a moment"}
        index = Call("", "/v2/repository/index", b"{}")
        assert send(loop, client, index).json() == [
            {"name": "digits", "state": "UNAVAILABLE", "reason": "the worker is loading"}
        ]
        assert send(loop, client, Call("", "/v2/repository/index", b'{"ready": true}')).json() == []


def test_a_token_is_wanted_where_one_is_for_our_own_paths(loop: asyncio.Runner) -> None:
    with serving(loop, FakeWorker(), access=Access(["s" * 32])) as client:
        for call in (*TOLD, *ANSWERED):
            is_open = call.path.startswith("/v2/health/")
            refused = send(loop, client, call)
            assert refused.status_code == (200 if is_open else 401)
            if not is_open:
                assert refused.json() == {
                    "error": "Authorization: this needs a token that the service accepts; "
                    "send `Authorization: Bearer` and the token"
                }
                assert refused.headers["www-authenticate"].startswith("Bearer")
        headers = {"authorization": f"Bearer {'s' * 32}"}
        assert send(loop, client, Call("", INFER, asking(nodes(3)), headers)).status_code == 200


def test_versions_are_the_variants_that_answer(loop: asyncio.Runner) -> None:
    """Beside changes those that follow them."""
    worker = FakeWorker(profile=without_overlays(TRADE_OFF, "x4"), updates=FakeUpdates())
    with serving(loop, worker) as client:

        async def ask() -> tuple[Any, Any]:
            of_model = (await client.http.get("/v2/models/digits")).json()
            of_all = (await client.http.post("/v2/repository/index", content=b"{}")).json()
            return of_model["versions"], [one["version"] for one in of_all if one["name"] == "digits"]

        assert loop.run(ask()) == (["x1", "x8"], ["x1", "x8"])
