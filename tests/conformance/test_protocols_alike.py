"""The same question in every form: JSON, arrays, and both forms of the Open Inference Protocol.

Answers, errors, refusals and what is counted are the same, since one implementation of every rule stands behind all."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from tests.support.serving import TRADE_OFF, Client, FakeWorker, running, service, without_overlays
from tests.support.updates import FakeUpdates
from tests.worker.test_serving_http import overload, slow_worker
from tests.worker.test_serving_overlay import ARRAYS, NAMED, POSITIONS, arrays, ask, brought

from gnnserve_api.families import FamilyName
from gnnserve_api.overlay import DEFAULT_OVERLAY_LIMITS, OverlayLimits
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.open_inference import OpenInferenceCodec
from gnnserve_worker.serving.http.question import NO_WISHES, Question, RequestError

LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, in no form yet."""

    nodes: tuple[int, ...] = (3, 8)
    latency_ms: float | None = None
    tolerance: float | None = None
    strict: bool | None = None
    seed: int | None = None
    min_offset: int | None = None
    variant: str | None = None
    output: str = "scores"


@dataclass(frozen=True, slots=True)
class Said:
    """What came back, without the form."""

    status: int
    code: str = ""
    message: str = ""
    variant: str = ""
    revision: str = ""
    objective_met: bool | None = None
    offset: int | None = None
    numbers: tuple[tuple[float, ...], ...] = ()


