"""Latency under accuracy tolerance, tiers and widths, on the paper's own tables 2 and 3 (Lasso ranking)."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnserve_api.tiers import Point, frontier, most_accurate, stated_tiers, tiers
from gnnserve_cli.report.tolerance import (
    Width,
    WidthCurve,
    factor_for,
    fastest_within,
    fit_affine,
)

SAGE = {
    "Flickr": [(50.44, 14.87), (49.81, 8.58), (49.52, 4.19), (48.44, 2.78)],
    "Arxiv": [(69.40, 4.42), (67.29, 3.07), (65.67, 2.23), (59.93, 1.93)],
    "Reddit": [(94.42, 51.86), (94.27, 28.03), (94.68, 15.69), (93.30, 9.50)],
    "Yelp": [(63.32, 15.66), (61.33, 8.82), (58.82, 4.57), (56.37, 3.32)],
    "Products": [(72.43, 12.40), (71.60, 6.31), (68.57, 4.59), (63.58, 3.60)],
}
GIN_REDDIT = [(91.59, 43.69), (89.45, 24.46), (93.88, 13.65), (93.26, 8.28)]
REDDIT_COLUMNS = (602, 301, 150, 75)
TOLERANCES = (0, 1, 2, 5, 10)


def points(table: list[tuple[float, float]]) -> list[Point]:
    return [Point(f"x{factor}", *cell) for factor, cell in zip((1, 2, 4, 8), table, strict=True)]


@pytest.mark.parametrize(
    ("data_set", "answers"),
    [
        ("Flickr", [("x1", 100), ("x4", 28), ("x8", 19), ("x8", 19), ("x8", 19)]),
        ("Arxiv", [("x1", 100), ("x1", 100), ("x1", 100), ("x4", 50), ("x8", 44)]),
        ("Reddit", [("x4", 100), ("x4", 100), ("x8", 61), ("x8", 61), ("x8", 61)]),
        ("Yelp", [("x1", 100), ("x1", 100), ("x2", 56), ("x4", 29), ("x8", 21)]),
        ("Products", [("x1", 100), ("x2", 51), ("x2", 51), ("x4", 37), ("x8", 29)]),
    ],
)
def test_latency_under_tolerance_of_the_papers_table(data_set: str, answers: list[tuple[str, int]]) -> None:
    found = [fastest_within(points(SAGE[data_set]), tolerance) for tolerance in TOLERANCES]
    assert [(within.point.name, round(100 * within.relative_latency)) for within in found] == answers


def test_a_tolerance_is_inclusive_in_spite_of_floats() -> None:
    assert 0.93 - 0.91 > 0.02
    assert fastest_within([Point("x1", 0.93, 2.0), Point("x8", 0.91, 1.0)], 0.02).point.name == "x8"
    assert fastest_within(points(SAGE["Flickr"]), 2).point.name == "x8"
    assert fastest_within(points(SAGE["Flickr"]), 1.99).point.name == "x4"


def test_accuracy_need_not_fall_with_columns() -> None:
    gin = points(GIN_REDDIT)
    assert most_accurate(gin).name == "x4"
    assert [point.name for point in frontier(gin)] == ["x4", "x8"]
    assert [(tier.point.name, round(tier.tolerance, 2), round(tier.relative_latency, 2)) for tier in tiers(gin)] == [
        ("x4", 0.0, 1.0),
        ("x8", 0.62, 0.61),
    ]


@pytest.mark.parametrize(
    ("data_set", "expected"),
    [
        ("Flickr", [("x1", 0.0), ("x2", 0.63), ("x4", 0.92), ("x8", 2.0)]),
        ("Reddit", [("x4", 0.0), ("x8", 1.38)]),
        ("Products", [("x1", 0.0), ("x2", 0.83), ("x4", 3.86), ("x8", 8.85)]),
    ],
)
def test_tiers_are_where_the_answer_changes(data_set: str, expected: list[tuple[str, float]]) -> None:
    assert [(tier.point.name, round(tier.tolerance, 2)) for tier in tiers(points(SAGE[data_set]))] == expected


def test_of_equally_accurate_variants_the_fastest_is_the_baseline() -> None:
    alike = [Point("slow", 0.9, 2.0), Point("fast", 0.9, 1.0), Point("fastest", 0.8, 0.5)]
    assert most_accurate(alike).name == "fast"
    assert [point.name for point in frontier(alike)] == ["fast", "fastest"]
    assert fastest_within(alike, 0).relative_latency == 1


def test_a_single_variant_is_every_answer() -> None:
    only = [Point("x1", 0.9, 2.0)]
    assert [tier.point.name for tier in tiers(only)] == ["x1"]
    assert fastest_within(only, 100).point.name == "x1"


_POINTS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 20)).map(lambda pair: (pair[0] / 20, pair[1] / 10)),
    min_size=1,
    max_size=12,
).map(lambda cells: [Point(f"v{i}", *cell) for i, cell in enumerate(cells)])


@given(_POINTS)
def test_tiers_never_repeat_a_variant_and_answer_as_their_tolerance_does(given_points: list[Point]) -> None:
    found = tiers(given_points)
    assert len({tier.point.name for tier in found}) == len(found) <= len(given_points)
    for tier in found:
        answer = fastest_within(given_points, tier.tolerance).point
        assert (answer.latency_ms, answer.accuracy) == (tier.point.latency_ms, tier.point.accuracy)
    # Between two tiers nothing changes.
    for tier, following in pairwise(found):
        between = fastest_within(given_points, (tier.tolerance + following.tolerance) / 2)
        assert between.point.latency_ms == tier.point.latency_ms


@given(_POINTS)
def test_nothing_on_the_frontier_is_beaten_and_everything_else_is(given_points: list[Point]) -> None:
    kept = {point.name for point in frontier(given_points)}
    for point in given_points:
        beaten = any(
            other.accuracy >= point.accuracy
            and other.latency_ms <= point.latency_ms
            and (other.accuracy, other.latency_ms) != (point.accuracy, point.latency_ms)
            for other in given_points
        )
        assert not (point.name in kept and beaten)
        if not beaten and point.name not in kept:
            twins = [p.name for p in given_points if (p.accuracy, p.latency_ms) == (point.accuracy, point.latency_ms)]
            assert kept & set(twins)


# --- widths


def reddit() -> list[Width]:
    return [Width(columns, ms) for columns, (_, ms) in zip(REDDIT_COLUMNS, SAGE["Reddit"], strict=True)]


def test_a_left_out_variant_of_the_paper_is_predicted_within_a_percent() -> None:
    errors = dict(WidthCurve(reddit()).left_out_errors())
    assert set(errors) == {150, 301}
    assert max(abs(error) for error in errors.values()) < 0.01


def test_latency_is_affine_in_columns_rather_than_proportional() -> None:
    affine = fit_affine(reddit())
    assert affine.fixed_ms == pytest.approx(3.63, abs=0.01)
    assert 1e3 * affine.per_column_ms == pytest.approx(80.3, abs=0.1)
    assert affine.at(602) == pytest.approx(51.86, rel=0.02)


def test_the_most_columns_for_a_latency() -> None:
    curve = WidthCurve(reddit())
    found = curve.columns_within(20)
    assert found is not None
    assert (found.columns, found.extrapolated) == (202, False)
    assert curve.at(202) <= 20 < curve.at(203)
    below = curve.columns_within(5)
    assert below is not None
    assert below.extrapolated
    assert curve.columns_within(1000).columns == 602  # type: ignore[union-attr]
    assert curve.columns_within(2) is None


def test_noise_does_not_make_wider_variants_faster() -> None:
    curve = WidthCurve([Width(10, 1.0), Width(20, 3.0), Width(40, 2.0), Width(80, 4.0)])
    assert [curve.at(columns) for columns in (10, 20, 40, 80)] == [1.0, 2.5, 2.5, 4.0]


def test_a_left_out_variant_is_predicted_from_what_was_measured_and_held_against_it() -> None:
    """20 and 40 columns are pooled to 2.5 ms, which would tell each of them about the other."""
    errors = list(WidthCurve([Width(10, 1.0), Width(20, 3.0), Width(40, 2.0), Width(80, 4.0)]).left_out_errors())
    assert errors == [(20, pytest.approx((1 + 1 / 3) / 3 - 1)), (40, pytest.approx((3 + 1 / 3) / 2 - 1))]


def test_times_that_fall_with_columns_are_not_predicted_without_error() -> None:
    curve = WidthCurve([Width(10, 4.0), Width(20, 3.0), Width(40, 2.0), Width(80, 1.0)])
    assert [width.latency_ms for width in curve.widths] == [2.5] * 4
    assert min(abs(error) for _, error in curve.left_out_errors()) > 0.1


def test_of_variants_with_equal_columns_both_are_left_out() -> None:
    curve = WidthCurve([Width(10, 1.0), Width(20, 2.0), Width(20, 4.0), Width(40, 4.0)])
    assert list(curve.left_out_errors()) == [(20, pytest.approx(2 / 2 - 1)), (20, pytest.approx(2 / 4 - 1))]


def test_the_widest_that_was_measured_is_no_limit_of_what_fits() -> None:
    curve = WidthCurve([Width(10, 1.0), Width(20, 2.0)])
    assert [curve.columns_within(ms).capped for ms in (1000, 2.0, 1.9)] == [True, True, False]  # type: ignore[union-attr]


def test_equal_times_at_every_width_are_no_reason_to_prune() -> None:
    curve = WidthCurve([Width(10, 1.0), Width(20, 1.0)])
    assert curve.affine.per_column_ms == 0
    assert curve.columns_within(1.0).columns == 20  # type: ignore[union-attr]
    assert curve.columns_within(0.9) is None


def test_a_curve_needs_two_widths() -> None:
    with pytest.raises(ValueError, match="two measured widths"):
        WidthCurve([Width(10, 1.0), Width(10, 1.1)])


@given(st.lists(st.tuples(st.integers(1, 100), st.floats(0.01, 10)), min_size=2, max_size=8, unique_by=lambda w: w[0]))
def test_a_curve_never_falls_with_columns(cells: list[tuple[int, float]]) -> None:
    curve = WidthCurve([Width(*cell) for cell in cells])
    at = [curve.at(columns) for columns in range(121)]
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(at))


def test_stated_tiers_are_rounded_up_and_of_two_on_one_permille_the_faster_answers() -> None:
    points = [Point("a", 0.9, 4.0), Point("b", 0.8993, 3.0), Point("c", 0.8991, 2.0), Point("d", 0.85, 1.0)]
    assert [(at, within.point.name) for at, within in stated_tiers(points).items()] == [(0, "a"), (1, "c"), (50, "d")]


def test_the_factor_is_the_smallest_that_reads_no_more() -> None:
    draw = random.Random(1)  # noqa: S311
    for _ in range(200):
        features = draw.randrange(1, 700)
        columns = draw.randrange(1, features + 1)
        factor = factor_for(features, columns)
        assert features // factor <= columns
        assert factor == 1 or features // (factor - 1) > columns
