"""Requests over gRPC that wait for others: which do, for how long, and that none is lost meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import numpy as np
from tests.support.serving.serving import FakeWorker, running

from gnnserve_worker.serving.grpc.gathering import LONGEST_HOLD_MS, LONGEST_MS, MEMORY, QUIET_ROUNDS, Gathering
from gnnserve_worker.serving.grpc.messages import ModelInferRequest
from gnnserve_worker.serving.grpc.predictions import GrpcPredictions


class Scene:
    """A gathering by a clock that stands still, and what it has begun."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.begun: list[int] = []
        self.gathering = Gathering(lambda: self.now_ms)

    def begin(self, number: int) -> None:
        self.gathering.begin(partial(self.begun.append, number))

    async def rounds(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)


def play(scenario: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        await scenario(Scene())

    asyncio.run(run())


def test_a_request_is_begun_at_once_where_no_others_are_expected() -> None:
    async def scenario(scene: Scene) -> None:
        for number in range(3):
            scene.begin(number)
            assert scene.begun == list(range(number + 1))

    play(scenario)


def test_requests_are_begun_together_in_their_order_once_no_other_comes() -> None:
    async def scenario(scene: Scene) -> None:
        scene.gathering.expect_others()
        for number in range(3):
            scene.begin(number)
            await scene.rounds(QUIET_ROUNDS - 1)
            assert scene.begun == []
        await scene.rounds(1)
        assert scene.begun == [0, 1, 2]
        scene.begin(3)
        assert scene.begun == [0, 1, 2]
        await scene.rounds(QUIET_ROUNDS)
        assert scene.begun == [0, 1, 2, 3]

    play(scenario)


def test_none_waits_for_longer_than_a_time_however_many_come() -> None:
    async def scenario(scene: Scene) -> None:
        scene.gathering.expect_others()
        for number in range(3):
            scene.begin(number)
            scene.now_ms = LONGEST_MS * number / 2
            assert scene.begun == []
            await scene.rounds(1)
        assert scene.begun == [0, 1, 2]

    play(scenario)


def test_others_are_expected_until_none_came_for_many_requests() -> None:
    async def scenario(scene: Scene) -> None:
        scene.gathering.expect_others()
        for number in range(MEMORY):
            scene.begin(number)
            assert len(scene.begun) == number
            await scene.rounds(QUIET_ROUNDS)
        scene.begin(MEMORY)
        assert scene.begun == list(range(MEMORY + 1))

    play(scenario)


def test_requests_that_are_held_are_begun_together_once_none_came_for_a_while() -> None:
    async def scenario(scene: Scene) -> None:
        holding = asyncio.ensure_future(scene.gathering.hold())
        await scene.rounds(1)
        scene.begin(1)
        await holding
        scene.begin(2)
        await scene.rounds(QUIET_ROUNDS)
        assert scene.begun == []
        scene.gathering.release()
        assert scene.begun == [1, 2]
        scene.begin(3)
        assert scene.begun == [1, 2, 3]

    play(scenario)


def test_those_that_waited_for_others_are_held_too() -> None:
    async def scenario(scene: Scene) -> None:
        scene.gathering.expect_others()
        scene.begin(1)
        await scene.gathering.hold()
        assert scene.begun == []
        scene.gathering.release()
        assert scene.begun == [1]

    play(scenario)


def test_none_is_held_for_long_where_others_go_on_coming() -> None:
    async def scenario(scene: Scene) -> None:
        holding = asyncio.ensure_future(scene.gathering.hold())
        await scene.rounds(1)
        scene.begin(1)
        scene.now_ms = LONGEST_HOLD_MS
        await holding
        scene.gathering.release()
        assert scene.begun == [1]

    play(scenario)


class Context:
    """A call without metadata."""

    def invocation_metadata(self) -> tuple[()]:
        return ()


def test_calls_that_come_close_upon_each_other_share_a_batch_without_those_whose_clients_left() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            predictions = GrpcPredictions(client.app)

            def ask(node: int) -> asyncio.Task[bytes]:
                message = ModelInferRequest(model_name="digits")
                message.inputs.add(name="nodes", datatype="INT64", shape=[1])
                message.raw_input_contents.append(np.array([node], "<i8").tobytes())
                return asyncio.ensure_future(predictions.infer(message.SerializeToString(), Context()))

            calls = [ask(node) for node in (1, 2, 3, 4)]
            await asyncio.sleep(0)
            calls[2].cancel()
            await asyncio.wait(calls)
            assert [call.cancelled() for call in calls] == [False, False, True, False]
            assert (predictions.waiting, client.app.predict.in_flight) == (0, 0)
        # The first one knew of no other.
        assert [seeds for _, seeds in worker.batches] == [[1], [2, 4]]

    asyncio.run(scenario())
