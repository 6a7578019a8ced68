"""A pool's worker as a process: services come to it and leave it while the others answer."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from prometheus_client.parser import text_string_to_metric_families
from tests.support.kubernetes.configmap_server import ConfigMapServer, configmap_server
from tests.support.machine.waiting import until
from tests.support.pods.pods import WorkerPod, answers_of, publish_answering, table_of, worker_pod
from tests.support.pods.pool_pod import SERVICES
from tests.support.serving.otlp import otlp_receiver
from tritonclient.utils import InferenceServerException

from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.pods.pool import SERVICES_KEY, PoolService, PoolServices, encode_services
from gnnserve_worker.following.pool_services import difference, parse_services

THREE, FIVE = 3, 5
LABELS = {"reviews": THREE, "papers": FIVE}


class Scene:
    """An API server with the ConfigMaps of a pool of two services."""

    def __init__(self, folder: Path, api: ConfigMapServer) -> None:
        self.folder, self.api = folder, api
        self.list = api.add(SERVICES, SERVICES_KEY)
        self.tables: dict[str, ConfigMapServer] = {}
        self.revisions: dict[str, RevisionManifest] = {}
        for name, label in LABELS.items():
            self.revisions[name] = publish_answering(folder / "repository", f"recipe-{name}", label, name)
            self.tables[name] = api.add(f"{name}-routing")
            self.tables[name].put(table_of(self.revisions[name]))

    def declare(self, *names: str, **settings: Any) -> None:
        entries = (PoolService(name, 0, f"{name}-routing", **settings) for name in names)
        self.list.put(encode_services(PoolServices(tuple(entries))))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with configmap_server() as api:
        yield Scene(tmp_path, api)


@contextmanager
def pool_pod(scene: Scene, lame_duck_s: float = 0) -> Iterator[WorkerPod]:
    with worker_pod(scene.folder, scene.api, lame_duck_s, module="tests.support.pods.pool_pod") as pod:
        yield pod


def port_of(pod: WorkerPod, name: str, joins: int = 1, *, grpc: bool = False) -> int:
    """The port at which the service answers since it joined for that time."""
    found: list[int] = []
    words = re.compile(r"for gRPC on port (\d+)" if grpc else r"answers on port (\d+)")

    def has_joined() -> bool:
        said = [words.search(line["message"]) for line in [*pod.log] if line["service"] == name]
        found[:] = [int(port[1]) for port in said if port is not None]
        return len(found) >= joins

    pod.wait_for(has_joined, lambda: f"{name} has not joined")
    return found[joins - 1]


def get(port: int, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with closing(connection):
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read().decode()


def predict(port: int, *nodes: int) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with closing(connection):
        connection.request("POST", "/v1/predict", json.dumps({"nodes": nodes}))
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def predict_over_grpc(port: int, name: str, *nodes: int) -> list[int]:
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        given = triton.InferInput("nodes", [len(nodes)], "INT64")
        given.set_data_from_numpy(np.array(nodes))
        labels: list[int] = client.infer(name, [given]).as_numpy("labels").tolist()
        return labels


class Asking:
    """A client that asks a service again and again; `wrong`: answers that are not the service's."""

    def __init__(self, port: int, label: int) -> None:
        self._port, self._label = port, label
        self.count, self.wrong = 0, list[Any]()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                status, body = predict(self._port, 0, 5)
                if (status, body.get("labels")) != (200, answers_of(self._label, (0, 5))):
                    self.wrong.append((status, body))
            except OSError as error:
                self.wrong.append(error)
            self.count += 1


def test_services_join_and_leave_while_another_answers(scene: Scene) -> None:
    scene.declare("reviews")
    with pool_pod(scene) as pod:
        pod.wait_until("/readyz", "ok")
        reviews = port_of(pod, "reviews")
        with Asking(reviews, THREE) as asking:
            scene.declare("reviews", "papers")
            papers = port_of(pod, "papers")
            until(lambda: get(papers, "/readyz")[0] == 200, "it is so")
            status, body = predict(papers, 0, 5)
            assert (status, body["labels"]) == (200, answers_of(FIVE, (0, 5)))
            asked = asking.count
            scene.declare("papers")
            pod.logged("left")
            scene.declare("papers", "reviews")
            again = port_of(pod, "reviews", joins=2)
            until(lambda: get(again, "/readyz")[0] == 200, "it is so")
        # While it had left, and only then, nobody was there.
        assert asked > 0
        assert all(isinstance(found, OSError) or found[0] == 503 for found in asking.wrong)
        with Asking(papers, FIVE) as asking:
            scene.declare("papers")
            until(lambda: sum(line["message"] == "left" for line in [*pod.log]) == 2, "it is so")
        assert asking.count > 0
        assert asking.wrong == []
        pod.process.terminate()
        assert pod.wait_for_exit() == 0


