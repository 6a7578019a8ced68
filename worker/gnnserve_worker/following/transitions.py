"""Transitions of a loader, as a pure function: `step(state, event, now_s)` returns a state and effects.

Events come from the routing watch (tables), from the repository watch (doubts about files, memory that came free) and
from the loader's own thread (`LoaderIdle` when it is free, and the outcome of its job). There is at most one job at a
time: verifying, or loading and rehearsing. What answers changes by `Switch` and `Withdraw` alone.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, assert_never

import msgspec

from gnnserve_api.errors import DamagedError, GnnserveError
from gnnserve_api.pods.routing import Damage, RoutingTable
from gnnserve_worker.following.state import (
    AnsweringRevision,
    CouldGrow,
    Effects,
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
from gnnserve_worker.inference.served import ServedRevision, TableError

_LOOKS_AT_DAMAGE = 2
"""Attempts that must find damage before it is reported: a file system that just came back may show half a folder."""

Step = tuple[State, Effects]


def step(state: State, event: Event, now_s: float) -> Step:  # noqa: PLR0911 - one for each kind of event
    match event:
        case TableDeclared(table):
            return replace(state, declared=table), ()
        case RevisionDoubted(revision, problem):
            return _withdraw(state, revision, problem, now_s)
        case FilesReplaced(revision, problem):
            return _note_moved(state, revision, problem, now_s)
        case CouldGrow(revision):
            answering = state.answering
            could = answering is not None and answering.revision is revision and answering.may_grow
            return replace(state, could_grow=state.could_grow or could), ()
        case LoaderIdle():
            return _take_turn(state, now_s) if state.is_due(now_s) else (state, ())
        case FilesVerified(is_intact):
            return _end_verifying(state, is_intact, now_s)
        case RevisionLoaded():
            return _end_loading(state, event, now_s)
        case LoaderFailed(error):
            return _fail(state, error, now_s)
        case LoaderStopped():
            return replace(state, is_stopped=True), ()
        case _:
            assert_never(event)


def _withdraw(state: State, revision: ServedRevision, problem: str, now_s: float) -> Step:
    if state.answering is None or state.answering.revision is not revision:
        return state, ()
    name = revision.manifest.revision
    said = f"revision {name} is not answered from: {problem}; it is being verified again"
    after = replace(
        state,
        answering=None,
        withdrawn=revision,
        could_grow=False,
        was_withdrawn=state.job is not None,
        delay=state.delay.begin_again(now_s),
    )
    return after, (Log(logging.ERROR, said, name), Withdraw(revision, said))


def _note_moved(state: State, revision: ServedRevision, problem: str, now_s: float) -> Step:
    answering = state.answering
    if answering is None or answering.revision is not revision:
        return state, ()
    name = revision.manifest.revision
    said = f"revision {name} answers from files that are no longer in the repository: {problem}"
    after = replace(state, answering=replace(answering, must_renew=True), delay=state.delay.begin_again(now_s))
    return after, (Log(logging.ERROR, said, name), Warn(revision, said))


def _take_turn(state: State, now_s: float) -> Step:
    declared, attempted = state.declared, state.attempted
    assert declared is not None  # noqa: S101  (else no turn is due)
    effects: Effects = ()
    if attempted is None or (attempted.revision, attempted.repair) != (declared.revision, declared.repair):
        # A problem of another table is obsolete; a problem of the same one stays until it works.
        said = f"revision {declared.revision} is being loaded" if state.answering is None else None
        effects = (ReportProblem(said),)
        state = replace(state, delay=state.delay.forget(), found_damaged=0, failing=None)
    after, more = _bring_into_effect(replace(state, attempted=declared, could_grow=False), state.could_grow, now_s)
    return after, effects + more


def _bring_into_effect(state: State, could_grow: bool, now_s: float) -> Step:
    """Bring the attempted table into effect as far as it is due; settings of the answering revision apply at once."""
    declared, answering, in_effect = state.attempted, state.answering, state.table
    assert declared is not None  # noqa: S101
    table, problem = _followed(state, declared)
    waits = state.delay.is_running(now_s)
    if (
        state.withdrawn is not None
        and state.withdrawn.compute.files is not None
        and in_effect is not None
        and not waits
    ):
        return replace(state, job=Verify(state.withdrawn)), ()
    effects: Effects = ()
    if answering is not None and in_effect is not None:
        if in_effect.revision == table.revision:
            try:
                answering.revision.check(table)
            except TableError as error:
                return _refuse(state, declared, error, now_s)
            state, effects = _switch(state, answering, table, state.load_s)
            if not answering.must_renew:
                state = replace(state, delay=state.delay.end(now_s), failing=None)
                effects += (ReportProblem(problem),)
                return _begin_to_enlarge(state, table, effects) if could_grow else (state, effects)
        else:
            # The service's objective, batching and limits apply to the present revision too, however long loading the
            # next one takes.
            wanted = msgspec.structs.replace(
                in_effect, objective=table.objective, batching=table.batching, overlay=table.overlay,
                program_limits=table.program_limits, refresh=table.refresh,
            )  # fmt: skip
            state, effects = _switch(state, answering, wanted, state.load_s)
    if waits:
        return state, effects
    # The mappings of what was withdrawn need not outlast its files.
    return replace(state, withdrawn=None, job=Load(table, LoadPurpose.ANSWER, answering is not None)), effects


def _followed(state: State, declared: RoutingTable) -> tuple[RoutingTable, str | None]:
    """The table to follow, and what is wrong with the declared one if another is followed."""
    if state.refused is not None and state.refused[0] == declared and state.table is not None:
        return state.table, state.refused[1]
    return declared, None


def _begin_to_enlarge(state: State, table: RoutingTable, effects: Effects) -> Step:
    assert state.answering is not None  # noqa: S101
    words = f"revision {table.revision} is loaded again, into memory that came free"
    after = replace(
        state,
        answering=replace(state.answering, may_grow=False),
        job=Load(table, LoadPurpose.ENLARGE, is_beside=True),
    )
    return after, (*effects, Log(logging.INFO, words, table.revision))


def _end_verifying(state: State, is_intact: bool, now_s: float) -> Step:
    revision, table = state.withdrawn, state.table
    state = replace(state, job=None, withdrawn=None)
    if state.is_stopped:
        return state, ()
    effects: Effects = ()
    if is_intact and revision is not None and table is not None:
        name = revision.manifest.revision
        words = f"revision {name} answers again: its files are as they were"
        state, effects = _switch(state, AnsweringRevision(revision), table, state.load_s)
        effects = (Log(logging.WARNING, words, name), *effects)
    if state.declared != state.attempted:
        return state, effects
    after, more = _bring_into_effect(state, False, now_s)
    return after, effects + more


def _end_loading(state: State, loaded: RevisionLoaded, now_s: float) -> Step:
    job, declared, attempted = state.job, state.declared, state.attempted
    assert isinstance(job, Load)  # noqa: S101
    assert declared is not None  # noqa: S101
    assert attempted is not None  # noqa: S101
    state = replace(state, job=None, was_withdrawn=False)
    is_overtaken = state.is_stopped or declared.revision != attempted.revision
    _, problem = _followed(state, attempted)
    match job.purpose:
        case LoadPurpose.ANSWER:
            if is_overtaken:
                # Nothing came of the attempt: the same table may be declared again before the next turn.
                return replace(state, attempted=None), ()
            after, effects = _switch(state, AnsweringRevision(loaded.revision), job.table, loaded.load_s)
            if state.failing is not None:
                # At the level of warnings, as the failures were at least: who read of these should read of their end.
                name = job.table.revision
                effects += (Log(logging.WARNING, f"revision {name} answers: it could be loaded this time", name),)
            after = replace(after, withdrawn=None, delay=after.delay.end(now_s), failing=None)
            return after, (*effects, ReportProblem(problem))
        case LoadPurpose.ENLARGE:
            if not loaded.is_larger:
                words = f"revision {job.table.revision} answers on: loaded again, it has no more memory"
                return state, (Log(logging.WARNING, words, job.table.revision),)
            if is_overtaken or state.answering is None or state.answering.must_renew:
                return state, ()  # where it was doubted, the copy's files may have changed too
            copy = AnsweringRevision(loaded.revision, may_grow=False)
            after, effects = _switch(state, copy, job.table, loaded.load_s)
            return after, (*effects, ReportProblem(problem))
        case _:
            assert_never(job.purpose)


def _switch(state: State, to: AnsweringRevision, table: RoutingTable, load_s: float) -> Step:
    answering = state.answering
    is_new = answering is None or answering.revision is not to.revision
    if not is_new and table == state.table:
        return state, ()
    told = None if state.table is None else _settings(state.table)
    settings = _settings(table)
    # The operator renews tables every few seconds: log only changes.
    level = logging.DEBUG if settings == told else logging.INFO
    words = f"revision {table.revision} answers: {msgspec.json.encode(settings).decode()}"
    after = replace(state, answering=to, table=table, load_s=load_s, could_grow=state.could_grow and not is_new)
    return after, (Switch(to.revision, table, load_s), Log(level, words, table.revision))


def _fail(state: State, error: Exception, now_s: float) -> Step:
    if state.is_stopped:
        return replace(state, job=None), ()
    job, declared, was_withdrawn = state.job, state.declared, state.was_withdrawn
    assert declared is not None  # noqa: S101
    if isinstance(job, Verify):
        state = replace(state, withdrawn=None)
    state = replace(state, job=None, was_withdrawn=False)
    if isinstance(job, Load) and job.purpose is LoadPurpose.ENLARGE:
        name, (words, of_ours) = job.table.revision, _told(error)
        return state, (Log(logging.WARNING, f"revision {name} answers on: loaded again, {words}", name, of_ours),)
    # Without a job it was a turn's switch, of what is declared.
    tried = declared if job is None or state.attempted is None else state.attempted
    state = replace(state, attempted=tried)
    if isinstance(error, TableError):
        return _refuse(state, tried, error, now_s)
    found_damaged = state.found_damaged + 1 if isinstance(error, DamagedError) else 0
    words, of_ours = _told(error)
    problem = f"revision {tried.revision} cannot be loaded: {words}"
    said, cause = problem, of_ours
    if problem == state.failing:
        said, cause = f"revision {tried.revision} still cannot be loaded, for the reason given before", None
    state = replace(state, delay=state.delay.extend(now_s), found_damaged=found_damaged, failing=problem)
    log = Log(logging.ERROR, f"{said}; trying again in {state.delay.length_s:g} s", tried.revision, cause)
    damage = Damage(tried.revision, tried.repair) if found_damaged >= _LOOKS_AT_DAMAGE else None
    return state, (log,) if was_withdrawn else (log, ReportProblem(problem, damage))


def _refuse(state: State, declared: RoutingTable, error: TableError, now_s: float) -> Step:
    """The declared table names variants that its revision lacks."""
    is_last_good = state.refused is not None and state.refused[0] == declared
    if is_last_good:  # its revision was made again, with other variants
        delay = state.delay.extend(now_s)
    elif state.table is not None and (state.answering is None or state.answering.must_renew):
        delay = state.delay.ensure(now_s)
    else:
        delay = state.delay.end(now_s)
    after = replace(state, refused=(declared, str(error)), delay=delay)
    return after, (Log(logging.ERROR, str(error), declared.revision), ReportProblem(str(error)))


def _told(error: Exception) -> tuple[str, Exception | None]:
    """The error's message; and the error itself where the log should have its traceback."""
    return (str(error), None) if isinstance(error, GnnserveError) else (f"{type(error).__name__}: {error}", error)


def _settings(table: RoutingTable) -> dict[str, Any]:
    """The settings of a table whose changes are logged."""
    return {
        "revision": table.revision,
        "objective": table.objective,
        "batching": table.batching,
        "overlay": table.overlay,
        "programLimits": table.program_limits,
        "refresh": table.refresh,
        "mode": table.mode,
        "baseVariant": table.base_variant,
        "weights": table.weights,
        "shadowPermille": table.shadow_permille,
        "makesIndex": table.makes_index,
    }
