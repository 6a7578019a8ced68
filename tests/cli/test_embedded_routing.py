"""Routing without a cluster, end to end: a worker's process, real HTTP, load, and what the slow loop makes of it."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from typing import IO, Any

import httpx
import pytest
from tests.support.machine import fork_server
from tests.support.machine.fake_server import Asked, Told, fake_server
from tests.support.machine.waiting import WAIT_S

DEADLINE_S = WAIT_S
FULL_BATCH = list(range(100))
"""20 ms by x1, 8 by x4, 4 by x8: with one of them after another nobody carries more than 25,000 seeds/s."""


@dataclass(frozen=True, slots=True)
class Routed:
    """A server, and what it said."""

    http: httpx.Client
    lines: list[str]

    def ask(self, nodes: list[int]) -> str:
        """The variant that answers."""
        answer = self.http.post("/v1/predict", json={"nodes": nodes}).raise_for_status().json()
        return str(answer["variant"])

    def base(self) -> str:
        return str(self.http.get("/v1/route").json()["baseVariant"])

    def changes(self) -> list[str]:
        return [line.split(". ")[0] for line in self.lines if line.startswith("Base variant:")]


@contextmanager
def routed(routing: dict[str, Any], prometheus: str = "") -> Iterator[Routed]:
    settings = json.dumps({"intervalSeconds": 1, **routing})
    with fork_server.started("tests.support.serving.routed_server", settings, prometheus, stdout=True) as process:
        assert process.stdout is not None
        lines: list[str] = []
        try:
            port = int(process.stdout.readline())
            reader = threading.Thread(target=keep_lines, args=(process.stdout, lines))
            reader.start()
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S) as client:
                yield Routed(client, lines)
        finally:
            process.terminate()
        assert process.wait(DEADLINE_S) == 0
        reader.join(DEADLINE_S)


def keep_lines(output: IO[str], lines: list[str]) -> None:
    for line in output:
        lines.append(line)


@contextmanager
def saturated(server: Routed) -> Iterator[None]:
    """Three clients that ask again as soon as they are answered: more than any variant carries with a margin."""
    ended = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=server.http.base_url, timeout=DEADLINE_S) as client:
            while not ended.is_set():
                client.post("/v1/predict", json={"nodes": FULL_BATCH})

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        ended.set()
        for client in clients:
            client.join(DEADLINE_S)


def wait_until(condition: Callable[[], bool]) -> None:
    give_up_at_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at_s
        threading.Event().wait(0.02)


def test_mode_metrics_steps_down_under_load_and_back_one_by_one() -> None:
    with routed({"mode": "Metrics"}) as server:
        assert server.ask([1]) == "x1"
        with saturated(server):
            wait_until(lambda: server.base() == "x8")
            wait_until(lambda: server.ask([1]) == "x8")
        wait_until(lambda: server.base() == "x1")
        assert server.ask([1]) == "x1"
    assert server.changes()[-2:] == ["Base variant: x4, before x8", "Base variant: x1, before x4"]
    assert server.changes()[0] in {"Base variant: x4, before x1", "Base variant: x8, before x1"}


def test_mode_adaptive_says_the_base_and_chooses_by_itself() -> None:
    with routed({"mode": "Adaptive"}) as server:
        with saturated(server):
            wait_until(lambda: bool(server.changes()))
        # Nobody else waits, so the most accurate variant answers, whatever the base is: once the costs, which were
        # learnt on a machine that others may keep busy, allow it.
        wait_until(lambda: server.ask([1]) == "x1")


def test_mode_static_stays_with_its_variant() -> None:
    with routed({"mode": "Static", "variant": "x8"}) as server:
        with saturated(server):
            assert {server.ask([1]) for _ in range(20)} == {"x8"}
        assert server.base() == "x8"
    assert server.changes() == []


def test_mode_weights_splits_exactly() -> None:
    with routed({"mode": "Weights", "weights": {"x1": 1, "x4": 3}}) as server:
        answered = Counter(server.ask([1]) for _ in range(40))
    assert set(answered) == {"x1", "x4"}
    assert abs(answered["x4"] - 30) <= 2


def test_a_prometheus_is_believed_instead_of_the_own_counters() -> None:
    began_s = time.time()

    def tell(_: Asked) -> Told:
        """20,000 seeds/s, by a clock that is an hour behind."""
        now_s = time.time() - 3600
        values = [[now_s - ago, str((now_s - ago - began_s + 7200) * 20_000)] for ago in (2, 1, 0)]
        series = {"metric": {"__name__": "gnnserve_offered_seeds_total", "instance": "a:80"}, "values": values}
        body = {"status": "success", "data": {"resultType": "matrix", "result": [series]}}
        return Told(body=body, headers={"Date": formatdate(now_s, usegmt=True)})

    with fake_server(tell) as prometheus, routed({"mode": "Metrics"}, prometheus.url) as server:
        wait_until(lambda: server.base() == "x8")
        assert server.ask([1]) == "x8"


@pytest.mark.parametrize(
    "routing", [{"mode": "Static", "variant": "x9"}, {"mode": "Weights", "weights": {"x1": 1, "x9": 1}}]
)
def test_a_variant_that_is_not_there_ends_the_start(routing: dict[str, Any]) -> None:
    ended = fork_server.completed("tests.support.serving.routed_server", json.dumps(routing))
    assert ended.returncode != 0
    assert "has no variant x9; choose from x1, x4, x8" in ended.stderr
