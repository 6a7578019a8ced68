"""A prediction over ASGI: its body is read, its client is watched, its answer is sent, in pieces if it is large.

Most predictions do not come here: the connection answers them itself (`wire/connection.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gnnserve_worker.asking.question import ErrorCode, RequestError, wrong_method
from gnnserve_worker.serving.http.codecs.registry import error_form_of, read_head
from gnnserve_worker.serving.http.content_coding import decompress, sent_coding
from gnnserve_worker.serving.http.predict import MAX_BODY_BYTES, Predict
from gnnserve_worker.serving.http.waiting_request import WaitingRequest
from gnnserve_worker.serving.requests import PendingRequest, Reply

_WATCH_AFTER_S = 0.05
"""A client is watched for leaving only when its answer takes longer: a watcher costs as much as a short answer."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class ClientGoneError(Exception):
    """The client has disconnected."""


async def serve_prediction(predict: Predict, scope: Scope, receive: Receive, send: Send) -> None:
    predict.in_flight += 1
    try:
        await send_response(send, await _respond(predict, scope, receive))
    except RequestError as error:
        await send_response(send, predict.refuse_request(error, error_form_of(scope["path"])))
    except ClientGoneError:
        predict.count_gone()
    finally:
        predict.in_flight -= 1


async def _respond(predict: Predict, scope: Scope, receive: Receive) -> Reply:
    if scope["method"] != "POST":
        method, path = scope["method"], scope["path"]
        raise wrong_method(method, path, "POST")
    head = read_head(scope["path"], scope["headers"], scope["query_string"])
    assert head is not None  # noqa: S101  (only paths of codecs lead here)
    body = await read_body(scope, receive)
    outcome: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    pending = predict.start(head, body, lambda reply: None if outcome.done() else outcome.set_result(reply))
    if isinstance(pending, Reply):
        return pending
    return await _wait(predict, pending, outcome, receive)


async def _wait(
    predict: Predict, pending: PendingRequest | WaitingRequest, outcome: asyncio.Future[Reply], receive: Receive
) -> Reply:
    gone: asyncio.Task[None] | None = None

    def watch() -> None:
        nonlocal gone
        gone = asyncio.create_task(_cancel_when_gone(receive, outcome))

    timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, watch)
    try:
        return await outcome
    except asyncio.CancelledError:
        predict.cancel(pending)
        if gone is not None and gone.done():
            raise ClientGoneError from None
        raise
    finally:
        timer.cancel()
        if gone is not None:
            gone.cancel()


async def _cancel_when_gone(receive: Receive, outcome: asyncio.Future[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    outcome.cancel()


async def send_response(send: Send, response: Reply) -> None:
    headers = [split_header(line) for line in response.head.splitlines()]
    if response.pieces is None:
        headers.append((b"content-length", str(len(response.body)).encode()))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})
        return
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    for piece in response.pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(0)  # another client's turn
    await send({"type": "http.response.body", "body": b""})


def split_header(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b": ")
    return name, value


async def read_body(scope: Scope, receive: Receive, remedy: str = "split the nodes over several requests") -> bytes:
    """The body of a request, decompressed. Raises RequestError where it cannot be read, and ClientGoneError. `remedy`:
    what to do about a body that is too large."""
    for name, value in scope["headers"]:
        # By its digits first: Python refuses to read a number of thousands of them.
        if name == b"content-length" and (len(value) > 18 or int(value) > MAX_BODY_BYTES):
            raise _too_large(remedy)
    coding = sent_coding(scope["headers"])
    body = await _read_as_sent(receive, remedy)
    return body if coding is None else await decompress(body, coding, MAX_BODY_BYTES, remedy)


async def _read_as_sent(receive: Receive, remedy: str) -> bytes:
    message = await _receive_part(receive)
    if not message.get("more_body", False):
        return message.get("body", b"")  # type: ignore[no-any-return]
    body = bytearray(message.get("body", b""))
    while message.get("more_body", False):
        message = await _receive_part(receive)
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise _too_large(remedy)
    return bytes(body)


async def _receive_part(receive: Receive) -> Message:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message


def _too_large(remedy: str) -> RequestError:
    return RequestError(ErrorCode.BODY_TOO_LARGE, "body", f"over the limit of {MAX_BODY_BYTES:,} bytes", remedy)
