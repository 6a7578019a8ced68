"""What every kind of log keeps: the same tests for each."""

from __future__ import annotations

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.changes.logs import LogPlace, entries, entry, read_all
from tests.support.machine.waiting import WAIT_S

from gnnserve_worker.changes import postgres_log, sqlite_log
from gnnserve_worker.changes.log import (
    ChangeLog,
    LogBehindError,
    LogConflictError,
    LogError,
    Position,
    SequencePassedError,
)


def _offsets(log: ChangeLog, client: str, *sequences: int) -> list[int]:
    return [appended.offset for appended in log.append(entries(client, *sequences))]


def test_offsets_count_from_one_without_gaps_and_records_come_back_as_they_were(place: LogPlace) -> None:
    log = place.open()
    assert log.position() == Position(1, 0, 0)
    assert log.read(0, 1000) == []
    bodies = [bytes(range(256)), b"", b"\0" * 5000]
    appended = log.append([entry("a", 7 + at, body, changes=10 * at) for at, body in enumerate(bodies)])
    assert [one.offset for one in appended] == [1, 2, 3]
    records = log.read(0, 1 << 20)
    assert records == [one.record for one in appended]
    assert [(r.offset, r.client, r.sequence, r.changes, r.total_changes) for r in records] == [
        (1, "a", 7, 0, 0), (2, "a", 8, 10, 10), (3, "a", 9, 20, 30)
    ]  # fmt: skip
    assert [r.body for r in records] == bodies
    assert log.position() == Position(1, 3, 30)
    assert place.open().read(0, 1 << 20) == records


def test_an_entry_that_is_sent_again_has_its_first_offset_and_is_not_appended(place: LogPlace) -> None:
    log = place.open()
    log.append(entries("a", 1, 2))
    again = place.open().append([*entries("b", 1), *entries("a", 2, 3), *entries("b", 1)])
    assert [(one.offset, one.is_repeated) for one in again] == [(3, False), (2, True), (4, False), (3, True)]
    assert [(r.client, r.sequence) for r in read_all(log)] == [("a", 1), ("a", 2), ("b", 1), ("a", 3)]
    assert [one.is_repeated for one in log.append(entries("a", 1, 3))] == [True, True]
    assert log.position().last == 4


def test_an_entry_is_found_by_client_and_sequence(place: LogPlace) -> None:
    log = place.open()
    log.append(entries("a", 1, 5))
    assert [log.find("a", 1), log.find("a", 5), log.find("a", 3), log.find("b", 1)] == [1, 2, None, None]


def test_reading_stops_at_so_many_bytes_and_brings_at_least_one_record(place: LogPlace) -> None:
    log = place.open()
    log.append([entry("a", sequence, bytes(1000)) for sequence in range(10)])
    assert [r.offset for r in log.read(0, 1)] == [1]
    assert [r.offset for r in log.read(0, 3000)] == [1, 2, 3]
    assert [r.offset for r in log.read(8, 100_000)] == [9, 10]
    assert log.read(10, 1) == []


def test_a_reader_beyond_the_end_is_told_that_the_log_is_behind(place: LogPlace) -> None:
    log = place.open()
    log.append(entries("a", 1, 2))
    with pytest.raises(LogBehindError, match=r"ends at offset 2, and .* at 3"):
        log.read(3, 1)


def test_nothing_is_appended_to_a_log_that_lost_its_end(place: LogPlace) -> None:
    log = place.open()
    log.append(entries("a", 1, 2))
    with pytest.raises(LogBehindError):
        log.append(entries("a", 3), known_offset=3)
    assert log.position().last == 2
    assert log.append(entries("a", 3), known_offset=2)[0].offset == 3


