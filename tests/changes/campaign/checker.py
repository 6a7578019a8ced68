"""Checks a history against what docs/updates.md promises. Pure: a history goes in, violations come out.

The log in the end is the witness: it says which batches there are, and in which order. A batch that was acknowledged
is in it once, at the offset that was told, and behind all that was acknowledged before it was sent. Every answer is one
that the graph of the log had at an offset that the request could have seen.

A batch whose sender heard nothing may be in the log or not. One that is refused while an earlier attempt is still on
its way may get there afterwards.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import accumulate, pairwise

from tests.changes.campaign.graph import Answer, Replay, replay
from tests.changes.campaign.history import (
    Absent,
    Acknowledged,
    Attempt,
    History,
    Key,
    Passed,
    Read,
    Refused,
    Seen,
    Strange,
    Unanswered,
)

CLOSE = 0.01
"""Values are whole numbers: answers that differ by less are the same, but for rounding."""


class Kind(StrEnum):
    LOST = "an acknowledged batch is not in the log"
    DOUBLED = "a batch is in the log twice"
    GAP = "offsets of the log have a gap"
    OUT_OF_ORDER = "a batch is behind one that was sent after it was answered"
    ELSEWHERE = "a batch is at another offset than was told"
    TWO_OFFSETS = "a batch was acknowledged at two offsets"
    NOT_REPEATED = "a batch that was there already was acknowledged as new"
    FOREIGN = "the log has a batch that was not sent"
    REFUSED_BUT_KEPT = "a refused batch is in the log"
    MISJUDGED = "a batch was acknowledged that has no effect, or refused though it has"
    BEHIND = "an answer is older than was asked for"
    BACKWARDS = "a worker answered from an older graph than before"
    AHEAD = "an answer names an offset that the log did not have"
    WRONG_ANSWER = "an answer is that of no graph that it could be of"
    LOGS_DIFFER = "workers give different logs"
    REPLICAS_DIFFER = "workers answer differently in the end"
    WRONG_REPLICA = "a worker's answers in the end are not those of the log"
    PASSED = "a batch was refused as compacted away, and is not"
    STRANGE = "an answer that no fault explains"
    STUCK = "what was away is back, and clients or workers do not go on"
    """Found by what plays a round, which ends there."""


@dataclass(frozen=True, slots=True)
class Violation:
    kind: Kind
    words: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.words}"


def check(history: History) -> list[Violation]:
    """All violations, in the order of the checks."""
    found = _Found(history)
    return [violation for each in _CHECKS for violation in each(found)]


class _Found:
    """A history, and what several checks derive from it."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.log = history.log

    @cached_property
    def offsets(self) -> dict[Key, int]:
        """The first offset of each batch of the log."""
        return {record.key: record.offset for record in reversed(self.log)}

    @cached_property
    def cut(self) -> int:
        """The last offset that is compacted away; 0: none is."""
        ends = [log[0].offset - 1 for log in self.history.logs.values() if log]
        return min(ends, default=len(self.log))

    @cached_property
    def passed(self) -> dict[str, int]:
        """By client: the largest sequence that is compacted away."""
        found: dict[str, int] = {}
        for record in self.log[: self.cut]:
            found[record.client] = max(record.sequence, found.get(record.client, -1))
        return found

    @cached_property
    def replay(self) -> Replay:
        return replay(self.history.first, (record.batch for record in self.log))

    @cached_property
    def attempts(self) -> dict[Key, list[Attempt]]:
        by_key = defaultdict(list)
        for attempt in self.history.attempts:
            by_key[attempt.key].append(attempt)
        return by_key

    @cached_property
    def acknowledged(self) -> list[tuple[Attempt, Acknowledged]]:
        """In the order in which clients heard."""
        told = [(one, one.answer) for one in self.history.attempts if isinstance(one.answer, Acknowledged)]
        return sorted(told, key=lambda pair: pair[0].ended_s)

    def first_began_s(self, key: Key) -> float:
        """When the batch was sent first; batches that were not are others' violations."""
        return min((one.began_s for one in self.attempts.get(key, ())), default=float("-inf"))

    def may_still_come(self, key: Key) -> bool:
        """An attempt was left without an answer, and may be carried out at any time."""
        return any(isinstance(one.answer, Unanswered) for one in self.attempts[key])

    @cached_property
    def _began_from_s(self) -> list[float]:
        """By offset from 1 on: when the first batch from there on was sent. Ascending."""
        began = [self.first_began_s(record.key) for record in self.log]
        return [*accumulate(reversed(began), min)][::-1]

    def last_offset_at(self, time_s: float) -> int:
        """The last offset that the log can have had by then."""
        return bisect_right(self._began_from_s, time_s)

    @cached_property
    def _told_by(self) -> dict[str, tuple[list[float], list[int]]]:
        """By process: times, ascending, and the largest offset that it had told by then."""
        told = defaultdict(list)
        for attempt, answer in self.acknowledged:
            told[attempt.process].append((attempt.ended_s, answer.offset))
        for read in self.history.reads:
            if isinstance(read.answer, Seen):
                told[read.process].append((read.ended_s, read.answer.offset))
        found = {}
        for process, pairs in told.items():
            times_s, offsets = zip(*sorted(pairs), strict=True)
            found[process] = [*times_s], [*accumulate(offsets, max)]
        return found

    def told_before(self, process: str, time_s: float) -> int:
        """The largest offset that a process had told."""
        times_s, offsets = self._told_by.get(process, ([], []))
        place = bisect_left(times_s, time_s)
        return offsets[place - 1] if place else 0


