"""Records of a traced request and of its batches, and the W3C header that tells of a client's trace.

Records are made by the event loop, of times that it has anyway; `spans.py` turns them into spans, in another thread.
"""

from __future__ import annotations

import re

import msgspec

from gnnserve_worker.inference.batch import StageTimes
from gnnserve_worker.programs.stats import ProgramRun
from gnnserve_worker.staleness.loss import StaleRead

PARENT_HEADER = b"traceparent"
"""The W3C's Trace Context: trace, span and flags of the client's."""
_PARENT = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


class ParentSpan(msgspec.Struct, frozen=True):
    """The client's span, which a request belongs to."""

    trace_id: int
    span_id: int
    is_sampled: bool
    """Whether the client records its span, and so wants ours."""


def read_parent(value: bytes) -> ParentSpan | None:
    """The span that a `traceparent` names; None: the header is malformed, and counts as absent."""
    found = _PARENT.fullmatch(value.strip(b" \t"))
    if found is None:
        return None
    version, trace, span, flags, rest = found.groups()
    trace_id, span_id = int(trace, 16), int(span, 16)
    # Version 00 has nothing behind the flags; later ones may.
    if not trace_id or not span_id or (rest is not None and version == b"00"):
        return None
    return ParentSpan(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


class SpanIds(msgspec.Struct, frozen=True):
    trace_id: int
    """128 bits, not 0."""
    span_id: int
    """64 bits, not 0."""


class BatchTrace(msgspec.Struct, frozen=True):
    """A batch that computed traced requests, or pieces of them."""

    ids: SpanIds
    parent: SpanIds
    """The first of its traced requests, in whose trace it is."""
    of: tuple[SpanIds, ...]
    """All of its traced requests."""
    variant: str
    seeds: int
    requests: int
    """Requests of the batch, those that are not traced included."""
    started_ms: float
    finished_ms: float
    """By the monotonic clock."""
    times: StageTimes
    offset_ns: int
    runs: tuple[ProgramRun, ...] = ()
    """Runs of a program, in its process."""
    stale: StaleRead | None = None
    """Rows of a stored layer that it read, where some were stale before; None: none were."""

    @property
    def spans(self) -> int:
        return 1 + len(self.stages) + len(self.runs)

    @property
    def stages(self) -> list[tuple[str, float]]:
        """Stages and the time of each, in ms, in the order in which they ran."""
        times = self.times
        stages = [("sample", times.sample_ms), ("gather", times.gather_ms), ("compute", times.compute_ms)]
        return [("overlay", times.overlay_ms), *stages] if times.overlay_ms else stages


class RequestTrace(msgspec.Struct):
    """A traced request, from its arrival to its end."""

    ids: SpanIds
    parent: SpanIds | None
    """The client's span; None: the trace begins here."""
    path: str
    """Path of its URL, or method of gRPC."""
    began_ms: float
    """By the monotonic clock."""
    offset_ns: int
    """From the monotonic clock to the time since 1970, both in ns, when the request came."""
    batches: list[BatchTrace] = []
    seeds: int | None = None
    """None: it was refused before its nodes were read."""
    variant: str | None = None
    """None: it was not answered."""
    revision: str | None = None
    latency_ms: float | None = None
    """The latency that it was to be answered in; None: there is none."""
    ended_ms: float | None = None
    status: int | None = None
    """Status over HTTP, or the one that it would have there; None: its client left."""
    code: str = ""
    """Code of its error or refusal; empty: it was answered."""

    @property
    def spans(self) -> int:
        return 2 if self.batches else 1
