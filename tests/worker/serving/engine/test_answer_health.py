"""Readiness by what is answered: failures that are many and most of the answers, for as long as they are recent."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from tests.support.serving.serving import FakeWorker, running, service

from gnnserve_worker.serving.engine.answer_health import LEAST_FAILURES, WINDOW_S, AnswerHealth


@pytest.mark.parametrize(
    ("failures", "answered", "is_failing"),
    [
        pytest.param(LEAST_FAILURES, 0, True, id="all fail"),
        pytest.param(LEAST_FAILURES, LEAST_FAILURES, True, id="half of them fail"),
        pytest.param(LEAST_FAILURES, LEAST_FAILURES + 1, False, id="less than half fail"),
        pytest.param(LEAST_FAILURES - 1, 0, False, id="too few to say"),
        pytest.param(5000, 6000, False, id="more failures than are kept, and more answers"),
    ],
)
def test_answers_fail_where_failures_are_many_and_most_of_them(failures: int, answered: int, is_failing: bool) -> None:
    health = AnswerHealth()
    for failure in range(failures):
        health.note_failure(0.0, 100 + answered * failure // failures)
    assert bool(health.why_failing(1.0, 100 + answered)) is is_failing


def test_failures_before_the_window_and_answers_before_the_failures_count_for_nothing() -> None:
    health = AnswerHealth()
    for _ in range(LEAST_FAILURES):
        health.note_failure(10.0, 1_000_000)
    assert health.why_failing(10.0 + WINDOW_S - 1, 1_000_001).startswith("10 of its last 11 answers failed by errors")
    assert health.why_failing(10.0 + WINDOW_S, 1_000_001) == ""
    health.note_failure(200.0, 1_000_001)
    assert health.why_failing(200.0, 1_000_001) == ""


def test_a_worker_whose_answers_fail_is_not_ready_until_another_revision_answers_or_they_succeed() -> None:
    broken = True

    def fail(_variant: str, seeds: np.ndarray) -> None:
        if broken and seeds[0] > 0:
            raise IndexError("a table of wrong bytes")

    async def scenario() -> None:
        nonlocal broken
        async with running(FakeWorker(fail=fail)) as client:

            async def ask(nodes: list[int]) -> list[int]:
                answers = [await client.http.post("/v1/predict", json={"nodes": [node]}) for node in nodes]
                return [answer.status_code for answer in answers]

            async def ready() -> tuple[int, str]:
                answer = await client.http.get("/readyz")
                return answer.status_code, answer.text

            assert await ask([0, 1, 2, 3] * 3 + [1]) == [200, 500, 500, 500] * 3 + [500]
            status, why = await ready()
            assert (status, why.partition(" by")[0]) == (503, "10 of its last 12 answers failed")
            assert (await client.http.get("/v2/health/ready")).status_code == 503
            # Where clients go on, readiness follows what they get.
            assert set(await ask([0] * 9)) == {200}
            assert await ready() == (200, "ok\n")
            assert set(await ask([1] * 10)) == {500}
            assert (await ready())[0] == 503
            broken = False
            other = FakeWorker().revision()
            client.model.switch(other, service().spec.routing_table(other.manifest.revision))
            assert await ready() == (200, "ok\n")

    asyncio.run(scenario())


def test_refusals_are_no_failures() -> None:
    async def scenario() -> None:
        async with running(FakeWorker()) as client:
            for _ in range(2 * LEAST_FAILURES):
                assert (await client.http.post("/v1/predict", json={"nodes": ["x"]})).status_code >= 400
            assert (await client.http.get("/readyz")).status_code == 200

    asyncio.run(scenario())
