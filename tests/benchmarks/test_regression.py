"""When a commit counts as slower than another one: not by chance, and by more than the limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.commits import Commit
from benchmarks.regression import Turns, compute_ratio


@pytest.mark.parametrize(
    ("pairs", "passed"),
    [
        pytest.param([(1.0, 1.0)] * 10, True, id="alike"),
        pytest.param([(1.0, 1.1)] * 10, False, id="slower in every pair"),
        pytest.param([(1.0, 1.02)] * 10, True, id="slower within the limit"),
        pytest.param([(1.0, 0.7), (1.0, 1.6)] * 5, True, id="slower by chance"),
        pytest.param([(2.0, 1.0)] * 10, True, id="faster"),
    ],
)
def test_a_ratio_fails_where_even_the_lower_end_of_its_interval_is_above_the_limit(
    pairs: list[tuple[float, float]], passed: bool
) -> None:
    assert compute_ratio(pairs, limit=1.03).passed is passed


def test_the_ratio_of_pairs_is_their_geometric_mean_within_its_interval() -> None:
    found = compute_ratio([(1.0, 2.0), (1.0, 0.5), (1.0, 1.0)], limit=1.03)
    assert found.ratio == 1.0
    assert found.low < 1 < found.high
    assert found.low * found.high == pytest.approx(1.0, abs=1e-3)


def test_processes_of_a_commit_keep_their_bytecode_as_installed_packages_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    variables = Commit("new", "new", Path("/tree")).variables
    assert "PYTHONDONTWRITEBYTECODE" not in variables
    assert variables["PYTHONPATH"].startswith("/tree:/tree/operator:")


def test_every_other_pair_begins_with_the_new_commit_and_pairs_that_warm_up_do_not_count() -> None:
    old, new = (Commit(name, name, Path(name)) for name in ("old", "new"))
    costs: dict[str, list[tuple[float, float]]] = {}
    begun_with: list[str] = []

    def measure(order: Sequence[Commit]) -> dict[str, dict[str, float]]:
        begun_with.append(order[0].name)
        return {commit.name: {"start, s": len(begun_with) + (commit is new)} for commit in order}

    Turns(costs, (old, new), "arxiv: ", warm_up_pairs=1).take(2, measure)
    assert begun_with == ["new", "old", "new"]
    assert costs == {"arxiv: start, s": [(2, 3), (3, 4)]}
