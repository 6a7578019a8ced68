"""Traces of predictions: which are traced, which spans there are, and that nothing waits for them."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests.conformance.forms import FORMS, Asked, serving
from tests.support.machine.waiting import WAIT_S
from tests.support.serving.grpc_worker import listening
from tests.support.serving.otlp import ReceivedSpan, otlp_receiver
from tests.support.serving.serving import FakeWorker, held, running
from tests.support.serving.traced import KeptTraces, traced

from gnnserve_api.errors import InputError
from gnnserve_worker.inference.batch import StageTimes
from gnnserve_worker.programs.stats import ProgramRun
from gnnserve_worker.serving.tracing import exporter
from gnnserve_worker.serving.tracing.exporter import OtlpSink
from gnnserve_worker.serving.tracing.options import TracingOptions, check_tracing, read_tracing
from gnnserve_worker.serving.tracing.spans import spans_of
from gnnserve_worker.serving.tracing.tracer import Tracer
from gnnserve_worker.serving.tracing.traces import BatchTrace, ParentSpan, RequestTrace, SpanIds, read_parent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
ENDPOINT = "http://collector:4318"


# What a client's header says


@pytest.mark.parametrize(
    ("header", "parent"),
    [
        (f"00-{TRACE}-{SPAN}-01", ParentSpan(int(TRACE, 16), int(SPAN, 16), is_sampled=True)),
        (f"00-{TRACE}-{SPAN}-00", ParentSpan(int(TRACE, 16), int(SPAN, 16), is_sampled=False)),
        (f" 00-{TRACE}-{SPAN}-03\t", ParentSpan(int(TRACE, 16), int(SPAN, 16), is_sampled=True)),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", ParentSpan(int(TRACE, 16), int(SPAN, 16), is_sampled=True)),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        ("", None),
    ],
)
def test_a_clients_trace_is_read_as_the_w3c_has_it(header: str, parent: ParentSpan | None) -> None:
    assert read_parent(header.encode()) == parent


@pytest.mark.parametrize(
    ("flag", "permille", "is_traced"),
    [("01", 0, True), ("00", 1000, False), (None, 0, False), (None, 1000, True), ("bad", 1000, True)],
)
def test_the_clients_flag_decides_or_else_the_share(flag: str | None, permille: float, is_traced: bool) -> None:
    header = None if flag is None else f"00-{TRACE}-{SPAN}-{flag}".encode()
    assert (Tracer(KeptTraces(), permille).begin(header, "/v1/predict", 0.0) is not None) is is_traced


# Spans


def test_a_request_its_wait_its_batch_and_the_stages_are_one_trace() -> None:
    async def scenario() -> list[ReadableSpan]:
        async with running(FakeWorker()) as client:
            sink = traced(client)
            answer = await client.http.post("/v1/predict", json={"nodes": [3, 7]}, headers=SAMPLED)
            assert answer.status_code == 200
            await client.predict([3])  # is not traced
            return sink.spans

    spans = {span.name: span for span in asyncio.run(scenario())}
    assert list(spans) == ["batch", "sample", "gather", "compute", "POST /v1/predict", "queue"]
    server, batch = spans["POST /v1/predict"], spans["batch"]
    assert {format(span.context.trace_id, "032x") for span in spans.values()} == {TRACE}
    assert len({span.context.span_id for span in spans.values()}) == 6
    assert server.parent is not None
    assert format(server.parent.span_id, "016x") == SPAN
    parents = {name: span.parent.span_id for name, span in spans.items() if span.parent is not None}
    assert parents["batch"] == parents["queue"] == server.context.span_id
    assert parents["sample"] == parents["gather"] == parents["compute"] == batch.context.span_id
    assert [link.context.span_id for link in batch.links] == [server.context.span_id]
    assert server.links == ()  # the batch is in its own trace
    assert dict(server.attributes or {}) == {
        "http.request.method": "POST", "http.route": "/v1/predict", "http.response.status_code": 200,
        "gnnserve.seeds": 2, "gnnserve.variant": "x1", "gnnserve.revision": "f0eae20c16c00ac0-1",
    }  # fmt: skip
    assert dict(batch.attributes or {}) == {"gnnserve.variant": "x1", "gnnserve.seeds": 2, "gnnserve.requests": 1}
    for span in spans.values():
        assert span.start_time is not None
        assert span.end_time is not None
        assert server.start_time <= span.start_time <= span.end_time <= server.end_time  # type: ignore[operator]


def test_requests_of_one_batch_are_linked_to_it_from_their_own_traces() -> None:
    other = f"00-{TRACE[::-1]}-{SPAN[::-1]}-01"

    async def scenario() -> KeptTraces:
        worker = FakeWorker()
        async with running(worker) as client:
            sink = traced(client)
            first = await held(worker, client)
            headers = (SAMPLED, {"traceparent": other}, {})
            asked = [
                asyncio.create_task(client.http.post("/v1/predict", json={"nodes": [node]}, headers=of))
                for node, of in enumerate(headers)
            ]
            while client.model.queued_seeds < len(asked):
                await asyncio.sleep(0)
            worker.gate.set()
            await asyncio.gather(first.outcome, *asked)
            return sink

    sink = asyncio.run(scenario())
    (batch,), (first, second) = sink.batches, sink.requests
    assert (batch.seeds, batch.requests) == (3, 3)
    assert set(batch.of) == {first.ids, second.ids}
    in_it, beside = sorted((first, second), key=lambda trace: trace.ids.trace_id != batch.ids.trace_id)
    assert spans_of(in_it, Resource({}))[0].links == ()
    (link,) = spans_of(beside, Resource({}))[0].links
    assert link.context.span_id == batch.ids.span_id


def test_a_request_in_pieces_has_a_batch_for_each() -> None:
    async def scenario() -> KeptTraces:
        async with running(FakeWorker()) as client:
            sink = traced(client)
            await client.http.post("/v1/predict", json={"nodes": list(range(250))}, headers=SAMPLED)
            return sink

    sink = asyncio.run(scenario())
    assert [batch.seeds for batch in sink.batches] == [100, 100, 50]
    assert sink.requests[0].batches == sink.batches


def test_refusals_and_errors_are_traced_with_their_code() -> None:
    async def scenario() -> list[RequestTrace]:
        def fail(_variant: str, _seeds: object) -> None:
            raise ValueError

        worker = FakeWorker()
        async with running(worker) as client:
            sink = traced(client)
            for nodes in ([5000], "x"):
                await client.http.post("/v1/predict", json={"nodes": nodes}, headers=SAMPLED)
            worker.fail = fail
            await client.http.post("/v2/models/digits/versions/x4/infer", headers=SAMPLED, json={
                "inputs": [{"name": "nodes", "datatype": "INT64", "shape": [1], "data": [3]}]
            })  # fmt: skip
            return sink.requests

    unknown, malformed, failed = asyncio.run(scenario())
    assert (unknown.status, unknown.code, unknown.seeds) == (400, "UnknownNode", None)
    assert (malformed.status, malformed.code) == (400, "InvalidType")
    (span,) = spans_of(failed, Resource({}))
    assert span.name == "POST /v2/models/{model}/versions/{version}/infer"
    assert span.attributes is not None
    assert (span.attributes["error.type"], span.attributes["http.response.status_code"]) == ("InternalError", 500)
    assert not span.status.is_ok
    assert spans_of(unknown, Resource({}))[0].status.is_ok  # it was the client's mistake


def test_a_client_that_leaves_ends_its_trace() -> None:
    async def scenario() -> list[RequestTrace]:
        worker = FakeWorker()
        async with running(worker) as client, listening(client) as over_grpc:
            sink = traced(client)
            first = await held(worker, client)
            nodes = {"name": "nodes", "datatype": "INT64", "shape": [1], "contents": {"int64_contents": [3]}}
            asked = asyncio.create_task(
                over_grpc.call("ModelInfer", SAMPLED, model_name="digits", inputs=[nodes])
            )  # fmt: skip
            while not client.model.queued_seeds:
                await asyncio.sleep(0)
            asked.cancel()
            while client.model.queued_seeds:
                await asyncio.sleep(0)
            worker.gate.set()
            await first.outcome
            return sink.requests

    (left,) = asyncio.run(scenario())
    assert (left.status, left.code, left.batches) == (None, "ClientGone", [])
    (span,) = spans_of(left, Resource({}))
    assert span.name == "inference.GRPCInferenceService/ModelInfer"
    assert dict(span.attributes or {})["rpc.method"] == "ModelInfer"


def test_every_form_is_traced_where_the_share_says_so() -> None:
    async def scenario() -> list[RequestTrace]:
        async with serving(FakeWorker()) as client:
            sink = traced(client, 1000)
            for form in FORMS:
                assert (await form(client, Asked())).status == 200
            return sink.requests

    traces = asyncio.run(scenario())
    assert len(traces) == len(FORMS)
    assert {trace.status for trace in traces} == {200}
    assert {trace.path for trace in traces} == {
        "/v1/predict", "/v2/models/digits/infer", "/inference.GRPCInferenceService/ModelInfer",
    }  # fmt: skip


def test_stages_of_several_cores_do_not_outlast_their_batch() -> None:
    ids = SpanIds(1, 2)
    batch = BatchTrace(ids, ids, (ids,), "x1", 1, 1, 10.0, 11.0, StageTimes(0.5, 0.6, 0.7, 0.1), 0)
    _, overlay, sample, gather, compute = spans_of(batch, Resource({}))
    assert [span.name for span in (overlay, sample, gather, compute)] == ["overlay", "sample", "gather", "compute"]
    assert overlay.start_time == 10_000_000
    assert (gather.end_time, compute.start_time, compute.end_time) == (11_000_000,) * 3


def test_runs_of_a_program_have_a_span_each_when_its_process_ran_them() -> None:
    ids = SpanIds(1, 2**64 - 1)
    runs = tuple(ProgramRun(10.0 + 0.01 * place, 10.5 + 0.01 * place) for place in range(20))
    batch = BatchTrace(ids, ids, (ids,), "x1", 1, 1, 10.0, 11.0, StageTimes(0.1, 0.1, 0.7), 0, runs)
    spans = spans_of(batch, Resource({}))
    assert len(spans) == batch.spans
    of_runs = [span for span in spans if span.name == "program"]
    assert [span.start_time for span in of_runs] == [round(run.began_ms * 1e6) for run in runs]
    assert [span.end_time for span in of_runs] == [round(run.ended_ms * 1e6) for run in runs]
    assert {span.parent.span_id for span in of_runs if span.parent is not None} == {ids.span_id}
    span_ids = {span.context.span_id for span in spans}
    assert len(span_ids) == len(spans)
    assert max(span_ids) < 2**64


def test_answers_are_given_where_tracing_fails(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(KeptTraces):
        def put(self, record: RequestTrace | BatchTrace) -> None:
            raise OSError("no room for traces")

    class Failing(Tracer):
        def note_batch(self, *_: object) -> None:
            raise KeyError("batch")

    async def scenario() -> None:
        async with running(FakeWorker()) as client:
            for tracer in (Tracer(Broken(), 0), Failing(KeptTraces(), 0)):
                client.model.tracer = tracer
                response = await client.http.post("/v1/predict", json={"nodes": [3]}, headers=SAMPLED)
                assert response.status_code == 200

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "could not be kept" in caplog.text
    assert "could not be traced" in caplog.text


# To the receiver


def test_spans_reach_a_receiver_under_the_services_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")

    async def scenario(url: str) -> list[ReceivedSpan]:
        async with running(FakeWorker()) as client:
            options = read_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": url}, "shop")
            assert options is not None
            sink = OtlpSink("digits", options, every_s=0.01)
            client.model.tracer = Tracer(sink, 0)
            await client.http.post("/v1/predict", json={"nodes": [3]}, headers=SAMPLED)
            spans = await asyncio.to_thread(receiver.wait, 6)
            sink.end()
            await asyncio.to_thread(sink.join, WAIT_S)
            assert (sink.exported, sink.dropped) == (6, 0)
            return spans

    with otlp_receiver() as receiver:
        spans = asyncio.run(scenario(receiver.url))
    assert set(receiver.paths) == {"/v1/traces"}
    server = next(span for span in spans if span.name == "POST /v1/predict")
    assert (server.trace_id, server.parent_id, server.kind) == (TRACE, SPAN, 2)
    about = server.resource
    assert (about["service.name"], about["service.namespace"]) == ("digits", "shop")
    assert about["deployment.environment.name"] == "test"
    batch = next(span for span in spans if span.name == "batch")
    assert batch.links == [(TRACE, server.span_id)]


class Stuck(SpanExporter):
    """An exporter that waits for its receiver until it is let go, and then fails."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.is_busy = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.is_busy.set()
        self.let_go.wait()
        return SpanExportResult.FAILURE


