"""The event loop's part of tracing: which requests are traced, and what is handed to the exporter's thread.

Where nothing is traced there is no tracer, and no package of OpenTelemetry is imported.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from gnnserve_worker.inference.batch import Inference
from gnnserve_worker.programs.stats import ProgramRun
from gnnserve_worker.serving.tracing.traces import BatchTrace, RequestTrace, SpanIds, read_parent

_log = logging.getLogger(__name__)


class SpanSink(Protocol):
    """Receiver of records, which sends their spans. No method waits."""

    @property
    def exported(self) -> int:
        """Spans that the receiver has taken."""

    @property
    def dropped(self) -> int:
        """Spans that were lost: too many waited, or the receiver did not take them."""

    def put(self, record: RequestTrace | BatchTrace) -> None: ...


class Tracer:
    """Belongs to the event loop's thread."""

    def __init__(self, sink: SpanSink, sampled_permille: float, draw: Callable[[], float] = random.random) -> None:
        """`sampled_permille`: of requests without a client's trace. `draw`: a number from 0 to 1 for each of them."""
        self.sink = sink
        self._share = sampled_permille / 1000
        self._draw = draw

    def begin(self, parent_header: bytes | None, path: str, now_ms: float) -> RequestTrace | None:
        """A request came. `parent_header`: its `traceparent`. `now_ms`: by the monotonic clock. None: it is not
        traced."""
        parent = None if parent_header is None else read_parent(parent_header)
        if not (self._draw() < self._share if parent is None else parent.is_sampled):
            return None
        offset_ns = time.time_ns() - round(now_ms * 1e6)
        if parent is None:
            return RequestTrace(SpanIds(_new_id(128), _new_id(64)), None, path, now_ms, offset_ns)
        above = SpanIds(parent.trace_id, parent.span_id)
        return RequestTrace(SpanIds(parent.trace_id, _new_id(64)), above, path, now_ms, offset_ns)

    def note_batch(
        self, traces: list[RequestTrace], variant: str, seeds: int, requests: int, started_ms: float,
        finished_ms: float, inference: Inference, runs: Sequence[ProgramRun],
    ) -> None:  # fmt: skip
        """A batch with these traced requests, or pieces of them, was computed. There is at least one. `runs`: of a
        program, in its process."""
        first = traces[0]
        ids = SpanIds(first.ids.trace_id, _new_id(64))
        of = tuple(trace.ids for trace in traces)
        batch = BatchTrace(
            ids, first.ids, of, variant, seeds, requests, started_ms, finished_ms, inference.times, first.offset_ns,
            tuple(runs), inference.stale,
        )  # fmt: skip
        for trace in traces:
            trace.batches.append(batch)
        self._put(batch)

    def end(self, trace: RequestTrace, now_ms: float, status: int | None, code: str = "") -> None:
        """The request was answered, refused, or its client left. Only its first end counts."""
        if trace.ended_ms is None:
            trace.ended_ms, trace.status, trace.code = now_ms, status, code
            self._put(trace)

    def _put(self, record: RequestTrace | BatchTrace) -> None:
        try:
            self.sink.put(record)
        except Exception:  # noqa: BLE001  (a trace is lost, and no answer)
            _log.exception("a trace could not be kept")


def _new_id(bits: int) -> int:
    return secrets.randbits(bits) or 1
