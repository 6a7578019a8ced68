"""What a codec is: one form in which predictions are asked for and answered over HTTP.

A codec decodes a body into an `Ask`, which `question.py` makes a `Question` of, and encodes an `Answer`. One that has a
media type of its own (`MediaCodec`) reads every request of that type; one whose requests say more in their head is made
for each head (`open_inference.py`). `predict.py` does what all forms share: admission, refusals, timing. A new form is
a class with these methods and a line in `registry.py`; neither the connection nor the ASGI application knows of any
codec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.protocol import ErrorDetail
from gnnserve_worker.asking.question import Question
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.question import Ask
from gnnserve_worker.serving.requests import Answer


class Encoded(msgspec.Struct, frozen=True):
    """An answer as it is sent."""

    head: bytes
    """Header lines, each with its CRLF: the media type, and what this form says in headers."""
    body: bytes | memoryview
    pieces: Iterator[bytes] | None = None
    """The body in pieces, each short work to make; None: it is in `body`."""


ErrorForm = Callable[[ErrorDetail], Encoded]
"""Writes an error, or a refusal, as a protocol has it."""


class Codec(Protocol):
    @property
    def model(self) -> str | None:
        """The service that the head of the request names; None: this form names none."""

    @property
    def is_for_canary(self) -> bool:
        """Whether a second revision answers a share of such requests; otherwise all are the service's own."""

    @property
    def tells_times(self) -> bool:
        """Whether every answer of this form tells where its time went, in `Server-Timing`; otherwise those alone whose
        request asks for all times."""

    def check_query(self, query: bytes) -> None:
        """Raise RequestError for a query string that this form cannot have. `query` is not empty."""

    def estimate_seeds(self, body: bytes, revision: ServedRevision) -> int:
        """About how many nodes a body names, without parsing it."""

    def may_choose(self, body: bytes) -> bool:
        """Whether the body could carry an objective or a priority or name a variant, so that it has to be parsed before
        the request is refused."""

    def may_have_seed(self, body: bytes) -> bool:
        """Whether the body could carry a seed, without parsing it."""

    def may_have_overlay(self, body: bytes) -> bool:
        """Whether the body seems to bring an overlay, without parsing it; requests that are refused unread are counted
        by it."""

    def decode(self, body: bytes, query: bytes, revision: ServedRevision, max_nodes: int, limits: OverlayLimits) -> Ask:
        """What a body asks of a revision, whose ids and outputs it may have. Nothing is looked up. Raises RequestError,
        which names the field. `limits`: those of an overlay."""

    def encode_answer(
        self,
        answer: Answer,
        question: Question,
        revision: ServedRevision,
        is_in_time: Callable[[], bool] | None,
        *,
        in_pieces: bool,
    ) -> Encoded:
        """`is_in_time` tells whether the objective is met, and is called once, after the arrays are encoded; None: it
        is, whenever that is. `in_pieces`: the answer is large, so that a form whose encoding takes long should yield to
        other clients between its parts."""

    def encode_error(self, detail: ErrorDetail) -> Encoded: ...


class MediaCodec(Codec, Protocol):
    """A form that has a path and a media type of its own."""

    @property
    def path(self) -> str:
        """Path of the URL, without a query."""

    @property
    def content_type(self) -> str:
        """Media type of requests and answers, without parameters."""

    def describe_request(self, revision: ServedRevision | None, example: Any) -> dict[str, Any] | None:
        """OpenAPI's media type object; None: the served graph cannot be asked in this form."""

    def describe_answer(self, revision: ServedRevision | None, example: Any) -> dict[str, Any] | None:
        """Describes the answer for OpenAPI, as `describe_request` describes the request."""