def test_what_finds_no_room_or_is_not_taken_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "MOST_WAITING", 2)
    stuck = Stuck()
    sink = OtlpSink("digits", TracingOptions(ENDPOINT), 0.0, lambda _url: stuck)
    trace = RequestTrace(SpanIds(1, 2), None, "/v1/predict", 0.0, 0, ended_ms=1.0, status=200)
    sink.put(trace)
    assert stuck.is_busy.wait(WAIT_S)  # it has the first
    for _ in range(5):
        sink.put(trace)
    assert sink.dropped == 3
    stuck.let_go.set()
    sink.end()
    sink.join(WAIT_S)
    assert (sink.exported, sink.dropped) == (0, 6)


# What is exposed


def test_openmetrics_has_examples_of_latencies_and_counts_spans() -> None:
    async def scenario() -> tuple[str, str]:
        async with running(FakeWorker()) as client:
            traced(client)
            await client.http.post("/v1/predict", json={"nodes": [3]}, headers=SAMPLED)
            await client.predict([3])
            opened = await client.http.get("/metrics", headers={
                "accept": "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5"
            })  # fmt: skip
            assert opened.headers["content-type"].startswith("application/openmetrics-text")
            plain = await client.http.get("/metrics")
            assert plain.headers["content-type"].startswith("text/plain")
            return opened.text, plain.text

    opened, plain = asyncio.run(scenario())
    families = {family.name: family for family in text_string_to_metric_families(opened)}
    buckets = [sample for sample in families["gnnserve_request_seconds"].samples if sample.exemplar is not None]
    assert [sample.exemplar.labels for sample in buckets] == [{"trace_id": TRACE}]
    assert buckets[0].exemplar.value <= float(buckets[0].labels["le"])
    assert TRACE not in plain
    counted = {sample.labels["outcome"]: sample.value for sample in families["gnnserve_spans"].samples if
               sample.name.endswith("_total")}  # fmt: skip
    assert counted == {"exported": 3, "dropped": 2}


