"""What a loader decides: every sequence of events, played against a shell in simulated time."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnserve_api.errors import DamagedError, RepositoryError
from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import AffineCost, Damage, RoutingMode, RoutingTable
from gnnserve_worker.following.delay import Delay
from gnnserve_worker.following.state import (
    CouldGrow,
    Event,
    FilesReplaced,
    FilesVerified,
    Load,
    LoaderFailed,
    LoaderIdle,
    LoaderStopped,
    LoadPurpose,
    Log,
    ReportProblem,
    RevisionDoubted,
    RevisionLoaded,
    State,
    Switch,
    TableDeclared,
    Verify,
    Warn,
    Withdraw,
)
from gnnserve_worker.following.transitions import step
from gnnserve_worker.inference.served import ServedRevision, TableError

SHORTEST_S, LONGEST_S = 1.0, 30.0


@dataclass(eq=False)
class FakeRevision:
    name: str
    compute: Any

    @property
    def manifest(self) -> Any:
        return SimpleNamespace(revision=self.name)

    def check(self, table: RoutingTable) -> None:
        if table.base_variant is not None:
            raise TableError("routing", f"revision {self.name} has no variant {table.base_variant}")


@dataclass
class World:
    """Does what it is told, as `loader.py` does, and checks each step."""

    state: State = field(default_factory=lambda: State(Delay(SHORTEST_S, LONGEST_S)))
    now_s: float = 100.0
    answering: ServedRevision | None = None
    """As the server has it."""
    rehearsed: list[ServedRevision] = field(default_factory=list)
    """Loaded or verified, and not doubted since."""
    reports: list[str | None] = field(default_factory=list)
    damages: list[Damage | None] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    logged: list[Log] = field(default_factory=list)

    def tell(self, event: Event) -> None:
        before, answered = self.state, self.answering
        self.state, effects = step(before, event, self.now_s)
        if before.job is not None and not isinstance(event, FilesVerified | RevisionLoaded | LoaderFailed):
            assert self.state.job is before.job, "two jobs at once"
        for effect in effects:
            match effect:
                case Switch(revision, table, _):
                    assert any(revision is ready for ready in self.rehearsed), "switched to what was not rehearsed"
                    assert table.revision == revision.manifest.revision
                    self.answering = revision
                case Withdraw():
                    assert isinstance(event, RevisionDoubted)
                    self.answering = None
                case ReportProblem(problem, damage):
                    self.reports.append(problem)
                    self.damages.append(damage)
                case Warn(_, problem):
                    self.warned.append(problem)
                case Log():
                    self.logged.append(effect)
                case _:
                    pass
        told = None if self.state.answering is None else self.state.answering.revision
        assert told is self.answering
        if isinstance(event, LoaderFailed):
            assert self.answering is answered, "a failure changed what answers"

    def doubt(self) -> None:
        if (revision := self.answering) is not None:
            self.rehearsed = [ready for ready in self.rehearsed if ready is not revision]
            self.tell(RevisionDoubted(revision, "was written to"))

    def finish(self, error: Exception | None = None, *, is_larger: bool = True) -> None:
        """The job, if there is one."""
        match self.state.job:
            case None:
                return
            case Verify(revision):
                if error is None:
                    self.rehearsed.append(revision)
                self.tell(FilesVerified(is_intact=error is None))
            case Load(table):
                loaded = cast("ServedRevision", FakeRevision(table.revision, SimpleNamespace(files=object())))
                try:
                    loaded.check(table)
                except TableError as refused:
                    error = refused
                if error is not None:
                    self.tell(LoaderFailed(error))
                    return
                self.rehearsed.append(loaded)
                overtaken = self.state.declared is None or self.state.declared.revision != (
                    self.state.attempted and self.state.attempted.revision
                )
                before = self.answering
                self.tell(RevisionLoaded(loaded, 0.5, is_larger))
                if overtaken or self.state.is_stopped:
                    assert self.answering is before, "switched to what was overtaken"

    def settle(self) -> None:
        for _ in range(30):
            self.tell(LoaderIdle())
            self.finish()
            self.now_s += LONGEST_S + 1


def table(revision: str, latency_ms: float | None = None, variant: str | None = None) -> RoutingTable:
    mode = RoutingMode.ADAPTIVE if variant is None else RoutingMode.STATIC
    return RoutingTable(revision, f"recipe-{revision}", Objective(latency_ms), mode=mode, base_variant=variant)


def serving(revision: str = "a") -> World:
    world = World()
    world.tell(TableDeclared(table(revision)))
    world.tell(LoaderIdle())
    world.finish()
    assert world.answering is not None
    return world


OPERATIONS = st.one_of(
    st.builds(
        lambda revision, latency_ms, variant: ("declare", table(revision, latency_ms, variant)),
        st.sampled_from("abc"), st.sampled_from([None, 5.0]), st.sampled_from([None, None, None, "x9"]),
    ),
    st.tuples(st.sampled_from(["turn", "turn", "finish", "fail", "damage", "doubt", "move", "grow"]), st.none()),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.5, 2.0, 60.0])),
)  # fmt: skip


def play(world: World, operation: str, argument: Any) -> None:
    match operation:
        case "declare":
            world.tell(TableDeclared(argument))
        case "turn":
            world.tell(LoaderIdle())
        case "finish":
            world.finish()
        case "fail":
            world.finish(RepositoryError("/x", "cannot be read", "look at the volume"))
        case "damage":
            world.finish(DamagedError("/x", "was altered", "generate again"))
        case "doubt":
            world.doubt()
        case "move" if world.answering is not None:
            world.tell(FilesReplaced(world.answering, "is gone"))
        case "grow" if world.answering is not None:
            world.tell(CouldGrow(world.answering))
        case "wait":
            world.now_s += argument


@given(st.lists(OPERATIONS, max_size=30))
def test_whatever_happens_only_what_was_rehearsed_answers_and_the_newest_table_comes_into_effect(
    operations: list[tuple[str, Any]],
) -> None:
    world = World()
    for operation, argument in operations:
        play(world, operation, argument)
    world.settle()
    declared = world.state.declared
    if declared is None:
        assert world.answering is None
    elif declared.base_variant is None:
        assert world.state.table == declared
        assert world.answering is not None
        assert world.reports[-1] is None
        assert world.state.delay.due_s is None
    else:
        assert world.reports[-1] == f"routing: revision {declared.revision} has no variant x9"
    assert world.state.job is None


@given(st.lists(OPERATIONS, max_size=15), st.lists(OPERATIONS, max_size=15))
def test_nothing_is_switched_to_after_the_end(before: list[tuple[str, Any]], after: list[tuple[str, Any]]) -> None:
    world = World()
    for operation, argument in before:
        play(world, operation, argument)
    world.tell(LoaderStopped())
    answered = world.answering
    for operation, argument in after:
        play(world, operation, argument)
    assert world.answering in (answered, None)


def test_a_table_that_is_declared_again_after_another_is_loaded_again() -> None:
    """Its first copy came while the other was declared, and was dropped."""
    world = World()
    world.tell(TableDeclared(table("a")))
    world.tell(LoaderIdle())
    world.tell(TableDeclared(table("b")))
    world.finish()
    assert world.answering is None
    world.tell(TableDeclared(table("a")))
    world.settle()
    assert world.state.table == table("a")
    assert world.answering is not None


def test_a_failure_keeps_what_answers_and_tries_again_later_and_later() -> None:
    world = serving()
    world.tell(TableDeclared(table("b")))
    delays = []
    for _ in range(7):
        world.tell(LoaderIdle())
        assert world.state.job is not None
        world.finish(RepositoryError("/x", "is gone", "generate again"))
        left_s = world.state.delay.left_s(world.now_s)
        assert left_s is not None
        delays.append(left_s)
        world.tell(LoaderIdle())
        assert world.state.job is None, "not before it is due"
        world.now_s += left_s
    assert delays == [1, 2, 4, 8, 16, 30, 30]
    assert world.answering is not None
    assert world.answering.manifest.revision == "a"


def test_a_reason_is_logged_once_until_it_changes_and_so_is_the_end_of_failing() -> None:
    world = World()
    world.tell(TableDeclared(table("a")))
    for words in ("was altered: long", "was altered: long", "was altered: long", "is gone", "was altered: long", None):
        world.tell(LoaderIdle())
        world.finish(None if words is None else RepositoryError("/x", words, "generate again"))
        world.now_s += LONGEST_S
    told = [log.words.partition("; trying")[0] for log in world.logged if log.level >= logging.WARNING]
    still = "revision a still cannot be loaded, for the reason given before"
    assert [one.partition("; generate")[0] for one in told] == [
        "revision a cannot be loaded: /x: was altered: long",
        still,
        still,
        "revision a cannot be loaded: /x: is gone",
        "revision a cannot be loaded: /x: was altered: long",
        "revision a answers: it could be loaded this time",
    ]
    assert "was altered: long" in str(world.reports[1:3]), "/readyz has the whole reason all the time"


def test_what_never_failed_says_nothing_of_recovery() -> None:
    world = serving()
    assert [log for log in world.logged if log.level >= logging.WARNING] == []


def test_a_failed_switch_keeps_what_answers_and_is_tried_again() -> None:
    world = serving()
    world.tell(TableDeclared(table("a", latency_ms=5)))
    before = world.state
    world.tell(LoaderIdle())
    assert world.state.table == table("a", latency_ms=5)
    world.state = before  # as the shell does, where the server did not switch
    world.tell(LoaderFailed(RuntimeError("the loop is busy")))
    assert world.reports[-1] == "revision a cannot be loaded: RuntimeError: the loop is busy"
    assert not world.state.is_due(world.now_s), "not before the delay has passed"
    world.now_s += SHORTEST_S
    world.tell(LoaderIdle())
    assert world.state.table == table("a", latency_ms=5)
    assert world.reports[-1] is None


def test_reason_of_a_withdrawal_is_not_taken_back_by_the_load_that_was_under_way() -> None:
    world = serving()
    world.tell(TableDeclared(table("b")))
    world.tell(LoaderIdle())
    world.doubt()
    reports = len(world.reports)
    world.finish(RepositoryError("/x", "is gone", "generate again"))
    assert len(world.reports) == reports


def test_damage_is_reported_once_two_attempts_running_have_found_it() -> None:
    world = serving()
    world.tell(TableDeclared(msgspec.structs.replace(table("b"), repair=1)))
    damaged, gone = DamagedError("/x", "was altered", "generate again"), RepositoryError("/x", "is gone", "wait")
    for error in (damaged, gone, damaged, damaged, damaged):
        world.tell(LoaderIdle())
        world.finish(error)
        world.now_s += LONGEST_S
    found = Damage("b", repair=1)
    assert world.damages[-5:] == [None, None, None, found, found]
    world.tell(TableDeclared(msgspec.structs.replace(table("b"), repair=2)))
    world.tell(LoaderIdle())
    world.finish(damaged)
    assert world.damages[-1] is None, "it was made again since"


def test_settings_of_the_service_hold_while_its_next_revision_is_loaded_and_its_base_variant_does_not() -> None:
    world = serving()
    world.tell(TableDeclared(table("b", latency_ms=5, variant="x9")))
    world.tell(LoaderIdle())
    assert world.state.table == table("a", latency_ms=5)
    assert world.state.job == Load(table("b", latency_ms=5, variant="x9"), LoadPurpose.ANSWER, is_beside=True)


def test_a_table_that_only_renews_what_it_says_is_followed_and_logged_for_who_looks_closely_alone() -> None:
    world, costs = serving(), {"x1": AffineCost(fixed_ms=1, per_seed_ms=1)}
    levels = []
    for declared in (
        msgspec.structs.replace(table("a"), costs=costs),
        msgspec.structs.replace(table("a", latency_ms=5), costs=costs),
    ):
        world.tell(TableDeclared(declared))
        world.tell(LoaderIdle())
        assert world.state.table == declared
        levels.append(world.logged[-1].level)
        world.tell(LoaderIdle())
        assert world.state.job is None, "what answers is not loaded again for that"
    assert levels == [logging.DEBUG, logging.INFO]


def test_files_that_were_replaced_are_said_and_loaded_while_those_before_answer() -> None:
    world = serving()
    before = world.answering
    assert before is not None
    world.tell(FilesReplaced(before, "x1.npy is another file"))
    assert world.warned == [
        "revision a answers from files that are no longer in the repository: x1.npy is another file"
    ]
    world.tell(LoaderIdle())
    assert world.state.job == Load(table("a"), LoadPurpose.ANSWER, is_beside=True)
    assert world.answering is before
    world.finish()
    assert world.answering is not before
    world.tell(LoaderIdle())
    assert world.state.job is None


def test_a_doubted_revision_is_verified_where_it_lies_and_answers_again_or_is_loaded() -> None:
    world = serving()
    before = world.answering
    world.doubt()
    world.tell(LoaderIdle())
    assert isinstance(world.state.job, Verify)
    world.finish()
    assert world.answering is before
    assert (world.reports[-1], world.state.job) == (None, None)
    world.now_s += LONGEST_S
    world.doubt()
    world.tell(LoaderIdle())
    assert world.state.job == Verify(cast("ServedRevision", before))
    world.tell(FilesVerified(is_intact=False))
    assert world.state.job == Load(table("a"), LoadPurpose.ANSWER, is_beside=False)


def test_verifying_that_fails_is_not_tried_again_but_the_revision_is_loaded() -> None:
    world = serving()
    world.doubt()
    world.tell(LoaderIdle())
    world.finish()
    world.doubt()
    world.now_s += LONGEST_S
    world.tell(LoaderIdle())
    world.tell(LoaderFailed(RuntimeError("the volume is gone")))
    world.now_s += LONGEST_S
    world.tell(LoaderIdle())
    assert world.state.job == Load(table("a"), LoadPurpose.ANSWER, is_beside=False)


def test_doubts_about_a_revision_that_answers_no_longer_change_nothing() -> None:
    world = serving()
    before = world.answering
    assert before is not None
    world.tell(TableDeclared(table("b")))
    world.settle()
    assert world.answering is not before
    told = world.state
    world.tell(RevisionDoubted(before, "was written to"))
    world.tell(FilesReplaced(before, "is gone"))
    world.tell(CouldGrow(before))
    assert world.state == told


def test_a_table_that_its_revision_cannot_follow_is_told_and_the_next_one_is_followed() -> None:
    world = serving()
    world.tell(TableDeclared(table("a", variant="x9")))
    world.settle()
    assert world.state.table == table("a")
    assert world.reports[-1] == "routing: revision a has no variant x9"
    assert world.state.delay.due_s is None, "what answers is right, and trying again would not help"
    world.tell(TableDeclared(table("a", latency_ms=5)))
    world.settle()
    assert (world.state.table, world.reports[-1]) == (table("a", latency_ms=5), None)


def test_where_nothing_answers_any_more_and_the_declared_table_is_refused_the_last_good_one_is_loaded() -> None:
    world = serving()
    world.tell(TableDeclared(table("b", variant="x9")))
    world.doubt()
    world.tell(LoaderIdle())
    world.finish(DamagedError("/x", "was altered", "generate again"))
    world.finish()
    assert world.answering is None
    assert world.reports[-1] == "routing: revision b has no variant x9"
    assert world.state.is_due(world.now_s), "the last good table can be followed at once"
    world.tell(LoaderIdle())
    assert world.state.job == Load(table("a"), LoadPurpose.ANSWER, is_beside=False)
    world.tell(LoaderFailed(TableError("routing", "revision a was made again with other variants")))
    assert not world.state.is_due(world.now_s), "attempts do not follow each other without pause"
    world.now_s += LONGEST_S
    world.settle()
    assert world.state.table == table("a")
    assert world.answering is not None


def test_settings_hold_at_once_while_loading_again_waits() -> None:
    world = serving()
    for _ in range(2):
        assert world.answering is not None
        world.tell(FilesReplaced(world.answering, "is gone"))
        world.tell(LoaderIdle())
        world.finish()
    world.tell(TableDeclared(table("a", latency_ms=5)))
    world.tell(LoaderIdle())
    assert (world.state.table, world.state.job) == (table("a", latency_ms=5), None)
    assert not world.state.is_due(world.now_s)


@pytest.mark.parametrize("outcome", ["verified", "loaded", "failed"])
def test_nothing_comes_of_a_job_that_ends_after_the_end(outcome: str) -> None:
    world = serving()
    if outcome == "verified":
        world.doubt()
    else:
        world.tell(TableDeclared(table("b")))
    world.tell(LoaderIdle())
    world.tell(LoaderStopped())
    answered, reports, logs = world.answering, len(world.reports), len(world.logged)
    world.finish(RuntimeError("interrupted") if outcome == "failed" else None)
    assert world.answering is answered
    assert (world.state.job, len(world.reports), len(world.logged)) == (None, reports, logs)


@pytest.mark.parametrize("outcome", ["larger", "no larger", "failed", "replaced meanwhile", "overtaken"])
def test_a_revision_is_loaded_once_into_memory_that_came_free_and_taken_where_it_is_larger(outcome: str) -> None:
    world = serving()
    before, reports = world.answering, [*world.reports]
    assert before is not None
    world.tell(CouldGrow(before))
    world.tell(LoaderIdle())
    assert world.state.job == Load(table("a"), LoadPurpose.ENLARGE, is_beside=True)
    if outcome == "replaced meanwhile":
        world.tell(FilesReplaced(before, "is gone"))
    if outcome == "overtaken":
        world.tell(TableDeclared(table("b")))
    world.finish(RuntimeError("no memory") if outcome == "failed" else None, is_larger=outcome != "no larger")
    assert (world.answering is not before) == (outcome == "larger")
    assert {*world.reports[len(reports) :]} <= {None}, "its answers are right whatever came of it"
    says = [log.words for log in world.logged if log.level == logging.WARNING]
    assert says == {
        "no larger": ["revision a answers on: loaded again, it has no more memory"],
        "failed": ["revision a answers on: loaded again, RuntimeError: no memory"],
    }.get(outcome, [])
    assert world.answering is not None
    world.tell(CouldGrow(world.answering))
    world.tell(LoaderIdle())
    assert (world.state.job is None) == (outcome not in {"replaced meanwhile", "overtaken"})


def test_memory_that_came_free_for_one_revision_loads_no_other_again() -> None:
    world = serving()
    world.tell(TableDeclared(table("b")))
    world.tell(LoaderIdle())
    assert world.answering is not None
    world.tell(CouldGrow(world.answering))
    world.finish()
    world.tell(LoaderIdle())
    assert world.state.job is None


def test_revision_that_is_doubted_again_and_again_is_loaded_further_and_further_apart() -> None:
    delay = Delay(1, 4)
    delays = []
    for _ in range(5):
        delay = delay.begin_again(100.0)
        delays.append(delay.length_s)
        delay = delay.end(100.0)
    assert delays == [0, 1, 2, 4, 4]
    calm = Delay(1, 0)
    for _ in range(3):
        calm = calm.begin_again(100.0)
        assert not calm.is_running(100.0), "it was well for longer than the longest delay"
        calm = calm.end(100.0)
