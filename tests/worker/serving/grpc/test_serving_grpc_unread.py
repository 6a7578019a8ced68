"""Time limits of calls whose message has not come, which one timer watches; the contexts are not gRPC's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gnnserve_worker.serving.grpc.unread import UnreadCalls

SHORT_S = 0.01


class Context:
    """A call whose message comes when the test says so."""

    def __init__(self) -> None:
        self.message: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def read(self) -> Any:
        return await self.message


def test_a_message_is_what_came_and_none_where_the_client_sends_no_more() -> None:
    async def scenario() -> None:
        calls = UnreadCalls(60.0)
        for sent, read in ((b"a", b"a"), (b"", b""), (object(), None)):
            context = Context()
            context.message.set_result(sent)
            assert await calls.read(context) == read

    asyncio.run(scenario())


def test_each_call_ends_after_its_own_time_whatever_became_of_those_before() -> None:
    async def scenario() -> None:
        calls, loop = UnreadCalls(SHORT_S), asyncio.get_running_loop()
        for _ in range(3):
            contexts = [Context() for _ in range(4)]
            began_s = loop.time()
            reading = [asyncio.ensure_future(calls.read(context)) for context in contexts]
            await asyncio.sleep(0)
            contexts[0].message.set_result(b"in time")
            assert await reading[0] == b"in time"
            assert await asyncio.gather(*reading[1:]) == [None, None, None]
            assert loop.time() >= began_s + SHORT_S

    asyncio.run(scenario())


def test_a_client_that_leaves_ends_its_call_alone() -> None:
    async def scenario() -> None:
        calls, (gone, stays) = UnreadCalls(60.0), (Context(), Context())
        reading = [asyncio.ensure_future(calls.read(context)) for context in (gone, stays)]
        await asyncio.sleep(0)
        reading[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading[0]
        stays.message.set_result(b"here")
        assert await reading[1] == b"here"

    asyncio.run(scenario())


def test_a_client_that_leaves_as_its_time_ends_is_gone() -> None:
    async def scenario() -> None:
        calls, context = UnreadCalls(SHORT_S), Context()
        reading = asyncio.ensure_future(calls.read(context))
        # It is cancelled for its time, and in the same round of the loop for its client.
        context.message.add_done_callback(lambda _: reading.cancel())
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(scenario())
