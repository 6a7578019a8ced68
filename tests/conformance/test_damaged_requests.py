"""Requests of the Open Inference Protocol that are damaged at random: each is understood, or refused in a sentence."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from tests.conformance.open_inference_calls import ANSWERED, INFER, WRONG
from tests.support.overlays.overlay_bodies import NAMED, POSITIONS
from tests.support.serving.connections import serving
from tests.support.serving.malformed import FIELDS, LITERALS, flip, splice
from tests.support.serving.open_inference_answers import check
from tests.support.serving.questions import question_of
from tests.support.serving.serving import FakeWorker

from gnnserve_worker.asking.question import NO_WISHES, RequestError, Wishes
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.open_inference import OpenInferenceCodec
from gnnserve_worker.serving.http.codecs.open_inference_paths import METHODS, OpenInferenceCall, read_path
from gnnserve_worker.serving.requests import Question

REQUESTS = 3000


def valid(draw: random.Random, of: ServedRevision) -> tuple[dict[str, Any], bytes]:
    """A body's JSON, and the bytes behind it."""
    is_binary, behind = draw.random() < 0.5, b""
    datatype = "BYTES" if of.graph.naming.are_texts else "INT64"
    ids: list[Any] = of.graph.naming.shown(0, 3)
    tensors: list[tuple[str, str, list[int], list[Any]]] = [("nodes", datatype, [3], ids)]
    if draw.random() < 0.5:
        new: list[Any] = ["new"] if of.graph.naming.are_texts else [-1]
        tensors += [
            ("overlay.nodes", datatype, [1], new),
            ("overlay.nodes.features", "FP32", [1, 5], [0.5] * 5),
            ("overlay.edges", datatype, [2, 2], [ids[0], *new, *new, ids[1]]),
        ]
    inputs = []
    for name, kind, shape, data in tensors:
        tensor: dict[str, Any] = {"name": name, "datatype": kind, "shape": shape, "data": data}
        if is_binary:
            del tensor["data"]
            raw = pack(kind, data)
            tensor["parameters"] = {"binary_data_size": len(raw)}
            behind += raw
        inputs.append(tensor)
    asked = {"inputs": inputs, "outputs": [{"name": "labels"}, {"name": "scores"}], "parameters": {"latency_ms": 5}}
    return asked, behind


def pack(kind: str, data: list[Any]) -> bytes:
    if kind == "BYTES":
        return b"".join(struct.pack("<I", len(text)) + text.encode() for text in data)
    return struct.pack(f"<{len(data)}{'q' if kind == 'INT64' else 'f'}", *data)


def damage(draw: random.Random, asked: dict[str, Any], behind: bytes) -> tuple[bytes, int | None]:
    """A body, and the length of its JSON; None: it is said to be JSON alone."""
    if draw.random() < 0.5:
        tensor = draw.choice(asked["inputs"])
        where = draw.choice((asked, tensor, asked["parameters"], asked["outputs"][0], tensor.get("parameters", tensor)))
        where[draw.choice([*where, "x", "shape", "data", "binary_data"])] = draw.choice(FIELDS)
    body = json.dumps(asked, separators=(",", ":")).encode()
    if draw.random() < 0.3:
        body = draw.choice((flip(draw, body), splice(draw, body, draw.choice(LITERALS))))
    if draw.random() < 0.3 and behind:
        behind = draw.choice((flip(draw, behind), behind[: draw.randrange(len(behind))]))
    lengths = (None, 0, len(body) - 1, len(body) + 1, 2**62)
    return body + behind, draw.choice(lengths) if draw.random() < 0.2 else len(body) if behind else None


@pytest.mark.parametrize("of", [POSITIONS, NAMED], ids=["integers", "texts"])
def test_what_is_damaged_is_understood_or_refused_in_a_sentence(of: ServedRevision) -> None:
    refused = 0
    for number in range(REQUESTS):
        draw = random.Random(number)  # noqa: S311 - no secret
        body, json_bytes = damage(draw, *valid(draw, of))
        codec = OpenInferenceCodec("digits", None, json_bytes)
        assert codec.estimate_seeds(body, of) >= 0
        try:
            question = question_of(codec, body, of)
        except RequestError as error:
            refused += 1
            assert len(str(error)) < 1000, str(error)
        else:
            assert len(question.nodes)
    assert REQUESTS / 4 < refused < REQUESTS * 0.95


