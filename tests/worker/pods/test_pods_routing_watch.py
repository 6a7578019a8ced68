"""Following the routing table over the Kubernetes API: changes arrive, and nothing that goes wrong ends it."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.kubernetes.configmap_server import NAME, NAMESPACE, ConfigMapServer, configmap_server
from tests.support.machine.ports import reserved_port
from tests.support.machine.waiting import until

from gnnserve_api.errors import ResourceError
from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_worker.following.routing_watch import ApiServer, RoutingWatch

A, B, C = (RoutingTable(revision, f"recipe-{revision}") for revision in "abc")
DEADLINE_S = 60


@dataclass(frozen=True, slots=True)
class Following:
    watch: RoutingWatch
    tables: queue.Queue[RoutingTable]
    missing: queue.Queue[None] = field(default_factory=queue.Queue)

    def next(self) -> RoutingTable:
        return self.tables.get(timeout=DEADLINE_S)


@pytest.fixture
def api() -> Iterator[ConfigMapServer]:
    with configmap_server() as server:
        yield server


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


@contextmanager
def following(url: str, token: Path, read_timeout_s: float = 30.0) -> Iterator[Following]:
    tables: queue.Queue[RoutingTable] = queue.Queue()
    missing: queue.Queue[None] = queue.Queue()
    watch = RoutingWatch(
        ApiServer(url, token), NAMESPACE, NAME, tables.put,
        on_missing=lambda: missing.put(None), backoff_s=(0.001, 0.01), read_timeout_s=read_timeout_s,
    )  # fmt: skip
    watch.start()
    try:
        yield Following(watch, tables, missing)
    finally:
        watch.stop()


def test_table_that_is_there_and_every_change_of_it_arrive(api: ConfigMapServer, token: Path) -> None:
    api.put(A)
    with following(api.url, token) as seen:
        assert seen.next() == A
        assert seen.watch.answered.is_set()
        api.put(B)
        assert seen.next() == B
        changed = RoutingTable("b", "recipe-b", Objective(latency_ms=5))
        api.put(changed)
        assert seen.next() == changed
    assert api.lists == 1


def test_table_that_comes_later_arrives(api: ConfigMapServer, token: Path) -> None:
    with following(api.url, token) as seen:
        seen.missing.get(timeout=DEADLINE_S)
        assert seen.watch.answered.wait(DEADLINE_S)
        api.put(A)
        assert seen.next() == A


def test_lost_connection_goes_on_where_it_was(api: ConfigMapServer, token: Path) -> None:
    api.put(A)
    with following(api.url, token) as seen:
        assert seen.next() == A
        api.wait_for_watch(1)
        api.drop()
        api.put(B)
        assert seen.next() == B
    assert api.lists == 1
    assert api.watches[:2] == ["2", "2"]


def test_bookmark_moves_the_place_to_go_on_from(api: ConfigMapServer, token: Path) -> None:
    api.put(A)
    with following(api.url, token) as seen:
        assert seen.next() == A
        api.wait_for_watch(1)
        api.bookmark()
        api.put(B)
        assert seen.next() == B  # so the bookmark before it has been seen
        api.bookmark()
        api.drop()
        api.wait_for_watch(2)
    assert api.watches[1] in {"4", "5"}


@pytest.mark.parametrize("as_event", [False, True], ids=["as the answer", "as an event of the watch"])
def test_forgotten_history_is_listed_anew(api: ConfigMapServer, token: Path, as_event: bool) -> None:
    api.gone_as_event = as_event
    api.put(A)
    with following(api.url, token) as seen:
        assert seen.next() == A
        api.wait_for_watch(1)
        api.put(B)
        assert seen.next() == B
        api.forget()
        api.drop()
        api.put(C)
        assert seen.next() == C
    assert api.lists == 2


def test_watch_that_the_server_ends_with_an_error_is_begun_anew(api: ConfigMapServer, token: Path) -> None:
    api.put(A)
    with following(api.url, token) as seen:
        assert seen.next() == A
        api.fail_watch(500)
        api.put(B)
        assert seen.next() == B
    assert api.lists >= 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("{", "truncated", id="no JSON"),
        pytest.param('{"revision": 5, "recipe": "r"}', "Expected `str`, got `int`", id="a wrong type"),
        pytest.param('{"recipe": "r"}', "missing required field `revision`", id="no revision"),
        pytest.param('{"revision": "", "recipe": "r"}', "revision is empty", id="an empty revision"),
        pytest.param('{"revision": "a", "recipe": "r", "colour": 1}', "unknown field", id="an unknown field"),
        pytest.param(
            '{"revision": "a", "recipe": "r", "objective": {"latencyMs": -1}}',
            "objective.latencyMs: Input should be greater than 0, found -1", id="a negative latency",
        ),
        pytest.param(
            '{"revision": "a", "recipe": "r", "batching": {"maxSeeds": 0}}',
            "batching.maxSeeds: Input should be greater than or equal to 1, found 0", id="no seeds",
        ),
        pytest.param(
            '{"revision": "a", "recipe": "r", "batching": {"maxSeeds": 100, "maxQueuedSeeds": 10}}',
            "maxQueuedSeeds 10 must be at least maxSeeds 100", id="a queue that holds no batch",
        ),
        pytest.param(
            '{"revision": "a", "recipe": "r", "overlay": {"maxNodes": -1}}',
            "overlay.maxNodes: Input should be greater than or equal to 0, found -1", id="a negative limit",
        ),
        pytest.param("", "truncated", id="an empty key"),
    ],
)  # fmt: skip
def test_table_that_cannot_be_read_is_told_once_and_changes_nothing(
    api: ConfigMapServer, token: Path, caplog: pytest.LogCaptureFixture, text: str, problem: str
) -> None:
    api.put(A)
    with caplog.at_level(logging.ERROR), following(api.url, token) as seen:
        assert seen.next() == A
        api.put(text)
        api.put(text)
        api.put(B)
        assert seen.next() == B
    errors = [record.getMessage() for record in caplog.records if "is not a routing table" in record.getMessage()]
    assert len(errors) == 1
    assert problem in errors[0]
    assert f"ConfigMap {NAMESPACE}/{NAME}: routing.json" in errors[0]


def test_deletion_takes_nothing_away_and_the_next_one_arrives(api: ConfigMapServer, token: Path) -> None:
    api.put(A)
    with following(api.url, token) as seen:
        assert seen.next() == A
        api.delete()
        api.put(A)  # the same again is no news
        api.put(B)
        assert seen.next() == B


def test_token_is_read_again_for_each_connection(api: ConfigMapServer, token: Path) -> None:
    api.put(A)
    with following(api.url, token) as seen:
        assert seen.next() == A
        api.wait_for_watch(1)
        api.accepted_token = "second"  # noqa: S105
        api.drop()
        token.write_text("second")
        api.put(B)
        assert seen.next() == B
    assert api.tokens[0] == "first"
    assert api.tokens[-1] == "second"


def test_server_that_is_away_is_asked_until_it_answers(token: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        reserved_port() as port,
        caplog.at_level(logging.WARNING),
        following(f"http://127.0.0.1:{port}", token) as seen,
    ):
        until(lambda: "asking again" in caplog.text, "a second try")
        assert not seen.watch.answered.is_set()
        with configmap_server(port) as api:
            api.put(A)
            assert seen.next() == A


def test_silent_connection_counts_as_lost(api: ConfigMapServer, token: Path) -> None:
    api.put(A)
    with following(api.url, token, read_timeout_s=0.05) as seen:
        assert seen.next() == A
        api.wait_for_watch(3)
        api.put(B)
        assert seen.next() == B


def test_refusal_says_what_to_look_at(api: ConfigMapServer, token: Path, caplog: pytest.LogCaptureFixture) -> None:
    api.accepted_token = "another"  # noqa: S105
    with caplog.at_level(logging.WARNING), following(api.url, token):
        until(lambda: len(api.tokens) >= 3, "three tries")
    assert "the API server answered 401; is the ServiceAccount's token mounted?" in caplog.text


def test_missing_token_is_named(api: ConfigMapServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), following(api.url, tmp_path / "nowhere"):
        until(lambda: str(tmp_path / "nowhere") in caplog.text, "the file is named")


def test_address_of_the_api_server_comes_from_the_environment() -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert ApiServer.in_cluster(environ).url == "https://10.96.0.1:443"
    assert ApiServer.in_cluster({**environ, "KUBERNETES_SERVICE_HOST": "fd00::1"}).url == "https://[fd00::1]:443"
    with pytest.raises(ResourceError, match=r"KUBERNETES_SERVICE_HOST .* runs in a pod; .*gnnserve serve"):
        ApiServer.in_cluster({})
