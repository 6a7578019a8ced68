"""Of a campaign's cases each runs with one of five commits, and each test has some that run with every one."""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.campaigns import GROUPS, dealt, examples, left_out, share, stride, whole_or
from tools.run_tests import TURN


def cases(*sizes: int) -> list[dict[str, int]]:
    names = ("architecture", "rules", "kind")
    return [dict(zip(names, places, strict=False)) for places in itertools.product(*map(range, sizes))]


def test_a_group_has_each_value_of_each_parameter() -> None:
    made = cases(6, 10)
    groups = dealt(made)
    assert {*Counter(groups).values()} == {60 // GROUPS}
    for group, name in itertools.product(range(GROUPS), ("architecture", "rules")):
        values = {case[name] for case, of in zip(made, groups, strict=True) if of == group}
        assert values == {case[name] for case in made}


def test_parameters_that_are_given_together_count_once() -> None:
    together = [{"given": place, "expected": place} for place in range(4)]
    assert dealt(together) == [0, 1, 2, 3]


def test_a_fixture_is_made_for_one_of_its_values_and_tests_without_it_run_as_ever() -> None:
    made = cases(3, 4)
    assert dealt(made, "architecture") == [case["architecture"] for case in made]
    assert {*dealt(made, "served")} == {0}


def item(name: str, places: dict[str, int] | None, *on: str, marked: bool = True) -> Any:
    marker = SimpleNamespace(args=on) if marked else None
    spec = {} if places is None else {"callspec": SimpleNamespace(indices=places)}
    return SimpleHashed(nodeid=name, get_closest_marker=lambda _: marker, **spec)


class SimpleHashed(SimpleNamespace):
    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.nodeid)


@pytest.fixture
def items() -> list[Any]:
    return [
        *(item(f"a.py::one[{place}]", {"name": place}) for place in range(12)),
        *(item(f"a.py::two[{place}]", {"name": place}) for place in range(2)),
        *(item(f"a.py::unmarked[{place}]", {"name": place}, marked=False) for place in range(5)),
        item("a.py::alone", None),
    ]


def test_each_case_has_its_turn_and_no_test_is_left_out(items: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    ran: Counter[str] = Counter()
    for turn in range(2 * GROUPS):
        monkeypatch.setenv(TURN, str(turn))
        there = [one for one in items if one not in left_out(items)]
        ran.update(one.nodeid for one in there)
        assert {one.nodeid.partition("[")[0] for one in there} == {one.nodeid.partition("[")[0] for one in items}
    assert {one.nodeid: ran[one.nodeid] for one in items} == {
        **{f"a.py::one[{place}]": 2 for place in range(12)},
        **{f"a.py::two[{place}]": GROUPS for place in range(2)},
        **{f"a.py::unmarked[{place}]": 2 * GROUPS for place in range(5)},
        "a.py::alone": 2 * GROUPS,
    }


def test_without_a_turn_everything_runs(items: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TURN, raising=False)
    assert left_out(items) == set()
    assert (share([1, 2, 3]), stride(), examples(200), whole_or(9, 1)) == ([1, 2, 3], (0, 1), 200, 9)


def test_what_one_test_goes_through_is_shared_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    for turn in range(GROUPS):
        monkeypatch.setenv(TURN, str(turn))
        found += share(range(13))
        assert len(share([1, 2])) == 1
        assert stride() == (turn, GROUPS)
    assert sorted(found) == [*range(13)]
    assert (examples(200), examples(2), whole_or(9, 1)) == (50, 1, 1)