def test_what_is_cut_cannot_be_read_and_is_not_appended_again(place: LogPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sqlite_log, postgres_log):
        monkeypatch.setattr(module, "_CUT_RECORDS", 2)
    log = place.open()
    log.append([*entries("a", 1, 2, 3, 4), *entries("b", 1), *entries("a", 9)])
    log.cut(5)
    assert log.position() == Position(6, 6, 6)
    assert [r.offset for r in log.read(5, 1000)] == [6]
    for after in (0, 4):
        with pytest.raises(LogConflictError, match="compacted away: its first is 6"):
            log.read(after, 1000)
    for client, sequence in (("a", 2), ("a", 4), ("a", 3), ("b", 0)):
        with pytest.raises(SequencePassedError, match=f"batch {sequence} of client '{client}'"):
            log.append([*entries("c", 1), *entries(client, sequence)])
        with pytest.raises(SequencePassedError):
            log.find(client, sequence)
    assert log.position().last == 6
    assert [one.is_repeated for one in log.append([*entries("a", 9), *entries("a", 5), *entries("b", 2)])] == [
        True, False, False
    ]  # fmt: skip


def test_a_log_that_is_cut_to_its_end_goes_on(place: LogPlace) -> None:
    log = place.open()
    log.append(entries("a", 1, 2, 3))
    before = log.read(2, 1)[0]
    log.cut(3)
    assert log.position() == Position(4, 3, 3)
    assert log.read(3, 1) == []
    log.cut(2)
    log.append(entries("a", 4))
    record = log.read(3, 1)[0]
    assert (record.offset, record.total_changes, record.previous) == (4, 4, before.checksum)
    log.cut(4)
    with pytest.raises(SequencePassedError, match="up to 4 are"):
        log.find("a", 1)
    with pytest.raises(LogBehindError):
        log.cut(5)


def test_a_log_that_is_dropped_is_gone_for_all(place: LogPlace) -> None:
    log, other = place.open(), place.open()
    log.append(entries("a", 1, 2, 3))
    log.cut(1)
    assert other.position() == Position(2, 3, 3)
    assert log.drop() == Position(2, 3, 3)
    with pytest.raises(LogConflictError):
        other.read(3, 1)
    anew = place.open()
    assert anew.position() == Position(1, 0, 0)
    assert [one.offset for one in anew.append(entries("a", 1))] == [1]


def test_waiting_ends_when_something_is_appended(place: LogPlace) -> None:
    log, other = place.open(), place.open()
    assert not log.wait(0, 0.0)
    assert not log.wait(0, 0.05)
    with ThreadPoolExecutor(2) as threads:
        for appender, offset in ((log, 1), (other, 2), (log, 3)):
            waits = [threads.submit(waiter.wait, offset - 1, WAIT_S) for waiter in (log, other)]
            appender.append(entries("a", offset))
            assert all(wait.result() for wait in waits)
    assert log.wait(2, 0.0)
    assert not log.wait(3, 0.0)


def test_writers_in_turn_leave_no_gap_and_followers_see_every_record_in_order(place: LogPlace) -> None:
    """Four writers, each with a log of its own as in a process of its own, and one follower all along."""
    writers, groups, most = 4, 25, 5
    logs = [place.open() for _ in range(writers)]
    total = threading.Event()
    followed: list[tuple[int, str, int]] = []

    def follow(log: ChangeLog) -> None:
        while not (total.is_set() and len(followed) == log.position().last):
            if log.wait(len(followed), 0.1):
                followed.extend((r.offset, r.client, r.sequence) for r in log.read(len(followed), 300))

    def write(writer: int) -> dict[tuple[str, int], int]:
        draw = random.Random(writer)  # noqa: S311
        acknowledged = {}
        sequence = 0
        for _ in range(groups):
            size = draw.randint(1, most)
            group = entries(f"writer{writer}", *range(sequence, sequence + size))
            sequence += size
            for one, at in zip(group, logs[writer].append(group), strict=True):
                acknowledged[one.client, one.sequence] = at.offset
        return acknowledged

    with ThreadPoolExecutor(writers + 1) as threads:
        follower = threads.submit(follow, place.open())
        acknowledged = dict(pair for found in threads.map(write, range(writers)) for pair in found.items())
        total.set()
        follower.result(WAIT_S)
    assert [offset for offset, _, _ in followed] == list(range(1, len(acknowledged) + 1))
    assert {(client, sequence): offset for offset, client, sequence in followed} == acknowledged
    for writer in range(writers):
        sequences = [sequence for _, client, sequence in followed if client == f"writer{writer}"]
        assert sequences == sorted(sequences)


