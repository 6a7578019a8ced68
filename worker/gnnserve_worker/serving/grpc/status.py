"""Statuses of gRPC: the one of each reply, whose reason, sentence and advice are those of every protocol."""

from __future__ import annotations

from typing import Any

import grpc

from gnnserve_worker.serving.requests import Reply

OK = 200
_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.UNIMPLEMENTED,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    # gRPC has RESOURCE_EXHAUSTED for what is too large, which clients take as an advice to send it again.
    413: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.FAILED_PRECONDITION,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""Status of gRPC for each of HTTP that a prediction or a call of the protocol may end with."""
_RETRY_AFTER = "retry-after"
_PUSHBACK = "grpc-retry-pushback-ms"
"""When a client that retries by itself does so."""

Metadata = tuple[tuple[str, str], ...]


def metadata_of(reply: Reply) -> Metadata:
    """What a reply says in its head, as trailing metadata."""
    found: list[tuple[str, str]] = []
    for line in reply.head.splitlines():
        name, _, value = line.decode("ascii").partition(": ")
        found.append((name, value))
        if name == _RETRY_AFTER:
            found.append((_PUSHBACK, f"{int(value) * 1000}"))
    return tuple(found)


def sentence_of(reply: Reply) -> str:
    return bytes(reply.body).decode()


async def end_with(context: Any, reply: Reply) -> None:
    """End the call with the status of a reply that is an error. It always raises what gRPC ends calls by."""
    await context.abort(_STATUS.get(reply.status, grpc.StatusCode.UNKNOWN), sentence_of(reply), metadata_of(reply))
