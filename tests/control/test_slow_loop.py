"""When Prometheus is asked: at each service's own interval, on time, beside everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.support.machine.clock import FakeClock, settle
from tests.support.operator.operator import KEY

from gnnserve_api.status.reasons import Reason
from gnnserve_operator.decide.service_routing import PrometheusQuestion
from gnnserve_operator.kinds import ServiceKey
from gnnserve_operator.slow_loop import SlowLoop
from gnnserve_routing.signals import QueryAnswer, Silence

EVERY_10_S = PrometheusQuestion("http://prometheus:9090", "up", 10)
OTHER = ServiceKey("default", "other")


class Asking:
    """Prometheus, the reconciles and the clock around a slow loop."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.start = self.clock.now()
        self.asked_at: list[float] = []
        self.woken: list[ServiceKey] = []
        self.takes_s: dict[str, float] = {}
        """By URL."""
        self.error: Exception | None = None
        self.loop = SlowLoop(self.ask, self.woken.append, self.clock)

    async def ask(self, url: str, query: str) -> QueryAnswer | Silence:
        self.asked_at.append(self.clock.now() - self.start)
        if self.error is not None:
            raise self.error
        if takes_s := self.takes_s.get(url):
            await self.clock.wait(asyncio.Event(), takes_s)
        return QueryAnswer((), self.clock.now())


def play(scene: Callable[[Asking], Awaitable[None]]) -> None:
    async def run() -> None:
        asking = Asking()
        await scene(asking)
        await asking.loop.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_it_asks_at_its_interval_whoever_reconciles_in_between() -> None:
    async def scene(asking: Asking) -> None:
        for _ in range(35):
            asking.loop.follow(KEY, EVERY_10_S)
            await asking.clock.advance(1)
        assert asking.asked_at == [10, 20, 30]
        assert asking.woken == [KEY] * 3

    play(scene)


def test_it_does_not_drift_with_slow_answers() -> None:
    async def scene(asking: Asking) -> None:
        asking.takes_s[EVERY_10_S.url] = 4
        asking.loop.follow(KEY, EVERY_10_S)
        await asking.clock.advance(45)
        assert asking.asked_at == [10, 20, 30, 40]

    play(scene)


def test_what_it_missed_it_does_not_make_up_for() -> None:
    async def scene(asking: Asking) -> None:
        asking.takes_s[EVERY_10_S.url] = 25
        asking.loop.follow(KEY, EVERY_10_S)
        await asking.clock.advance(100)
        assert asking.asked_at == [10, 35, 60, 85]

    play(scene)


def test_a_slow_prometheus_holds_up_no_other_service() -> None:
    async def scene(asking: Asking) -> None:
        asking.takes_s[EVERY_10_S.url] = 1000
        asking.loop.follow(KEY, EVERY_10_S)
        asking.loop.follow(OTHER, PrometheusQuestion("http://another:9090", "up", 10))
        await asking.clock.advance(30)
        assert asking.woken == [OTHER] * 3

    play(scene)


def test_an_answer_is_there_until_it_was_decided_by() -> None:
    async def scene(asking: Asking) -> None:
        asking.loop.follow(KEY, EVERY_10_S)
        assert asking.loop.unread(KEY) is None
        await asking.clock.advance(10)
        first = asking.loop.unread(KEY)
        assert isinstance(first, QueryAnswer)
        assert asking.loop.unread(KEY) is first
        await asking.clock.advance(10)
        second = asking.loop.unread(KEY)
        asking.loop.read(KEY, first)
        assert asking.loop.unread(KEY) is second
        asking.loop.read(KEY, second)
        assert asking.loop.unread(KEY) is None

    play(scene)


def test_another_question_begins_anew_and_none_ends_it() -> None:
    async def scene(asking: Asking) -> None:
        asking.loop.follow(KEY, EVERY_10_S)
        await asking.clock.advance(12)
        asking.loop.follow(KEY, PrometheusQuestion("http://prometheus:9090", "up", 5))
        assert asking.loop.unread(KEY) is None
        await asking.clock.advance(6)
        asking.loop.follow(KEY, None)
        await asking.clock.advance(60)
        assert asking.asked_at == [10, 17]
        assert asking.loop.unread(KEY) is None

    play(scene)


def test_a_question_under_way_ends_with_its_service() -> None:
    async def scene(asking: Asking) -> None:
        asking.takes_s[EVERY_10_S.url] = 5
        asking.loop.follow(KEY, EVERY_10_S)
        await asking.clock.advance(12)
        asking.loop.follow(KEY, None)
        await settle()
        await asking.clock.advance(60)
        assert (asking.asked_at, asking.woken) == ([10], [])

    play(scene)


def test_whoever_looks_seldom_looks_soon_for_the_first_time() -> None:
    async def scene(asking: Asking) -> None:
        asking.loop.follow(KEY, PrometheusQuestion("http://prometheus:9090", "up", 3600))
        await asking.clock.advance(3616)
        assert asking.asked_at == [15, 3615]

    play(scene)


def test_a_mistake_of_ours_is_silence_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(asking: Asking) -> None:
        asking.error = RuntimeError("no session")
        asking.loop.follow(KEY, EVERY_10_S)
        await asking.clock.advance(20)
        said = asking.loop.unread(KEY)
        assert isinstance(said, Silence)
        assert said.reason is Reason.UNREACHABLE
        assert asking.asked_at == [10, 20]

    play(scene)
    assert "no session" in caplog.text