def test_bytes_are_read_alike_wherever_they_begin() -> None:
    """Kernels are compiled for arrays that begin at a whole word, and the JSON before them has any length."""
    ids = struct.pack("<3q", 3, 7, 6)
    for blanks in range(9):
        tensor = {"name": "nodes", "datatype": "INT64", "shape": [3], "parameters": {"binary_data_size": len(ids)}}
        text = json.dumps({"inputs": [tensor]}).encode() + b" " * blanks
        codec = OpenInferenceCodec("digits", None, len(text))
        for _ in range(2):  # the second time by JSON that is known
            asked = question_of(codec, text + ids, POSITIONS)
            assert asked.nodes.tolist() == [3, 7, 6]
            assert asked.nodes.flags.aligned


def test_json_that_is_known_counts_for_the_same_head_and_the_same_graph_alone() -> None:
    tensor = {"name": "nodes", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}}
    text = json.dumps({"inputs": [tensor]}).encode()
    codec = OpenInferenceCodec("digits", None, len(text))

    def ask(behind: bytes, wishes: Wishes = NO_WISHES, of: ServedRevision = POSITIONS) -> Question:
        return question_of(codec, text + behind, of, wishes=wishes)

    assert ask(struct.pack("<q", 3)).nodes.tolist() == [3]
    assert ask(struct.pack("<q", 5)).nodes.tolist() == [5]
    assert ask(struct.pack("<q", 5), Wishes(seed=9)).wishes.seed == 9
    with pytest.raises(RequestError, match="16 bytes behind the JSON, of which its tensors have 8"):
        ask(struct.pack("<2q", 5, 6))
    with pytest.raises(RequestError, match="datatype INT64, where BYTES is expected"):
        ask(struct.pack("<q", 5), of=NAMED)


def test_paths_are_those_of_the_protocol_and_no_others() -> None:
    wrong = "/v2/ /v2/models /v2/models/ /v2/models//infer /v2/models/m/ /v2/models/m/versions /v2/models/m/infer/"
    for path in f"{wrong} /v2/models/m/versions/1/2/infer /v2x /v1/models/m /v2/health".split():
        assert read_path(path) is None, path
    for call in (*ANSWERED, *WRONG):
        place = read_path(call.path.partition("?")[0])
        assert place is None or METHODS[place.call] in {"GET", "POST"}
    place = read_path("/v2/models/m/versions/v/infer")
    assert place is not None
    assert (place.call, place.model, place.version) == (OpenInferenceCall.INFER, "m", "v")


@pytest.mark.parametrize("ends", [True, False], ids=["whole", "without an end"])
@pytest.mark.parametrize(
    ("path", "error"),
    [(INFER, lambda body: body["error"]), ("/v1/predict", lambda body: body["error"]["message"])],
    ids=["the protocol's path", "a path of ours"],
)
def test_heads_that_are_too_long_are_refused_in_the_form_of_their_path(
    path: str, error: Callable[[Any], str], ends: bool
) -> None:
    async def run() -> None:
        async with serving(FakeWorker()) as server:
            wire = server.connect()
            head = f"POST {path} HTTP/1.1\r\nhost: w\r\nx: {'y' * 70_000}\r\n" + "\r\n" * ends
            wire.send(head.encode())
            (response,) = await wire.answers()
            assert response.status == 431
            assert error(json.loads(response.body)).startswith("head: over the limit of 65,536 bytes")

    asyncio.run(run())


def test_heads_that_were_read_before_take_the_fast_path() -> None:
    """Each version, and each length of the JSON, is another head."""
    calls = [call for call in ANSWERED if call.body is not None] * 2

    async def run() -> None:
        async with serving(FakeWorker()) as server:
            wire = server.connect()
            for sent, call in enumerate(calls, 1):
                assert call.body is not None
                lines = [f"{name}: {value}" for name, value in call.headers.items()]
                head = [f"POST {call.path} HTTP/1.1", "host: w", f"content-length: {len(call.body)}", *lines, "", ""]
                wire.send("\r\n".join(head).encode() + call.body)
                response = (await wire.answers(sent))[-1]
                assert response.status == 200, response.body
                check(call.has, json.loads(response.body))
            assert len(server.shared.known.by_bytes) > len(calls) / 4
            assert not server.shared.tasks

    asyncio.run(run())
