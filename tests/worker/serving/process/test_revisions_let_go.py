"""A revision that is replaced, or whose service is removed, keeps neither mapped nor open files: none of its objects
waits for a search of cycles, which may be long in coming."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.generation import recommended_links as links
from tests.support.machine.mapped_files import held_files
from tests.support.machine.waiting import WAIT_S
from tests.support.serving.real_worker import load, publish
from tests.support.serving.serving import service
from tests.support.serving.several_services import Running, started

from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.revision import load_revision

Opened = tuple[Callable[[], ServedRevision], dict[str, Any]]
"""What opens a revision below the folder, and a question to it."""


def classes(folder: Path) -> Opened:
    repository = publish(folder)
    return lambda: load(repository), {"nodes": [3]}


def pairs(folder: Path) -> Opened:
    return links.published(folder, links.one_type(folder, "Dot")).served, {"pairs": [[3, 4]]}


def folded_pairs(folder: Path) -> Opened:
    return links.published(folder, links.of_users(folder)).served, {"pairs": [["user/3", "item/4"]]}


def changing(folder: Path) -> Opened:
    published = links.published(folder, links.of_users(folder))

    def opened() -> ServedRevision:
        loaded = load_revision(published.repository, published.revision, 1 << 22)
        return served_revision(loaded, LivingRevision(loaded, 1 << 22))

    return opened, {"pairs": [["user/3", "item/4"]]}


SCENES: Mapping[str, Callable[[Path], Opened]] = {
    "classes": classes, "pairs": pairs, "pairs of LightGCN": folded_pairs, "a graph that changes": changing,
}  # fmt: skip


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def ask_everything(running: Running, name: str, question: dict[str, Any]) -> None:
    node = (question.get("nodes") or question["pairs"][0])[0]
    url = running.urls[name]
    assert httpx.post(f"{url}/v1/predict", json=question, timeout=WAIT_S).status_code == 200
    assert httpx.post(f"{url}/v1/recommend", json={"node": node, "count": 2}, timeout=WAIT_S).status_code == 200
    for path, body in (("/v1/explain", {"node": node}), (f"/v2/models/{name}/infer", {"inputs": []})):
        httpx.post(f"{url}{path}", json=body, timeout=WAIT_S)
    for path in ("/v1/variants", "/v1/nodes", "/openapi.json", "/metrics", f"/v2/models/{name}"):
        assert httpx.get(f"{url}{path}", timeout=WAIT_S).status_code == 200


def wait_for_none(folder: Path) -> None:
    """Threads may be on their way out of their last batch."""
    until = time.monotonic() + WAIT_S
    while (held := held_files(folder)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not held


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.usefixtures("no_collection")
def test_no_file_of_a_revision_is_held_once_it_is_dropped_or_its_service_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: str
) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")
    opened, question = SCENES[scene](tmp_path)
    gc.collect()
    wait_for_none(tmp_path)
    revision = opened()
    assert held_files(tmp_path)
    del revision
    assert not held_files(tmp_path), "a revision that was opened"
    with started() as running:
        revision = opened()
        first, table = running.server.services["first"], service().spec.routing_table(revision.manifest.revision)
        first.switch(revision, table, 0.0)
        ask_everything(running, "first", question)
        del revision
        running.server.remove("first")
        del first
        wait_for_none(tmp_path)