def _check_offsets(found: _Found) -> Iterator[Violation]:
    offsets = [record.offset for record in found.log]
    for before, offset in pairwise([0, *offsets]):
        if offset != before + 1:
            yield Violation(Kind.GAP, f"{offset} behind {before}")
    for key, times in Counter(record.key for record in found.log).items():
        if times > 1:
            at = [record.offset for record in found.log if record.key == key]
            yield Violation(Kind.DOUBLED, f"{_name(key)} at {at}")


def _check_contents(found: _Found) -> Iterator[Violation]:
    for record in found.log:
        sent = found.history.sent.get(record.key)
        if sent is None:
            yield Violation(Kind.FOREIGN, f"{_name(record.key)} at {record.offset}")
        elif sent != record.batch:
            words = f"{_name(record.key)} at {record.offset} is {record.batch}, and {sent} was sent"
            yield Violation(Kind.FOREIGN, words)


def _check_acknowledged(found: _Found) -> Iterator[Violation]:
    told: dict[Key, int] = {}
    for attempt, answer in found.acknowledged:
        name, at = _name(attempt.key), found.offsets.get(attempt.key)
        if at is None:
            yield Violation(Kind.LOST, f"{name}, acknowledged at {answer.offset} by {attempt.process}")
        elif at != answer.offset:
            yield Violation(Kind.ELSEWHERE, f"{name} is at {at}, and {attempt.process} told {answer.offset}")
        if (before := told.setdefault(attempt.key, answer.offset)) != answer.offset:
            yield Violation(Kind.TWO_OFFSETS, f"{name} at {before} and {answer.offset}")
        # By this process: where the database fails in between, another one cannot tell it from its own.
        heard_s = [
            one.ended_s
            for one in found.attempts[attempt.key]
            if isinstance(one.answer, Acknowledged) and one != attempt and one.process == attempt.process
        ]
        if not answer.is_repeated and any(ended_s < attempt.began_s for ended_s in heard_s):
            yield Violation(Kind.NOT_REPEATED, f"{name} by {attempt.process}")


def _check_order(found: _Found) -> Iterator[Violation]:
    """What was acknowledged before another one was sent is before it; and batches of a client ascend."""
    ended_s = [attempt.ended_s for attempt, _ in found.acknowledged]
    most = [*accumulate((answer.offset for _, answer in found.acknowledged), max)]
    for record in found.log:
        place = bisect_left(ended_s, found.first_began_s(record.key))
        if place and most[place - 1] >= record.offset:
            words = f"{_name(record.key)} is at {record.offset}, and was sent when {most[place - 1]} was acknowledged"
            yield Violation(Kind.OUT_OF_ORDER, words)
    last: dict[str, int] = {}
    for record in found.log:
        if record.sequence < last.get(record.client, -1) and not _was_given_up(found, record.key):
            words = f"{_name(record.key)} at {record.offset} is behind its batch {last[record.client]}"
            yield Violation(Kind.OUT_OF_ORDER, words)
        last[record.client] = max(record.sequence, last.get(record.client, -1))


def _was_given_up(found: _Found, key: Key) -> bool:
    """It was refused, with an attempt still on its way: its client went on."""
    is_refused = any(isinstance(one.answer, Refused) for one in found.attempts.get(key, ()))
    return is_refused and found.may_still_come(key)


