"""Asking a Prometheus: what it says, or in words why it says nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
from tests.support.machine.fake_server import Asked, FakeServer, Told, fake_server
from tests.support.machine.ports import reserved_port
from tests.support.operator.fake_prometheus import FakePrometheus, Rates, answer_with

from gnnserve_api.status.reasons import Reason
from gnnserve_operator.metrics import Metrics
from gnnserve_operator.prometheus import Prometheus
from gnnserve_operator.slow_loop import RoutingMemory
from gnnserve_routing.signals import QueryAnswer, Silence, build_query, read_signals

QUERY = build_query("digits", "shop", 15)


def ask(url: str, metrics: Metrics | None = None, **settings: float) -> QueryAnswer | Silence:
    async def run() -> QueryAnswer | Silence:
        async with Prometheus(metrics or Metrics(RoutingMemory()), **settings) as prometheus:
            return await prometheus.ask(url, QUERY)

    return asyncio.run(run())


def silence(url: str, **settings: float) -> Silence:
    said = ask(url, **settings)
    assert isinstance(said, Silence), said
    assert url in said.message
    assert said.message.endswith((".", "?"))
    return said


def test_one_question_brings_what_is_needed() -> None:
    prometheus = FakePrometheus(lambda: ["a", "b"], Rates(offered_seeds=50))
    before = time.time()
    with fake_server(prometheus.answer) as server:
        said = ask(server.url)
    assert prometheus.queries == [QUERY]
    assert isinstance(said, QueryAnswer)
    assert abs(said.now_s - before) < 60
    signals = read_signals(said, interval_s=1, workers=2)
    assert not isinstance(signals, Silence), signals
    assert signals.offered_seeds_per_s == pytest.approx(100)


@pytest.mark.parametrize("path", ["", "/", "/prefix", "/prefix/"])
def test_it_may_be_behind_a_path(path: str) -> None:
    with fake_server(lambda _: answer_with([])) as server:
        assert isinstance(ask(server.url + path), QueryAnswer)
    assert server.asked[0].path.startswith(f"{path.rstrip('/')}/api/v1/query?")


@pytest.mark.parametrize(
    ("told", "reason", "words"),
    [
        (Told(400, {"status": "error", "error": "parse error"}), Reason.UNREACHABLE, "answers 400: parse error."),
        (Told(503, b"<html>upstream connect error</html>"), Reason.UNREACHABLE, "answers 503."),
        (Told(302, b"", {"Location": "/login"}), Reason.UNREACHABLE, "answers 302."),
        (Told(401, b"\xff\xfe"), Reason.UNREACHABLE, "answers 401."),
        (Told(200, b"<html>Grafana</html>"), Reason.INVALID, "Is this Prometheus?"),
        (answer_with([], status="error", data=None, error="query timed out"), Reason.INVALID, "query timed out"),
        (Told(body={"status": "success", "data": {"resultType": "matrix", "result": []}}), Reason.INVALID, "no Date"),
        (Told(body=answer_with([]).body, headers={"Date": "yesterday"}), Reason.INVALID, "no Date"),
        (Told(body=b" " * 5000), Reason.INVALID, "larger than"),
        (Told(hang_up=True), Reason.UNREACHABLE, "hangs up without an answer"),
        (Told(raw=b"220 smtp.example.org ESMTP\r\n"), Reason.UNREACHABLE, "cannot be asked"),
        (Told(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"), Reason.UNREACHABLE, "cannot be asked"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_told_in_words(told: Told, reason: Reason, words: str) -> None:
    with fake_server(lambda _: told) as server:
        said = silence(server.url, largest_answer_bytes=4096)
    assert said.reason is reason
    assert words in said.message


def test_it_does_not_wait_for_long() -> None:
    released = threading.Event()

    def answer(_: Asked) -> Told:
        released.wait(60)
        return answer_with([])

    with fake_server(answer) as server:
        said = silence(server.url, timeout_s=0.1)
        released.set()
    assert said.message == f"{server.url} does not answer within 0.1 s."


def test_nobody_listens() -> None:
    with reserved_port() as port:
        assert "takes no connection" in silence(f"http://127.0.0.1:{port}").message


def test_a_name_that_nobody_knows() -> None:
    assert "host name that is not known" in silence("http://prometheus.invalid:9090").message


def test_tls_with_something_else() -> None:
    with fake_server(lambda _: answer_with([])) as server:
        said = silence(server.url.replace("http:", "https:"))
    assert said.reason is Reason.UNREACHABLE
    assert "is not trusted" in said.message


def test_a_slow_one_holds_up_no_other() -> None:
    released, arrived = threading.Event(), threading.Semaphore(0)

    def answer_late(_: Asked) -> Told:
        arrived.release()
        released.wait(60)
        return answer_with([])

    async def run(slow: FakeServer, fast: FakeServer) -> None:
        async with Prometheus(Metrics(RoutingMemory()), timeout_s=60) as prometheus:
            waiting = [asyncio.create_task(prometheus.ask(slow.url, QUERY)) for _ in range(20)]
            await asyncio.to_thread(arrived.acquire)
            assert isinstance(await prometheus.ask(fast.url, QUERY), QueryAnswer)
            assert not any(task.done() for task in waiting)
            released.set()
            assert all(isinstance(said, QueryAnswer) for said in await asyncio.gather(*waiting))

    with fake_server(answer_late) as slow, fake_server(lambda _: answer_with([])) as fast:
        asyncio.run(run(slow, fast))


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (lambda _: answer_with([]), "success"),
        (lambda _: Told(500), "refused"),
        (lambda _: Told(body=b"no"), "invalid"),
        (lambda _: Told(hang_up=True), "unreachable"),
    ],
)
def test_questions_are_counted_by_their_result(answer: Callable[[Asked], Told], result: str) -> None:
    metrics = Metrics(RoutingMemory())
    with fake_server(answer) as server:
        ask(server.url, metrics)
    lines = metrics.text().decode().splitlines()
    counted = {line for line in lines if line.startswith("gnnserve_operator_prometheus_requests_total{")}
    assert len(counted) == 4
    assert f'gnnserve_operator_prometheus_requests_total{{result="{result}"}} 1.0' in counted
