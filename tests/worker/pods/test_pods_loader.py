"""Bringing tables into effect: what is loaded, in which order, and what stays when it cannot be."""

from __future__ import annotations

import gc
import logging
import queue
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.support.serving.loading import DEADLINE_S, FakeRepository, FakeServer, Loading, loading_into

from gnnserve_api.errors import DamagedError, DeviceError, RepositoryError
from gnnserve_api.limits import Batching
from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_api.pods.routing import AffineCost, Damage, RoutingMode, RoutingTable
from gnnserve_worker.following.loader import POLITE, Loader
from gnnserve_worker.inference.served import ServedRevision

A, B, C = (RoutingTable(revision, f"recipe-{revision}") for revision in "abc")
STRICT = Objective(latency_ms=5)


@pytest.fixture
def loading() -> Iterator[Loading]:
    with loading_into(FakeServer()) as made:
        yield made


def test_declared_revision_is_loaded_and_switched_to(loading: Loading) -> None:
    loading.loader.declare(RoutingTable("a", "r", STRICT, Batching(10, 20)))
    assert loading.server.next_switch() == ("a", STRICT, Batching(10, 20))
    loading.server.wait_for_problem("revision a is being loaded")
    loading.server.wait_for_problem(None)


def test_next_revision_is_loaded_beside_the_first_and_politely(loading: Loading) -> None:
    loading.loader.declare(A)
    assert loading.server.next_switch()[0] == "a"
    loading.loader.declare(B)
    assert loading.server.next_switch()[0] == "b"
    # As far as there is a nicer value than what these tests run at.
    assert loading.repository.nice["b"] == max(POLITE, loading.repository.nice["a"])


def test_what_a_load_beside_another_took_is_free_again_when_it_is_tried_again() -> None:
    """Memory of a GPU, which the next attempt needs; nobody looks for cycles until then."""

    class Taken:
        pass

    taken: list[weakref.ref[Taken]] = []
    free: queue.Queue[bool] = queue.Queue()
    repository = FakeRepository()

    def load(revision: str) -> ServedRevision:
        if revision == "b":
            if taken:
                free.put(taken[0]() is None)
            memory = Taken()
            taken.append(weakref.ref(memory))
            raise DeviceError("its memory ran out", "give it more")
        return repository.load(revision)

    server = FakeServer()
    loader = Loader(server, load, retry_s=(0.001, 0.01))
    gc.collect()
    gc.disable()
    loader.start()
    try:
        loader.declare(A)
        server.next_switch()
        loader.declare(B)
        assert free.get(timeout=DEADLINE_S)
    finally:
        gc.enable()
        assert loader.stop(DEADLINE_S)


def test_new_objective_loads_nothing(loading: Loading) -> None:
    loading.loader.declare(A)
    assert loading.server.next_switch() == ("a", NO_OBJECTIVE, Batching())
    loading.loader.declare(RoutingTable("a", "recipe-a", STRICT))
    assert loading.server.next_switch() == ("a", STRICT, Batching())
    assert loading.repository.next_load() == "a"
    assert loading.repository.loads.empty()


def test_new_objective_holds_for_the_old_revision_while_the_new_one_loads(loading: Loading) -> None:
    loading.loader.declare(A)
    loading.server.next_switch()
    loading.repository.gates["b"] = threading.Event()
    loading.loader.declare(RoutingTable("b", "recipe-b", STRICT))
    assert loading.server.next_switch() == ("a", STRICT, Batching())
    loading.repository.gates["b"].set()
    assert loading.server.next_switch() == ("b", STRICT, Batching())


def test_the_same_table_again_does_nothing(loading: Loading) -> None:
    loading.loader.declare(A)
    loading.server.next_switch()
    loading.loader.declare(RoutingTable("a", "recipe-a"))
    loading.loader.declare(B)
    assert loading.server.next_switch()[0] == "b"
    assert [loading.repository.next_load() for _ in range(2)] == ["a", "b"]


def test_revisions_that_were_overtaken_are_never_switched_to(loading: Loading) -> None:
    loading.repository.gates["a"] = threading.Event()
    loading.loader.declare(A)
    assert loading.repository.next_load() == "a"
    loading.loader.declare(B)
    loading.loader.declare(C)
    loading.repository.gates["a"].set()
    assert loading.server.next_switch()[0] == "c"
    assert loading.repository.next_load() == "c"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RepositoryError("tables/features.npy", "was altered", "generate again"), "tables/features.npy: was altered"),
        (MemoryError("8 GiB"), "MemoryError: 8 GiB"),
        (KeyError("x9"), "KeyError: 'x9'"),
    ],
    ids=["a repository's error", "too little memory", "an error of ours"],
)
def test_revision_that_cannot_be_loaded_leaves_the_old_one_and_is_tried_again(
    loading: Loading, error: Exception, said: str
) -> None:
    loading.loader.declare(A)
    loading.server.next_switch()
    loading.repository.broken["b"] = error
    loading.loader.declare(B)
    problem = loading.server.wait_for_problem(said)
    assert problem is not None
    assert problem.startswith("revision b cannot be loaded: ")
    assert [loading.repository.next_load() for _ in range(4)] == ["a", "b", "b", "b"]
    assert loading.server.switches.empty()
    del loading.repository.broken["b"]
    assert loading.server.next_switch()[0] == "b"
    loading.server.wait_for_problem(None)


