"""Messages that are recognized by those before them: each is read as if none had been before, and none is kept."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.support.serving.malformed import flip
from tests.support.serving.questions import question_of
from tests.support.serving.serving import FakeWorker
from tests.support.serving.typed_worker import TypedWorker

from gnnserve_worker.asking.question import ErrorCode, RequestError
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.grpc.codec import InferCodec
from gnnserve_worker.serving.grpc.known_messages import KnownMessages
from gnnserve_worker.serving.grpc.messages import ModelInferRequest
from gnnserve_worker.serving.http.codecs.open_inference import OpenInferenceCodec
from gnnserve_worker.serving.requests import Question

NODES = 20
MOST_NODES = 1000
SENT = 3000


def request(*ids: int, **fields: Any) -> Any:
    tensor = {"name": "nodes", "datatype": "INT64", "shape": [len(ids)]}
    raw = [np.array(ids, "<i8").tobytes()]
    return ModelInferRequest(**{"model_name": "digits", "inputs": [tensor], "raw_input_contents": raw, **fields})


def ask(codec: Any, body: bytes, revision: ServedRevision) -> Question:
    return question_of(codec, body, revision, max_nodes=MOST_NODES)


def outcome(raw: bytes, known: KnownMessages | None, revision: ServedRevision) -> tuple[Any, ...]:
    """All that a message is read as, or what it is refused for."""
    try:
        codec = InferCodec(raw, known)
        seeds, choices = codec.estimate_seeds(raw, revision), (codec.may_choose(raw), codec.may_have_seed(raw))
        told = (codec.id, codec.model, codec.version, seeds, *choices, codec.may_have_overlay(raw))
        asked = ask(codec, raw, revision)
    except RequestError as error:
        return error.code, str(error)
    return *told, asked.nodes.tolist(), asked.wishes, asked.outputs, asked.answer_form


def varied(draw: random.Random) -> Iterator[bytes]:
    """Messages that begin alike, are as long as others, or have the bytes of their tensor in another place."""
    while True:
        node = draw.randrange(NODES + 2)
        fields: dict[str, Any] = {}
        if draw.random() < 0.3:
            fields["outputs"] = [{"name": draw.choice(("labels", "scores", "others"))}]
        if draw.random() < 0.2:
            fields["parameters"] = {draw.choice(("seed", "label")): {"int64_param": draw.randrange(3)}}
        if draw.random() < 0.2:
            fields["id"] = draw.choice(("a", "b"))
        raw: bytes = request(*[node] * draw.choice((1, 1, 1, 2)), **fields).SerializeToString()
        other: bytes = request(draw.randrange(NODES)).SerializeToString()
        yield raw
        yield draw.choice((
            raw + other[: draw.randrange(len(other))],
            raw[:-8] + draw.randbytes(8),
            raw[:-9] + bytes([draw.choice((7, 8, 9, 0x88))]) + raw[-8:],
            raw + b"\x1a\x01c",  # an id behind the bytes
            raw + b"\x3a\x00",  # bytes of a second tensor
            raw + b"\x7a\x0a\x3a\x08" + raw[-8:],  # no field of ours, and in it what looks like the bytes
            raw[-10:] + raw[:-10],
            flip(draw, raw),
        ))  # fmt: skip


def test_a_message_is_read_the_same_whichever_were_before_it() -> None:
    known, revision = KnownMessages(), FakeWorker(nodes=NODES).revision()
    sent = varied(random.Random(1))  # noqa: S311 - no secret
    for _ in range(SENT):
        raw = next(sent)
        assert outcome(raw, known, revision) == outcome(raw, None, revision), raw


def test_neither_bytes_nor_ids_are_kept_of_what_was_read() -> None:
    known, revision = KnownMessages(), FakeWorker(nodes=NODES).revision()
    raw = request(3, id="an id").SerializeToString()
    codec = InferCodec(raw, known)
    ask(codec, raw, revision)
    (kept,) = known.bodies
    assert kept.form.id is None
    assert [given.contents.data for given in kept.tensors.values()] == [b""]


def by_grpc() -> Callable[[ServedRevision], Question]:
    known = KnownMessages()
    tensor = {"name": "nodes", "datatype": "BYTES", "shape": [1]}
    raw = request(inputs=[tensor], raw_input_contents=[b"\7\0\0\0paper/3"]).SerializeToString()
    return lambda revision: ask(InferCodec(raw, known), raw, revision)


def by_http() -> Callable[[ServedRevision], Question]:
    tensor = {"name": "nodes", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 11}}
    text = json.dumps({"inputs": [tensor]}).encode()
    codec = OpenInferenceCodec("digits", json_bytes=len(text))
    return lambda revision: ask(codec, text + b"\7\0\0\0paper/3", revision)


@pytest.mark.parametrize("way", [by_grpc, by_http])
def test_ids_with_a_type_are_refused_once_the_graph_has_none(way: Callable[[], Any]) -> None:
    ask_of = way()
    assert ask_of(TypedWorker(nodes=NODES).revision()).nodes.tolist() == [3]
    with pytest.raises(RequestError) as refused:
        ask_of(FakeWorker(nodes=NODES).revision())
    assert refused.value.code is ErrorCode.INVALID_TYPE