def test_each_service_of_a_pod_is_told_apart_in_its_metrics_and_logs(scene: Scene) -> None:
    with otlp_receiver() as receiver, pool_pod(scene) as pod:
        traced = {"grpc": True, "tracing": receiver.url, "sampled_permille": 1000}
        scene.declare("reviews", "papers", share=3, **traced)
        pod.wait_until("/readyz", "ok")
        for name, label in LABELS.items():
            assert predict_over_grpc(port_of(pod, name, grpc=True), name, 0, 5) == answers_of(label, (0, 5))
        with pytest.raises(InferenceServerException, match='no model "papers"; this worker serves reviews'):
            predict_over_grpc(port_of(pod, "reviews", grpc=True), "papers", 0)
        page = pod.get("/metrics")[1]
        families = list(text_string_to_metric_families(page))
        names = [family.name for family in families]
        assert len(set(names)) == len(names)
        counted = {
            (sample.labels["service"], sample.labels["outcome"]): sample.value
            for family in families
            if family.name == "gnnserve_requests"
            for sample in family.samples
            if sample.name.endswith("_total")
        }
        assert {name: counted[name, "unbounded"] for name in LABELS} == {"reviews": 1, "papers": 1}
        assert get(port_of(pod, "papers"), "/metrics")[1].count('service="reviews"') == 0
        assert {line["service"] for line in pod.log if "revision" in line} == set(LABELS)
        scene.declare("reviews", "papers", share=4, **traced)
        assert pod.logged("share 4")["service"] in LABELS
        assert pod.get("/elsewhere")[0] == 404
        until(lambda: {span.resource["service.name"] for span in receiver.wait(1)} == set(LABELS), "both are traced")


def test_a_poisoned_revision_or_a_missing_one_keeps_no_other_service_from_answering(scene: Scene) -> None:
    folder = scene.folder / "repository" / "default" / "papers" / "revisions" / scene.revisions["papers"].revision
    weights = next(path for path in folder.rglob("*.safetensors"))
    weights.write_bytes(bytes([weights.read_bytes()[0] ^ 1]) + weights.read_bytes()[1:])
    scene.tables["lost"] = scene.api.add("lost-routing")
    scene.declare("papers", "lost", "reviews")
    with pool_pod(scene) as pod:
        # A pod that starts with such services becomes ready for the others.
        pod.wait_until("/readyz", "ok")
        reviews, papers = port_of(pod, "reviews"), port_of(pod, "papers")
        assert predict(reviews, 0)[0] == 200
        status, said = get(papers, "/readyz")
        assert status == 503
        assert "cannot be loaded" in said
        assert "does not exist yet" in get(port_of(pod, "lost"), "/readyz")[1]
        with Asking(reviews, THREE) as asking:
            mended = publish_answering(scene.folder / "repository", "recipe-mended", FIVE, "papers")
            scene.tables["papers"].put(table_of(mended))
            until(lambda: get(papers, "/readyz")[0] == 200, "it is so")
        assert asking.wrong == []


def test_secrets_of_one_service_are_asked_for_by_that_service_alone(scene: Scene) -> None:
    entries = (
        PoolService("reviews", 0, "reviews-routing", tokens=True),
        PoolService("papers", 0, "papers-routing"),
    )
    scene.list.put(encode_services(PoolServices(entries)))
    with pool_pod(scene) as pod:
        reviews, papers = port_of(pod, "reviews"), port_of(pod, "papers")
        until(lambda: get(papers, "/readyz")[0] == 200, "it is so")
        assert "credentials" in get(reviews, "/readyz")[1]
        secret = scene.folder / "secrets" / "reviews" / "tokens"
        secret.mkdir(parents=True)
        (secret / "a").write_text("a-token-of-sixteen-letters")
        until(lambda: get(reviews, "/readyz")[0] == 200, "it is so")
        assert get(reviews, "/v1/variants")[0] == 401
        assert get(reviews, "/v1/variants", {"authorization": "Bearer a-token-of-sixteen-letters"})[0] == 200
        assert get(papers, "/v1/variants")[0] == 200


def test_the_mounted_list_is_used_while_the_api_server_is_away(scene: Scene) -> None:
    entries = PoolServices((PoolService("reviews", 0, "reviews-routing"),))
    (scene.folder / "services.json").write_text(encode_services(entries))
    (scene.folder / "token").write_text("token")
    with worker_pod(scene.folder, "http://127.0.0.1:1", module="tests.support.pods.pool_pod") as pod:
        port = port_of(pod, "reviews")
        until(lambda: "routing table" in get(port, "/readyz")[1], "the service waits for its routing table")
        pod.logged("the API server does not answer: using")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}[", "malformed"),
        (
            '{"services": [{"name": "a", "port": 8100, "routing": "a"}, {"name": "a", "port": 1, "routing": "a"}]}',
            "'a'",
        ),
        ('{"services": [{"name": "a", "port": 70000, "routing": "a"}]}', "a.port"),
        ('{"services": [{"name": "a", "port": 1, "routing": "a", "share": 0}]}', "a.share"),
        ('{"services": [{"name": "../a", "port": 1, "routing": "a"}]}', "names"),
        ('{"services": [{"name": "a", "port": 1, "routing": "a", "logUid": "u"}]}', "a.maxDeltaBytes"),
    ],
)
def test_a_wrong_list_is_refused_with_its_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_services(text)


def test_a_changed_service_leaves_and_another_share_does_not_make_it_leave() -> None:
    a, b = PoolService("a", 1, "a"), PoolService("b", 2, "b")
    wanted = PoolServices((PoolService("a", 1, "a", share=2), PoolService("b", 3, "b"), PoolService("c", 4, "c")))
    found = difference((a, b), wanted)
    assert (found.leaving, found.reweighed) == ((b,), (wanted.services[0],))
    assert found.joining == (wanted.services[2],)
