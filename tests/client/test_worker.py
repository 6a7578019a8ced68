"""A client and a worker: the same answers in every form, its own errors, writing, TLS and tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from tests.support.changes.fake_updates import FakeUpdates
from tests.support.serving.certificates import make_key_pair
from tests.support.serving.client_worker import FEATURES, Brought, client_worker
from tests.support.serving.secured_worker import started
from tests.support.serving.serving import CLASSES, HIDDEN, NODES, FakeWorker, running, service

from gnnserve_api.files.graph_schema import AS_LISTED, WITHOUT_NAMES, PayloadManifest, relation_manifest
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_client import (
    AccessError,
    AsyncClient,
    BadRequestError,
    Changes,
    Client,
    InputError,
    NotTrustedError,
    ObjectiveError,
    Overlay,
    TimedOutError,
)
from gnnserve_worker.asking.edge_payload import EdgePayloads
from gnnserve_worker.graph.change_batch import decode_batch
from gnnserve_worker.graph.ids import lay_out, string_ids
from gnnserve_worker.serving.security.access import Access
from gnnserve_worker.serving.security.credentials import Credentials

READING, WRITING = "reading-0123456789ab", "writing-0123456789ab"
ASKED = np.array([3, 7, 3, 998])
LABELS = [CLASSES[node % 4] for node in ASKED]


class Counting(httpx.ASGITransport):
    """The worker's application, and the media types of what it was asked."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.types: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.types.append(request.headers.get("content-type", ""))
        return await super().handle_async_request(request)


Scenario = Callable[[AsyncClient, Counting], Awaitable[None]]


def on(worker: FakeWorker, scenario: Scenario) -> None:
    async def run() -> None:
        async with running(worker, write_access=Access((WRITING,))) as of:
            transport = Counting(of.app)
            async with AsyncClient("http://worker", write_token=WRITING, transport=transport) as client:
                await scenario(client, transport)

    asyncio.run(run())


def test_answers_are_the_same_in_both_forms() -> None:
    async def scenario(client: AsyncClient, transport: Counting) -> None:
        arrays = {name: await client.predict(ASKED, outputs=name) for name in ("labels", "scores", "embeddings")}
        together = await client.predict(ASKED, outputs=tuple(arrays))
        assert transport.types == ["application/octet-stream"] * 3 + ["application/json"]
        for name, alone in arrays.items():
            mine, other = alone.outputs[name], together.outputs[name]
            assert np.array_equal(mine, other)
            assert mine.dtype == other.dtype
            assert mine.flags.writeable
            assert (alone.variant, alone.revision, alone.objective_met) == ("x1", together.revision, True)
            assert set(alone.server_ms) >= {"queue", "sample", "gather", "compute"}
            assert alone.elapsed_ms > 0
        assert together.labels.tolist() == LABELS
        assert together.scores.shape == (4, len(CLASSES))
        assert together.embeddings.shape == (4, HIDDEN)
        with pytest.raises(InputError, match=r"scores: the request asked for labels alone; ask with outputs="):
            _ = arrays["labels"].scores

    on(FakeWorker(), scenario)


def test_wishes_reach_the_worker_in_both_forms() -> None:
    async def scenario(client: AsyncClient, _: Counting) -> None:
        for outputs in ("labels", ("labels", "scores")):
            assert (await client.predict(ASKED, outputs=outputs, tolerance_permille=30)).variant == "x8"
            assert (await client.predict(ASKED, outputs=outputs, variant="x4", seed=7)).variant == "x4"
            with pytest.raises(ObjectiveError) as caught:
                await client.predict(ASKED, outputs=outputs, latency_ms=0.01, strict=True)
            assert (caught.value.status, caught.value.code) == (422, "ObjectiveInfeasible")
            with pytest.raises(BadRequestError) as wrong:
                await client.predict([3, 5000], outputs=outputs)
            assert (wrong.value.code, wrong.value.field) == ("UnknownNode", "nodes[1]")
            assert wrong.value.remedy.startswith("node ids are 0 to 999")

    on(FakeWorker(), scenario)


def test_texts_are_labels_and_ids() -> None:
    texts = [f"user-{node}" for node in range(8)]
    worker = FakeWorker(nodes=8, ids=string_ids(*lay_out(texts)), classes=("a", "b", "c", "d"))

    async def scenario(client: AsyncClient, transport: Counting) -> None:
        answer = await client.predict(np.array(["user-1", "user-6"]))
        assert answer.labels.tolist() == ["b", "c"]
        assert (answer.labels == "c").tolist() == [False, True]
        assert (await client.nodes()).tolist() == texts
        assert (await client.nodes(2, 3)).tolist() == texts[2:5]
        transport.types.clear()
        with pytest.raises(BadRequestError) as caught:
            await client.predict([1, 6])
        assert caught.value.code == "InvalidType"
        assert transport.types == ["application/octet-stream", "application/json"]

    on(worker, scenario)