def test_a_long_random_life_is_that_of_a_simple_model(place: LogPlace) -> None:
    draw = random.Random(5)  # noqa: S311
    logs = [place.open(), place.open()]
    model: list[tuple[str, int]] = []
    first = 1
    passed: dict[str, int] = {}
    for _ in range(150):
        log = draw.choice(logs)
        match draw.choice(["append", "append", "append", "read", "cut"]):
            case "append":
                group = [(f"c{draw.randint(0, 2)}", draw.randint(0, 60)) for _ in range(draw.randint(1, 4))]
                alive = model[first - 1 :]
                if any(key not in alive and key[1] <= passed.get(key[0], -1) for key in group):
                    with pytest.raises(SequencePassedError):
                        log.append([entry(*key) for key in group])
                    continue
                for key, appended in zip(group, log.append([entry(*key) for key in group]), strict=True):
                    assert appended.is_repeated == (key in model)
                    if key not in model:
                        model.append(key)
                    assert appended.offset == model.index(key) + 1
            case "read":
                after = draw.randint(first - 1, len(model))
                found = [(r.offset, (r.client, r.sequence)) for r in log.read(after, 1 << 20)]
                assert found == [(offset, model[offset - 1]) for offset in range(after + 1, len(model) + 1)]
            case "cut":
                through = draw.randint(0, (first + len(model)) // 2)
                log.cut(through)
                for client, sequence in model[first - 1 : max(first - 1, through)]:
                    passed[client] = max(passed.get(client, -1), sequence)
                first = max(first, through + 1)
        assert log.position() == Position(first, len(model), len(model))


@pytest.mark.parametrize(
    "field", ["body = substr(body, 2)", "sequence = 99", "client = 'b'", "changes = 7", "time_ms = 5"]
)
def test_a_record_that_was_altered_is_not_given_out(place: LogPlace, field: str) -> None:
    log = place.open()
    log.append(entries("a", 1, 2, 3))
    place.change(f'UPDATE {{records}} SET {field} WHERE "offset" = 2')  # noqa: S608
    assert log.read(2, 1000)
    with pytest.raises(LogError, match=r"record 2 .* is not what was written"):
        log.read(0, 1000)


def test_a_record_that_was_removed_is_missed(place: LogPlace) -> None:
    log = place.open()
    log.append(entries("a", 1, 2, 3))
    place.change('DELETE FROM {records} WHERE "offset" = 2')
    with pytest.raises(LogError, match="lacks offset 2 and has 3"):
        log.read(0, 1000)


def test_a_log_of_another_schema_is_refused(place: LogPlace) -> None:
    place.open().append(entries("a", 1))
    place.change("UPDATE {log} SET schema_version = 2")
    with pytest.raises(LogConflictError, match=r"is of schema 2, and this release reads schema 1"):
        place.open().position()


def test_tables_of_another_release_are_refused(place: LogPlace) -> None:
    log = place.open()
    log.append(entries("a", 1))
    place.change("ALTER TABLE {log} RENAME COLUMN total_changes TO items")
    with pytest.raises(LogError):
        place.open().position()


def test_a_record_of_many_megabytes_comes_back(place: LogPlace) -> None:
    log = place.open()
    body = os.urandom(24 << 20)
    log.append([entry("a", 1, body), entry("a", 2)])
    records = log.read(0, 1000)
    assert [r.offset for r in records] == [1]
    assert records[0].body == body


def test_a_log_that_is_closed_leaves_no_connection(place: LogPlace) -> None:
    log = place.open()
    log.append(entries("a", 1))
    log.wait(0, 0)
    log.close()
    if place.server is not None:
        assert place.server.connections() == 0
