"""What is compared with which commit, part by part."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.commits import Commit
from benchmarks.pairs import compute_ratio, recorded
from benchmarks.regression import regression, regression_steps
from benchmarks.regression.regression import (
    BASELINE,
    BENCHMARK,
    FIRST,
    FIRST_BASELINE,
    OPERATOR,
    SERVING,
    Turns,
    allowed_of,
)
from benchmarks.regression.regression_costs import read_decisions
from benchmarks.regression.regression_counts import count_rows
from benchmarks.regression.regression_steps import StepTimes, measure_steps, median_steps, step_rows
from benchmarks.results import Run


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


class Checkouts:
    """Commits without a checkout, and servers that take one second for everything."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.old: list[str] = []
        monkeypatch.setattr(regression, "check_out", self.check_out)
        monkeypatch.setattr(regression, "publish", lambda *_: None)
        monkeypatch.setattr(regression, "measure_serving", self.measure_serving)
        monkeypatch.setattr(
            regression, "measure_operator", lambda *_: lambda _: {"operator beside 50 services, bytes": 1.0}
        )

    def check_out(self, name: str, commit: str) -> Commit:
        if name == "old":
            self.old.append(commit)
        return Commit(name, commit, Path(name))

    def measure_serving(self, _subject: Any, _seconds: int, wanted: Sequence[Any], *, starts: bool) -> Any:
        costs = {cost.figure: 1.0 for cost in wanted} | ({"second start, s": 1.0} if starts else {})
        return lambda order: {commit.name: costs for commit in order}


def run_part(name: str, base: str = BASELINE) -> dict[str, Any]:
    (part,) = (part for part in BENCHMARK.parts if part.name == name)
    found = part.run(Run(False, argparse.Namespace(base=base, pairs=10), Path()))
    assert found is not None
    return dict(found)


def test_over_the_first_baseline_only_one_seed_and_32_connections_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    checkouts = Checkouts(monkeypatch)
    found = run_part("arxiv-first", base="another")
    assert checkouts.old == [FIRST_BASELINE]
    assert list(found["ratios"]) == [
        "arxiv: one seed, p50 ms, over 4c3f189",
        "arxiv: 32 connections, ms per request, over 4c3f189",
    ]
    for part in ("arxiv-http", "operator", "decisions"):
        with pytest.raises(SystemExit, match="ONLY=arxiv-first,reddit-first"):
            run_part(part, base=FIRST_BASELINE)


def test_other_parts_are_over_the_baseline_unless_a_base_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    checkouts = Checkouts(monkeypatch)
    found = run_part("reddit-http")
    assert set(found["ratios"]) == {
        "reddit: second start, s", "reddit: one seed, p50 ms", "reddit: 32 connections, ms per request",
        "reddit: 1024 seeds over HTTP, p50 ms",
    }  # fmt: skip
    assert set(run_part("reddit-http", base="abc")["bases"].values()) == {"abc"}
    assert checkouts.old == [BASELINE, "abc"]


def test_memory_of_operators_is_compared_in_ten_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    Checkouts(monkeypatch)
    assert run_part("operator")["pairs"] == {"operator beside 50 services, bytes": 10}


def test_what_is_allowed_of_a_figure_is_a_constant_of_its_kind() -> None:
    assert allowed_of("reddit: one seed, p50 ms") is SERVING
    assert allowed_of("reddit: one seed, p50 ms, over 4c3f189") is FIRST
    assert allowed_of("operator beside 50 services, bytes") is OPERATOR
    with pytest.raises(LookupError):
        allowed_of("something else")


def test_a_figure_that_is_worse_fails() -> None:
    for new, passed in ((1.0, True), (1.2, False)):
        costs = {"arxiv: second start, s": [(1.0, new)] * 10, "arxiv: one seed, p50 ms": [(1.0, 1.0)] * 10}
        ratios = {figure: compute_ratio(pairs) for figure, pairs in costs.items()}
        judged = BENCHMARK.judged(recorded(ratios, costs, allowed_of))
        assert {name: one["passed"] for name, one in judged.items()} == {
            "arxiv: second start, s": passed, "arxiv: one seed, p50 ms": True
        }  # fmt: skip


def test_counts_are_judged_by_figures_of_their_own_or_by_the_commit_before() -> None:
    def counts(own: float, of_many: float, opened: int) -> dict[str, Any]:
        calls = {"modules": 20, "others": 112.0, "elsewhere": {}}
        cases = {"JSON, one node": {"own": own, **calls}, "JSON, 32 nodes": {"own": of_many, **calls}}
        return {"calls": cases, "opened": {"request": opened, "generation": 60}}

    for new, missed in (
        (counts(90, 130, 25), set()),
        (counts(90.1, 130, 25), {"JSON, one node: own calls"}),
        (counts(90, 130.1, 26), {"JSON, 32 nodes: own calls", "modules opened for a request"}),
    ):
        found = {"head": "new", "counted_base": "old", "counts": {"old": counts(150, 130, 50), "new": new}}
        assert {name for name, one in BENCHMARK.judged(found).items() if not one["passed"]} == missed
        assert ("JSON, 32 nodes: own calls", "130", f"{new['calls']['JSON, 32 nodes']['own']:g}") in [
            *count_rows(found["counts"])
        ]


def test_decisions_are_read_of_commits_before_results_had_parts_and_after(tmp_path: Path) -> None:
    cases = [{"name": "1 class", "decision_p50_us": 4.0}]
    (tmp_path / "decision.json").write_text(json.dumps({"cases": cases}))
    assert read_decisions(tmp_path) == cases
    newer = [{"name": "1 class", "decision_p50_us": 3.0}]
    (tmp_path / "decision.quick.json").write_text(json.dumps({"parts": {"all": {"found": {"cases": newer}}}}))
    assert read_decisions(tmp_path) == newer


def test_seconds_of_a_generation_are_those_of_all_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Commit("old", "", Path("old")), Commit("new", "", Path("new"))
    steps = {"old": {"train": 2.0, "tables": 1.0}, "new": {"learn": 1.5, "tables": 1.0}}
    monkeypatch.setattr(regression_steps, "time_steps", lambda _manifest, folder: steps[folder.name])
    taken: StepTimes = {}
    measured = measure_steps(Path("shop.yaml"), taken)
    assert measured(both) == {"old": {"generation of shop": 3.0}, "new": {"generation of shop": 2.5}}
    measured(both[::-1])
    found = median_steps(taken, warm_up_pairs=1)
    assert list(step_rows({"shop": found})) == [
        ("shop: train", "2.00 s", "–"), ("shop: tables", "1.00 s", "1.00 s"), ("shop: learn", "–", "1.50 s")
    ]  # fmt: skip
