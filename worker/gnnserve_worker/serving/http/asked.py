"""Requests that were read: those that can be answered, and those whose graph is not there yet."""

from __future__ import annotations

import msgspec

from gnnserve_worker.asking.question import Question
from gnnserve_worker.serving.http.codecs.codec import Codec
from gnnserve_worker.serving.http.content_coding import Coding
from gnnserve_worker.serving.http.head import Head
from gnnserve_worker.serving.lane import Lane
from gnnserve_worker.serving.tracing.traces import RequestTrace


class Asked(msgspec.Struct, frozen=True):
    """A request that can be answered, and the lane that it belongs to, whatever is switched to meanwhile."""

    lane: Lane
    question: Question
    codec: Codec
    arrived_ms: float
    large: bool
    """Its answer is sent in pieces."""
    read_ms: float
    """Time of reading its overlay; 0 without one."""
    coding: Coding | None = None
    """How its answer is to be compressed."""
    receive_ms: float | None = None
    """Time of reading the request, which an overlay's is not part of; None: its client did not ask for it."""
    trace: RequestTrace | None = None
    """None: it is not traced."""


class Behind(msgspec.Struct, frozen=True):
    """A request that asks for an offset which the worker has not applied yet. Nothing else of it is read."""

    head: Head
    body: bytes
    min_offset: int
    arrived_ms: float
    deadline_ms: float
    trace: RequestTrace | None = None