# Options


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        ({}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_SDK_DISABLED": "True"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT}, TracingOptions(ENDPOINT, 10)),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_TRACES_SAMPLER": "parentbased_always_on"},
            TracingOptions(ENDPOINT, 1000),
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_TRACES_SAMPLER_ARG": "0.25"},
            TracingOptions(ENDPOINT, 250),
        ),
    ],
)
def test_options_are_those_of_the_environment(environ: dict[str, str], options: TracingOptions | None) -> None:
    assert read_tracing(environ) == options


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "'collector:4318' is no URL; give one such as"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:port"}, "is no URL"),
        ({"OTEL_TRACES_SAMPLER": "jaeger_remote"}, "'jaeger_remote' is none that a server has"),
        ({"OTEL_TRACES_SAMPLER_ARG": "2"}, "'2' is no share of requests; set it to a number from 0 to 1"),
        ({"OTEL_TRACES_SAMPLER_ARG": "much"}, "'much' is no share of requests"),
    ],
)
def test_options_that_will_not_do_are_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as error:
        read_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, **environ})
    assert message in str(error.value)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(InputError, match=r"pip install 'gnnserve\[tracing\]'"):
        check_tracing(TracingOptions(ENDPOINT), "--otlp-endpoint")


def test_a_server_that_traces_nothing_imports_neither_sdk_nor_exporter() -> None:
    names = "('opentelemetry.sdk', 'opentelemetry.exporter', 'requests')"
    program = f"import sys, gnnserve_worker.serving.process.server; print([n for n in {names} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
