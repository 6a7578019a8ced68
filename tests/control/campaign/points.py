"""Where a scene can be disturbed: every trouble at every moment that a run in peace has.

An operator that waits asks the same again and again while nothing changes. Such a request is disturbed the first two
times and the last time; the times between them differ from the second in nothing but the clock. Without this, half of
all points were polls of a few scenes that wait for long. What begins between two steps does so after the last of the
changes that one step brings: after the others it would be the same run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.control.campaign.play import Outcome
from tests.control.campaign.trouble import (
    CALLS,
    CRASHES,
    FAULTS,
    ON_STEP,
    READ_FAULTS,
    STOPS,
    VIEWS,
    Point,
)
from tests.control.campaign.world import Call


def points(outcome: Outcome) -> Iterator[Point]:
    """Every single trouble of a scene that was played in peace."""
    calls, writes = outcome.calls, _writes(outcome)
    disturbed = without_polls(calls)
    for kind in CRASHES:
        yield from (Point(kind, write) for write in range(writes))
    for kind in FAULTS:
        yield from (Point(kind, number) for number in disturbed if calls[number].is_write or kind in READ_FAULTS)
    for kind in CALLS:
        yield from (Point(kind, number) for number in disturbed)
    for kind in STOPS:
        yield from (Point(kind, write) for write in range(writes))
    for kind in VIEWS:
        if kind not in ON_STEP:
            yield from (Point(kind, number) for number in range(outcome.seen))
    for kind in ON_STEP:
        yield from (Point(kind, length - 1) for length in outcome.looks if length)


def pairs(outcome: Outcome, step: int) -> Iterator[Point]:
    """Two crashes: each write with one soon after it, which is where a restart is in the midst of it."""
    writes = _writes(outcome)
    for kind in CRASHES:
        for number, first in enumerate(range(0, writes, step)):
            yield Point(kind, first, first + 1 + number % 5)


def _writes(outcome: Outcome) -> int:
    return sum(call.is_write for call in outcome.calls)


def without_polls(calls: Sequence[Call]) -> list[int]:
    """The calls by number, without those between the second and the last of equal ones at one state of the cluster."""
    times: dict[Call, list[int]] = defaultdict(list)
    for number, call in enumerate(calls):
        times[call].append(number)
    return sorted(number for numbers in times.values() for number in {*numbers[:2], numbers[-1]})
