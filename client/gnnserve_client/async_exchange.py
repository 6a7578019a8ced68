"""One exchange with a server over HTTP in an event loop; apart, for the command line starts without asyncio."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from gnnserve_client.address import Endpoint
from gnnserve_client.errors import NoAnswerError
from gnnserve_client.exchange import Reply, Send, Steps, no_answer, reply_of, request_of, settings_of, too_slow

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")


class AsyncConnection:
    """Exchanges with one server, of one event loop."""

    def __init__(self, endpoint: Endpoint, transport: httpx.AsyncBaseTransport | None = None) -> None:
        import httpx  # noqa: PLC0415

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

    async def exchange(self, send: Send) -> Reply:
        import httpx  # noqa: PLC0415

        started_s = time.perf_counter()
        try:
            async with asyncio.timeout(send.timeout_s), self._http.stream(**request_of(self._url, send)) as response:
                pieces = [piece async for piece in response.aiter_bytes()]
        except TimeoutError as error:
            raise too_slow(self._url, send) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise no_answer(self._url, send, error) from error
        return reply_of(response, b"".join(pieces), started_s)

    async def close(self) -> None:
        await self._http.aclose()
