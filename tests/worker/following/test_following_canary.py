"""Following a second revision: when it is loaded, kept and given up."""

from __future__ import annotations

import threading

import pytest
from tests.support.machine.waiting import WAIT_S
from tests.support.serving.serving import FakeWorker

from gnnserve_api.pods.routing import Canary, Damage, RoutingTable
from gnnserve_worker.following.canary import CanaryFollower
from gnnserve_worker.inference.served import ServedRevision

NEW, OLD = "aaaaaaaaaaaa", "bbbbbbbbbbbb"
BOTH = RoutingTable(NEW, "r", canary=Canary(OLD, 95))


class FakeCanary:
    def __init__(self) -> None:
        self.answers = threading.Event()
        self.is_closed = threading.Event()

    def set_percent(self, percent: int) -> None: ...

    def switch(self, revision: ServedRevision, table: RoutingTable, load_s: float) -> None:
        self.answers.set()

    def report(self, problem: str | None, damage: Damage | None = None) -> None: ...

    def withdraw(self, revision: ServedRevision, problem: str) -> None: ...

    def warn(self, revision: ServedRevision, problem: str) -> None: ...

    def close(self) -> None:
        self.is_closed.set()


class FakeOwner:
    """A service, of whose revisions the first one answers."""

    def __init__(self) -> None:
        self.first: str | None = NEW
        self.is_settled = threading.Event()
        self.opened: list[FakeCanary] = []
        self.loaded: list[str] = []
        self.follower = CanaryFollower(self, self.load, self.is_settled.is_set, lambda: self.first)

    def open_canary(self, revision: str, percent: int) -> FakeCanary:
        self.opened.append(FakeCanary())
        return self.opened[-1]

    def load(self, revision: str) -> ServedRevision:
        self.loaded.append(revision)
        return FakeWorker(revision).revision()


def test_a_second_revision_that_becomes_the_first_is_kept_until_it_answers_as_that() -> None:
    owner = FakeOwner()
    owner.is_settled.set()
    owner.follower.declare(BOTH)
    (canary,) = owner.opened
    assert canary.answers.wait(WAIT_S)
    owner.follower.declare(RoutingTable(OLD, "r"))
    assert not canary.is_closed.is_set()
    owner.follower.declare(BOTH)
    owner.follower.declare(RoutingTable(OLD, "r"))
    assert (len(owner.opened), canary.is_closed.is_set()) == (1, False)
    owner.first = OLD
    assert canary.is_closed.wait(WAIT_S)
    assert owner.follower.stop(WAIT_S)


def test_a_second_revision_that_is_not_named_any_more_is_given_up_at_once() -> None:
    owner = FakeOwner()
    owner.is_settled.set()
    owner.follower.declare(BOTH)
    owner.follower.declare(RoutingTable(NEW, "r"))
    assert owner.opened[0].is_closed.is_set()


def test_a_second_revision_that_is_given_up_while_it_waits_for_the_first_is_not_loaded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner = FakeOwner()
    owner.follower.declare(BOTH)
    followed = owner.follower._followed
    assert followed is not None
    owner.follower.declare(RoutingTable(NEW, "r"))
    assert followed.loader.stop(WAIT_S), "its thread ends, although the first is not settled"
    owner.is_settled.set()
    assert owner.loaded == []
    assert "cannot be loaded" not in caplog.text


def test_a_second_revision_that_does_not_answer_is_given_up_where_it_becomes_the_first() -> None:
    owner = FakeOwner()
    owner.follower.declare(BOTH)
    owner.follower.declare(RoutingTable(OLD, "r"))
    assert owner.opened[0].is_closed.is_set()
