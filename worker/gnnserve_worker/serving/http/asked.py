"""Requests on their way to the engine: as they came, read, or waiting for a graph that is not there yet."""

from __future__ import annotations

import msgspec

from gnnserve_worker.asking.question import Question
from gnnserve_worker.serving.http.head import Head
from gnnserve_worker.serving.lane import Lane
from gnnserve_worker.serving.tracing.traces import RequestTrace


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
