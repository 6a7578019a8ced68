"""A second revision beside changes: it follows the log on its own, from its own version of the graph."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.support.machine.waiting import WAIT_S, until
from tests.support.pods.compacting_pod import COLUMNS, MAX_DELTA_BYTES, UID, Service, new_node
from tests.support.pods.generating_pod import keep_signals, manifest_of
from tests.support.serving.secured_worker import Running, started

from gnnserve_api.errors import RepositoryError
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.changes.options import SqliteFile, UpdatesOptions
from gnnserve_worker.changes.worker_log import Updates
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.pods.followed_log import FollowedLog
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.security.credentials import Credentials

__all__ = ["keep_signals"]
WRITING = "writing-0123456789ab"
HEADERS = {"authorization": f"Bearer {WRITING}"}


@dataclass(slots=True, weakref_slot=True)
class Followed:
    """In the place of `FakeWorker`, for a server of tests."""

    updates: Updates
    served: ServedRevision

    def revision(self) -> ServedRevision:
        return self.served


@dataclass(frozen=True, slots=True)
class Worker:
    """A server of two revisions that follow one log."""

    service: Service
    log: FollowedLog
    running: Running
    client: httpx.Client

    def change(self, id_: int) -> int:
        body = {"nodes": [{"id": id_, "features": [1.0] * COLUMNS}], "edges": [[0, id_]]}
        answer = self.client.post("/v1/changes", json=body, headers=HEADERS)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["offset"])

    def asked(self, nodes: list[int], min_offset: int) -> dict[str, set[int]]:
        """Offsets of twenty answers, by the revision that gave them."""
        found: dict[str, set[int]] = {}
        for _ in range(20):
            answer = self.client.post("/v1/predict", json={"nodes": nodes, "minOffset": min_offset})
            assert answer.status_code == 200, answer.text
            found.setdefault(answer.json()["revision"], set()).add(answer.json()["offset"])
        return found

    def switch(self, revision: str) -> None:
        opened = self.log.open(lambda most: load_revision(self.service.repository, revision, most), served_revision)
        self.running.served.switch(opened, RoutingTable(revision, "r"), 0.0)


@contextmanager
def serving(service: Service, first: str, second: str) -> Iterator[Worker]:
    tokens = service.root / "tokens"
    tokens.write_text(WRITING)
    log = FollowedLog(UpdatesOptions(SqliteFile(service.path), service.uid, MAX_DELTA_BYTES))
    opened = log.open(lambda most: load_revision(service.repository, first, most), served_revision)
    with (
        started(Credentials(write_tokens=tokens), of=Followed(log.updates, opened)) as running,  # type: ignore[arg-type]
        httpx.Client(base_url=f"http://127.0.0.1:{running.port}", timeout=WAIT_S) as client,
    ):
        canary = running.served.open_canary(second, 50)
        beside = log.open_second(lambda most: load_revision(service.repository, second, most), served_revision)
        canary.switch(beside, RoutingTable(second, "r"), 0.0)
        yield Worker(service, log, running, client)
        canary.close()


def with_second(manifest: str, revision: str) -> str:
    document: dict[str, Any] = json.loads(manifest)
    document["spec"]["routing"] = {"canary": {"revision": revision, "percent": 50}}
    return json.dumps(document)


@pytest.mark.usefixtures("keep_signals")
def test_both_answer_at_an_offset_from_their_own_versions_and_compaction_goes_on(tmp_path: Path) -> None:
    service = Service(tmp_path)
    source = service.made()
    service.append(new_node(1000), new_node(1001))
    folded = service.made(source.revision)
    service.append(new_node(1002))
    service.manifest = with_second(service.manifest, source.revision)
    with serving(service, folded.revision, source.revision) as worker:
        assert worker.asked([1000, 1002], 3) == {folded.revision: {3}, source.revision: {3}}
        assert worker.change(1003) == 4
        assert worker.asked([1001, 1003], 4) == {folded.revision: {4}, source.revision: {4}}
        route = worker.client.get("/v1/route").json()
        first, second = route["updates"], route["canary"]["updates"]
        assert [(one["base"], one["applied"], one["changesSinceBase"]) for one in (first, second)] == [
            (2, 4, 4),
            (0, 4, 8),
        ]
        assert second["deltaBytes"] > 0

        newest = service.made(folded.revision)
        assert (newest.offset, service.first_offset()) == (4, 1), "the second revision may be loaded again"
        worker.switch(newest.revision)
        assert worker.change(1004) == 5
        assert worker.asked([1003, 1004], 5) == {newest.revision: {5}, source.revision: {5}}
        metrics = worker.client.get("/metrics").text
        assert f'gnnserve_canary_passed_on_total{{revision="{source.revision}",service="digits"}} 0.0' in metrics
        assert f'gnnserve_canary_applied_offset{{revision="{source.revision}",service="digits"}} 5.0' in metrics
    last = service.made(newest.revision)
    assert (last.offset, service.first_offset()) == (5, 1)
    service.manifest = manifest_of(tmp_path)
    service.append(new_node(1005))
    assert (service.made(last.revision).offset, service.first_offset()) == (6, 6), "it is named no more"


@pytest.mark.usefixtures("keep_signals")
def test_a_second_revision_whose_changes_are_compacted_away_does_not_answer(tmp_path: Path) -> None:
    service = Service(tmp_path)
    source = newest = service.made()
    for id_ in range(1000, 1003):
        service.append(new_node(id_))
        newest = service.made(newest.revision)
    assert service.first_offset() == 3
    log = FollowedLog(UpdatesOptions(SqliteFile(service.path), UID, MAX_DELTA_BYTES))
    with pytest.raises(RepositoryError) as raised:
        log.open_second(lambda most: load_revision(service.repository, source.revision, most), served_revision)
    assert "made at offset 0 of the log of changes" in str(raised.value)
    assert "name a revision of a newer graph, or take spec.routing.canary away" in str(raised.value)


@contextmanager
def served(manifest: Path, repository: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    tokens = manifest.with_name("tokens")
    tokens.write_text(WRITING)
    command = [sys.executable, "-m", "gnnserve_cli", "serve", str(manifest), "--repository", str(repository)]
    with subprocess.Popen(
        [*command, "--port", "0", "--write-token-file", str(tokens)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "GNNSERVE_PROFILE_SECONDS": "0"},
    ) as process:  # fmt: skip
        try:
            url = next((line.split()[-1] for line in process.stdout or () if line.startswith("Serving on ")), None)
            assert url is not None
            yield process, url
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=WAIT_S)


def test_after_a_kill_amid_changes_both_have_all_that_was_acknowledged(tmp_path: Path) -> None:
    repository, manifest = tmp_path / "repository", tmp_path / "service.yaml"
    names = []
    for hidden in (8, 6):
        document = json.loads(manifest_of(tmp_path))
        document["spec"]["model"]["hidden"] = hidden
        document["spec"]["updates"] = {"log": {"sqlite": {}}}
        published = generate(GNNService.model_validate(document), Repository(repository, "default", "tiny"))
        names.append(published.revision)
    document["spec"]["routing"] = {"canary": {"revision": names[0], "percent": 50}}
    manifest.write_text(yaml.safe_dump(document))
    acknowledged: list[int] = []

    def both_answer(url: str) -> bool:
        canary = httpx.get(f"{url}/v1/route", timeout=WAIT_S).json().get("canary", {})
        return bool(canary.get("answers"))

    def write(url: str) -> None:
        with httpx.Client(base_url=url, timeout=WAIT_S, headers=HEADERS) as client:
            while True:
                id_ = 5000 + len(acknowledged)
                body = {"nodes": [{"id": id_, "features": [1.0] * COLUMNS}], "edges": [[0, id_]]}
                try:
                    answer = client.post("/v1/changes", json=body)
                except httpx.TransportError:
                    return
                assert answer.status_code == 200, answer.text
                acknowledged.append(answer.json()["offset"])

    with served(manifest, repository) as (process, url):
        until(lambda: both_answer(url), "both revisions answer")
        writer = threading.Thread(target=write, args=(url,))
        writer.start()
        until(lambda: len(acknowledged) >= 40, "forty changes are acknowledged")
        process.kill()
        writer.join(WAIT_S)
    last = max(acknowledged)
    assert acknowledged == [*range(1, last + 1)]
    with served(manifest, repository) as (_, url):
        until(lambda: both_answer(url), "both revisions answer")
        found = {}
        for _ in range(20):
            body = {"nodes": [5000 + last - 1], "minOffset": last}
            answer = httpx.post(f"{url}/v1/predict", json=body, timeout=WAIT_S).json()
            found[answer["revision"]] = answer["offset"]
        assert found.keys() == {*names}
        assert min(found.values()) >= last
