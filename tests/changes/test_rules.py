"""The order of a log, and what waits for it, as pure functions."""

from __future__ import annotations

from collections import deque

import msgspec
import pytest
from tests.support.changes.logs import entry
from tests.support.changes.replica import make_batch

from gnnserve_worker.changes.lag import Lag
from gnnserve_worker.changes.log import (
    LogBehindError,
    LogConflictError,
    LogError,
    LogFullError,
    Position,
    Record,
    SequencePassedError,
)
from gnnserve_worker.changes.rules import (
    AppendGroup,
    LogHead,
    checksum_bodies,
    number_group,
    require_offset,
    require_readable,
    verify,
)
from gnnserve_worker.changes.writer import Submission, judge_failure, take_group


def _number(head: LogHead = LogHead(), **options: object) -> AppendGroup:  # noqa: B008
    group = [entry("a", 1, b"x", 3), entry("b", 1, b"y", 4), entry("a", 1, b"x", 3)]
    settings = {"known": {}, "passed": {}, "time_ms": 5} | options
    return number_group(group, checksum_bodies(group), head, **settings)


def test_a_group_goes_on_where_the_head_ends() -> None:
    group = _number(LogHead(3, 10, 100, 77))
    assert [one.offset for one in group.appended] == [11, 12, 11]
    assert [one.is_repeated for one in group.appended] == [False, False, True]
    assert [(r.previous, r.total_changes) for r in group.records] == [(77, 103), (group.records[0].checksum, 107)]
    assert group.head == LogHead(3, 12, 107, group.records[-1].checksum)


def test_an_entry_that_the_log_has_leaves_the_head_as_it_is() -> None:
    group = _number(LogHead(1, 10, 100, 77), known={("a", 1): 4, ("b", 1): 9})
    assert ([one.offset for one in group.appended], group.records, group.head) == (
        [4, 9, 4],
        [],
        LogHead(1, 10, 100, 77),
    )


def test_an_entry_that_its_client_has_passed_is_told_by_name() -> None:
    with pytest.raises(SequencePassedError, match="batch 1 of client 'b'") as told:
        _number(passed={"b": 1})
    assert (told.value.client, told.value.sequence) == ("b", 1)
    assert _number(known={("b", 1): 2}, passed={"b": 1}).appended[1].offset == 2


def test_every_field_counts_for_the_checksum() -> None:
    record = _number().records[0]
    verify([record], 0)
    others = {
        "client": "c", "sequence": 9, "time_ms": 9, "changes": 9, "total_changes": 9, "body": b"z", "previous": 9
    }  # fmt: skip
    for name, value in others.items():
        with pytest.raises(LogError, match="checksum is wrong"):
            verify([msgspec.structs.replace(record, **{name: value})], 0)


def test_a_record_of_another_log_does_not_follow() -> None:
    one, two = _number().records, _number(LogHead(1, 0, 1)).records
    verify(one, 0)
    with pytest.raises(LogError, match="record 2"):
        verify([one[0], two[1]], 0)
    with pytest.raises(LogError, match="lacks offset 1 and has 2"):
        verify(one[1:], 0)


def test_what_can_be_read() -> None:
    head = LogHead(first=5, last=9)
    for after in (4, 9):
        require_readable(head, after)
    with pytest.raises(LogConflictError, match=r"offset 4 .* is compacted away: its first is 5"):
        require_readable(head, 3)
    with pytest.raises(LogBehindError, match="ends at offset 9, and this worker has seen it at 10"):
        require_offset(9, 10)


def _submission(sequence: int, size: int = 1, **fields: object) -> Submission:
    return Submission(entry("a", sequence, bytes(size)), make_batch(), expires_s=100.0, **fields)


def test_a_group_is_all_that_waits_up_to_a_size_and_one_batch_at_least() -> None:
    waiting = deque(_submission(sequence, size) for sequence, size in enumerate([50, 50, 1, 200, 1]))
    groups = []
    while waiting:
        groups.append([submission.entry.sequence for submission in take_group(waiting, 100)])
    assert groups == [[0, 1], [2], [3], [4]]


PASSED = SequencePassedError("a", 1, 5)
AWAY, FULL, OTHER = LogError("away"), LogFullError("full"), LogConflictError("another's")


@pytest.mark.parametrize(
    ("error", "sequence", "is_attempted", "now_s", "told"),
    [
        pytest.param(AWAY, 1, True, 99.0, None, id="before its time it is tried again"),
        pytest.param(AWAY, 1, True, 100.0, "may be in the log or not: send it again", id="afterwards it is given up"),
        pytest.param(FULL, 1, False, 0.0, "full. The batch is not in the log", id="a full log is told at once"),
        pytest.param(FULL, 1, True, 0.0, "is not in the log", id="a full log was searched for it"),
        pytest.param(OTHER, 1, False, 0.0, "is not in the log", id="a conflict is told at once"),
        pytest.param(OTHER, 1, True, 0.0, "may be in the log or not", id="a conflict after an unknown outcome"),
        pytest.param(PASSED, 1, False, 0.0, "compacted away", id="the batch that was passed"),
        pytest.param(PASSED, 2, False, 0.0, None, id="another one of its group"),
    ],
)
def test_what_the_client_of_a_failed_transaction_is_told(
    error: LogError, sequence: int, is_attempted: bool, now_s: float, told: str | None
) -> None:
    found = judge_failure(_submission(sequence, known_before=0 if is_attempted else None), error, now_s)
    if told is None:
        assert found is None
    else:
        assert type(found) is type(error)
        assert told in str(found)


def _record(offset: int, changes: int, total_changes: int) -> Record:
    return Record(offset, "a", offset, 0, changes, total_changes, b"")


def test_lag_in_changes_and_seconds() -> None:
    now = [100.0]
    lag = Lag(lambda: now[0])
    assert (lag.changes_behind(0), lag.staleness_s(0)) == (0, 0.0)
    lag.see_end(Position(1, 4, 40))
    assert (lag.last, lag.changes_behind(2)) == (4, 2), "of which batches have how many changes is not known yet"
    now[0] = 101.0
    lag.see_record(_record(3, 5, 25))
    assert (lag.changes_behind(2), lag.staleness_s(2)) == (20, 1.0)
    lag.see_end(Position(2, 6, 60))
    lag.see_applied(_record(4, 15, 40))
    now[0] = 101.5
    assert (lag.first, lag.changes_behind(4), lag.staleness_s(4)) == (2, 20, 0.5)
    lag.see_applied(_record(6, 20, 60))
    assert (lag.changes_behind(6), lag.staleness_s(6)) == (0, 0.0)
    now[0] = 111.0
    assert lag.staleness_s(6) == 10.0, "nothing was heard of the log for so long"


def test_lag_of_a_worker_far_behind_takes_no_memory() -> None:
    now = [0.0]
    lag = Lag(lambda: now[0])
    for offset in range(1, 10_001):
        lag.see_record(_record(offset, 1, offset))
        now[0] += 0.001
    assert lag.staleness_s(0) == pytest.approx(10.0)
    assert len(lag._ends) <= 201
