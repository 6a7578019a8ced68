"""Campaigns: tests of many cases that are alike, of which `make test` runs a share, another one with each commit.

`make test` says whose turn it is: GNNSERVE_TURN, the number of commits (`tools/run_tests.py`). Without it all cases
run: in `make test-campaigns`, and wherever pytest is called by hand. tests/README.md says what each campaign protects.

A test is one by `@pytest.mark.campaign`: its cases are dealt out to `GROUPS` groups, or as many as there can be, of
which one runs. A case is dealt by the sum of its parameters' places, so that a group has each value of each parameter
as often as any other; by `campaign("name")` by that parameter alone, for fixtures that are costly to make for each of
its values (in a file's `pytestmark`, tests without it run as ever). A test without parameters runs each time, and takes
its share of what it goes through by `share`, `stride`, `examples` or `whole_or`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import pytest
from tools.run_tests import TURN

MARK = "campaign"
GROUPS = 5
"""Odd: versions of what the GPU's code imports change with even and odd numbers of commits."""
T = TypeVar("T")


def turn() -> int | None:
    """Number of the group that runs, counted round whatever the number of groups; None: all of them run."""
    told = os.environ.get(TURN)
    return int(told) if told else None


def share(items: Sequence[T], groups: int = GROUPS) -> list[T]:
    """The items whose turn it is: of so many groups those of one, at least one item."""
    first, step = stride(min(groups, len(items)))
    return list(items[first::step])


def stride(groups: int = GROUPS) -> tuple[int, int]:
    """Number of the first step to try of a long series, and how many to go on by."""
    now = turn()
    return (0, 1) if now is None else (now % groups, groups)


def examples(whole: int) -> int:
    """Examples of hypothesis for a test that says how many. One that does not has fewer too (`tests/conftest.py`)."""
    return whole_or(whole, max(whole // 4, 1))


def whole_or(whole: T, sample: T) -> T:
    """How much of one thing is tried: all of it, or so much as a sample."""
    return whole if turn() is None else sample


def left_out(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Cases whose turn it is not."""
    now = turn()
    if now is None:
        return set()
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker(MARK) is not None:
            tests[item.nodeid.partition("[")[0]].append(item)
    return {item for cases in tests.values() for item in _left_out_of_one(cases, now)}


def dealt(cases: Sequence[Mapping[str, int]], *on: str) -> list[int]:
    """The group of each case, by the places of its parameters among their values: of those `on`, or of all of them.
    Parameters that are given together have the same places and count once."""
    names = [name for name in cases[0] if name in on] if on else list(cases[0])
    columns = {tuple(case[name] for case in cases) for name in names}
    return [sum(column[number] for column in columns) % GROUPS for number in range(len(cases))]


def _left_out_of_one(cases: Sequence[pytest.Item], now: int) -> Iterable[pytest.Item]:
    mark = cases[0].get_closest_marker(MARK)
    assert mark is not None
    specs = [getattr(case, "callspec", None) for case in cases]
    groups = dealt([{} if spec is None else spec.indices for spec in specs], *mark.args)
    there = sorted(set(groups))
    chosen = there[now % len(there)]
    return (case for case, group in zip(cases, groups, strict=True) if group != chosen)
