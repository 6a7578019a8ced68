"""Exchanges with a server in an event loop, by httpx, over connections that are kept and reused."""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

import httpx

from gnnserve_client.address import Endpoint
from gnnserve_client.errors import NoAnswerError
from gnnserve_client.exchange import Send, ServerReply, Steps, too_slow
from gnnserve_client.httpx_exchange import FAILURES, failure_of, reply_of, request_of, settings_of

T = TypeVar("T")


class AsyncConnection:
    """Exchanges with one server, of one event loop."""

    def __init__(self, endpoint: Endpoint, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._url = endpoint.url
        self._http = httpx.AsyncClient(transport=transport, **settings_of(endpoint))

    async def run(self, steps: Steps[T]) -> T:
        try:
            send = next(steps)
            while True:
                if send.after_s > 0:
                    await asyncio.sleep(send.after_s)
                try:
                    reply = await self.exchange(send)
                except NoAnswerError as error:
                    send = steps.throw(error)
                else:
                    send = steps.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result

    async def exchange(self, send: Send) -> ServerReply:
        started_s = time.perf_counter()
        try:
            async with asyncio.timeout(send.timeout_s), self._http.stream(**request_of(self._url, send)) as response:
                pieces = [piece async for piece in response.aiter_bytes()]
        except TimeoutError as error:
            raise too_slow(self._url, send) from error
        except FAILURES as error:
            raise failure_of(self._url, send, error) from error
        return reply_of(response, b"".join(pieces), started_s)

    async def close(self) -> None:
        await self._http.aclose()
