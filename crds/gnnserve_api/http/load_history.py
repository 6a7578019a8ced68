"""Messages of `GET /v1/history`: counters of the last minutes, by which a page draws them as soon as it opens."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class LoadSample(msgspec.Struct, frozen=True, rename="camel"):
    """Counters as they were at one moment; each counts from the worker's start."""

    age_ms: Annotated[float, Meta(description="Milliseconds that have passed since.")]
    answers: Annotated[dict[str, int], Meta(description="Requests answered, by variant.")]
    latency_counts: Annotated[
        list[int],
        Meta(description="Requests answered, by the bucket of their latency; the last one has no end."),
    ]
    outcomes: Annotated[dict[str, int], Meta(description="Requests: `met`, `late`, `refused`, `unbounded`.")]
    offered_seeds: Annotated[int, Meta(description="Seeds of well-formed requests, refused ones included.")]


class HistoryAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Load of the last minutes, as samples of what `/metrics` counts."""

    service: str
    interval_ms: Annotated[float, Meta(description="Milliseconds between two samples.")]
    latency_ends_ms: Annotated[list[float], Meta(description="Ends of the buckets of latency, but for the last one.")]
    samples: Annotated[list[LoadSample], Meta(description="The oldest first; empty in a worker that has just begun.")]
