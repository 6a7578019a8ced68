"""When a cost counts as worse: by more than is allowed, and not by chance, which excuses no more than was stated."""

from __future__ import annotations

import pytest
from benchmarks.pairs import Allowed, Ratio, compute_ratio, read_ratio, recorded, verdict_of
from benchmarks.verdicts import judge

ALLOWED = Allowed(loss=0.03, noise=0.05)


@pytest.mark.parametrize(
    ("pairs", "passed"),
    [
        pytest.param([(1.0, 1.0)] * 10, True, id="alike"),
        pytest.param([(1.0, 1.1)] * 10, False, id="slower in every pair"),
        pytest.param([(1.0, 1.02)] * 10, True, id="slower within what is allowed"),
        pytest.param([(1.0, 0.7), (1.0, 1.6)] * 5, True, id="slower by chance"),
        pytest.param([(1.0, 0.8), (1.0, 1.8)] * 5, False, id="so noisy that much slower may be chance"),
        pytest.param([(2.0, 1.0)] * 10, True, id="faster"),
    ],
)
def test_a_ratio_is_worse_where_the_lower_end_that_noise_may_excuse_is_above_what_is_allowed(
    pairs: list[tuple[float, float]], passed: bool
) -> None:
    assert ALLOWED.accepts(compute_ratio(pairs)) is passed


def test_without_allowed_noise_the_ratio_itself_counts() -> None:
    assert not Allowed(loss=0.3).accepts(Ratio(1.31, 1.0, 1.6, 10))
    assert Allowed(loss=0.3).accepts(Ratio(1.29, 1.0, 1.6, 10))


def test_the_ratio_of_pairs_is_their_geometric_mean_within_its_interval() -> None:
    found = compute_ratio([(1.0, 2.0), (1.0, 0.5), (1.0, 1.0)])
    assert found.ratio == 1.0
    assert found.low < 1 < found.high
    assert found.low * found.high == pytest.approx(1.0, abs=1e-3)


def test_what_is_recorded_is_read_again_and_says_what_was_allowed() -> None:
    costs = {"start, s": [(1.0, 1.1)] * 10}
    found = recorded({name: compute_ratio(pairs) for name, pairs in costs.items()}, costs, lambda _: ALLOWED)
    assert found["allowed"] == {"start, s": {"loss": 0.03, "noise": 0.05}}
    assert read_ratio(found, "start, s") == compute_ratio(costs["start, s"])
    (judged,) = judge([verdict_of("start, s", ALLOWED, lambda all_: read_ratio(all_, "start, s"))], found).values()
    assert judged["passed"] is False
    assert judged["wanted"].startswith("at most 1.03 at the lower end of the 95 % interval, or 5 % below the ratio")