def test_labels_that_are_no_array_are_asked_for_in_json_and_that_is_remembered() -> None:
    async def scenario(client: AsyncClient, transport: Counting) -> None:
        for _ in range(2):
            answer = await client.predict([1, 2])
            assert answer.labels.dtype == object
            assert answer.labels.tolist() == [[20], [30]]
        assert transport.types == ["application/octet-stream", "application/json", "application/json"]
        await client.predict([1, 2], outputs="scores")
        assert transport.types[-1] == "application/octet-stream"

    on(FakeWorker(multi_label=True), scenario)


def test_an_overlay_arrives_alike_in_both_forms() -> None:
    brought = Brought()
    row, changed = np.arange(FEATURES) / 8, np.full((1, FEATURES), 0.5)
    overlay = Overlay(features=row[None], edges=[(3, -1), (-1, 7)], overrides=[7], override_features=changed)

    async def scenario(client: AsyncClient, transport: Counting) -> None:
        await client.predict([-1, 3], overlay=overlay)
        await client.predict([-1, 3], overlay=overlay, outputs=("labels", "scores"))
        assert transport.types == ["application/vnd.gnnserve.overlay", "application/json"]
        named = {f"pixel{i}": value for i, value in enumerate(row)}
        same = Overlay(
            nodes=[5000], features=[named], edges=[(3, 5000), (5000, 7)],
            overrides={7: dict.fromkeys(named, 0.5)},
        )  # fmt: skip
        await client.predict([5000, 3], overlay=same)
        with pytest.raises(BadRequestError) as caught:
            await client.predict([3], overlay=Overlay(nodes=[3], features=row[None]))
        assert caught.value.code == "StoredNode"

    on(client_worker(brought), scenario)
    first, *others = brought.overlays
    assert first["edges"] == [[3, NODES], [NODES, 7]]
    assert (first["overridden"], first["seeds"]) == ([7], [NODES, 3])
    assert first["features"] == [row.tolist(), changed[0].tolist()]
    assert others == [first, first]


def test_features_and_times_of_edges_arrive_alike_in_both_forms() -> None:
    brought = Brought()
    described = relation_manifest("", "", "", 0, None, AS_LISTED)
    payload = PayloadManifest(("weight", "amount"), "at", 0)
    payloads = EdgePayloads([msgspec.structs.replace(described, payload=payload)], WITHOUT_NAMES)
    edges: dict[str, Any] = {"edges": [(3, 4), (4, 5)], "edge_features": [[1, 2], [3, 4.5]]}
    overlay = Overlay(**edges, edge_times=np.array(["1970-01-01T00:00:01", "1970-01-02"], "datetime64[s]"))

    async def scenario(client: AsyncClient, transport: Counting) -> None:
        await client.predict([3], overlay=overlay)
        await client.predict([3], overlay=overlay, outputs=("labels", "scores"))
        assert transport.types == ["application/vnd.gnnserve.overlay", "application/json"]
        with pytest.raises(BadRequestError, match="edges have a time, at"):
            await client.predict([3], overlay=Overlay(**edges), outputs=("labels", "scores"))

    on(client_worker(brought, payloads), scenario)
    first, second = brought.overlays
    assert first == second
    assert first["edge_features"] == edges["edge_features"]
    assert first["edge_times"] == [1_000_000, 86_400_000_000]


def test_changes_last_and_are_read_back() -> None:
    worker = client_worker(Brought())
    assert isinstance(worker.updates, FakeUpdates)
    log = worker.updates

    async def scenario(client: AsyncClient, _: Counting) -> None:
        rows = np.ones((2, FEATURES))
        arrays = Changes(nodes=[5000, 5001], features=rows, node_labels=[10, None], edges=[(3, 5000), (5001, 3)])
        named = Changes(overrides={7: {"pixel3": 0.5}}, labels={4: 20, 5: None})
        applied = await client.changes.apply([arrays, named], client="nightly", batch=3)
        assert (applied.batches, applied.changes, applied.repeated, applied.last_offset) == (3, 7, 0, 3)
        again = await client.changes.apply([arrays, named], client="nightly", batch=3)
        assert (again.batches, again.repeated, again.last_offset) == (3, 3, 3)
        assert (await client.predict(ASKED, min_offset=applied.last_offset)).offset == 3
        page = await client.changes.log(content=True, after=1)
        assert [(record.client, record.sequence, record.changes) for record in page.records] == [
            ("nightly", 2, 1), ("nightly", 3, 3)
        ]  # fmt: skip
        with pytest.raises(BadRequestError) as caught:
            await client.changes.apply(Changes(nodes=[1], features=np.ones((1, 2))))
        assert caught.value.code == "WrongFeatures"

    on(worker, scenario)
    read = [decode_batch(record.body) for record in log.records]
    assert [one.counts.items for one in read] == [3, 1, 3]
    assert np.isnan(read[2].features).sum() == FEATURES - 1


