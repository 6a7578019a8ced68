"""Compressed bodies, both ways: what is understood, what is refused, and that nothing is held that is too large."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import numpy as np
import pytest
from tests.support.serving.serving import Client, FakeWorker, running, service

from gnnserve_worker.asking.question import RequestError
from gnnserve_worker.serving.http import content_coding
from gnnserve_worker.serving.http.codecs.registry import wanted_coding
from gnnserve_worker.serving.http.content_coding import (
    CODINGS,
    DEFLATE,
    GZIP,
    WORTH_BYTES,
    compress,
    decompress,
)
from gnnserve_worker.serving.http.predict import MAX_BODY_BYTES
from gnnserve_worker.serving.requests import ContentCoding, EncodedAnswer

MANY = {"nodes": [number % 5 for number in range(3000)]}


def on_worker(scenario: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with running(FakeWorker(), service(max_seeds=50_000, max_queued_seeds=50_000)) as client:
            await scenario(client)

    asyncio.run(run())


def packed(body: bytes, coding: ContentCoding = GZIP) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, coding.wbits)
    return packer.compress(body) + packer.flush()


async def post(client: Client, body: bytes, coding: str = "gzip", path: str = "/v1/predict", **head: str) -> Any:
    headers = {"content-encoding": coding, "accept-encoding": "identity", **head}
    return await client.http.post(path, content=body, headers=headers)


# Requests


@pytest.mark.parametrize("name", ["gzip", "x-gzip", "deflate", "GZIP", "identity", ""])
def test_a_compressed_request_is_that_request(name: str) -> None:
    async def scenario(client: Client) -> None:
        plain = json.dumps(MANY).encode()
        coding = CODINGS.get(name.lower())
        response = await post(client, plain if coding is None else packed(plain, coding), name)
        assert response.status_code == 200
        assert response.json() == (await client.predict(**MANY)).json()

    on_worker(scenario)


def test_all_forms_and_endpoints_take_compressed_bodies() -> None:
    async def scenario(client: Client) -> None:
        ids = np.arange(5, dtype="<i8").tobytes()
        binary = await post(client, packed(ids), **{"content-type": "application/octet-stream"})
        assert binary.headers["gnnserve-shape"].startswith("5,")
        infer = {"inputs": [{"name": "nodes", "datatype": "INT64", "shape": [1], "data": [1]}]}
        answered = await post(client, packed(json.dumps(infer).encode(), DEFLATE), "deflate", "/v2/models/digits/infer")
        assert answered.status_code == 200

    on_worker(scenario)


@pytest.mark.parametrize(
    ("body", "coding", "status", "code", "problem"),
    [
        pytest.param(b"{}", "br", 415, "UnsupportedEncoding", "'br' is not possible here", id="unknown"),
        pytest.param(b"{}", "gzip, gzip", 415, "UnsupportedEncoding", "or by gzip or deflate alone", id="twice"),
        pytest.param(b"{}", "gzip", 400, "InvalidEncoding", "it is not gzip: Error -3", id="not compressed"),
        pytest.param(packed(b"{}", DEFLATE), "gzip", 400, "InvalidEncoding", "it is not gzip", id="another one"),
        pytest.param(b"", "gzip", 400, "InvalidEncoding", "it ends too early", id="empty"),
        pytest.param(packed(b"{}")[:-1], "gzip", 400, "InvalidEncoding", "it ends too early", id="cut"),
        pytest.param(packed(b"{}") * 2, "gzip", 400, "InvalidEncoding", "there is more behind", id="two streams"),
        pytest.param(packed(b"{}") + b"x", "gzip", 400, "InvalidEncoding", "there is more behind", id="a byte behind"),
        pytest.param(packed(b"{}")[:-8] + b"x" * 8, "gzip", 400, "InvalidEncoding", "incorrect", id="wrong checksum"),
        pytest.param(packed(b"{"), "gzip", 400, "InvalidJson", "truncated", id="bad JSON inside"),
    ],
)
def test_bodies_that_cannot_be_read_are_refused(body: bytes, coding: str, status: int, code: str, problem: str) -> None:
    async def scenario(client: Client) -> None:
        response = await post(client, body, coding)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert problem in response.json()["error"]["message"]
        assert response.headers.get("accept-encoding") == ("gzip, deflate" if status == 415 else None)
        assert (await client.predict([1])).status_code == 200

    on_worker(scenario)


def test_a_few_bytes_that_become_many_are_refused_before_they_do() -> None:
    bomb = packed(b" " * (16 * MAX_BODY_BYTES))
    assert len(bomb) < MAX_BODY_BYTES / 32

    async def scenario(client: Client) -> None:
        tracemalloc.start()
        response = await post(client, bomb)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert response.status_code == 413
        assert response.json()["error"] == {
            "code": "BodyTooLarge",
            "message": "body: over the limit of 16,777,216 bytes, decompressed; split the nodes over several requests",
        }
        assert most < 3 * MAX_BODY_BYTES

    on_worker(scenario)


def test_the_largest_body_may_be_compressed() -> None:
    whole = asyncio.run(decompress(packed(b"x" * MAX_BODY_BYTES), GZIP, MAX_BODY_BYTES, ""))
    assert whole == b"x" * MAX_BODY_BYTES
    with pytest.raises(RequestError, match="over the limit"):
        asyncio.run(decompress(packed(b"x" * (MAX_BODY_BYTES + 1)), GZIP, MAX_BODY_BYTES, ""))


@pytest.mark.parametrize("length", [0, 1, 65_535, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("coding", [GZIP, DEFLATE])
def test_bodies_of_every_length_are_read(length: int, coding: ContentCoding) -> None:
    plain = np.random.default_rng(length).bytes(length)  # as long when it is compressed
    assert asyncio.run(decompress(packed(plain, coding), coding, MAX_BODY_BYTES, "")) == plain


def test_decompressing_lets_others_go_first() -> None:
    async def scenario() -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await decompress(packed(b"x" * MAX_BODY_BYTES), GZIP, MAX_BODY_BYTES, "")
        counting.cancel()
        assert turns >= MAX_BODY_BYTES / 65_536

    asyncio.run(scenario())


# Answers


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        (b"gzip", GZIP), (b"deflate", DEFLATE), (b"gzip, deflate, br", GZIP), (b"GZIP ; q=0.5", GZIP),
        (b"gzip;q=0.2, deflate;q=0.8", DEFLATE), (b"gzip;q=0, deflate", DEFLATE), (b"gzip;q=0", None), (b"", None),
        (b"identity", None), (b"*", None), (b"br", None), (b"gzip;q=x", None), (b"\xff", None), (b"gzip;level=9", None),
    ],
)  # fmt: skip
def test_the_coding_that_a_client_asks_for(accepted: bytes, coding: ContentCoding | None) -> None:
    assert wanted_coding(accepted) is coding


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_large_answer_is_compressed_where_that_is_asked_for(coding: str) -> None:
    async def scenario(client: Client) -> None:
        plain = await client.http.post("/v1/predict", json=MANY, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        for _ in range(2):  # the second time by a known head
            response = await client.http.post("/v1/predict", json=MANY, headers={"accept-encoding": coding})
            assert response.headers["content-encoding"] == coding
            assert response.headers["vary"] == "accept-encoding"
            assert int(response.headers["content-length"]) < len(plain.content) / 2
            assert response.json() == plain.json()
        small = await client.http.post("/v1/predict", json={"nodes": [1]}, headers={"accept-encoding": coding})
        assert "content-encoding" not in small.headers

    on_worker(scenario)


def test_an_answer_in_pieces_is_compressed_in_pieces() -> None:
    async def scenario(client: Client) -> None:
        asked = {"nodes": [number % 5 for number in range(40_000)], "return": ["scores"]}
        plain = await client.http.post("/v1/predict", json=asked, headers={"accept-encoding": "identity"})
        response = await client.http.post("/v1/predict", json=asked, headers={"accept-encoding": "gzip"})
        assert "content-length" not in response.headers
        assert response.headers["content-encoding"] == "gzip"
        assert response.json() == plain.json()

    on_worker(scenario)


def test_what_does_not_shrink_is_sent_as_it_is() -> None:
    for length in (WORTH_BYTES, 200_000):
        noise = EncodedAnswer(b"x: y\r\n", memoryview(np.random.default_rng(0).bytes(length)))
        assert compress(noise, GZIP) is noise
        flat = compress(EncodedAnswer(b"x: y\r\n", memoryview(b"1" * length)), GZIP)
        assert flat.head == b"x: y\r\ncontent-encoding: gzip\r\nvary: accept-encoding\r\n"
        pieces = [bytes(flat.body)] if flat.pieces is None else list(flat.pieces)
        assert all(pieces)
        assert gzip.decompress(b"".join(pieces)) == b"1" * length


def test_short_answers_are_never_compressed() -> None:
    short = EncodedAnswer(b"", b"1" * (WORTH_BYTES - 1))
    assert compress(short, GZIP) is short


def test_other_endpoints_are_compressed_too() -> None:
    async def scenario(client: Client) -> None:
        assert len((await client.http.get("/metrics")).content) > WORTH_BYTES
        response = await client.http.get("/metrics", headers={"accept-encoding": "gzip"})
        assert response.headers["content-encoding"] == "gzip"
        assert "gnnserve_request_seconds" in response.text
        plain = await client.http.get("/healthz", headers={"accept-encoding": "gzip"})
        assert "content-encoding" not in plain.headers

    on_worker(scenario)


def test_a_request_without_compression_takes_no_other_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(content_coding, "decompress", never)

    async def scenario(client: Client) -> None:
        response: httpx.Response = await client.http.post("/v1/predict", json=MANY)
        assert response.status_code == 200

    on_worker(scenario)
