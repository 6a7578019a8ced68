"""The pure part of `make bench-updates-faults`: figures of a made-up round, recoveries, verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.changes.updates_faults import (
    BENCHMARK,
    body_of,
    figures_of,
    keep_round,
    read_rounds,
    recoveries_of,
    verdicts_of,
)
from benchmarks.page.figure_blocks import Results
from benchmarks.page.verdict_figures import updates_faults
from benchmarks.results import measured, write_part
from tests.changes.campaign.checker import Kind, Violation
from tests.changes.campaign.faults import Done, Event, Fault
from tests.changes.campaign.graph import FirstGraph
from tests.changes.campaign.history import Absent, Acknowledged, Attempt, History, Read, Refused, Seen, Unanswered
from tests.changes.campaign.play import Compactions, Plan, Round


def done(fault: Fault, began_s: float, ended_s: float, followed_s: float | None) -> Done:
    return Done(Event(fault, (0,), ended_s - began_s, 0, followed_s is not None), began_s, ended_s, followed_s)


def acknowledged(sequence: int, ended_s: float, *, again: bool = False) -> Attempt:
    return Attempt("a", sequence, "worker-0.1", ended_s - 0.1, ended_s, Acknowledged(sequence, again))


ATTEMPTS = (
    *(acknowledged(sequence, float(sequence)) for sequence in range(1, 4)),
    acknowledged(3, 3.5, again=True),
    Attempt("a", 4, "worker-0.1", 4, 5, Unanswered("lost")),
    Attempt("a", 4, "worker-1.1", 5, 6, Refused(None)),
    acknowledged(5, 7.25),
)
READS = (
    Read("worker-0.1", 3, 2, 3, 4, Seen(2, (1, 2, 3))),
    Read("worker-0.1", 3, 0, 3, 4, Absent()),
    Read("worker-0.1", 3, 2, 3, 4, Unanswered("503")),
)
DONE = (
    done(Fault.DATABASE_KILLED, 1.1, 1.5, 2.5),
    done(Fault.WORKERS_KILLED, 2.6, 2.75, None),
    done(Fault.WORKER_PAUSED, 2.8, 2.9, 3.2),
    done(Fault.BOTH_KILLED, 4, 7, 8),
)
AWAY = "the log of changes: the database is away"
JOBS = Compactions(2, 1, (AWAY,))
PLAYED = Round(Plan("1-0", 3, "x1"), History(FirstGraph({}, ()), {}, ATTEMPTS, READS), DONE, JOBS, ())


def test_a_round_is_counted() -> None:
    found = figures_of(PLAYED)
    assert (found.kills, found.acknowledged, found.refused, found.unanswered, found.repeated) == (3, 4, 1, 1, 1)
    assert (found.reads, found.behind_a_write, found.longest_silence_s, found.seconds) == (2, 1, 3.75, 6.2)
    assert found.violations == {}
    assert (found.compactions, found.compactions_killed, found.compactions_failed) == (2, 1, {AWAY: 1})


def test_rounds_are_kept_for_a_later_call(tmp_path: Path) -> None:
    file, figures = tmp_path / "rounds" / "kept.jsonl", figures_of(PLAYED)
    assert read_rounds(file) == []
    keep_round(file, figures)
    keep_round(file, replace(figures, seed="1-1"))
    assert read_rounds(file) == [figures, replace(figures, seed="1-1")]
    assert figures.recoveries


def test_recoveries_are_of_faults_that_came_alone_and_were_waited_for() -> None:
    found = [*recoveries_of(DONE, ATTEMPTS_ACKNOWLEDGED)]
    assert [(one.fault, one.acknowledged_s, one.followed_s) for one in found] == [
        (Fault.DATABASE_KILLED, 0.5, 1.0),
        (Fault.BOTH_KILLED, 0.25, 1.0),
    ]


ATTEMPTS_ACKNOWLEDGED = [one for one in ATTEMPTS if isinstance(one.answer, Acknowledged)]


def test_verdicts_need_all_kills_and_no_violation() -> None:
    found = figures_of(PLAYED)
    (lost, _) = (verdict for _, verdict in verdicts_of(body_of([found])))
    assert (lost["measured"], lost["passed"]) == ("0 over 3 kills, of 4 batches that were acknowledged", False)
    many = [found] * 334
    assert [verdict["passed"] for _, verdict in verdicts_of(body_of(many))] == [True, True]
    for kind, expected in ((Kind.DOUBLED, [False, True]), (Kind.WRONG_ANSWER, [True, False])):
        broken = figures_of(replace(PLAYED, violations=(Violation(kind, "a word"),)))
        assert [verdict["passed"] for _, verdict in verdicts_of(body_of([*many, broken]))] == expected
        assert broken.words == [f"{kind}: a word"]


def test_recoveries_are_shown_and_all_is_judged(tmp_path: Path) -> None:
    record = measured(body_of([figures_of(PLAYED)]), {"id": "abcdef123", "dirty": False}, 1.0, [])
    write_part(BENCHMARK, "all", record, tmp_path / "updates_faults.json", quick=False)
    results = Results(tmp_path)
    shown = updates_faults(results["updates_faults"])
    assert "| database killed | 1 | 1 | 0.50 / 0.50 / 0.50 | 1.00 / 1.00 / 1.00 |" in shown
    assert any("0 over 3 kills" in verdict["measured"] for verdict in results.verdicts("updates_faults").values())