def test_labels_are_taken_one_by_one_and_once_by_their_times() -> None:
    async def scenario(client: AsyncClient, _: Counting) -> None:
        times = np.array(["2020-11-23T05:00:00", "2020-11-23T05:00:01"], "datetime64[s]")
        answer = await client.send_labels([1, 2], np.array([20, 30]), times)
        assert (answer.accepted, answer.refused) == (2, 0)
        again = await client.send_labels([1, 5000], [20, 30], [datetime(2020, 11, 23, 5, tzinfo=UTC)] * 2)
        assert [(one.index, one.reason) for one in again.problems] == [(0, "Repeated"), (1, "UnknownNode")]
        many = await client.send_labels(np.arange(12_000) % 1001, np.full(12_000, 20))
        assert (many.accepted, many.refused) == (11_989, 11)
        assert many.problems[-1].index == 11_010
        assert (await client.accuracy()).service == "digits"

    on(FakeWorker(), scenario)


@pytest.mark.parametrize(
    ("times", "problem"),
    [
        pytest.param([datetime(2026, 11, 23)], "is no time with a zone", id="no zone"),
        pytest.param([5], "5 is no time", id="a number"),
        pytest.param([], "0 times for 1 nodes", id="none"),
    ],
)
def test_times_need_a_zone(times: list[Any], problem: str) -> None:
    async def scenario(client: AsyncClient, transport: Counting) -> None:
        with pytest.raises(InputError, match=problem):
            await client.send_labels([1], [20], times)
        assert transport.types == []

    on(FakeWorker(), scenario)


def test_what_is_served_is_told() -> None:
    async def scenario(client: AsyncClient, _: Counting) -> None:
        variants = await client.variants()
        assert (variants.nodes, variants.node_ids, variants.classes) == (NODES, NodeIdKind.POSITIONS, CLASSES)
        assert (await client.route()).base_variant == "x1"
        assert await client.is_alive()
        assert await client.is_ready()
        await client.wait_until_ready(1)
        assert len(await client.nodes()) == NODES

    on(FakeWorker(), scenario)


def test_a_server_that_loads_is_waited_for_and_says_why() -> None:
    async def scenario(client: AsyncClient, _: Counting) -> None:
        assert await client.is_alive()
        assert not await client.is_ready()
        with pytest.raises(TimedOutError, match=r"is not ready after 0\.01 s: .+"):
            await client.wait_until_ready(0.01)

    on(FakeWorker(loaded=False), scenario)


# Threads, over sockets


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Path]]]:
    folder = tmp_path_factory.mktemp("secured")
    pair = make_key_pair(folder)
    tokens, writing = folder / "tokens", folder / "writing"
    tokens.write_text(f"{READING}\n")
    writing.write_text(f"{WRITING}\n")
    with started(Credentials(pair, tokens, writing), of=client_worker(Brought())) as worker:
        files = {"ca_file": pair.certificate, "token_file": tokens, "write_token_file": writing}
        yield f"https://127.0.0.1:{worker.port}", files


def test_a_client_of_threads_reads_and_writes_with_tokens_over_tls(secured: tuple[str, dict[str, Path]]) -> None:
    url, files = secured
    with Client(url, **files) as client:
        client.wait_until_ready()
        for _ in range(3):
            assert client.predict(ASKED).labels.tolist() == LABELS
        assert len(client._connection.idle) == 1
        assert client.changes.apply(Changes(edges=[(1, 2)])).last_offset >= 1
        assert client.changes.log().last >= 1
        assert client.send_labels([1], [20]).accepted == 1
        assert client.variants().service == "digits"
        assert client.route().revision == client.accuracy().revision
        assert client.nodes(998).tolist() == [998, 999]
        assert client.is_alive() and client.is_ready()


def test_who_is_not_trusted_and_who_is_not_let_in(secured: tuple[str, dict[str, Path]]) -> None:
    url, files = secured
    with Client(url, token=READING) as client, pytest.raises(NotTrustedError, match="self-signed certificate"):
        client.predict([3])
    with Client(url, token=READING, ca_file=files["ca_file"]) as client:
        with pytest.raises(AccessError) as caught:
            client.changes.apply(Changes(edges=[(1, 2)]))
        assert (caught.value.status, caught.value.code) == (401, "Unauthorized")
        assert READING not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        pytest.param({"url": "localhost:8080"}, "URL: 'localhost:8080' is not the address", id="no scheme"),
        pytest.param({"token": "short"}, "token: is no token", id="a short token"),
        pytest.param({"token": READING, "token_file": "x"}, "token: there is a token_file as well", id="two tokens"),
        pytest.param({"write_token_file": "nowhere"}, "nowhere: cannot be read", id="no file"),
        pytest.param({"ca_file": "ca.crt"}, "ca_file: says whom to trust", id="a certificate for plain HTTP"),
        pytest.param({"timeout_s": 0}, "timeout_s: 0 s", id="no time"),
    ],
)
def test_a_client_that_cannot_be_opened_says_why(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Client(**{"url": "http://127.0.0.1:1", **options})


def test_the_objective_of_the_service_holds_where_none_is_stated() -> None:
    async def scenario() -> None:
        async with (
            running(FakeWorker(), service({"accuracyTolerancePermille": 30})) as of,
            AsyncClient("http://worker", transport=httpx.ASGITransport(of.app)) as client,
        ):
            assert (await client.predict([3])).variant == "x8"
            assert (await client.predict([3], tolerance_permille=0)).variant == "x1"

    asyncio.run(scenario())
