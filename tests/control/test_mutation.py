"""The guards of `mutation.py` are where it looks for them; that tests miss them is `make bench-faults`."""

from __future__ import annotations

import pytest
from tests.control.mutation import GUARDS, Guard, count_places, judge


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_a_guard_is_in_exactly_one_place(guard: Guard) -> None:
    assert count_places(guard) == 1


def test_no_guard_is_named_twice() -> None:
    assert len({guard.name for guard in GUARDS}) == len(GUARDS)


def test_a_guard_that_is_taken_away_is_noticed_in_the_copy_by_the_test_that_is_to_notice() -> None:
    """One whose test is of the campaign, which imports most."""
    (guard,) = (guard for guard in GUARDS if guard.name == "what the API server refuses is told")
    assert judge(guard).by == guard.caught_by
