"""Paths off the hot path: a table of methods and paths, and what `/openapi.json` says of each.

A handler returns a `Reply`, as predictions do, so compressing and errors have one implementation. Paths are fixed
texts, so finding one is a look into a dictionary. No web framework: one took a seventh of a worker's start to import,
for parameters and schemas that msgspec reads and writes here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gnnserve_worker.serving.http.asgi_predict import ClientGoneError, Receive, Scope, Send, send_response
from gnnserve_worker.serving.http.codecs.codec import Encoded
from gnnserve_worker.serving.http.content_coding import ACCEPT_ENCODING, compress, wanted_coding
from gnnserve_worker.serving.http.predict import Predict
from gnnserve_worker.serving.http.question import ErrorCode, RequestError
from gnnserve_worker.serving.http.replies import Reply, error_reply

Handler = Callable[[Scope, Receive], Awaitable[Reply]]
"""Answers a request. A RequestError that it raises is answered, and not counted."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What `/openapi.json` says of a handler beside its docstring; its parts are objects of OpenAPI."""

    tag: str
    responses: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    parameters: tuple[Mapping[str, Any], ...] = ()
    body: Mapping[str, Any] | None = None
    """Content by media type; None: there is no body."""


class Routes:
    """The table. `predict` counts what fails."""

    def __init__(self, predict: Predict) -> None:
        self._predict = predict
        self._handlers: dict[str, dict[str, Handler]] = {}
        """By path, then by method."""
        self._folders: dict[str, Handler] = {}
        """By the path that they are under, with its last slash."""
        self.described: dict[str, dict[str, Any]] = {}
        """Paths of OpenAPI."""

    @property
    def paths(self) -> frozenset[str]:
        return frozenset((*self._handlers, *self._folders))

    def add(
        self, path: str, methods: Iterable[str] = ("GET",), operation: Operation | None = None
    ) -> Callable[[Handler], Handler]:
        """Decorator of a handler. `operation`: None: `/openapi.json` does not list it."""

        def added(handler: Handler) -> Handler:
            for method in methods:
                self._handlers.setdefault(path, {})[method] = handler
                if operation is not None:
                    described = _describe(path, method, handler, operation)
                    self.described.setdefault(path, {})[method.lower()] = described
            return handler

        return added

    def add_folder(self, path: str, handler: Handler) -> None:
        """Have all paths under that one, by GET and HEAD, answered by the handler. `path` ends with a slash."""
        self._folders[path] = handler

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await self._handler_of(scope)(scope, receive)
        except RequestError as error:
            reply = error_reply(error)
        except ClientGoneError:
            self._predict.count_gone()
            return
        except Exception as error:  # noqa: BLE001  (whatever it is, this client gets an answer and the others theirs)
            reply = self._predict.fail(error)
        await send_response(send, _compressed(reply, header_of(scope, ACCEPT_ENCODING)))

    def _handler_of(self, scope: Scope) -> Handler:
        method, path = scope["method"], scope["path"]
        by_method = self._handlers.get(path) or self._of_folder(path)
        if by_method is None:
            raise RequestError(ErrorCode.NOT_FOUND, f"{method} {path}", "no such path", "/docs lists what there is")
        handler = by_method.get(method)
        if handler is None:
            raise RequestError(
                ErrorCode.METHOD_NOT_ALLOWED,
                path,
                f"{method} is not possible",
                f"use {' or '.join(by_method)}",
                allowed_method=", ".join(by_method),
            )
        return handler

    def _of_folder(self, path: str) -> dict[str, Handler] | None:
        for folder, handler in self._folders.items():
            if path.startswith(folder):
                return {"GET": handler, "HEAD": handler}
        return None


def header_of(scope: Scope, name: bytes) -> bytes:
    """The values of a header, by their commas; empty where it is not there. `name`: in lower case."""
    return b",".join(value for found, value in scope["headers"] if found == name)


def _compressed(reply: Reply, accepted: bytes) -> Reply:
    coding = wanted_coding(accepted)
    if coding is None:
        return reply
    encoded = compress(Encoded(reply.head, reply.body, reply.pieces), coding)
    return msgspec.structs.replace(reply, head=encoded.head, body=encoded.body, pieces=encoded.pieces)


def _describe(path: str, method: str, handler: Handler, operation: Operation) -> dict[str, Any]:
    name = handler.__name__
    responses = {200: {}, **operation.responses}
    return {
        "tags": [operation.tag],
        "summary": name.replace("_", " ").title(),
        "description": inspect.getdoc(handler),
        "operationId": re.sub(r"\W", "_", f"{name}{path}") + f"_{method.lower()}",
        **({"parameters": list(operation.parameters)} if operation.parameters else {}),
        **({"requestBody": {"required": True, "content": operation.body}} if operation.body is not None else {}),
        "responses": {
            str(status): {"description": "Successful Response", **told} for status, told in responses.items()
        },
    }
