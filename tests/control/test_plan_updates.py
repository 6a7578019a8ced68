"""The condition UpdatesFollowed and status.updates: how far workers have followed the log, and what is wrong."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.support.operator.observed import Namespace
from tests.support.operator.planned_updates import POSTGRES, SQLITE, UP_TO_DATE, serving, tell

from gnnserve_api.pods.change_log import UpdatesProblem, UpdatesState


def message(namespace: Namespace, kind: str = "UpdatesFollowed") -> str:
    return str(namespace.condition(kind)["message"])


def failing(kind: str, words: str = "the database does not answer") -> UpdatesState:
    return msgspec.structs.replace(UP_TO_DATE, problem=UpdatesProblem(kind, words))


def test_without_updates_there_is_no_such_condition() -> None:
    namespace = Namespace()
    namespace.serve()
    assert namespace.condition("UpdatesFollowed") == {}
    assert "updates" not in namespace.status


@pytest.mark.parametrize("updates", [SQLITE, POSTGRES], ids=["SQLite", "PostgreSQL"])
def test_workers_that_follow_are_said_to_and_asked_again(updates: dict[str, Any]) -> None:
    """No event tells of a change of the graph."""
    namespace = serving(updates)
    assert namespace.reason("UpdatesFollowed") == "True Following"
    assert message(namespace) == "Workers follow the log of changes."
    assert namespace.settle().look_again_s == 15.0
    namespace = serving(updates, endpoint={})
    assert namespace.settle().look_again_s == 15.0
    assert message(namespace).endswith("No request may write to it: spec.endpoint names no writeTokens.")


FAILURES = [
    ("LogUnavailable", ["the database does not answer", "as of what it has applied", "tries again"]),
    ("LogConflict", ["the database does not answer", "a log of its own", "applies no changes"]),
    ("DeltaFull", ["the database does not answer", "Raise spec.updates.maxDelta", "limits.memory"]),
]


@pytest.mark.parametrize(("kind", "words"), FAILURES, ids=[kind for kind, _ in FAILURES])
def test_what_a_worker_says_is_told_with_its_cure_and_ready_stays(kind: str, words: list[str]) -> None:
    namespace = serving()
    tell(namespace, failing(kind))
    namespace.settle()
    assert (namespace.reason(), namespace.reason("UpdatesFollowed")) == ("True Serving", f"False {kind}")
    assert f"Worker {next(iter(namespace.workers()))} says: " in message(namespace)
    assert all(word in message(namespace) for word in words)
    assert namespace.events == [("Warning", kind)]
    tell(namespace, UP_TO_DATE)
    namespace.settle()
    assert namespace.events == [("Warning", kind), ("Normal", "Following")]


def test_a_kind_of_problem_that_this_operator_does_not_know_is_told_in_the_workers_words() -> None:
    namespace = serving()
    tell(namespace, failing("LogHaunted", "there are ghosts in the log"))
    namespace.settle()
    assert namespace.reason("UpdatesFollowed") == "False LogUnavailable"
    assert "there are ghosts in the log" in message(namespace)


def test_of_several_problems_the_one_that_never_ends_by_itself_is_told() -> None:
    namespace = serving(replicas=4)
    behind = msgspec.structs.replace(UP_TO_DATE, applied=1, changes_behind=90, staleness_seconds=500)
    tell(namespace, behind, failing("DeltaFull"), failing("LogUnavailable"), failing("LogConflict"))
    namespace.settle()
    assert namespace.reason("UpdatesFollowed") == "False LogConflict"
    tell(namespace, behind, failing("DeltaFull"), failing("LogUnavailable"), UP_TO_DATE)
    namespace.settle()
    assert namespace.reason("UpdatesFollowed") == "False LogUnavailable"
    tell(namespace, behind, UP_TO_DATE, UP_TO_DATE, UP_TO_DATE)
    namespace.settle()
    assert namespace.reason("UpdatesFollowed") == "False WorkerBehind"


def test_a_worker_is_behind_after_half_a_minute_and_not_before() -> None:
    namespace = serving()
    late = msgspec.structs.replace(UP_TO_DATE, applied=1, changes_behind=90, staleness_seconds=30)
    tell(namespace, late)
    namespace.settle()
    assert namespace.reason("UpdatesFollowed") == "True Following"
    tell(namespace, msgspec.structs.replace(late, staleness_seconds=30.1))
    namespace.settle()
    assert namespace.reason("UpdatesFollowed") == "False WorkerBehind"


def test_workers_that_do_not_tell_are_being_replaced_or_too_old() -> None:
    namespace = serving(replicas=2)
    tell(namespace, UP_TO_DATE, None)
    namespace.settle()
    assert namespace.reason("UpdatesFollowed") == "Unknown UpdatesUnknown"
    assert "its image is older than spec.updates" in message(namespace)
    namespace.edit(image="gnnserve/worker:2")
    namespace.settle()
    assert "it is being replaced" in message(namespace)


def test_without_an_answer_nothing_is_known() -> None:
    namespace = serving()
    namespace.routes = dict.fromkeys(namespace.workers(), "loading revision rev-1")
    namespace.settle()
    assert namespace.reason("UpdatesFollowed") == "Unknown NotServing"
    assert namespace.status["updates"]["last"] == 7, "what was told last stays, with its time"


# --- status.updates


def test_the_status_has_the_last_offset_and_what_all_workers_have() -> None:
    namespace = serving(replicas=3)
    namespace.now += timedelta(minutes=2)
    told = namespace.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    tell(
        namespace,
        UpdatesState(last=90, applied=90, changes_behind=0, staleness_seconds=0),
        UpdatesState(last=92, applied=80, changes_behind=1200, staleness_seconds=1.2),
        UpdatesState(last=91, applied=91, changes_behind=0, staleness_seconds=0),
    )
    namespace.reconcile()
    assert namespace.status["updates"] == {
        "last": 92, "applied": 80, "stalenessSeconds": 2, "base": 0, "asOf": told,
    }  # fmt: skip


def test_figures_that_change_are_written_once_a_minute_at_most() -> None:
    """Each write would have the service looked at again, and so written again."""
    namespace = serving()
    first = namespace.status["updates"]
    writes = 0
    for second in range(300):
        last = 7 + second
        tell(namespace, UpdatesState(last=last, applied=last, changes_behind=0, staleness_seconds=0))
        writes += namespace.reconcile().status is not None  # which takes a second
    assert 4 <= writes <= 5
    assert namespace.status["updates"]["last"] > first["last"]


def test_figures_that_stay_are_not_written_again() -> None:
    namespace = serving()
    first = namespace.status["updates"]
    namespace.now += timedelta(hours=1)
    assert namespace.settle().status is None
    assert namespace.status["updates"] == first


def test_a_suspended_service_has_no_figures() -> None:
    namespace = serving()
    namespace.edit(suspend=True)
    namespace.settle()
    assert "updates" not in namespace.status


@pytest.mark.parametrize(
    "written", ["soon", {"last": 1}, {"last": 1, "applied": 1, "stalenessSeconds": 0, "asOf": "?"}]
)
def test_figures_that_a_hand_has_written_are_replaced(written: Any) -> None:
    namespace = serving()
    namespace.status = {**namespace.status, "updates": written}
    namespace.settle()
    assert namespace.status["updates"]["last"] == 7