def _check_judged(found: _Found) -> Iterator[Violation]:
    """What was said of a batch is what the log makes of it."""
    refused = found.replay.refused
    for attempt in found.history.attempts:
        name, at = _name(attempt.key), found.offsets.get(attempt.key)
        match attempt.answer:
            case Acknowledged() if at in refused:
                yield Violation(Kind.MISJUDGED, f"{name} at {at} has no effect, and {attempt.process} acknowledged it")
            case Refused(None) if at is not None and not found.may_still_come(attempt.key):
                yield Violation(Kind.REFUSED_BUT_KEPT, f"{name} at {at}, refused by {attempt.process}")
            case Refused(int(offset)) if offset != at:
                yield Violation(Kind.ELSEWHERE, f"{name} is at {at}, and {attempt.process} refused it at {offset}")
            case Refused(int(offset)) if offset not in refused:
                yield Violation(Kind.MISJUDGED, f"{name} at {at} has an effect, and {attempt.process} refused it")
            case Passed() if attempt.sequence > found.passed.get(attempt.client, -1):
                yield Violation(Kind.PASSED, f"{name} at {attempt.process}")
            case Strange(words):
                yield Violation(Kind.STRANGE, f"{name} at {attempt.process}: {words}")


def _check_reads(found: _Found) -> Iterator[Violation]:
    for read in found.history.reads:
        told = found.told_before(read.process, read.began_s)
        high = found.last_offset_at(read.ended_s)
        where = f"node {read.node} at {read.process}"
        match read.answer:
            case Seen(offset, answer):
                if offset < read.min_offset:
                    yield Violation(Kind.BEHIND, f"{where}: {offset}, asked for {read.min_offset}")
                if offset < told:
                    yield Violation(Kind.BACKWARDS, f"{where}: {offset} after {told}")
                if offset > high:
                    yield Violation(Kind.AHEAD, f"{where}: {offset}, and the log had {high}")
                yield from _check_answer(found, read, (offset, high), answer)
            case Absent():
                yield from _check_answer(found, read, (max(read.min_offset, told), high), None)
            case Strange(words):
                yield Violation(Kind.STRANGE, f"{where}: {words}")


def _check_answer(found: _Found, read: Read, offsets: tuple[int, int], answer: Answer | None) -> Iterator[Violation]:
    possible = found.replay.answers_between(read.node, *offsets)
    if not any(_are_close(answer, one) for one in possible):
        words = f"node {read.node} at {read.process}: {answer}, and from {offsets[0]} to {offsets[1]} it was {possible}"
        yield Violation(Kind.WRONG_ANSWER, words)


def _check_logs(found: _Found) -> Iterator[Violation]:
    for process, log in found.history.logs.items():
        expected = found.log[found.cut :]
        if log != expected:
            wrong = [one.offset for one, other in zip(log, expected, strict=False) if one != other]
            words = f"from {wrong[0]} on" if wrong else f"{len(log)} records, and {len(expected)} were followed"
            yield Violation(Kind.LOGS_DIFFER, f"{process}: {words}")


def _check_replicas(found: _Found) -> Iterator[Violation]:
    last = len(found.log)
    replicas = found.history.replicas
    for process, replica in replicas.items():
        if replica.offset != last:
            yield Violation(Kind.WRONG_REPLICA, f"{process} is at {replica.offset}, and the log at {last}")
        expected = {node: found.replay.last.answer(node) for node in replica.answers}
        if wrong := _different(replica.answers, expected):
            yield Violation(Kind.WRONG_REPLICA, f"{process}: nodes {wrong}")
    for (first, one), (second, other) in pairwise(replicas.items()):
        if wrong := _different(one.answers, other.answers):
            yield Violation(Kind.REPLICAS_DIFFER, f"{first} and {second}: nodes {wrong}")


def _different(some: Mapping[int, Answer | None], others: Mapping[int, Answer | None]) -> list[int]:
    nodes: Iterable[int] = {**some, **others}
    return [node for node in nodes if not _are_close(some.get(node), others.get(node))]


def _are_close(some: Answer | None, other: Answer | None) -> bool:
    if some is None or other is None:
        return some is other
    return all(abs(a - b) < CLOSE for a, b in zip(some, other, strict=True))


def _name(key: Key) -> str:
    return f"batch {key[1]} of {key[0]}"


_CHECKS: Sequence[Callable[[_Found], Iterator[Violation]]] = (
    _check_offsets,
    _check_contents,
    _check_acknowledged,
    _check_order,
    _check_judged,
    _check_reads,
    _check_logs,
    _check_replicas,
)
