"""From records to OpenTelemetry's spans: pure.

A request's span is the server's; below it stands how long it waited. A batch stands in the trace of the first of its
traced requests, with links to all of them, and theirs link to it. Its stages are durations, which are laid one behind
the other from its beginning: on several cores they overlap, and what is left at the end is splitting the results. Runs
of a program stand beside them, each when its process ran it.
"""

from __future__ import annotations

import re
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from gnnserve_worker.serving.tracing.traces import BatchTrace, RequestTrace, SpanIds

_SCOPE = InstrumentationScope("gnnserve")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_OF_MODEL = re.compile(r"/v2/models/[^/]+(/versions/[^/]+)?/infer")
_GRPC = re.compile(r"/([\w.]+)/(\w+)")


def spans_of(record: RequestTrace | BatchTrace, resource: Resource) -> list[ReadableSpan]:
    return _of_request(record, resource) if isinstance(record, RequestTrace) else _of_batch(record, resource)


def _of_request(trace: RequestTrace, resource: Resource) -> list[ReadableSpan]:
    began_ns, ended_ns = _ns(trace.began_ms, trace), _ns(trace.ended_ms or trace.began_ms, trace)
    name, attributes = _operation(trace.path, trace.status)
    stated = {
        "gnnserve.seeds": trace.seeds,
        "gnnserve.variant": trace.variant,
        "gnnserve.revision": trace.revision,
        "gnnserve.latency_objective_ms": trace.latency_ms,
        "error.type": trace.code or None,
    }
    attributes |= {key: value for key, value in stated.items() if value is not None}
    # By OpenTelemetry's conventions what a client did wrong is no error of the server.
    failed = trace.status is not None and trace.status >= 500
    links = [Link(_context(batch.ids)) for batch in trace.batches if batch.ids.trace_id != trace.ids.trace_id]
    spans = [
        ReadableSpan(
            name, _context(trace.ids), None if trace.parent is None else _context(trace.parent, is_remote=True),
            resource, attributes, (), links, SpanKind.SERVER, status=Status(StatusCode.ERROR) if failed else Status(),
            start_time=began_ns, end_time=ended_ns, instrumentation_scope=_SCOPE,
        )
    ]  # fmt: skip
    if trace.batches:
        # Its id follows from the request's, so that no thread has to draw one.
        ids = SpanIds(trace.ids.trace_id, _other_id(trace.ids.span_id, 1))
        spans.append(_inner("queue", ids, trace.ids, resource, began_ns, _ns(trace.batches[0].started_ms, trace)))
    return spans


def _of_batch(batch: BatchTrace, resource: Resource) -> list[ReadableSpan]:
    began_ns, ended_ns = _ns(batch.started_ms, batch), _ns(batch.finished_ms, batch)
    attributes = {
        "gnnserve.variant": batch.variant, "gnnserve.seeds": batch.seeds, "gnnserve.requests": batch.requests
    }  # fmt: skip
    if batch.stale is not None:
        attributes |= {"gnnserve.rows_refreshed": batch.stale.made, "gnnserve.stale_error": batch.stale.error}
        if batch.stale.brought:
            attributes["gnnserve.rows_of_overlays"] = batch.stale.brought
    links = [Link(_context(ids)) for ids in batch.of]
    spans = [_inner("batch", batch.ids, batch.parent, resource, began_ns, ended_ns, attributes, links)]
    start_ns = began_ns
    below: list[tuple[str, int, int]] = []
    for stage, took_ms in batch.stages:
        end_ns = min(ended_ns, start_ns + round(took_ms * 1e6))
        below.append((stage, start_ns, end_ns))
        start_ns = end_ns
    below += [("program", _ns(run.began_ms, batch), _ns(run.ended_ms, batch)) for run in batch.runs]
    for place, (name, start_ns, end_ns) in enumerate(below, 1):
        ids = SpanIds(batch.ids.trace_id, _other_id(batch.ids.span_id, place))
        spans.append(_inner(name, ids, batch.ids, resource, start_ns, end_ns))
    return spans


def _inner(
    name: str, ids: SpanIds, parent: SpanIds, resource: Resource, start_ns: int, end_ns: int,
    attributes: dict[str, Any] | None = None, links: list[Link] | None = None,
) -> ReadableSpan:  # fmt: skip
    return ReadableSpan(
        name, _context(ids), _context(parent), resource, attributes, (), links or (), SpanKind.INTERNAL,
        start_time=start_ns, end_time=max(start_ns, end_ns), instrumentation_scope=_SCOPE,
    )  # fmt: skip


def _operation(path: str, status: int | None) -> tuple[str, dict[str, Any]]:
    """Name and attributes of a server's span, by OpenTelemetry's conventions for HTTP and RPC."""
    if (call := _GRPC.fullmatch(path)) is not None and "." in call[1]:
        return path[1:], {"rpc.system": "grpc", "rpc.service": call[1], "rpc.method": call[2]}
    version = _OF_MODEL.fullmatch(path)
    if version is not None:
        path = "/v2/models/{model}/versions/{version}/infer" if version[1] else "/v2/models/{model}/infer"
    attributes: dict[str, Any] = {"http.request.method": "POST", "http.route": path}
    if status is not None:
        attributes["http.response.status_code"] = status
    return f"POST {path}", attributes


def _context(ids: SpanIds, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(ids.trace_id, ids.span_id, is_remote, _SAMPLED)


def _ns(monotonic_ms: float, record: RequestTrace | BatchTrace) -> int:
    return round(monotonic_ms * 1e6) + record.offset_ns


def _other_id(span_id: int, place: int) -> int:
    """Another id of 64 bits, not 0."""
    return (span_id ^ place % 16 << 60 ^ place) or place
