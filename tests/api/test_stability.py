"""How alike rankings of different seeds are."""

from __future__ import annotations

import random

import msgspec
import pytest
from tests.support.profiles import revision_manifest

from gnnserve_api.files.provenance import provenance_of
from gnnserve_api.files.repository import RankingRun
from gnnserve_api.files.stability import rank_correlation, rank_stability


def test_equal_rankings_have_all_in_common() -> None:
    order = list(range(8))
    found = rank_stability(order, [(1, order), (2, order)], [8, 4, 2])
    assert found is not None
    assert found.seeds == (1, 2)
    assert found.rank_correlation == 1
    # All columns are no choice.
    assert [(top.columns, top.in_common, top.jaccard, top.in_every) for top in found.top] == [
        (2, 1, 1, 2),
        (4, 1, 1, 4),
    ]
    assert [top.by_chance for top in found.top] == [0.25, 0.5]


def test_what_is_in_common_is_counted_over_all_pairs() -> None:
    found = rank_stability([0, 1, 2, 3], [(1, [0, 2, 1, 3]), (2, [3, 2, 1, 0])], [2])
    assert found is not None
    # {0, 1}, {0, 2}, {3, 2}: pairs have 1, 0 and 1 in common.
    assert found.top[0].in_common == pytest.approx(1 / 3)
    assert found.top[0].least_in_common == 0
    assert found.top[0].jaccard == pytest.approx((1 / 3 + 0 + 1 / 3) / 3)
    assert found.top[0].in_every == 0


def test_a_reversed_order_is_correlated_to_minus_one() -> None:
    assert rank_correlation([0, 1, 2, 3], [3, 2, 1, 0]) == -1
    assert rank_correlation([0, 1, 2, 3], [0, 1, 3, 2]) == pytest.approx(0.8)
    assert rank_correlation([7], [7]) == 1


def test_random_orders_agree_by_chance() -> None:
    draw = random.Random(0)  # noqa: S311
    orders = [(seed, draw.sample(range(400), 400)) for seed in range(6)]
    found = rank_stability(orders[0][1], orders[1:], [100])
    assert found is not None
    assert abs(found.rank_correlation) < 0.1
    assert found.top[0].in_common == pytest.approx(found.top[0].by_chance, abs=0.06)


def test_without_other_rankings_there_is_nothing_to_tell() -> None:
    assert rank_stability([0, 1], [], [1]) is None


def test_provenance_compares_the_widths_that_are_served() -> None:
    manifest = revision_manifest()
    assert provenance_of(manifest, "builtin Digits", 24_680, 1078).stability is None
    others = (RankingRun(seed=1, columns=tuple(reversed(manifest.ranking.columns))),)
    ranked = msgspec.structs.replace(manifest, ranking=msgspec.structs.replace(manifest.ranking, others=others))
    made = provenance_of(ranked, "builtin Digits", 24_680, 1078)
    assert made.stability is not None
    assert [top.columns for top in made.stability.top] == [4, 8, 16, 32]
    assert made.stability.rank_correlation == -1
    assert (made.source, made.edges, made.train_nodes, made.ranking_method) == ("builtin Digits", 24_680, 1078, "Lasso")
