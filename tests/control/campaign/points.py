"""Where a scene can be disturbed: every trouble at every moment that a run in peace has."""

from __future__ import annotations

from collections.abc import Iterator

from tests.control.campaign.play import Outcome
from tests.control.campaign.trouble import (
    CALLS,
    CRASHES,
    FAULTS,
    READ_FAULTS,
    STOPS,
    TWO_OPERATORS,
    VIEWS,
    Point,
)


def points(outcome: Outcome) -> Iterator[Point]:
    """Every single trouble of a scene that was played in peace."""
    writes = sum(outcome.calls)
    for kind in CRASHES:
        yield from (Point(kind, write) for write in range(writes))
    for kind in FAULTS:
        yield from (
            Point(kind, number) for number, is_write in enumerate(outcome.calls) if is_write or kind in READ_FAULTS
        )
    for kind in CALLS:
        yield from (Point(kind, number) for number in range(len(outcome.calls)))
    for kind in STOPS:
        yield from (Point(kind, write) for write in range(writes))
    for kind in (*VIEWS, TWO_OPERATORS):
        yield from (Point(kind, number) for number in range(outcome.changes))


def pairs(outcome: Outcome, step: int) -> Iterator[Point]:
    """Two crashes: each write with one soon after it, which is where a restart is in the midst of it."""
    writes = sum(outcome.calls)
    for kind in CRASHES:
        for number, first in enumerate(range(0, writes, step)):
            yield Point(kind, first, first + 1 + number % 5)
