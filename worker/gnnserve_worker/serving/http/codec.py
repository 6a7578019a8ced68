"""What a codec is: one form in which predictions are asked for and answered over HTTP; and the stages of a request.

A request arrives as a head and a body (`Arrival`). Its codec decodes the body into an `Ask`, of which `resolve` in
`predict.py` makes a `Question`, so that it can be answered (`Asked`), and encodes the `Answer`, which becomes a
`Reply`. A codec that has a media type of its own (`MediaCodec`) reads every request of that type; one whose requests
say more in their head is made for each head (`open_inference.py`). `predict.py` does what all forms share: admission,
refusals, timing. A new form is a class with these methods and a line in `codecs/registry.py`; neither the connection
nor the ASGI application knows of any codec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.protocol import ErrorDetail
from gnnserve_worker.asking.question import (
    IN_BODY,
    NO_WISHES,
    Question,
    Wishes,
)
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.requests import Answer, Lane
from gnnserve_worker.serving.tracing.traces import RequestTrace
from gnnserve_worker.tasks.served import Items


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


class Coding(msgspec.Struct, frozen=True):
    name: bytes
    wbits: int
    """The format, as zlib numbers it."""


class Head(msgspec.Struct, frozen=True):
    """The parsed head of a request."""

    codec: Codec
    query: bytes
    wishes: Wishes
    coding: Coding | None = None
    """How the answer is to be compressed; None: not at all."""
    path: str = ""
    """Path of its URL, or method of gRPC."""
    parent: bytes | None = None
    """Its `traceparent`, unread; None: it has none."""


Arrange = Callable[[], tuple[Overlay, np.ndarray]]
"""Arranges what a request brings over the stored graph, and finds its nodes (int64). Raises RequestError."""


class Ask(msgspec.Struct, frozen=True):
    """A request as its protocol has it. Nothing of it is looked up."""

    items: Items
    """Makes items of the nodes that are found: the revision's task, or another one."""
    ids: Sequence[Any] | np.ndarray
    """Ids of the nodes that it asks about, at least one: as JSON has them, or int64. Of no use where it brings
    something."""
    outputs: tuple[str, ...]
    wishes: Wishes = NO_WISHES
    """Wishes of the body."""
    places: Mapping[str, str] = IN_BODY
    """Where the body has each wish, by its field."""
    arrange: Arrange | None = None
    """None: it brings nothing."""
    answer_form: Any = None
    """What its codec keeps of it for the answer."""
    may_bring: bool = True
    """Whether its form may bring nodes, which is advised where one is unknown."""


class Arrival(msgspec.Struct, frozen=True):
    """A request as it came."""

    head: Head
    body: bytes
    arrived_ms: float | None = None
    """None: it is read as it comes."""
    trace: RequestTrace | None = None
    """None: it is not traced."""


class Asked(msgspec.Struct, frozen=True):
    """A request that can be answered, and the lane that it belongs to, whatever is switched to meanwhile."""

    arrival: Arrival
    lane: Lane
    question: Question
    arrived_ms: float
    is_large: bool
    """Its answer is sent in pieces."""
    read_ms: float
    """Time of reading its overlay; 0 without one."""
    receive_ms: float | None = None
    """Time of reading the request, which an overlay's is not part of; None: its client did not ask for it."""


class Behind(msgspec.Struct, frozen=True):
    """A request that asks for an offset which the worker has not applied yet. Nothing else of it is read."""

    arrival: Arrival
    """With its time."""
    min_offset: int
    deadline_ms: float
    wishes: Wishes
    """All of the request's own."""


class Reply(msgspec.Struct, frozen=True):
    status: int
    head: bytes
    """Header lines, each with its CRLF, without the body's length."""
    body: bytes | memoryview
    pieces: Iterator[bytes] | None = None
    """Parts of a large body, in place of `body`; each is quick to make."""
    code: str = ""
    """Code of the error or refusal; empty: it is none."""
