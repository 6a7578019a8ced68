"""The same question in every form (`forms.py`).

Answers, errors, refusals and what is counted are the same, since one implementation of every rule stands behind all."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.conformance.forms import FORMS, Asked, Said, serving
from tests.support.changes.fake_updates import FakeUpdates
from tests.support.overlays.overlay_bodies import ARRAYS, NAMED, POSITIONS, arrays, ask, brought
from tests.support.serving.http_errors import overload, slow_worker
from tests.support.serving.questions import question_of
from tests.support.serving.serving import TRADE_OFF, Client, FakeWorker, accepted, held, service, without_overlays

from gnnserve_api.limits import DEFAULT_OVERLAY_LIMITS, OverlayLimits
from gnnserve_worker.asking.question import RequestError
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.scheduling.refusal import Refusal
from gnnserve_worker.serving.grpc.codec import InferCodec
from gnnserve_worker.serving.grpc.messages import ModelInferRequest
from gnnserve_worker.serving.http.codecs.open_inference import OpenInferenceCodec
from gnnserve_worker.serving.requests import Answer, Outcome, Question

NO_EMBEDDINGS_OF_X4 = msgspec.structs.replace(
    TRADE_OFF,
    variants=tuple(
        msgspec.structs.replace(variant, family="one-row") if variant.name == "x4" else variant
        for variant in TRADE_OFF.variants
    ),
)
QUESTIONS = {
    "nothing but nodes": Asked(),
    "one node": Asked((999,)),
    "a node twice": Asked((5, 5, 6)),
    "a latency": Asked(latency_ms=3_600_000),
    "a tolerance": Asked(tolerance=12),
    "both": Asked(latency_ms=3_600_000, tolerance=12),
    "a latency out of reach": Asked(latency_ms=0.001),
    "strictness": Asked(latency_ms=3_600_000, strict=True),
    "a strict latency out of reach": Asked(latency_ms=0.001, strict=True),
    "a named variant": Asked(variant="x4"),
    "a named variant beyond the tolerance": Asked(variant="x8", tolerance=0),
    "the same, strict": Asked(variant="x8", tolerance=0, strict=True),
    "an unknown variant": Asked(variant="x3"),
    "embeddings": Asked(output="embeddings"),
    "embeddings of a variant that has none": Asked(output="embeddings", variant="x4"),
    "a seed": Asked(seed=2**63 - 1),
    "a seed out of range": Asked(seed=2**63),
    "a latency out of range": Asked(latency_ms=-1),
    "a tolerance out of range": Asked(tolerance=1001),
    "no nodes": Asked(()),
    "an unknown node": Asked((3, 1000)),
    "too many nodes": Asked(tuple(range(501))),
    "an offset that is applied": Asked(min_offset=3),
    "an offset that is not applied in time": Asked(min_offset=9, latency_ms=5),
    "an offset that is not applied before the request's own timeout": Asked(min_offset=9, timeout_ms=5),
    "a timeout": Asked(timeout_ms=3_600_000),
    "a timeout out of range": Asked(timeout_ms=3_600_001),
    "the default priority": Asked(priority=0),
    "the lowest priority": Asked(priority=3),
    "a priority out of range": Asked(priority=4),
}


_COUNTERS = re.compile(
    r"^(gnnserve_(?:offered_seeds|requests|errors|batches|batch_seeds)_total\{.*\}) (\S+)$", re.MULTILINE
)


def counted(client: Client) -> Counter[str]:
    """Requests, seeds, errors, batches of each variant."""
    lines = _COUNTERS.findall(client.metrics.render().decode())
    return Counter({name: int(float(value)) for name, value in lines})


Results = dict[str, tuple[Said, Counter[str]]]
"""What came back, and what was counted, by the name of the question."""


async def ask_all(form: Callable[[Client, Asked], Awaitable[Said]]) -> Results:
    worker, results = FakeWorker(profile=NO_EMBEDDINGS_OF_X4, updates=FakeUpdates()), Results()
    assert worker.updates is not None
    worker.updates.applied = 3
    async with serving(worker) as client:
        for name, asked in QUESTIONS.items():
            before = counted(client)
            results[name] = await form(client, asked), counted(client) - before
            client.switch(worker.revision())  # which knows nothing of what batches took
    return results


@pytest.fixture(scope="module")
def results() -> list[Results]:
    return [asyncio.run(ask_all(form)) for form in FORMS]


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_is_answered_and_counted_alike_in_every_form(results: list[Results], name: str) -> None:
    (expected, expected_counts), *others = (of_form[name] for of_form in results)
    assert expected.status in {200, 400, 422, 503}
    assert expected_counts
    for said, counts in others:
        assert said == expected
        assert counts == expected_counts


def test_overloaded_workers_refuse_alike_and_unread_in_every_form() -> None:
    worker = slow_worker()

    async def scenario() -> list[Said]:
        async with serving(worker, service({"latencyMs": 30_000})) as client:
            await overload(client, worker)
            return [await form(client, Asked((1,) * 40)) for form in FORMS]

    first, *others = asyncio.run(scenario())
    assert (first.status, first.code) == (429, "DeadlineOutOfReach")
    assert [other.message for other in others] == [first.message] * 6


def test_requests_whose_timeout_passes_are_dropped_alike_in_every_form() -> None:
    worker = FakeWorker()

    async def scenario() -> tuple[list[Said], int]:
        async with serving(worker) as client:
            before = await held(worker, client)
            said = [await form(client, Asked(timeout_ms=1)) for form in FORMS]
            queued = client.model.queued_seeds
            worker.gate.set()
            await before.outcome
            return said, queued

    (first, *others), queued = asyncio.run(scenario())
    assert (first.status, first.code, queued) == (504, "TimedOut", 0)
    assert first.message.startswith("timeout: 1 ms have passed, and the answer is not there; allow more time")
    assert [other.message for other in others] == [first.message] * len(others)
    assert len(worker.batches) == 1  # nothing of them was computed


def test_requests_of_a_higher_priority_take_the_place_of_others_alike_in_every_form() -> None:
    worker = FakeWorker()

    async def scenario() -> tuple[list[Said], list[Said], list[Outcome]]:
        async with serving(worker) as client:
            before = await held(worker, client)
            queued = [accepted(client.model, [node]) for node in range(500)]  # as many as fit
            refused = [await form(client, Asked()) for form in FORMS]
            asking = [asyncio.ensure_future(form(client, Asked(priority=1))) for form in FORMS]
            lost = [await each.outcome for each in queued[-2 * len(FORMS) :]]
            worker.gate.set()
            said = await asyncio.gather(*asking)
            kept = [await each.outcome for each in (before, *queued[: -2 * len(FORMS)])]
            assert all(isinstance(outcome, Answer) for outcome in kept)
            return refused, said, lost

    (first, *others), said, lost = asyncio.run(scenario())
    assert (first.status, first.code) == (429, "QueueFull")
    assert [other.message for other in others] == [first.message] * len(others)
    assert [each.status for each in said] == [200] * len(FORMS)
    assert all(isinstance(each, Refusal) and "a higher priority took its place" in each.message for each in lost)


# What a request brings


def as_tensors(
    of: ServedRevision, nodes: list[Any], new: list[Any], edges: list[list[Any]], overridden: list[Any],
    features: list[list[float]], *, form: str, limits: OverlayLimits = DEFAULT_OVERLAY_LIMITS,
    variant: str | None = None,
) -> Question:  # fmt: skip
    ids, width = ("BYTES" if of.graph.naming.are_texts else "INT64"), len(features[0]) if features else 5
    tensors: list[tuple[str, str, list[int], list[Any]]] = [
        ("nodes", ids, [len(nodes)], nodes),
        ("overlay.nodes", ids, [len(new)], new),
        ("overlay.nodes.features", "FP32", [len(new), width], features[: len(new)]),
        ("overlay.edges", ids, [len(edges), 2], edges),
        ("overlay.overrides", ids, [len(overridden)], overridden),
        ("overlay.overrides.features", "FP32", [len(features) - len(new), width], features[len(new) :]),
    ]
    if "message" in form:
        return question_of(as_message(tensors, variant, is_raw=form.startswith("raw")), b"", of, limits=limits)
    inputs, behind = [], b""
    for name, datatype, shape, data in tensors:
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        if form == "bytes":
            encoded = encode(datatype, data)
            behind += encoded
            tensor["parameters"] = {"binary_data_size": len(encoded)}
        else:
            tensor["data"] = data
        inputs.append(tensor)
    body = json.dumps({"inputs": inputs}).encode()
    codec = OpenInferenceCodec("digits", variant, len(body) if form == "bytes" else None)
    return question_of(codec, body + behind, of, limits=limits)


def as_message(
    tensors: list[tuple[str, str, list[int], list[Any]]], variant: str | None, *, is_raw: bool
) -> InferCodec:
    message = ModelInferRequest(model_name="digits", model_version=variant or "")
    for name, datatype, shape, data in tensors:
        tensor = message.inputs.add(name=name, datatype=datatype, shape=shape)
        flat = np.array(data, object).ravel().tolist()
        if is_raw:
            message.raw_input_contents.append(encode(datatype, data))
        elif datatype == "BYTES":
            tensor.contents.bytes_contents.extend(text.encode() for text in flat)
        else:
            getattr(tensor.contents, {"INT64": "int64_contents", "FP32": "fp32_contents"}[datatype]).extend(flat)
    return InferCodec(message.SerializeToString())


def encode(datatype: str, data: list[Any]) -> bytes:
    if datatype != "BYTES":
        return np.array(data, "<i8" if datatype == "INT64" else "<f4").tobytes()
    texts = [text.encode() for text in np.array(data, object).ravel()]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


FEATURES = [[1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]]
WRITTEN = pytest.mark.parametrize("form", ["JSON", "bytes", "message", "raw message"])


@WRITTEN
def test_overlays_as_tensors_are_those_of_the_other_forms(form: str) -> None:
    tensors = as_tensors(POSITIONS, [-1, 4], [-1], [[2, -1], [-1, 3]], [4], FEATURES, form=form)
    others = arrays([-1, 4], [None], [[2, -1], [-1, 3]], [4], FEATURES)
    assert brought(tensors) == brought(question_of(ARRAYS, others, POSITIONS))


@WRITTEN
def test_texts_name_nodes_of_overlays_as_in_json(form: str) -> None:
    tensors = as_tensors(NAMED, ["new", "user-2"], ["new"], [["user-1", "new"]], ["user-2"], FEATURES, form=form)
    body = {
        "nodes": ["new", "user-2"],
        "overlay": {
            "nodes": [{"id": "new", "features": FEATURES[0]}],
            "edges": [["user-1", "new"]],
            "overrides": [{"id": "user-2", "features": FEATURES[1]}],
        },
    }
    assert brought(tensors) == brought(ask(body, NAMED))


@WRITTEN
def test_empty_tensors_of_an_overlay_are_as_none(form: str) -> None:
    question = as_tensors(POSITIONS, [3, 4], [], [], [], [], form=form)
    assert question.overlay is None
    assert question.nodes.tolist() == [3, 4]


@WRITTEN
@pytest.mark.parametrize(
    ("given", "limits", "code", "message"),
    [
        pytest.param(([3], [4], [], [], FEATURES[:1]), {}, "StoredNode",
                     "overlay.nodes[0].id: 4 is a node of the graph", id="a stored node as a new one"),
        pytest.param(([3], [-1], [[5, 99]], [], FEATURES[:1]), {}, "UnknownNode",
                     "overlay.edges[0][1]: node 99 is not in the graph", id="an edge to no node"),
        pytest.param(([3], [-1, -1], [], [], FEATURES), {}, "RepeatedNode",
                     "overlay.nodes[1].id: -1 is also the id of overlay.nodes[0]", id="a new node twice"),
        pytest.param(([3], [], [], [4, 4], FEATURES), {}, "RepeatedNode",
                     "overlay.overrides[1].id: 4 is also the id of overlay.overrides[0]", id="an override twice"),
        pytest.param(([3], [-1], [], [], FEATURES), {}, "WrongFeatures",
                     "overlay.overrides.features: 1 row, where overlay.overrides has 0 nodes", id="a row too many"),
        pytest.param(([3], [-1], [], [], [[1.0, 2.0]]), {}, "InvalidValue",
                     "overlay.nodes.features: shape [1,2], where [-1,5] is expected", id="too few features"),
        pytest.param(([3], [-1], [], [4], FEATURES), {"max_nodes": 1}, "TooManyOverlayNodes",
                     "overlay.nodes: 1 new node and 1 override, more than the 1 that", id="too many nodes"),
        pytest.param(([3], [], [[1, 2]], [], []), {"max_edges": 0}, "TooManyOverlayEdges",
                     "overlay.edges: 1 edge, more than the 0 that", id="too many edges"),
        pytest.param(([3], [-1], [], [], FEATURES[:1]), {"max_nodes": 0}, "NoOverlays",
                     "overlay: the service takes none", id="a service that takes none"),
    ],
)  # fmt: skip
def test_overlays_that_are_wrong_are_refused_in_the_words_of_the_other_forms(
    given: Any, limits: dict[str, int], code: str, message: str, form: str
) -> None:
    with pytest.raises(RequestError) as error:
        as_tensors(POSITIONS, *given, form=form, limits=OverlayLimits(**limits))
    assert (error.value.code, str(error.value)[: len(message)]) == (code, message)


def test_features_that_are_no_numbers_are_refused() -> None:
    for number, form, message in (
        (float("nan"), "bytes", "overlay.nodes[0].features[1]: nan is not finite; give a number"),
        (float("inf"), "bytes", "overlay.nodes[0].features[1]: inf is not finite; give a number"),
        (float("nan"), "message", "overlay.nodes[0].features[1]: nan is not finite; give a number"),
        (float("inf"), "raw message", "overlay.nodes[0].features[1]: inf is not finite; give a number"),
        (1e39, "JSON", "overlay.nodes.features[1]: 1e39 is beyond the range of float32"),
    ):
        with pytest.raises(RequestError) as error, np.errstate(over="ignore"):
            as_tensors(POSITIONS, [3], [-1], [], [], [[1.0, number, 3.0, 4.0, 5.0]], form=form)
        assert message in str(error.value)


def test_variants_that_know_no_overlays_are_refused_when_they_are_named() -> None:
    support = POSITIONS.compute.overlays.support
    profile = without_overlays(TRADE_OFF, "x4")
    worker = FakeWorker(nodes=POSITIONS.graph.nodes, profile=profile, overlays=support)
    with pytest.raises(RequestError) as error:
        as_tensors(worker.revision(), [3], [], [[1, 2]], [], [], form="JSON", variant="x4")
    assert str(error.value) == (
        "version: variant x4 cannot answer requests with an overlay; choose from x1, x8, or leave it out"
    )
