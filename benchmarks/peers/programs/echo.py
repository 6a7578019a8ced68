"""The floor of HTTP: uvicorn with its fastest settings, and an application that gives back what it got.

Runs in gnnserve's own environment, without anything of gnnserve.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

Message = MutableMapping[str, Any]


async def application(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    uvicorn.run(
        application, host="127.0.0.1", port=int(sys.argv[1]), loop="uvloop", http="httptools", ws="none",
        lifespan="off", log_config=None, access_log=False, server_header=False,
    )  # fmt: skip
