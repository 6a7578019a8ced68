"""A repository that is altered under a running worker: no wrong answer where it can be known, and a clear state."""

from __future__ import annotations

import http.client
import json
import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.kubernetes.configmap_server import ConfigMapServer, configmap_server
from tests.support.pods.pods import WorkerPod, answers_of, publish_answering, table_of, worker_pod

from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.pods.interface import PodExit

THREE, FIVE = 3, 5
ASKED = [0, 5]
"""The last byte of a table is in the row of the last node, and decides about its label."""


class Served:
    """A worker that answers from a revision, and the files that it answers from."""

    def __init__(self, root: Path, api: ConfigMapServer, pod: WorkerPod, manifest: RevisionManifest) -> None:
        self.root = root
        self.api = api
        self.pod = pod
        self.manifest = manifest
        self.service = root / "repository/default/digits"
        self.revision = self.service / "revisions" / manifest.revision
        self.table = self.revision / "tables/features-float32.npy"
        self.aside = root / "aside"
        """Where things are meanwhile; each test has its own."""

    def answer(self) -> tuple[int, str]:
        connection = self.pod.connect()
        connection.request("POST", "/v1/predict", json.dumps({"nodes": ASKED}))
        response = connection.getresponse()
        return response.status, response.read().decode()

    def answers(self, label: int = THREE) -> bool:
        status, body = self.answer()
        return status == 200 and json.loads(body)["labels"] == answers_of(label, ASKED)

    def intact(self) -> float:
        (line,) = (row for row in self.pod.get("/metrics")[1].splitlines() if row.startswith("gnnserve_repository_in"))
        return float(line.rpartition(" ")[2])


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """It comes back from each trouble, so all of them may be the same one's."""
    root = tmp_path_factory.mktemp("trouble")
    manifest = publish_answering(root / "repository", "recipe-three", THREE)
    with configmap_server() as api, worker_pod(root, api) as pod:
        yield Served(root, api, pod, manifest)


@pytest.fixture
def served(one_worker: Served, tmp_path: Path) -> Served:
    one_worker.aside = tmp_path / "aside"
    one_worker.api.put(table_of(one_worker.manifest))
    one_worker.pod.wait_until("/v1/route", f'"revision":"{one_worker.manifest.revision}"')
    one_worker.pod.wait_until("/v1/route", '"problem":null')
    one_worker.pod.log.clear()
    assert (one_worker.answers(), one_worker.intact()) == (True, 1)
    return one_worker


def writable(path: Path) -> Path:
    path.chmod(0o644)
    return path


def overwrite_last_byte(path: Path) -> None:
    with writable(path).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")


def overwrite_through_a_mapping(path: Path) -> None:
    with writable(path).open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[-1] = 1


