"""`--prometheus`: one question over HTTP, and every way in which it stays without an answer."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.support.machine.fake_server import Asked, Told, fake_server

from gnnserve_api.errors import InputError
from gnnserve_api.pods.routing import Route
from gnnserve_api.status.reasons import Reason
from gnnserve_cli.prometheus import PrometheusSource
from gnnserve_routing.signals import QueryAnswer, Sample, Silence
from gnnserve_worker.serving.process.served_service import Look

LOOK = Look(Route(revision="r", base_variant="x1", reason="", allowed_variants=("x1",)), ())
NOW_S = 1_800_000_000
SERIES = {"metric": {"__name__": "gnnserve_offered_seeds_total", "instance": "a:80"}, "values": [[NOW_S - 5, "7"]]}


def matrix(*series: Any, status: int = 200, **headers: str) -> Told:
    body = {"status": "success", "data": {"resultType": "matrix", "result": list(series)}}
    return Told(status, body, headers or {"Date": formatdate(NOW_S, usegmt=True)})


def ask(answer: Callable[[Asked], Told], path: str = "") -> tuple[QueryAnswer | Silence, list[Asked]]:
    with fake_server(answer) as server:
        found = PrometheusSource.of_service(server.url + path, "digits", 15).ask(LOOK)
        return found, server.asked


@pytest.mark.parametrize("path", ["", "/", "/prometheus/"])
def test_one_question_brings_samples_and_the_servers_own_time(path: str) -> None:
    found, asked = ask(lambda _: matrix(SERIES), path)
    assert isinstance(found, QueryAnswer)
    assert found.now_s == NOW_S
    assert found.series[0].samples == (Sample(NOW_S - 5, 7),)
    (question,) = asked
    parts = urlsplit(question.path)
    assert parts.path == f"{path.rstrip('/')}/api/v1/query"
    (query,) = parse_qs(parts.query)["query"]
    assert 'service="digits"' in query
    assert "namespace" not in query


@pytest.mark.parametrize(
    ("told", "reason", "said"),
    [
        (matrix(SERIES, X="y"), Reason.INVALID, "without a usable Date"),
        (matrix(SERIES, Date="yesterday"), Reason.INVALID, "without a usable Date"),
        (Told(503, "down for maintenance"), Reason.INVALID, "Is this Prometheus?"),
        (matrix(SERIES, status=302), Reason.INVALID, "302"),
        (Told(400, {"status": "error", "error": "parse error"}), Reason.INVALID, "parse error"),
        (Told(hang_up=True), Reason.UNREACHABLE, "does not answer"),
        (Told(raw=b"SSH-2.0-OpenSSH\r\n"), Reason.UNREACHABLE, "does not answer"),
        (Told(body=b" " * (8 * 1024 * 1024 + 1)), Reason.INVALID, "more than 8 MiB"),
    ],
    ids=[
        "no date", "no date that is one", "no Prometheus", "a redirection", "a refusal", "silence", "not HTTP",
        "far too much",
    ],
)  # fmt: skip
def test_no_usable_answer_is_silence(told: Told, reason: Reason, said: str) -> None:
    found, _ = ask(lambda _: told)
    assert isinstance(found, Silence)
    assert found.reason is reason
    assert said in found.message


def test_nobody_there_is_silence() -> None:
    with fake_server() as server:
        url = server.url
    found = PrometheusSource.of_service(url, "digits", 15).ask(LOOK)
    assert isinstance(found, Silence)
    assert found.reason is Reason.UNREACHABLE
    assert f"{url} does not answer" in found.message


def test_an_answer_in_drops_is_not_waited_for() -> None:
    clock_s = iter(range(0, 10_000, 3))
    with fake_server(lambda _: Told(body=b" " * 1_000_000)) as server:
        asked = PrometheusSource.of_service(server.url, "digits", 15)
        slow = PrometheusSource(asked.url, asked.query, clock_s=lambda: float(next(clock_s)))
        found = slow.ask(LOOK)
    assert isinstance(found, Silence)
    assert "no complete answer within 5 s" in found.message


@pytest.mark.parametrize(
    "url", ["prometheus:9090", "ftp://prometheus", "http://", "http://me:secret@host", "http://h:x"]
)
def test_what_is_no_address_is_refused_before_anything_starts(url: str) -> None:
    with pytest.raises(InputError, match="--prometheus") as refusal:
        PrometheusSource.of_service(url, "digits", 15)
    assert "secret" not in str(refusal.value)
