"""The checker of histories finds each kind of violation and no others, in made-up histories and of flawed workers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.changes.campaign import play as campaign
from tests.changes.campaign.checker import Kind, check
from tests.changes.campaign.faults import KILLS, Away, Fault, draw_events
from tests.changes.campaign.graph import Batch, FirstGraph, PlainGraph, replay
from tests.changes.campaign.history import (
    Absent,
    Acknowledged,
    Attempt,
    History,
    LogRecord,
    Passed,
    Read,
    Refused,
    Replica,
    Seen,
    Strange,
    Unanswered,
)
from tests.changes.campaign.revision import draw_graph, from_json, to_json
from tests.changes.campaign.simulated import Flaw, simulate
from tests.support.machine import waiting

FIRST = FirstGraph({0: 10, 1: 20, 2: 30}, ((0, 1), (1, 2)))
SET_TO_ONE, NEW_NODE, UNKNOWN, REMOVED = (
    Batch(overrides=((0, 1),)), Batch(new=((7, 5),), edges=((7, 2),)), Batch(overrides=((8, 1),)), Batch(removed=(7,)),
)  # fmt: skip
LOG = (
    LogRecord(1, "a", 0, SET_TO_ONE),
    LogRecord(2, "b", 0, NEW_NODE),
    LogRecord(3, "a", 1, UNKNOWN),
    LogRecord(4, "b", 1, REMOVED),
)
ATTEMPTS = (
    Attempt("a", 0, "one.1", 1, 2, Unanswered("lost")),
    Attempt("a", 0, "two.1", 3, 4, Acknowledged(1, True)),
    Attempt("b", 0, "one.2", 3, 5, Acknowledged(2, False)),
    Attempt("a", 1, "one.2", 6, 7, Refused(3)),
    Attempt("c", 0, "one.2", 6, 7, Refused(None)),
    Attempt("b", 1, "two.1", 8, 9, Acknowledged(4, False)),
)
READS = (
    Read("one.2", 0, 1, 5, 6, Seen(2, (1, 20, 15.5))),
    Read("two.1", 7, 0, 6, 7, Absent()),
    Read("two.1", 7, 3, 7, 8, Seen(3, (5, 30, 12.5))),
    Read("two.1", 0, 9, 9, 10, Unanswered("503")),
    Read("one.2", 7, 4, 10, 11, Absent()),
)
END = Replica(4, {0: (1, 20, 15.5), 1: (20, 15.5, 20), 2: (30, 20, 15.5)})
HISTORY = History(
    FIRST,
    {("a", 0): SET_TO_ONE, ("b", 0): NEW_NODE, ("a", 1): UNKNOWN, ("b", 1): REMOVED, ("c", 0): UNKNOWN},
    ATTEMPTS,
    READS,
    LOG,
    {"one": LOG, "two": LOG},
    {"one": END, "two": END},
)


def test_the_plain_graph_answers_by_hand() -> None:
    graph = PlainGraph.of(FIRST)
    assert [graph.answer(node) for node in range(4)] == [(10, 20, 20), (20, 20, 20), (30, 20, 20), None]
    assert not graph.refuses(NEW_NODE)
    assert graph.apply(NEW_NODE) >= {7, 2, 1}
    assert graph.refuses(NEW_NODE)
    assert graph.answer(2) == (30, 12.5, (20 + 30) / 2)
    everything = Batch(((9, 4),), ((0, 6),), ((9, 0), (9, 7)), ((0, 1),), (7,))
    graph.apply(everything)
    assert graph.neighbours == {0: {9}, 1: {2}, 2: {1}, 9: {0}}
    assert graph.answer(0) == (6, 4, 6)


def test_every_answer_that_changes_is_in_its_timeline() -> None:
    """Beside the answers of all nodes, computed anew after each batch."""
    draw = random.Random(5)  # noqa: S311
    first, batches = draw_graph(draw), []
    graph, expected = PlainGraph.of(first), []
    for number in range(200):
        node, other, gone = 100 + number, draw.randrange(40), 100 + draw.randrange(400)
        batch = draw.choice(
            [
                Batch(new=((node, 3),), edges=((node, other),)),
                Batch(overrides=((other, number),)),
                Batch(edges=((other, (other + 7) % 40),), removed_edges=(draw.choice(first.edges),)),
                Batch(removed=(gone,)),
            ]
        )
        batches.append(batch)
        if not graph.refuses(batch):
            graph.apply(batch)
        expected.append({node: graph.answer(node) for node in graph.values})
    found = replay(first, batches)
    for offset, answers in enumerate(expected, start=1):
        for node in found.timelines.keys() | answers.keys():
            (answer,) = found.answers_between(node, offset, offset)
            assert answer == pytest.approx(answers.get(node))


def test_batches_in_json_are_read_back() -> None:
    batch = Batch(((9, 4),), ((0, 6),), ((9, 0), (9, 7)), ((0, 1),), (7,))
    assert from_json(to_json(batch)) == batch
    with pytest.raises(ValueError, match="labels"):
        from_json({"labels": []})


def test_a_right_history_has_no_violation() -> None:
    assert check(HISTORY) == []
    assert check(History(FIRST, {})) == []


def test_what_may_have_been_carried_out_is_no_violation() -> None:
    """A batch is refused while an earlier attempt is still on its way, and gets into the log behind the next one."""
    sent = {**HISTORY.sent, ("c", 0): Batch(overrides=((0, 2),)), ("c", 1): Batch(overrides=((0, 3),))}
    log = (*LOG, LogRecord(5, "c", 1, sent["c", 1]), LogRecord(6, "c", 0, sent["c", 0]))
    attempts = (
        *ATTEMPTS,
        Attempt("c", 0, "one.2", 1, 3, Unanswered("paused")),
        Attempt("c", 1, "one.2", 10, 11, Acknowledged(5, False)),
    )
    end = Replica(6, {0: (2, 20, 16), 1: (20, 16, 20), 2: (30, 20, 16)})
    history = replace(
        HISTORY, sent=sent, attempts=attempts, log=log, logs={"one": log, "two": log},
        replicas={"one": end, "two": end},
    )  # fmt: skip
    assert check(history) == []


def test_what_is_compacted_away_is_not_missed() -> None:
    passed = Attempt("a", 0, "one.2", 10, 11, Passed())
    history = replace(HISTORY, attempts=(*ATTEMPTS, passed), logs={"one": LOG[2:], "two": LOG[2:]})
    assert check(history) == []


def with_log(*log: LogRecord) -> History:
    return replace(HISTORY, log=log, logs={"one": log, "two": log})


def with_attempt(place: int, **changed: object) -> History:
    attempts = [*ATTEMPTS]
    attempts[place] = replace(attempts[place], **changed)  # type: ignore[arg-type]
    return replace(HISTORY, attempts=tuple(attempts))


def with_read(place: int, **changed: object) -> History:
    reads = [*READS]
    reads[place] = replace(reads[place], **changed)  # type: ignore[arg-type]
    return replace(HISTORY, reads=tuple(reads))


def numbered(*records: LogRecord) -> tuple[LogRecord, ...]:
    return tuple(replace(record, offset=place) for place, record in enumerate(records, start=1))


VIOLATED = [
    pytest.param(Kind.LOST, lambda: with_log(*numbered(*LOG[1:])), id="the log lacks an acknowledged batch"),
    pytest.param(Kind.DOUBLED, lambda: with_log(*LOG, replace(LOG[0], offset=5)), id="it has a batch twice"),
    pytest.param(Kind.GAP, lambda: with_log(*LOG[:2], *(replace(r, offset=r.offset + 1) for r in LOG[2:])), id="a gap"),
    pytest.param(Kind.GAP, lambda: with_log(*LOG[1:]), id="it lacks its first record"),
    pytest.param(Kind.ELSEWHERE, lambda: with_log(*numbered(LOG[1], LOG[0], *LOG[2:])), id="other offsets"),
    pytest.param(Kind.ELSEWHERE, lambda: with_attempt(3, answer=Refused(2)), id="refused at another offset"),
    pytest.param(Kind.OUT_OF_ORDER, lambda: with_attempt(2, ended_s=2.5), id="before what was acknowledged earlier"),
    pytest.param(
        Kind.OUT_OF_ORDER, lambda: with_log(*numbered(LOG[0], LOG[3], LOG[2], LOG[1])), id="a client's batches descend"
    ),
    pytest.param(
        Kind.TWO_OFFSETS,
        lambda: replace(HISTORY, attempts=(*ATTEMPTS, Attempt("a", 0, "one.2", 8, 9, Acknowledged(2, True)))),
        id="acknowledged again at another offset",
    ),
    pytest.param(
        Kind.NOT_REPEATED,
        lambda: replace(HISTORY, attempts=(*ATTEMPTS, Attempt("a", 0, "two.1", 8, 9, Acknowledged(1, False)))),
        id="acknowledged again as if it were new",
    ),
    pytest.param(Kind.FOREIGN, lambda: with_log(*LOG, LogRecord(5, "d", 0, SET_TO_ONE)), id="from nowhere"),
    pytest.param(Kind.FOREIGN, lambda: with_log(replace(LOG[0], batch=REMOVED), *LOG[1:]), id="another batch"),
    pytest.param(Kind.REFUSED_BUT_KEPT, lambda: with_log(*LOG, LogRecord(5, "c", 0, UNKNOWN)), id="refused, and there"),
    pytest.param(Kind.MISJUDGED, lambda: with_attempt(3, answer=Acknowledged(3, False)), id="acknowledged in vain"),
    pytest.param(Kind.MISJUDGED, lambda: with_attempt(5, answer=Refused(4)), id="refused though it has an effect"),
    pytest.param(Kind.BEHIND, lambda: with_read(0, min_offset=3), id="older than asked for"),
    pytest.param(Kind.BACKWARDS, lambda: with_read(2, answer=Seen(0, (5, 30, 12.5))), id="older than written"),
    pytest.param(Kind.BACKWARDS, lambda: with_read(4, answer=Seen(1, (5, 30, 12.5))), id="older than before"),
    pytest.param(Kind.AHEAD, lambda: with_read(0, answer=Seen(4, (1, 20, 15.5))), id="newer than the log"),
    pytest.param(Kind.WRONG_ANSWER, lambda: with_read(0, answer=Seen(2, (10, 20, 20))), id="without the change"),
    pytest.param(Kind.WRONG_ANSWER, lambda: with_read(0, answer=Seen(2, (1, 20, 20))), id="half of the change"),
    pytest.param(Kind.WRONG_ANSWER, lambda: with_read(0, answer=Absent()), id="a node is missing"),
    pytest.param(Kind.WRONG_ANSWER, lambda: with_read(4, answer=Seen(4, (5, 30, 12.5))), id="a node that has left"),
    pytest.param(Kind.LOGS_DIFFER, lambda: replace(HISTORY, logs={"one": LOG, "two": LOG[:3]}), id="a log ends early"),
    pytest.param(
        Kind.LOGS_DIFFER, lambda: replace(HISTORY, logs={"one": LOG, "two": (*LOG[:3], LOG[2])}), id="two logs"
    ),
    pytest.param(
        Kind.LOGS_DIFFER, lambda: replace(HISTORY, logs={"one": LOG[1:], "two": LOG[2:]}), id="one has more of it"
    ),
    pytest.param(
        Kind.PASSED,
        lambda: replace(HISTORY, attempts=(*ATTEMPTS, Attempt("a", 0, "one.2", 10, 11, Passed()))),
        id="as compacted away, which it is not",
    ),
    pytest.param(
        Kind.WRONG_REPLICA, lambda: replace(HISTORY, replicas={"one": replace(END, offset=3)}), id="a replica is behind"
    ),
    pytest.param(
        Kind.WRONG_REPLICA,
        lambda: replace(HISTORY, replicas={"one": replace(END, answers={**END.answers, 7: (5, 30, 20)})}),
        id="a replica has a node that has left",
    ),
    pytest.param(
        Kind.REPLICAS_DIFFER,
        lambda: replace(HISTORY, replicas={"one": END, "two": replace(END, answers={**END.answers, 0: (2, 20, 16)})}),
        id="replicas differ",
    ),
    pytest.param(Kind.STRANGE, lambda: with_attempt(1, answer=Strange("500")), id="a batch gets an error of ours"),
    pytest.param(Kind.STRANGE, lambda: with_read(1, answer=Strange("500")), id="a read gets an error of ours"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "broken"), VIOLATED)
def test_each_violation_is_found(kind: Kind, broken: Callable[[], History]) -> None:
    assert kind in {violation.kind for violation in check(broken())}


def test_every_kind_of_violation_is_tried() -> None:
    assert {param.values[0] for param in VIOLATED} == {*Kind} - {Kind.STUCK}


# What flawed workers do


def test_simulated_workers_without_a_flaw_keep_every_promise() -> None:
    for seed in range(20):
        assert check(simulate(None, seed)) == []


@pytest.mark.campaign
@pytest.mark.parametrize("flaw", Flaw)
def test_a_flaw_of_workers_is_found_in_what_they_do(flaw: Flaw) -> None:
    found = {violation.kind for seed in range(20) for violation in check(simulate(flaw, seed))}
    assert flaw.expected <= found


# Rounds


def test_faults_are_drawn_from_the_seed_alone_and_of_every_kind() -> None:
    first, again, other = ([*draw_events(random.Random(seed), 3, 200, Away())] for seed in (1, 1, 2))  # noqa: S311
    assert first == again != other
    assert {event.fault for event in first} == {*Fault}
    kills = [event.fault for event in first if event.fault in KILLS]
    assert len(kills) == 200
    assert {kills.count(fault) for fault in KILLS} <= {66, 67}
    assert first[-1].is_awaited
    assert {len(event.workers) for event in first} == {1, 3}


def test_a_round_in_which_nothing_goes_on_ends_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    @contextmanager
    def dead_world(folder: Path, database: object, first: FirstGraph, *_: object) -> Iterator[object]:
        jobs = SimpleNamespace(killed=0, failed=[])
        workers = [SimpleNamespace(name="worker-0", place=None)]
        yield SimpleNamespace(workers=workers, first=first, token="", jobs=jobs, compacted=0)

    monkeypatch.setattr(campaign, "running_world", dead_world)
    monkeypatch.setattr(waiting, "WAIT_S", 0.05)
    played = campaign.play(campaign.Plan("a seed", 1, "x1", workers=1), tmp_path, None)  # type: ignore[arg-type]
    assert [violation.kind for violation in played.violations] == [Kind.STUCK]
    assert played.done == ()
