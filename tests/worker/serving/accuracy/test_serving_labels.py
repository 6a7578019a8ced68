"""`POST /v1/labels`: who may write, what is taken, and what the variants' accuracy in service becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from tests.support.serving.posted_labels import HEADERS, READING, WRITING, evaluated
from tests.support.serving.serving import CLASSES, TRADE_OFF, Client, FakeWorker, accepted, running

from gnnserve_api.files.profile import Profile
from gnnserve_worker.graph.ids import lay_out, string_ids
from gnnserve_worker.serving.accuracy import watch as watching
from gnnserve_worker.serving.accuracy.tally import Tally
from gnnserve_worker.serving.idle.idle_jobs import LOOK_AGAIN_MS, pause_ms
from gnnserve_worker.serving.metrics.metrics import ServingMetrics
from gnnserve_worker.serving.security.access import Access
from gnnserve_worker.serving.security.credentials import Credentials, CredentialsInUse
from gnnserve_worker.tasks.classify_nodes.served_labels import values_of
from gnnserve_worker.tasks.classify_nodes.serving import ClassifyNodes
from gnnserve_worker.tasks.served_labels import HeldOutNodes

TRUSTED = msgspec.structs.replace(TRADE_OFF, validation_nodes=1000, test_nodes=1000)
"""Accuracies of 0.90, 0.89 and 0.87 that were counted on enough nodes to mean something."""


def on_worker(
    scenario: Callable[[Client, FakeWorker], Awaitable[None]], worker: FakeWorker | None = None, **options: Any
) -> None:
    async def run() -> None:
        served = worker or FakeWorker(profile=TRUSTED)
        async with running(served, write_access=Access((WRITING,)), **options) as client:
            await scenario(client, served)

    asyncio.run(run())


async def send(client: Client, nodes: list[Any], labels: list[Any], **fields: Any) -> httpx.Response:
    return await client.http.post("/v1/labels", json={"nodes": nodes, "labels": labels, **fields}, headers=HEADERS)


def truths(nodes: list[int], shift: int = 0) -> list[int]:
    return [CLASSES[(node + shift) % len(CLASSES)] for node in nodes]


def test_a_token_that_predicts_never_writes_and_one_that_writes_never_predicts() -> None:
    async def scenario(client: Client, _worker: FakeWorker) -> None:
        body = {"nodes": [1], "labels": [CLASSES[1]]}
        for token, statuses in ((READING, (401, 200)), (WRITING, (200, 401)), ("neither-0123456789", (401, 401))):
            headers = {"authorization": f"Bearer {token}"}
            written = await client.http.post("/v1/labels", json=body, headers=headers)
            predicted = await client.http.post("/v1/predict", json={"nodes": [1]}, headers=headers)
            assert (written.status_code, predicted.status_code) == statuses
        assert (await client.http.post("/v1/labels", json=body)).status_code == 401

    on_worker(scenario, access=Access((READING,)))


def test_without_write_tokens_nothing_is_taken() -> None:
    async def run() -> None:
        async with running(FakeWorker()) as client:
            answer = await send(client, [1], [CLASSES[1]])
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "NoWriting")
            assert client.model.watch.waiting == 0

    asyncio.run(run())


def test_every_variant_is_evaluated_on_labels() -> None:
    async def scenario(client: Client, _worker: FakeWorker) -> None:
        nodes = [*range(200)]
        labels = truths(nodes)
        labels[:20] = truths(nodes[:20], shift=1)
        assert (await send(client, nodes, labels)).json() == {
            "accepted": 200, "refused": 0, "problems": [], "revision": "f0eae20c16c00ac0-1"
        }  # fmt: skip
        found = await evaluated(client)
        assert [*found] == ["x1", "x4", "x8"]
        for variant in found.values():
            assert variant["labels"]["nodes"] == 200
            assert variant["labels"]["mean"] == pytest.approx(0.9)
            assert variant["labels"]["low"] < 0.9 < variant["labels"]["high"]
            assert "isBroken" not in variant
        assert (found["x1"]["promised"], found["x1"]["promisedNodes"]) == (0.9, 1000)
        told = (await client.http.get("/v1/variants")).json()["accuracy"]
        assert {variant["name"]: variant for variant in told} == found
        exposed = client.metrics.render().decode()
        assert 'gnnserve_labels_total{outcome="accepted",service="digits"} 200.0' in exposed
        assert 'gnnserve_live_accuracy_nodes{service="digits",variant="x4"} 200.0' in exposed

    on_worker(scenario)


def test_a_variant_that_is_significantly_worse_is_told() -> None:
    async def scenario(client: Client, _worker: FakeWorker) -> None:
        nodes = [*range(600)]
        labels = truths(nodes)
        labels[::3] = truths(nodes[::3], shift=1)
        await send(client, nodes, labels)
        found = await evaluated(client)
        assert all(variant["isBroken"] and variant["labels"]["high"] < 0.87 for variant in found.values())
        assert 'gnnserve_accuracy_broken{service="digits",variant="x1"} 1.0' in client.metrics.render().decode()

    on_worker(scenario)


def test_wrong_labels_are_said_and_counted_and_the_others_kept() -> None:
    async def scenario(client: Client, worker: FakeWorker) -> None:
        now = datetime.now(UTC)
        times = [now - timedelta(hours=1)] * 6
        times[3] = now + timedelta(hours=1)
        nodes = [1, worker.nodes, 2, 3, 1, 4]
        labels = [20, 10, 77, 10, 20, 10]
        answer = (await send(client, nodes, labels, times=[time.isoformat() for time in times])).json()
        assert (answer["accepted"], answer["refused"]) == (2, 4)
        assert [(problem["index"], problem["reason"]) for problem in answer["problems"]] == [
            (1, "UnknownNode"), (2, "UnknownLabel"), (3, "FutureTime"), (4, "Repeated")
        ]  # fmt: skip
        again = (await send(client, [1], [20], times=[times[0].isoformat()])).json()
        assert (again["accepted"], again["problems"][0]["reason"]) == (0, "Repeated")
        other_zone = times[0].astimezone().isoformat()
        assert (await send(client, [1], [20], times=[other_zone])).json()["refused"] == 1
        assert (await send(client, [1, 1], [20, 20])).json()["accepted"] == 2  # without a time they are of now
        exposed = client.metrics.render().decode()
        for outcome, count in (("UnknownNode", 1), ("UnknownLabel", 1), ("FutureTime", 1), ("Repeated", 3)):
            assert f'gnnserve_labels_total{{outcome="{outcome}",service="digits"}} {count}.0' in exposed
        assert (await evaluated(client))["x1"]["labels"]["nodes"] == 4

    on_worker(scenario)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param(b"", "body", id="empty"),
        pytest.param(b"{", "body", id="no JSON"),
        pytest.param(b'{"nodes": [1]}', "labels", id="without labels"),
        pytest.param(b'{"nodes": [], "labels": []}', "nodes", id="no nodes"),
        pytest.param(b'{"nodes": [1, 2], "labels": [10]}', "labels", id="too few labels"),
        pytest.param(b'{"nodes": [1], "labels": [10], "times": []}', "times", id="too few times"),
        pytest.param(b'{"nodes": [1], "labels": [10], "times": ["2026-01-01T00:00:00"]}', "times[0]", id="no zone"),
        pytest.param(b'{"nodes": [1.5], "labels": [10]}', "nodes[0]", id="a fraction"),
        pytest.param(b'{"nodes": [1], "labels": [10], "time": 3}', "time", id="unknown field"),
        pytest.param(b'{"nodes": [%s1], "labels": []}' % (b"1," * 10_000), "nodes", id="too many"),
    ],
)
def test_a_malformed_body_is_refused_as_a_whole(body: bytes, field: str) -> None:
    async def scenario(client: Client, _worker: FakeWorker) -> None:
        answer = await client.http.post("/v1/labels", content=body, headers=HEADERS)
        assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
        assert client.model.watch.waiting == 0

    on_worker(scenario)


@pytest.mark.parametrize(
    ("nodes", "labels", "message"),
    [
        ([None], [10], "nodes[0]: expected an integer, a text, or an object with type and id, got null; "
                       "node ids of this graph are integers"),
        ([{"id": 3}], [10], "nodes[0].type: it is missing; give the name of a type"),
        ([{"type": "paper", "id": 1.5}], [10], "nodes[0].id: expected an integer or a text, got 1.5; "
                                               "give an id within the type"),
        ([1], [[None]], "labels[0][0]: expected an integer or a text, got null; "
                        "give the labels of a node as predictions answer them"),
    ],
    ids=["no id", "no type", "no id within a type", "no label in a list"],
)  # fmt: skip
def test_values_of_a_wrong_type_are_named_in_words_of_json(nodes: list[Any], labels: list[Any], message: str) -> None:
    async def scenario(client: Client, _worker: FakeWorker) -> None:
        assert (await send(client, nodes, labels)).json()["error"]["message"] == message

    on_worker(scenario)


def test_a_time_that_is_none_is_named_with_what_to_write() -> None:
    async def scenario(client: Client, _worker: FakeWorker) -> None:
        error = (await send(client, [1], [10], times=["yesterday"])).json()["error"]
        assert error["message"] == (
            'times[0]: "yesterday" is not possible here; write it as RFC 3339 has it, with a zone: 2026-11-23T05:00:00Z'
        )

    on_worker(scenario)


def test_too_many_waiting_labels_are_refused_and_nothing_of_them_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MOST_WAITING", 3)

    async def scenario(client: Client, worker: FakeWorker) -> None:
        worker.gate.clear()
        assert (await send(client, [1, 2], [20, 30])).status_code == 200
        answer = await send(client, [3, 4], [40, 10])
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "10")
        worker.gate.set()
        assert (await evaluated(client))["x8"]["labels"]["nodes"] == 2
        assert (await send(client, [3, 4], [40, 10])).status_code == 200

    on_worker(scenario)


def test_requests_go_before_labels() -> None:
    """While requests wait, nothing is evaluated; a request that comes during a job is next."""

    async def scenario(client: Client, worker: FakeWorker) -> None:
        worker.gate.clear()
        await send(client, [1, 2], [20, 30])
        await worker.batch_started()
        requests = [accepted(client.model, [node]) for node in (5, 6, 7)]
        worker.gate.set()
        for request in requests:
            await request.outcome
        of_requests = [i for i, (_, seeds) in enumerate(worker.batches) if set(seeds) & {5, 6, 7}]
        assert of_requests[0] == 1 and of_requests == [*range(1, 1 + len(of_requests))]
        assert (await evaluated(client))["x1"]["labels"]["nodes"] == 2

    on_worker(scenario)


def test_labels_survive_a_change_of_revision_by_the_ids_of_their_nodes() -> None:
    """The next revision has the same nodes at other places, lacks one of them, and begins its figures anew."""
    names = [f"n{i}" for i in range(8)]
    turned = [*names[:0:-1], "other"]
    ids = [string_ids(*lay_out(some)) for some in (names, turned)]

    async def scenario(client: Client, worker: FakeWorker) -> None:
        worker.gate.clear()
        await send(client, names, [CLASSES[i % 4] for i in range(8)])
        await worker.batch_started()
        following = FakeWorker(name="f0eae20c16c00ac0-2", nodes=8, ids=ids[1], profile=TRUSTED)
        client.switch(following.revision())
        worker.gate.set()
        found = await evaluated(client)
        # Node n7 is at place 0 now, and so on: 7 - i is i's class there, if the classes had stayed.
        assert found["x1"]["labels"]["nodes"] == 7
        assert client.model.watch.outcomes["UnknownNode"] == 1
        assert sorted({seed for _, seeds in following.batches for seed in seeds}) == [*range(7)]

    on_worker(scenario, FakeWorker(nodes=8, ids=ids[0], profile=TRUSTED))


def test_labels_that_cannot_be_evaluated_are_counted_and_requests_go_on() -> None:
    def fail(_variant: str, seeds: np.ndarray) -> None:
        if 13 in seeds:
            raise ValueError("unlucky")

    async def scenario(client: Client, _worker: FakeWorker) -> None:
        await send(client, [13], [20])
        await evaluated(client)
        assert client.model.watch.outcomes["failed"] == 1
        assert (await client.predict([1])).status_code == 200

    on_worker(scenario, FakeWorker(profile=TRUSTED, fail=fail))


def test_nodes_with_several_labels_are_right_by_the_f1_of_their_own() -> None:
    async def scenario(client: Client, _worker: FakeWorker) -> None:
        answer = (await send(client, [0, 1, 2], [[10], [10, 20], 30])).json()
        assert [problem["reason"] for problem in answer["problems"]] == ["UnknownLabel"]
        found = await evaluated(client)
        assert found["x1"]["labels"]["mean"] == pytest.approx((1 + 2 / 3) / 2)

    on_worker(scenario, FakeWorker(multi_label=True, profile=TRUSTED))


def test_values_of_nodes_without_any_label() -> None:
    scores, flags = np.array([[-1.0, -1], [1, -1]], np.float32), np.zeros((2, 2), np.uint8)
    assert values_of(scores, flags).tolist() == [1.0, 0.0]


def test_where_the_metric_is_no_mean_over_nodes_held_out_nodes_are_evaluated_first() -> None:
    """With F1 over all nodes in the profile, the promise is the mean F1 of each held-out node's own labels."""
    nodes = np.arange(300, 800)
    truths = np.eye(4, dtype=np.uint8)[nodes % 4]
    truths[:100, 3] = 1  # of two labels one is found: 2/3, or all where it has that one anyway
    worker = FakeWorker(multi_label=True, profile=msgspec.structs.replace(TRUSTED, metric="f1Micro"), loaded=False)

    async def scenario(client: Client, _worker: FakeWorker) -> None:
        revision = worker.revision()
        assert isinstance(revision.task, ClassifyNodes)
        client.switch(replace(revision, task=replace(revision.task, held_out=HeldOutNodes(nodes, truths))))
        assert client.model.watch.figures()[0].promised is None
        right = [[CLASSES[node % 4]] for node in range(200)]
        await send(client, [*range(200)], right)
        found = await evaluated(client)
        assert found["x4"]["promisedNodes"] == 500
        assert found["x4"]["promised"] == pytest.approx((425 + 75 * 2 / 3) / 500)
        assert found["x4"]["labels"]["nodes"] == 200 and "isBroken" not in found["x4"]
        for _ in range(3):
            await send(client, [*range(200)], [[CLASSES[(node + 1) % 4]] for node in range(200)])
        assert (await evaluated(client))["x4"]["isBroken"]

    on_worker(scenario, worker)


