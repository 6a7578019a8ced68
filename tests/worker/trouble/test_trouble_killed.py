"""Pods that are killed in the middle of their work, and pods on a full disk: the next one sets it right.

KILL_EVERY=1 in the environment: a generation is killed at each of its durable steps, which takes minutes.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import safetensors.numpy
from tests.support.generation.repository import load_fake, publish, repository_in, tiny_graph
from tests.support.graphs.graphs import (
    network_manifest,
    npz_arrays,
    planted_graph,
    random_tensors,
    service_of,
    write_npz,
)
from tests.support.kubernetes.configmap_server import configmap_server
from tests.support.machine.interruption import Interruption, in_child
from tests.support.machine.small_disk import small_disk
from tests.support.pods.pods import ROOT, WorkerPod, answers_of, publish_answering, table_of, worker_pod

from gnnserve_api.limits import Batching
from gnnserve_api.pods.generation import decode_result
from gnnserve_api.pods.interface import PodExit
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.pods import generate
from gnnserve_worker.repository.repository import Repository

COLUMNS, CLASSES = 9, (3, 7)
NETWORK = network_manifest("GraphSAGE", (4, 3), hidden=8, classes=len(CLASSES))


def environ_of(folder: Path, repository: Path, message: Path) -> dict[str, str]:
    """Given weights, so that nothing is trained."""
    graph = write_npz(
        folder / "graph.npz", npz_arrays(planted_graph((2, 5), nodes=200, columns=COLUMNS, classes=CLASSES))
    )
    checkpoint = folder / "model.safetensors"
    safetensors.numpy.save_file(random_tensors(NETWORK, COLUMNS, seed=1), checkpoint)
    model = {"hidden": 8, "fanouts": [4, 3], "checkpoint": {"uri": checkpoint.as_uri()}}
    variants = {"pruning": {"factors": [1]}, "projection": "Disabled", "storage": ["float32"]}
    service = service_of(graph.as_uri(), model=model, variants=variants)
    return {
        **os.environ,
        "GNNSERVE_MANIFEST": service.model_dump_json(by_alias=True, exclude_none=True),
        "GNNSERVE_REPOSITORY": str(repository),
        "GNNSERVE_TERMINATION_MESSAGE": str(message),
    }


def published(message: Path, repository: Path) -> str:
    """What the message names, once every checksum was looked at."""
    revision = decode_result(message.read_bytes()).revision
    assert load_revision(Repository(repository, "default", "tiny"), revision).manifest is not None
    return revision


def test_generation_that_is_killed_over_and_over_leaves_no_lock_and_nothing_that_grows(tmp_path: Path) -> None:
    environ = environ_of(tmp_path, tmp_path / "repository", tmp_path / "message")
    command = [sys.executable, "-m", "tests.support.pods.killed_generation", os.environ.get("KILL_EVERY", "31")]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *killed, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(killed) >= 2
    assert {one["status"] for one in killed} == {-signal.SIGKILL}
    assert last["status"] == PodExit.OK, done.stderr
    assert all(one["lockIsFree"] for one in killed)
    assert max(one["unfinished"] for one in killed) <= 1
    assert max(one["bytes"] for one in killed) <= last["bytes"], "what the killed ones left did not add up"
    assert (last["unfinished"], last["folders"], last["others"]) == (0, 2, [])
    published(tmp_path / "message", tmp_path / "repository")


def test_setting_aside_that_is_killed_is_finished_by_the_next_and_little_is_kept(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    repository = repository_in(root)

    def die_at(step: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            Interruption(step, {"after"}, lambda: os.kill(os.getpid(), signal.SIGKILL)).install(patch)
            repository_in(root).set_aside("recipe", "aaaa")

    for step in [0, 1, 2, 3] * 2:
        publish(repository, "recipe", tiny_graph())
        assert in_child(partial(die_at, step)) == -signal.SIGKILL
        repository.set_aside("recipe", "aaaa")
        assert repository.revisions() == []
        assert len(list((repository.folder / "damaged").iterdir())) <= 3
    publish(repository, "recipe", tiny_graph())
    (manifest,) = repository.revisions()
    load_fake(repository, manifest.revision)


# Workers


THREE, FIVE = 3, 5
ASKED = [0, 3, 5]


def labels_of(pod: WorkerPod) -> object:
    connection = pod.connect()
    connection.request("POST", "/v1/predict", json.dumps({"nodes": ASKED}))
    return json.loads(connection.getresponse().read())["labels"]


def kill(pod: WorkerPod) -> None:
    pod.process.kill()
    assert pod.wait_for_exit() == -signal.SIGKILL


def files_below(root: Path) -> Iterator[tuple[str, int]]:
    for path in sorted(root.rglob("*")):
        yield str(path), path.stat().st_mtime_ns


def test_worker_that_is_killed_while_it_loads_switches_or_drains_answers_rightly_when_it_is_started_again(
    tmp_path: Path,
) -> None:
    three = publish_answering(tmp_path / "repository", "recipe-three", THREE)
    five = publish_answering(tmp_path / "repository", "recipe-five", FIVE)
    before = dict(files_below(tmp_path / "repository"))
    with configmap_server() as api:
        api.put(table_of(three))
        with worker_pod(tmp_path, api) as loading:
            loading.logged("loading revision")
            kill(loading)
        with worker_pod(tmp_path, api) as switching:
            switching.wait_until("/readyz", "ok")
            assert labels_of(switching) == answers_of(THREE, ASKED)
            api.put(table_of(five))
            switching.logged(f"loading revision {five.revision}")
            kill(switching)
        api.put(table_of(five, batching=Batching(1000, 60_000)))
        with worker_pod(tmp_path, api, lame_duck_s=3600) as draining:
            draining.wait_until("/readyz", "ok")
            assert labels_of(draining) == answers_of(FIVE, ASKED)
            # An answer of megabytes, of which the client has read the beginning.
            client = draining.connect()
            body = json.dumps({"nodes": [0] * 60_000, "return": ["labels", "scores", "embeddings"]})
            client.request("POST", "/v1/predict", body)
            response = client.getresponse()
            assert response.status == 200
            draining.process.terminate()
            draining.wait_until("/readyz", "about to drain", status=503)
            kill(draining)
            with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
                response.read()
        with worker_pod(tmp_path, api) as last:
            last.wait_until("/readyz", "ok")
            assert labels_of(last) == answers_of(FIVE, ASKED)
            assert last.route()["revision"] == five.revision
    assert dict(files_below(tmp_path / "repository")) == before, "workers write nothing"


# Full disks


@pytest.mark.usefixtures("keep_signals")
def test_generation_on_a_full_disk_says_so_and_works_once_there_is_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path, kib=1024) as disk:
        repository = disk.path / "repository"
        environ = environ_of(tmp_path, repository, tmp_path / "message")
        disk.fill()
        assert generate.main(environ) == PodExit.RESOURCE
        message = (tmp_path / "message").read_text()
        assert str(repository) in message
        assert "free" in message
        disk.free()
        assert generate.main(environ) == PodExit.OK
        revision = published(tmp_path / "message", repository)

        # The message has no room, the revision had: another attempt finds it.
        disk.fill()
        on_disk = environ_of(tmp_path, repository, disk.path / "message")
        assert generate.main(on_disk) == PodExit.RESOURCE
        assert "the termination message cannot be written" in capsys.readouterr().err
        disk.free()
        assert generate.main(on_disk) == PodExit.OK
        assert published(disk.path / "message", repository) == revision


@pytest.fixture
def keep_signals() -> Iterator[None]:
    """`main` is run in this process, and takes SIGTERM for itself."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
