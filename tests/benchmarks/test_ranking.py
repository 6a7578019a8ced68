"""The ranking study: rows over seeds, its cache, and how the paper's findings are judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.accuracy.ranking import FACTORS, METHODS, STUDIES, Job, Progress, ResultCache, rows_of
from benchmarks.accuracy.ranking_findings import judge_findings
from benchmarks.accuracy.ranking_picture import draw_picture

POINTS = {"Random": (90.0, 89.8, 89.6, 89.0), "Greedy": (90.0, 89.9, 89.7, 89.1), "Lasso": (90.0, 89.9, 89.8, 89.2)}
"""At 1x, 2x, 4x and 8x: the quiet case, where little depends on the ranking."""


def rows(
    graph: str, points: dict[str, tuple[float, ...]], *, features: int = 700, spread: float = 1.0, wobble: float = 0.0
) -> list[dict[str, Any]]:
    """`wobble`: points by which seeds differ, Random's the other way."""
    results = [
        {
            "graph": graph, "model": "GIN", "seed": seed, "judged_by": "accuracy", "features": features,
            "deviation_spread": spread,
            "variants": [
                {
                    "method": method, "factor": factor, "columns": features // factor, "roc_auc": None,
                    "accuracy": (value + (seed - 1) * wobble * (-1 if method == "Random" else 1)) / 100,
                }
                for method in METHODS for factor, value in zip((1, *FACTORS), points[method], strict=True)
            ],
        }
        for seed in range(3)
    ]  # fmt: skip
    return rows_of(results)


def verdict(number: int, *measured: list[dict[str, Any]]) -> str:
    found = judge_findings([row for part in measured for row in part])[number]
    return str(found["verdict"])


def at(factor: int, **changed: float) -> dict[str, tuple[float, ...]]:
    """The quiet case with other points of some methods at one factor."""
    place = (1, *FACTORS).index(factor)
    return {
        method: (*values[:place], changed.get(method.lower(), values[place]), *values[place + 1 :])
        for method, values in POINTS.items()
    }


def test_a_row_is_the_mean_over_seeds_with_its_95_percent_interval() -> None:
    row = next(row for row in rows("g", POINTS, wobble=1.0) if (row["method"], row["factor"]) == ("Lasso", 4))
    assert row["accuracy_mean"] == pytest.approx(0.898)
    assert row["accuracy_values"] == pytest.approx([0.888, 0.898, 0.908])
    # t(0.975, 2 degrees of freedom) · 0.01 / √3
    assert row["accuracy_interval"] == pytest.approx([0.898 - 0.02484, 0.898 + 0.02484], abs=1e-5)
    assert (row["seeds"], row["columns"]) == (3, 175)


def test_one_seed_has_no_interval() -> None:
    result = {
        "graph": "g", "model": "GIN", "seed": 0, "judged_by": "rocAuc", "features": 8, "deviation_spread": 1.0,
        "variants": [{"method": "Random", "factor": 2, "columns": 4, "accuracy": 0.5, "roc_auc": 0.75}],
    }  # fmt: skip
    (row,) = rows_of([result])
    assert (row["accuracy_interval"], row["roc_auc_mean"], row["roc_auc_interval"]) == (None, 0.75, None)


@pytest.mark.parametrize(
    ("points", "wanted"),
    [(POINTS, "holds"), (at(4, random=88.0), "does not hold")],
    ids=["all within a point", "Random two points behind"],
)
def test_differences_are_negligible(points: dict[str, tuple[float, ...]], wanted: str) -> None:
    assert verdict(0, rows("a", points)) == wanted


def test_differences_are_partly_negligible_where_a_minority_of_cells_is() -> None:
    apart = at(4, random=88.0)
    assert verdict(0, rows("a", POINTS), rows("b", apart), rows("c", apart)) == "partly"


@pytest.mark.parametrize(
    ("points", "wanted"),
    [(at(4, random=89.8), "holds"), (at(4, random=89.75), "partly"), (POINTS, "does not hold")],
    ids=["as good as both", "better than Greedy", "behind both"],
)
def test_random_is_sometimes_as_good(points: dict[str, tuple[float, ...]], wanted: str) -> None:
    assert verdict(1, rows("a", points), rows("b", POINTS)) == wanted


@pytest.mark.parametrize(
    ("points", "wobble", "wanted"),
    [(at(4, lasso=91.0), 0.1, "holds"), (at(4, lasso=91.0), 2.0, "partly"), (POINTS, 0.0, "does not hold")],
    ids=["with every seed", "not with every seed", "nowhere"],
)
def test_informed_rankings_gain_a_point(points: dict[str, tuple[float, ...]], wobble: float, wanted: str) -> None:
    assert verdict(2, rows("a", points, wobble=wobble), rows("b", POINTS)) == wanted


@pytest.mark.parametrize(
    ("points", "wanted"),
    [
        (at(4, greedy=85.0), "holds"),
        (at(4, greedy=88.0, lasso=89.0), "partly"),
        (at(4, lasso=85.0), "does not hold"),
    ],
    ids=["Greedy falls below Random", "both below, Lasso by less", "Lasso falls below Random"],
)
def test_lasso_is_steadier(points: dict[str, tuple[float, ...]], wanted: str) -> None:
    assert verdict(3, rows("a", points), rows("b", POINTS)) == wanted