def test_a_metric_that_is_no_mean_over_nodes_promises_nothing() -> None:
    profile: Profile = msgspec.structs.replace(TRUSTED, metric="rocAuc")
    tally = Tally(profile, FakeWorker(profile=profile).revision().task.live_labels.measure())
    tally.add_labels({variant.name: np.zeros(500) for variant in profile.variants}, np.ones(500, bool))
    assert all(figure.promised is None and not figure.is_broken for figure in tally.figures())


def test_jobs_take_a_small_share_of_a_busy_worker() -> None:
    assert pause_ms(1.0, permille=5) == pytest.approx(199)
    assert pause_ms(0.001, permille=250) == LOOK_AGAIN_MS


def test_tokens_that_may_write_are_followed_and_requests_do_not_wait_for_them(tmp_path: Path) -> None:
    place = tmp_path / "writing"
    in_use = CredentialsInUse(Credentials(write_tokens=place, waits=True), ServingMetrics("digits"))
    (state,) = in_use.states()
    assert (state.kind, state.is_usable) == ("writeTokens", True) and str(place) in state.problem
    assert in_use.complete.is_set() and not in_use.access.needs_token
    assert in_use.write_access is not None and not in_use.write_access.accepts_any
    place.write_text(WRITING)
    in_use.look(lambda act: act())
    assert in_use.write_access.accepts([(b"authorization", f"Bearer {WRITING}".encode())])
    assert in_use.states()[0].problem == ""