def test_damage_is_told_of_the_declared_revision_once_it_was_found_twice(loading: Loading) -> None:
    loading.loader.declare(A)
    loading.server.next_switch()
    loading.repository.gates["b"] = threading.Event()
    loading.repository.broken["b"] = DamagedError("b", "was altered", "generate again")
    loading.loader.declare(B)
    loading.repository.gates["b"].set()
    loading.server.wait_for_problem("was altered")
    loading.server.wait_for_problem("was altered")
    assert loading.server.damage == Damage("b", repair=0)
    loading.loader.declare(msgspec.structs.replace(B, repair=1))
    while loading.server.damage != Damage("b", repair=1):
        loading.server.wait_for_problem("was altered")
    del loading.repository.broken["b"]
    assert loading.server.next_switch()[0] == "b"
    loading.server.wait_for_problem(None)
    assert loading.server.damage is None


def test_a_volume_that_is_away_is_no_damage(loading: Loading) -> None:
    loading.repository.broken["a"] = RepositoryError("a", "cannot be read", "look at the volume")
    loading.loader.declare(A)
    for _ in range(4):
        loading.server.wait_for_problem("cannot be read")
    assert loading.server.damage is None


def test_another_table_ends_the_attempts_and_its_problem(loading: Loading) -> None:
    loading.loader.declare(A)
    loading.server.next_switch()
    loading.repository.broken["b"] = RepositoryError("b", "is missing", "generate again")
    loading.loader.declare(B)
    loading.server.wait_for_problem("is missing")
    loading.loader.declare(A)
    loading.server.wait_for_problem(None)
    loading.loader.declare(C)
    assert loading.server.next_switch()[0] == "c"


def test_first_revision_that_cannot_be_loaded_is_tried_again(
    loading: Loading, caplog: pytest.LogCaptureFixture
) -> None:
    loading.repository.broken["a"] = RepositoryError("a", "is missing", "generate again")
    with caplog.at_level(logging.ERROR):
        loading.loader.declare(A)
        loading.server.wait_for_problem("is missing")
    del loading.repository.broken["a"]
    assert loading.server.next_switch()[0] == "a"
    assert "trying again in" in caplog.text


def test_loader_in_the_middle_of_loading_does_not_hold_up_its_end() -> None:
    server, repository = FakeServer(), FakeRepository(gates={"a": threading.Event()})
    loader = Loader(server, repository.load)
    loader.start()
    loader.declare(A)
    repository.next_load()
    assert not loader.stop(0.01)
    repository.gates["a"].set()
    assert loader.stop(DEADLINE_S)
    assert server.switches.empty()


def test_renewed_table_reaches_the_server_without_loading_and_without_noise(
    loading: Loading, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    loading.loader.declare(A)
    loading.server.next_switch()
    loading.server.wait_for_problem(None)
    said = len(caplog.records)
    renewed = msgspec.structs.replace(
        A, costs={"x1": AffineCost(1.0, 0.1)}, issued_at="2026-11-21T10:00:00Z", ttl_seconds=75.0, reason="measured"
    )
    loading.loader.declare(renewed)
    loading.server.next_switch()
    loading.server.wait_for_problem(None)
    assert [loading.server.tables.get() for _ in range(2)] == [A, renewed]
    assert loading.repository.next_load() == "a"
    assert loading.repository.loads.empty()
    assert len(caplog.records) == said


def test_change_of_base_variant_is_logged(loading: Loading, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    loading.loader.declare(A)
    loading.server.next_switch()
    loading.loader.declare(msgspec.structs.replace(A, mode=RoutingMode.METRICS, base_variant="x4"))
    loading.server.next_switch()
    assert loading.loader.stop(patience_s=30)  # what is said about a switch is said after it
    assert '"mode":"Metrics","baseVariant":"x4"' in caplog.text


@pytest.mark.parametrize(
    ("routing", "said"),
    [
        ({"mode": RoutingMode.STATIC, "base_variant": "x9"}, "routing mode Static: revision a has no variant x9"),
        ({"mode": RoutingMode.WEIGHTS, "weights": {"x1": 1, "x9": 1, "x10": 1}}, "a has no variant x9, x10"),
        ({"mode": RoutingMode.METRICS, "base_variant": "x9"}, "choose from x1, x4, x8"),
    ],
    ids=["static", "weights", "metrics"],
)
def test_table_that_names_an_unknown_variant_is_reported_and_the_last_good_one_stays(
    loading: Loading, routing: dict[str, Any], said: str
) -> None:
    loading.loader.declare(A)
    loading.server.next_switch()
    loading.loader.declare(msgspec.structs.replace(A, **routing))
    assert said in str(loading.server.wait_for_problem(said))
    assert loading.server.switches.empty()
    # Nothing of the bad table holds, and the good one again ends what was reported.
    loading.loader.declare(A)
    loading.server.wait_for_problem(None)
    assert loading.server.switches.empty()


def test_next_revision_without_the_declared_variant_leaves_the_old_one(loading: Loading) -> None:
    loading.loader.declare(A)
    loading.server.next_switch()
    loading.loader.declare(msgspec.structs.replace(B, mode=RoutingMode.STATIC, base_variant="x9"))
    loading.server.wait_for_problem("revision b has no variant x9")
    assert [loading.repository.next_load() for _ in range(2)] == ["a", "b"]
    loading.loader.declare(msgspec.structs.replace(B, mode=RoutingMode.STATIC, base_variant="x8"))
    assert loading.server.next_switch()[0] == "b"
    # It was not loaded again and again meanwhile: nothing about it would change.
    assert [loading.repository.next_load()] == ["b"]
    assert loading.repository.loads.empty()
