"""Messages that were read before: clients repeat all but an id and the bytes of their tensors."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from gnnserve_worker.asking.tensors import AsBytes, GivenTensor
from gnnserve_worker.serving.grpc.messages import ModelInferRequest
from gnnserve_worker.serving.http.tensors.request import AnswerForm, InferBody

_MOST_KNOWN = 256
"""Messages, and bodies, that are remembered."""
LONGEST_KNOWN = 1024
"""Longest message without the bytes of its tensors that is remembered."""
_MOST_KNOWN_BYTES = 65_536
"""Most bytes of a tensor whose message is recognized unread; of longer ones, reading is the least."""
_INVERTED = bytes(range(255, -1, -1))
_NO_BYTES = AsBytes(b"")


class KnownMessage(msgspec.Struct, frozen=True):
    """A message without an id whose one tensor came as bytes. Those that differ in these bytes alone are as long, and
    begin alike."""

    begin: bytes
    """All before the bytes of the tensor, which end the message."""
    request: Any
    """The message without these bytes. It is not to be changed."""
    rest: bytes
    """`request`, encoded."""
    seeds: int


class KnownMessages:
    """Requests that were read before, but for their id and the bytes of their tensors: clients repeat the rest."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[Any, ...], InferBody] = {}
        self._messages: dict[int, KnownMessage] = {}
        """The last one of each length."""

    @property
    def bodies(self) -> Collection[InferBody]:
        return self._bodies.values()

    def find(self, key: tuple[Any, ...]) -> InferBody | None:
        return self._bodies.get(key)

    def remember(self, key: tuple[Any, ...], body: InferBody) -> None:
        """The bytes of its tensors and its id are not kept: they may be as long as a message, and are each request's
        own."""
        tensors = {name: GivenTensor(given.kind, given.shape, _NO_BYTES) for name, given in body.tensors.items()}
        form = AnswerForm(None, body.form.are_binary)
        body = InferBody(tensors, body.outputs, body.wishes, form, body.own)
        if len(self._bodies) >= _MOST_KNOWN:
            self._bodies.clear()
        self._bodies[key] = body

    def find_message(self, raw: bytes) -> KnownMessage | None:
        """The message that is known to be the same but for the bytes of its tensor."""
        found = self._messages.get(len(raw))
        return found if found is not None and raw.startswith(found.begin) else None

    def remember_message(self, raw: bytes, request: Any, rest: bytes, data: bytes, seeds: int) -> None:
        """`request`: the message without `data`, the bytes of its one tensor, and without an id; `rest`: that, encoded.
        It is not remembered where the bytes do not end it."""
        size = len(data)
        begin = raw[: len(raw) - size]
        if not 0 < size <= _MOST_KNOWN_BYTES or len(begin) > 2 * LONGEST_KNOWN:
            return
        # How a message divides does not depend on what is in its fields: if other bytes in this place are read as the
        # tensor's, all are.
        other = data.translate(_INVERTED)
        try:
            read = ModelInferRequest.FromString(begin + other)
        except DecodeError:
            return
        if list(read.raw_input_contents) != [other]:
            return
        if len(self._messages) >= _MOST_KNOWN:
            self._messages.clear()
        self._messages[len(raw)] = KnownMessage(begin, request, rest, seeds)
