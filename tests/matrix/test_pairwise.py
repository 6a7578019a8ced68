"""The cover of pairs and triples that the matrix is tested by."""

from __future__ import annotations

from itertools import combinations

import pytest
from tests.support.pairwise import pairwise_cover


def of_sets(sets: list[tuple[int, ...]]) -> set[tuple[int, int]]:
    return {pair for one in sets for pair in combinations(one, 2)}


def test_what_all_goes_together_is_one_set() -> None:
    assert pairwise_cover(range(9), lambda _: True) == [tuple(range(9))]


def test_what_goes_with_nothing_is_in_no_set() -> None:
    assert pairwise_cover(range(9), lambda _: False) == []


@pytest.mark.parametrize("seed", range(20))
def test_every_pair_that_goes_together_is_in_a_set_and_no_set_has_another(seed: int) -> None:
    apart = {pair for pair in combinations(range(12), 2) if hash((seed, pair)) % 4 == 0}

    def go_together(chosen: tuple[int, ...]) -> bool:
        return not apart & {*combinations(chosen, 2)}

    sets = pairwise_cover(range(12), go_together)
    assert of_sets(sets) == {*combinations(range(12), 2)} - apart
    assert len(sets) <= len(of_sets(sets)) / 3


def test_three_that_go_together_two_by_two_alone_are_three_sets() -> None:
    assert pairwise_cover("abc", lambda chosen: len(chosen) < 3) == [("a", "b"), ("a", "c"), ("b", "c")]


@pytest.mark.parametrize("seed", range(20))
def test_every_triple_that_goes_together_is_in_a_set_with_every_pair(seed: int) -> None:
    def go_together(chosen: tuple[int, ...]) -> bool:
        return all(hash((seed, pair)) % 4 for pair in combinations(chosen, 2))

    triples = [triple for triple in combinations(range(12), 3) if hash((seed, triple)) % 5 == 0]
    sets = pairwise_cover(range(12), go_together, triples)
    for wanted in filter(go_together, (*combinations(range(12), 2), *triples)):
        assert any({*wanted} <= {*one} for one in sets), wanted
    assert all(map(go_together, sets))


def test_two_of_three_that_are_wanted_together_draw_the_third() -> None:
    """All pairs are in the first set already, which the third does not go with."""
    sets = pairwise_cover("abcd", lambda chosen: {*chosen} != {*"abcd"}, [("a", "b", "d")])
    assert [*"abd"] in [[*one] for one in sets]
