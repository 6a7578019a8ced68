"""A worker pod's program as a process: an API server's table comes in, answers over HTTP come out."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tests.support.kubernetes.configmap_server import ConfigMapServer, configmap_server
from tests.support.machine import fork_server
from tests.support.machine.waiting import until
from tests.support.pods.pods import ROOT, WorkerPod, answers_of, publish_answering, table_of, worker_pod

from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.limits import Batching
from gnnserve_api.objective import Objective
from gnnserve_api.pods.interface import GRPC_VARIABLE, PodExit
from gnnserve_api.pods.routing import Canary, encode_routing
from gnnserve_client import Client
from gnnserve_worker.pods.serve import WorkerSettings

ASKED = (0, 4, 1, 5)
THREE, FIVE = 3, 5
"""The labels that the two revisions give to the first nodes."""


@pytest.fixture
def api() -> Iterator[ConfigMapServer]:
    with configmap_server() as server:
        yield server


@pytest.fixture
def three(tmp_path: Path) -> RevisionManifest:
    return publish_answering(tmp_path / "repository", "recipe-three", THREE)


@pytest.fixture
def five(tmp_path: Path) -> RevisionManifest:
    return publish_answering(tmp_path / "repository", "recipe-five", FIVE)


def predict(connection: http.client.HTTPConnection, *nodes: int) -> tuple[http.client.HTTPResponse, dict[str, object]]:
    connection.request("POST", "/v1/predict", json.dumps({"nodes": nodes or (0,)}))
    response = connection.getresponse()
    return response, json.loads(response.read())


def test_worker_waits_for_its_table_and_follows_it(
    tmp_path: Path, api: ConfigMapServer, three: RevisionManifest
) -> None:
    with worker_pod(tmp_path, api) as pod:
        pod.wait_until("/readyz", "the ConfigMap default/digits-routing does not exist yet", status=503)
        assert pod.get("/healthz")[0] == 200
        assert pod.get("/v1/route")[0] == 503
        api.put(table_of(three))
        pod.wait_until("/readyz", "ok")
        assert pod.route()["revision"] == three.revision
        response, answer = predict(pod.connect(), 0, 5)
        assert (response.status, answer["labels"]) == (200, answers_of(THREE, (0, 5)))
        assert answer["revision"] == three.revision
        with Client(f"http://127.0.0.1:{pod.port}") as client:
            client.wait_until_ready()
            found = client.predict([0, 5, 0])
            scores = client.predict([0, 5], outputs="scores", seed=1).scores
            assert (found.labels.tolist(), found.revision) == (answers_of(THREE, (0, 5, 0)), three.revision)
            assert np.array_equal(scores, client.predict([0, 5], outputs=["scores", "labels"], seed=1).scores)
            assert scores.shape == (2, len(client.variants().classes))

        api.put(table_of(three, objective=Objective(latency_ms=250), batching=Batching(10, 20)))
        pod.wait_until("/v1/route", '"latencyMs":250')
        assert pod.route()["batching"] == {"maxSeeds": 10, "maxQueuedSeeds": 20}

        api.put("no table at all")
        api.delete()
        api.put(table_of(three, batching=Batching(30, 40)))
        pod.wait_until("/v1/route", '"maxSeeds":30')
        pod.process.terminate()
        assert pod.wait_for_exit() == 0
    assert all({"time", "level", "message", "service", "namespace"} <= line.keys() for line in pod.log)
    assert any(line.get("revision") == three.revision for line in pod.log)


def test_revision_is_switched_under_load_without_a_failed_request_and_let_go(
    tmp_path: Path, api: ConfigMapServer, three: RevisionManifest, five: RevisionManifest
) -> None:
    labels = {three.revision: THREE, five.revision: FIVE}
    answered: list[str] = []
    wrong: list[object] = []
    asking = True

    def ask(pod: WorkerPod) -> None:
        connection = pod.connect()
        while asking:
            response, answer = predict(connection, *ASKED)
            revision = str(answer.get("revision"))
            if response.status != 200 or answer["labels"] != answers_of(labels[revision], ASKED):
                wrong.append(answer)
                break
            answered.append(revision)

    api.put(table_of(three))
    with worker_pod(tmp_path, api) as pod:
        pod.wait_until("/readyz", "ok")
        clients = [threading.Thread(target=ask, args=(pod,)) for _ in range(4)]
        for client in clients:
            client.start()
        for manifest in (five, three, five):
            enough = len(answered) + 200
            until(lambda enough=enough: len(answered) >= enough or bool(wrong), "200 answers")  # type: ignore[misc]
            api.put(table_of(manifest))
            pod.wait_until("/v1/route", manifest.revision)
        asking = False
        for client in clients:
            client.join()
        maps = Path(f"/proc/{pod.process.pid}/maps")
        until(lambda: three.revision not in maps.read_text(), "the first revision is let go")
        assert five.revision in maps.read_text()
    assert wrong == []
    assert set(answered) == {three.revision, five.revision}


def test_second_revision_answers_its_share_until_it_is_damaged_and_comes_and_goes_by_the_table(
    tmp_path: Path, api: ConfigMapServer, three: RevisionManifest, five: RevisionManifest
) -> None:
    def answered(connection: http.client.HTTPConnection, requests: int) -> Counter[str]:
        found: Counter[str] = Counter()
        for _ in range(requests):
            response, answer = predict(connection, *ASKED)
            assert response.status == 200
            label = THREE if answer["revision"] == three.revision else FIVE
            assert answer["labels"] == answers_of(label, ASKED)
            found[str(answer["revision"])] += 1
        return found

    def said(pod: WorkerPod) -> dict[str, object]:
        return dict(pod.route().get("canary", {}))

    with worker_pod(tmp_path, api) as pod:
        api.put(table_of(three, canary=Canary("0123456789ab", 50)))
        pod.wait_until("/v1/route", "revision 0123456789ab cannot be loaded")
        connection = pod.connect()
        assert answered(connection, 10) == {three.revision: 10}
        api.put(table_of(three, canary=Canary(five.revision, 25)))
        pod.wait_until("/v1/route", '"answers":true')
        assert 24 <= answered(connection, 100)[five.revision] <= 26
        api.put(table_of(three, canary=Canary(five.revision, 100)))
        pod.wait_until("/v1/route", '"percent":100')
        assert answered(connection, 10) == {five.revision: 10}

        (rows,) = tmp_path.glob(f"repository/**/{five.revision}/tables/*.npy")
        rows.chmod(0o644)
        with rows.open("r+b") as file:  # in place, since it is mapped
            file.seek(-4, os.SEEK_END)
            file.write(b"\0\0\0\1")
        pod.wait_until("/v1/route", '"answers":false')
        assert answered(connection, 10) == {three.revision: 10}
        assert pod.route()["problem"] is None
        assert str(said(pod)["problem"])

        api.put(table_of(five))
        pod.wait_for(lambda: not said(pod), lambda: "it is still there")
        assert answered(connection, 5) == {three.revision: 5}  # which is damaged, so that it is not switched to


def test_revision_that_is_missing_is_said_and_served_once_it_is_there(
    tmp_path: Path, api: ConfigMapServer, three: RevisionManifest, five: RevisionManifest
) -> None:
    folder = tmp_path / "repository/default/digits/revisions" / five.revision
    shutil.move(folder, tmp_path / "elsewhere")
    api.put(table_of(three))
    with worker_pod(tmp_path, api) as pod:
        pod.wait_until("/readyz", "ok")
        api.put(table_of(five))
        pod.wait_until("/v1/route", f"revision {five.revision} cannot be loaded")
        assert (pod.route()["revision"], pod.get("/readyz")[0]) == (three.revision, 200)
        assert predict(pod.connect())[1]["labels"] == [THREE]
        shutil.move(tmp_path / "elsewhere", folder)
        pod.wait_until("/v1/route", five.revision + '","baseVariant')
        assert pod.route()["problem"] is None
        assert predict(pod.connect())[1]["labels"] == [FIVE]


def test_altered_first_revision_keeps_the_worker_unready_with_the_reason(
    tmp_path: Path, api: ConfigMapServer, three: RevisionManifest
) -> None:
    table = tmp_path / "repository/default/digits/revisions" / three.revision / "tables/features-float32.npy"
    table.chmod(0o644)
    table.write_bytes(table.read_bytes()[:-1] + b"\1")
    api.put(table_of(three))
    with worker_pod(tmp_path, api) as pod:
        pod.wait_until("/readyz", "features-float32.npy: was altered", status=503)
        response, body = predict(pod.connect())
        assert response.status == 503
        assert "features-float32.npy: was altered" in json.dumps(body)
        pod.wait_until("/v1/route", f'"damaged":{{"revision":"{three.revision}","repair":0}}', status=503)
        assert pod.get("/healthz")[0] == 200


def test_leaving_worker_answers_and_closes_connections_until_its_time_is_up(
    tmp_path: Path, api: ConfigMapServer, three: RevisionManifest
) -> None:
    api.put(table_of(three))
    with worker_pod(tmp_path, api, lame_duck_s=3600) as pod:
        pod.wait_until("/readyz", "ok")
        kept = pod.connect()
        assert predict(kept)[0].getheader("connection") is None
        pod.process.terminate()
        pod.wait_until("/readyz", "the worker is about to drain", status=503)
        response, answer = predict(kept)
        assert (response.status, answer["labels"], response.getheader("connection")) == (200, [THREE], "close")
        response, answer = predict(pod.connect())
        assert (response.status, response.getheader("connection")) == (200, "close")
        assert pod.process.poll() is None
        pod.process.terminate()
        assert pod.wait_for_exit() == 0


def test_lame_duck_ends_by_itself(tmp_path: Path, api: ConfigMapServer, three: RevisionManifest) -> None:
    api.put(table_of(three))
    with worker_pod(tmp_path, api, lame_duck_s=0.2) as pod:
        pod.wait_until("/readyz", "ok")
        pod.process.terminate()
        assert pod.wait_for_exit() == 0


def test_worker_that_never_had_a_table_stops_at_once(tmp_path: Path, api: ConfigMapServer) -> None:
    with worker_pod(tmp_path, api, lame_duck_s=3600) as pod:
        pod.process.terminate()
        assert pod.wait_for_exit() == 0


def test_mounted_table_serves_while_the_api_server_is_away(tmp_path: Path, three: RevisionManifest) -> None:
    (tmp_path / "routing.json").write_text(encode_routing(table_of(three)))
    with configmap_server() as gone:
        port = gone.port
    with worker_pod(tmp_path, f"http://127.0.0.1:{port}") as pod:
        pod.wait_until("/readyz", "ok")
        assert pod.route()["revision"] == three.revision
        with configmap_server(port) as api:
            api.put(table_of(three, objective=Objective(latency_ms=250)))
            pod.wait_until("/v1/route", '"latencyMs":250')


def test_programs_start_without_torch() -> None:
    program = (
        "import sys, gnnserve_worker.pods.serve, gnnserve_worker.following.loader, "
        "gnnserve_worker.serving.process.server, gnnserve_worker.pods.generate; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


PROGRAM = "gnnserve_worker.pods.serve"
ENVIRON = {
    "GNNSERVE_SERVICE": "digits",
    "GNNSERVE_NAMESPACE": "default",
    "GNNSERVE_ROUTING": "digits-routing",
    "GNNSERVE_REPOSITORY": "/repository",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
}


def test_settings_come_from_the_environment() -> None:
    settings = WorkerSettings.read({**ENVIRON, "GNNSERVE_LAME_DUCK_S": "5"})
    assert (settings.service, settings.namespace, settings.routing) == ("digits", "default", "digits-routing")
    assert (settings.lame_duck_s, settings.port, settings.api.url) == (5.0, 8080, "https://10.96.0.1:443")
    assert settings.mounted_routing == Path("/etc/gnnserve/routing/routing.json")
    assert WorkerSettings.read(ENVIRON).lame_duck_s == 0
    assert WorkerSettings.read(ENVIRON).grpc_port is None
    assert WorkerSettings.read({**ENVIRON, "GNNSERVE_GRPC_PORT": "8001"}).grpc_port == 8001


def test_worker_answers_over_grpc_where_it_is_told_to(
    tmp_path: Path, api: ConfigMapServer, three: RevisionManifest
) -> None:
    api.put(table_of(three))
    with worker_pod(tmp_path, api, environ={**os.environ, GRPC_VARIABLE: "0"}) as pod:
        pod.wait_until("/readyz", "ok")
        port = pod.logged("for gRPC on port")["message"].rpartition(" ")[2]
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
            nodes = triton_grpc.InferInput("nodes", [2], "INT64")
            nodes.set_data_from_numpy(np.array([0, 5]))
            assert client.infer("digits", [nodes]).as_numpy("labels").tolist() == answers_of(THREE, (0, 5))


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"GNNSERVE_SERVICE": ""}, PodExit.BAD_INPUT, "GNNSERVE_SERVICE: is not set"),
        ({"GNNSERVE_TOKENS": ""}, PodExit.BAD_INPUT, "GNNSERVE_TOKENS: is set, and empty"),
        ({"GNNSERVE_TLS": ""}, PodExit.BAD_INPUT, "GNNSERVE_TLS: is set, and empty"),
        ({"GNNSERVE_LAME_DUCK_S": "soon"}, PodExit.BAD_INPUT, "'soon' is not a number of seconds"),
        ({"GNNSERVE_GRPC_PORT": "99999"}, PodExit.BAD_INPUT, "'99999' is not a port"),
        ({"GNNSERVE_LAME_DUCK_S": "-1"}, PodExit.BAD_INPUT, "'-1' is not a number of seconds"),
    ],
)  # fmt: skip
def test_environment_that_will_not_do_is_named_in_the_log(change: dict[str, str], code: PodExit, message: str) -> None:
    ended = fork_server.completed(PROGRAM, env={**os.environ, **ENVIRON, **change})
    assert (ended.returncode, message in told_last(ended)) == (code, True)


def test_outside_of_a_pod_it_says_so_as_it_starts() -> None:
    environ = {**os.environ, **ENVIRON, "KUBERNETES_SERVICE_HOST": ""}
    command = [sys.executable, "-m", PROGRAM]
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert (ended.returncode, "runs in a pod" in told_last(ended)) == (PodExit.RESOURCE, True)


def told_last(ended: subprocess.CompletedProcess[str]) -> str:
    """The one line that a program logs which ends at once."""
    line = json.loads(ended.stderr)
    assert line["level"] == "CRITICAL"
    return str(line["message"])


def test_interrupt_ends_it_too(tmp_path: Path, api: ConfigMapServer, three: RevisionManifest) -> None:
    api.put(table_of(three))
    with worker_pod(tmp_path, api) as pod:
        pod.wait_until("/readyz", "ok")
        pod.process.send_signal(signal.SIGINT)
        assert pod.wait_for_exit() == 0