def stated(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


async def in_json(client: Client, asked: Asked) -> Said:
    fields = stated(strict=asked.strict, seed=asked.seed, minOffset=asked.min_offset, variant=asked.variant)
    objective = stated(latencyMs=asked.latency_ms, accuracyTolerancePermille=asked.tolerance)
    response = await client.predict(asked.nodes, objective=objective, **{"return": [asked.output]}, **fields)
    answer = response.json()
    if response.status_code != 200:
        return failed(response, answer["error"]["code"], answer["error"]["message"])
    rows = tuple(map(tuple, answer[asked.output]))
    return Said(
        200, "", "", answer["variant"], answer["revision"], answer["objectiveMet"], answer.get("offset"), rows
    )  # fmt: skip


async def as_arrays(client: Client, asked: Asked) -> Said:
    fields = {
        "latency-ms": asked.latency_ms, "accuracy-tolerance-permille": asked.tolerance, "strict": asked.strict,
        "seed": asked.seed, "min-offset": asked.min_offset, "variant": asked.variant,
    }  # fmt: skip
    headers = {f"gnnserve-{name}": str(value) for name, value in stated(**fields).items()}
    response = await client.http.post(
        f"/v1/predict?return={asked.output}", content=np.array(asked.nodes, "<i8").tobytes(),
        headers={"content-type": "application/octet-stream", **headers},
    )  # fmt: skip
    if response.status_code != 200:
        return failed(response, response.json()["error"]["code"], response.json()["error"]["message"])
    told = response.headers
    shape = [int(length) for length in told["gnnserve-shape"].split(",")]
    rows = tuple(map(tuple, np.frombuffer(response.content, "<f4").reshape(shape).tolist()))
    offset = int(told["gnnserve-offset"]) if "gnnserve-offset" in told else None
    met = told["gnnserve-objective-met"] == "true"
    return Said(200, "", "", told["gnnserve-variant"], told["gnnserve-revision"], met, offset, rows)


async def in_protocol_json(client: Client, asked: Asked) -> Said:
    return await in_protocol(client, asked, is_binary=False)


async def in_protocol_bytes(client: Client, asked: Asked) -> Said:
    return await in_protocol(client, asked, is_binary=True)


async def in_protocol(client: Client, asked: Asked, *, is_binary: bool) -> Said:
    ids = np.array(asked.nodes, "<i8").tobytes()
    parameters = stated(
        latency_ms=asked.latency_ms, accuracy_tolerance_permille=asked.tolerance, strict=asked.strict, seed=asked.seed,
        min_offset=asked.min_offset,
    )  # fmt: skip
    tensor = {"name": "nodes", "datatype": "INT64", "shape": [len(asked.nodes)]}
    tensor |= {"parameters": {"binary_data_size": len(ids)}} if is_binary else {"data": asked.nodes}
    output = {"name": asked.output, "parameters": {"binary_data": is_binary}}
    content = json.dumps({"inputs": [tensor], "outputs": [output], "parameters": parameters}).encode()
    version = "" if asked.variant is None else f"/versions/{asked.variant}"
    response = await client.http.post(
        f"/v2/models/digits{version}/infer", content=content + (ids if is_binary else b""),
        headers={LENGTH: str(len(content))} if is_binary else {},
    )  # fmt: skip
    if response.status_code != 200:
        return failed(response, response.headers["gnnserve-error"], response.json()["error"])
    end = int(response.headers.get(LENGTH, len(response.content)))
    answer = json.loads(response.content[:end])
    told, (tensor,) = answer["parameters"], answer["outputs"]
    data = np.frombuffer(response.content[end:], "<f4") if is_binary else np.array(tensor["data"], np.float32)
    rows = tuple(map(tuple, data.reshape(tensor["shape"]).tolist()))
    return Said(
        200, "", "", answer["model_version"], told["revision"], told["objective_met"], told.get("offset"), rows
    )  # fmt: skip


FORMS = (in_json, as_arrays, in_protocol_json, in_protocol_bytes)
_FIELDS = {
    "gnnserve-latency-ms": "objective.latencyMs", "parameters.latency_ms": "objective.latencyMs",
    "gnnserve-accuracy-tolerance-permille": "objective.accuracyTolerancePermille",
    "parameters.accuracy_tolerance_permille": "objective.accuracyTolerancePermille",
    "gnnserve-seed": "seed", "parameters.seed": "seed", "gnnserve-variant": "variant", "version": "variant",
    "gnnserve-min-offset": "minOffset", "parameters.min_offset": "minOffset", "outputs[0].name": "return[0]",
    "return": "return[0]",
}  # fmt: skip
"""What other forms call the fields of ours."""


def failed(response: httpx.Response, code: str, message: str) -> Said:
    message = re.sub(r"needs [0-9.]+ ms", "needs … ms", message)  # as this machine is fast
    where, _, rest = message.partition(": ")
    return Said(response.status_code, code, f"{_FIELDS.get(where, where)}: {rest}" if rest else message)


NO_EMBEDDINGS_OF_X4 = msgspec.structs.replace(
    TRADE_OFF,
    variants=tuple(
        msgspec.structs.replace(variant, family=FamilyName.ONE_ROW) if variant.name == "x4" else variant
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
    async with running(worker) as client:
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
        async with running(worker, service({"latencyMs": 30_000})) as client:
            await overload(client, worker)
            return [await form(client, Asked((1,) * 40)) for form in FORMS]

    first, *others = asyncio.run(scenario())
    assert (first.status, first.code) == (429, "DeadlineOutOfReach")
    assert [other.message for other in others] == [first.message] * 3


# What a request brings


def as_tensors(
    of: ServedRevision, nodes: list[Any], new: list[Any], edges: list[list[Any]], overridden: list[Any],
    features: list[list[float]], *, is_binary: bool, limits: OverlayLimits = DEFAULT_OVERLAY_LIMITS,
    variant: str | None = None,
) -> Question:  # fmt: skip
    ids, width = ("BYTES" if of.has_text_ids else "INT64"), len(features[0]) if features else 5
    tensors: list[tuple[str, str, list[int], list[Any]]] = [
        ("nodes", ids, [len(nodes)], nodes),
        ("overlay.nodes", ids, [len(new)], new),
        ("overlay.nodes.features", "FP32", [len(new), width], features[: len(new)]),
        ("overlay.edges", ids, [len(edges), 2], edges),
        ("overlay.overrides", ids, [len(overridden)], overridden),
        ("overlay.overrides.features", "FP32", [len(features) - len(new), width], features[len(new) :]),
    ]
    inputs, behind = [], b""
    for name, datatype, shape, data in tensors:
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        if is_binary:
            encoded = encode(datatype, data)
            behind += encoded
            tensor["parameters"] = {"binary_data_size": len(encoded)}
        else:
            tensor["data"] = data
        inputs.append(tensor)
    body = json.dumps({"inputs": inputs}).encode()
    codec = OpenInferenceCodec("digits", variant, len(body) if is_binary else None)
    return codec.parse_question(body + behind, b"", NO_WISHES, of, 500, limits)


def encode(datatype: str, data: list[Any]) -> bytes:
    if datatype != "BYTES":
        return np.array(data, "<i8" if datatype == "INT64" else "<f4").tobytes()
    texts = [text.encode() for text in np.array(data, object).ravel()]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


FEATURES = [[1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]]
BINARY = pytest.mark.parametrize("is_binary", [False, True], ids=["JSON", "bytes"])


@BINARY
def test_overlays_as_tensors_are_those_of_the_other_forms(is_binary: bool) -> None:
    tensors = as_tensors(POSITIONS, [-1, 4], [-1], [[2, -1], [-1, 3]], [4], FEATURES, is_binary=is_binary)
    others = arrays([-1, 4], [None], [[2, -1], [-1, 3]], [4], FEATURES)
    assert brought(tensors) == brought(
        ARRAYS.parse_question(others, b"", NO_WISHES, POSITIONS, 500, DEFAULT_OVERLAY_LIMITS)
    )


@BINARY
def test_texts_name_nodes_of_overlays_as_in_json(is_binary: bool) -> None:
    tensors = as_tensors(
        NAMED, ["new", "user-2"], ["new"], [["user-1", "new"]], ["user-2"], FEATURES, is_binary=is_binary
    )
    body = {
        "nodes": ["new", "user-2"],
        "overlay": {
            "nodes": [{"id": "new", "features": FEATURES[0]}],
            "edges": [["user-1", "new"]],
            "overrides": [{"id": "user-2", "features": FEATURES[1]}],
        },
    }
    assert brought(tensors) == brought(ask(body, NAMED))


@BINARY
def test_empty_tensors_of_an_overlay_are_as_none(is_binary: bool) -> None:
    question = as_tensors(POSITIONS, [3, 4], [], [], [], [], is_binary=is_binary)
    assert question.overlay is None
    assert question.nodes.tolist() == [3, 4]


@BINARY
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
    given: Any, limits: dict[str, int], code: str, message: str, is_binary: bool
) -> None:
    with pytest.raises(RequestError) as error:
        as_tensors(POSITIONS, *given, is_binary=is_binary, limits=OverlayLimits(**limits))
    assert (error.value.code, str(error.value)[: len(message)]) == (code, message)


def test_features_that_are_no_numbers_are_refused() -> None:
    for number, is_binary, message in (
        (float("nan"), True, "overlay.nodes[0].features[1]: nan is not finite; give a number"),
        (float("inf"), True, "overlay.nodes[0].features[1]: inf is not finite; give a number"),
        (1e39, False, "overlay.nodes.features[1]: 1e39 is beyond the range of float32"),
    ):
        with pytest.raises(RequestError) as error, np.errstate(over="ignore"):
            as_tensors(POSITIONS, [3], [-1], [], [], [[1.0, number, 3.0, 4.0, 5.0]], is_binary=is_binary)
        assert message in str(error.value)


def test_variants_that_know_no_overlays_are_refused_when_they_are_named() -> None:
    worker = FakeWorker(nodes=POSITIONS.nodes, profile=without_overlays(TRADE_OFF, "x4"), overlays=POSITIONS.overlays)
    with pytest.raises(RequestError) as error:
        as_tensors(worker.revision(), [3], [], [[1, 2]], [], [], is_binary=False, variant="x4")
    assert str(error.value) == (
        "version: variant x4 cannot answer requests with an overlay; choose from x1, x8, or leave it out"
    )