@pytest.mark.parametrize(
    ("points", "wanted"),
    [
        (at(4, greedy=85.0), "holds"),
        (at(4, greedy=89.65, lasso=92.0), "partly"),
        (at(4, greedy=95.0), "does not hold"),
    ],
    ids=["below Random", "only far below Lasso", "above both"],
)
def test_greedy_fails_where_deviations_differ(points: dict[str, tuple[float, ...]], wanted: str) -> None:
    assert verdict(4, rows("even", POINTS), rows("wide", points, spread=30.0)) == wanted


def test_deviations_that_are_alike_decide_nothing() -> None:
    assert verdict(4, rows("even", POINTS)) == "not measured"


@pytest.mark.parametrize(
    ("points", "wanted"),
    [(POINTS, "holds"), (at(8, lasso=91.0), "does not hold")],
    ids=["below 1x", "above 1x"],
)
def test_accuracy_falls_with_the_factor(points: dict[str, tuple[float, ...]], wanted: str) -> None:
    assert verdict(5, rows("a", points)) == wanted


@pytest.mark.parametrize(
    ("few", "many", "wanted"),
    [(at(8, lasso=70.0), POINTS, "holds"), (POINTS, at(8, lasso=70.0), "does not hold")],
    ids=["few features lose most", "many features lose most"],
)
def test_losses_are_worst_with_few_features(
    few: dict[str, tuple[float, ...]], many: dict[str, tuple[float, ...]], wanted: str
) -> None:
    assert verdict(6, rows("few", few, features=16), rows("many", many)) == wanted


@pytest.mark.parametrize(
    ("points", "wanted"), [(at(4, lasso=89.95), "holds"), (POINTS, "does not hold")], ids=["4x above 2x", "falling"]
)
def test_accuracy_is_not_monotone(points: dict[str, tuple[float, ...]], wanted: str) -> None:
    assert verdict(7, rows("a", points)) == wanted


def test_cells_judged_by_the_roc_curve_are_compared_by_it() -> None:
    measured = rows("a", POINTS)
    for row in measured:
        row["judged_by"] = "rocAuc"
        row["roc_auc_mean"], row["roc_auc_values"] = row["accuracy_mean"], row["accuracy_values"]
        row["accuracy_mean"], row["accuracy_values"] = 0.85, [0.85] * 3
    assert judge_findings(measured)[0]["numbers"]["gaps"] == {"a GIN": 0.2}


JOB = Job(STUDIES[0], "GIN", 0)


def cache(path: Path, code: str = "code") -> ResultCache:
    return ResultCache(path, {JOB.study.graph: "data"}, [code])


def test_an_interrupted_run_goes_on_from_what_it_finished(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "ranking.jsonl"
    cache(path).add(JOB, {"seconds": 1})
    with path.open("a") as file:
        file.write('{"key": "half a li')  # killed while it wrote
    cache(path).add(Job(JOB.study, "GraphSAGE", 0), {"seconds": 2})
    assert cache(path).find(JOB) == {"seconds": 1}
    assert cache(path).find(Job(JOB.study, "GraphSAGE", 0)) == {"seconds": 2}


@pytest.mark.parametrize(
    "other",
    [Job(JOB.study, "GIN", 1), Job(replace(JOB.study, epochs=1), "GIN", 0)],
    ids=["another seed", "other epochs"],
)
def test_a_result_counts_for_its_own_job_only(tmp_path: Path, other: Job) -> None:
    path = tmp_path / "ranking.jsonl"
    cache(path).add(JOB, {})
    assert cache(path).find(other) is None
    assert cache(path, "other code").find(JOB) is None
    assert cache(path).find(Job(replace(JOB.study, cost_s=1e6, models=("GIN",)), "GIN", 0)) == {}


def test_progress_tells_what_is_left_by_the_cost_of_what_is_done() -> None:
    line = Progress(jobs=2, cost_s=4 * JOB.study.cost_s).finished(JOB, 12.3, 1)
    assert line.startswith("1/2: cora, GIN, seed 0: 12 s; about ")


def test_the_picture_has_a_panel_for_each_graph_and_model_that_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "ranking.svg"
    measured = rows("a", POINTS) + rows("b", POINTS) + [{**row, "model": "GraphSAGE"} for row in rows("b", POINTS)]
    draw_picture(measured, path)
    drawn = path.read_text()
    assert drawn.count('<g id="axes_') == 3
    draw_picture(measured, path)
    assert path.read_text() == drawn, "the same rows, the same file"


def test_a_gain_is_in_every_seed_only_by_the_method_that_gains_most() -> None:
    # Greedy gains 2 points in the mean and loses in a seed; Lasso gains a little in all of them.
    found = rows("a", at(4, greedy=91.6, lasso=89.7))
    for row in found:
        if (row["method"], row["factor"]) == ("Greedy", 4):
            row["accuracy_values"] = [0.95, 0.892, 0.906]
    assert verdict(2, found) == "partly"


def test_a_graph_that_was_made_for_one_finding_counts_for_no_other() -> None:
    failing = at(4, greedy=60.0, lasso=60.0)
    assert verdict(0, rows("a", POINTS), rows("a_spread", failing, spread=30.0)) == "holds"
    assert verdict(4, rows("a", POINTS), rows("a_spread", at(4, greedy=60.0), spread=30.0)) == "holds"