def overwrite_and_hide_it(path: Path) -> None:
    before = path.stat()
    overwrite_last_byte(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def append(path: Path) -> None:
    with writable(path).open("ab") as file:
        file.write(b"\0")


@pytest.mark.parametrize(
    ("alter", "said"),
    [
        (overwrite_last_byte, "was altered: its SHA-256 is"),
        (overwrite_through_a_mapping, "was altered: its SHA-256 is"),
        (overwrite_and_hide_it, "was altered: its SHA-256 is"),
        (append, "bytes, expected"),
    ],
)
def test_what_was_written_to_is_not_answered_from_until_it_is_whole_again(
    served: Served, alter: Callable[[Path], None], said: str
) -> None:
    pod, table = served.pod, served.table
    good = table.read_bytes()
    alter(table)
    shown = pod.wait_until("/readyz", said, status=503)
    assert f"the worker is loading: revision {served.manifest.revision}" in shown
    status, body = served.answer()
    assert (status, said in body) == (503, True)
    assert (served.intact(), pod.get("/healthz")[0]) == (0, 200)
    line = pod.logged("is not answered from")
    assert (line["level"], str(table) in line["message"]) == ("ERROR", True)
    # As whoever restores a backup does it: another file in its place.
    restored = table.with_suffix(".restored")
    restored.write_bytes(good)
    restored.rename(table)
    pod.wait_until("/readyz", "ok")
    assert (served.answers(), served.intact(), pod.route()["problem"]) == (True, 1, None)
    assert pod.process.poll() is None


def test_what_was_only_touched_is_verified_and_answered_from_all_the_while(served: Served) -> None:
    def is_verified() -> bool:
        assert served.answers()
        return any("is as it was verified" in line["message"] for line in [*served.pod.log])

    served.table.chmod(0o400 if served.table.stat().st_mode & 0o044 else 0o444)
    served.pod.wait_for(is_verified, lambda: "it is not verified")
    assert (served.intact(), served.pod.route()["problem"]) == (1, None)


def test_what_only_has_another_time_answers_again_without_loading(served: Served) -> None:
    os.utime(served.table)
    said = served.pod.logged("is not answered from")["message"]
    assert f"{served.table}: was written to at" in said
    served.pod.logged("answers again: its files are as they were")
    served.pod.wait_until("/readyz", "ok")
    assert (served.answers(), served.intact(), served.pod.route()["problem"]) == (True, 1, None)
    assert not any("loading revision" in line["message"] for line in served.pod.log)


def remove_commit(served: Served) -> None:
    served.aside.mkdir()
    shutil.move(served.revision / "revision.json", served.aside / "revision.json")


def put_commit_back(served: Served) -> None:
    shutil.move(served.aside / "revision.json", served.revision / "revision.json")


def move_folder_away(served: Served) -> None:
    served.revision.rename(served.aside)


def move_folder_back(served: Served) -> None:
    served.aside.rename(served.revision)


def delete_everything(served: Served) -> None:
    shutil.copytree(served.service, served.aside)
    shutil.rmtree(served.service)


def copy_everything_back(served: Served) -> None:
    shutil.copytree(served.aside, served.service)


def replace_by_a_damaged_copy(served: Served) -> None:
    shutil.copytree(served.revision, served.aside)
    overwrite_last_byte(served.aside / "tables/features-float32.npy")
    served.revision.rename(served.aside.with_suffix(".good"))
    served.aside.rename(served.revision)


def put_the_good_one_back(served: Served) -> None:
    served.revision.rename(served.aside)
    served.aside.with_suffix(".good").rename(served.revision)


def damage_weights(served: Served) -> None:
    path = served.revision / "variants/x1/weights.safetensors"
    served.aside.write_bytes(path.read_bytes())
    overwrite_last_byte(path)


def repair_weights(served: Served) -> None:
    path = served.revision / "variants/x1/weights.safetensors"
    path.write_bytes(served.aside.read_bytes())


@pytest.mark.parametrize(
    ("alter", "said", "repair"),
    [
        (remove_commit, "no such revision", put_commit_back),
        (move_folder_away, "no such revision", move_folder_back),
        (delete_everything, "no such revision", copy_everything_back),
        (replace_by_a_damaged_copy, "was altered: its SHA-256 is", put_the_good_one_back),
        (damage_weights, "was altered: its SHA-256 is", repair_weights),
    ],
)
def test_what_was_deleted_or_replaced_is_answered_from_and_said(
    served: Served, alter: Callable[[Served], None], said: str, repair: Callable[[Served], None]
) -> None:
    pod = served.pod
    alter(served)
    pod.wait_until("/v1/route", said)
    assert served.manifest.revision in pod.route()["problem"]
    assert (served.answers(), pod.get("/readyz")[0], served.intact()) == (True, 200, 0)
    repair(served)
    pod.wait_until("/v1/route", '"problem":null')
    assert (served.answers(), served.intact()) == (True, 1)


def test_file_that_is_cut_short_is_noticed_before_it_is_touched(served: Served) -> None:
    good = served.table.read_bytes()
    os.truncate(writable(served.table), 100)
    served.pod.wait_until("/readyz", "has 100 bytes, expected", status=503)
    assert served.answer()[0] == 503
    served.table.write_bytes(good)
    served.pod.wait_until("/readyz", "ok")
    assert served.answers()


def test_worker_that_touches_what_was_cut_off_says_so_with_its_last_word(tmp_path: Path) -> None:
    """The watch is asleep here, as it is for most of each second."""
    manifest = publish_answering(tmp_path / "repository", "recipe-three", THREE)
    with configmap_server() as api:
        api.put(table_of(manifest))
        environ = {**os.environ, "TESTS_LOOK_EVERY_S": "3600"}
        with worker_pod(tmp_path, api, environ=environ) as pod:
            pod.wait_until("/readyz", "ok")
            served = Served(tmp_path, api, pod, manifest)
            os.truncate(writable(served.table), 0)
            with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
                served.answer()
            assert pod.wait_for_exit() == PodExit.REPOSITORY
            last = pod.log[-1]
            assert (last["level"], str(served.table) in last["message"]) == ("CRITICAL", True)
            assert "was cut short" in last["message"]
        with worker_pod(tmp_path, api) as pod:  # as the kubelet starts it again
            pod.wait_until("/readyz", "features-float32.npy: has 0 bytes, expected", status=503)


def test_next_revision_takes_over_from_one_whose_files_are_lost(served: Served) -> None:
    good = served.table.read_bytes()
    overwrite_last_byte(served.table)
    served.pod.wait_until("/readyz", "was altered", status=503)
    five = publish_answering(served.root / "repository", "recipe-five", FIVE)
    served.api.put(table_of(five))
    served.pod.wait_until("/readyz", "ok")
    assert (served.answers(FIVE), served.intact()) == (True, 1)
    served.table.write_bytes(good)
