"""What of the GPU benchmark needs no GPU: its arithmetic and tables, the baseline's batches, how it ends without one;
and the parts themselves, over a GPU's twin and a small graph.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import results
from benchmarks.engine.paper_tables import GRAPHS
from benchmarks.gpu import benchmark, distinct, engines, gpu_tests, parts, unseen
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.baseline import _infer, subgraph_of
from benchmarks.gpu.benchmark import BENCHMARK, MEASURES, Measurement
from benchmarks.gpu.engines import PaperGraph
from benchmarks.gpu.figures import (
    SHEETS,
    Budget,
    RatePoint,
    Row,
    beside_paper,
    best_rate,
    bound_seeds_per_s,
    gigabytes_per_s,
    lowest_rate,
    relative_cost,
    stage_shares,
    summarize,
)
from benchmarks.gpu.gpu_tests import FILES, environment, outcome_of
from benchmarks.gpu.gpu_tests import main as run_tests
from benchmarks.page.figure_blocks import RENDERERS, Results
from benchmarks.page.gpu_figures import render_cards
from benchmarks.results import Run, measured, run_parts, write_part
from rich.console import Console
from tests.support.gpu.gpu_twin import Twin
from tests.support.gpu.interpreter import patch_language_once, skip_overflow_checks
from tests.support.graphs.graphs import dense_features, random_graph, table_of
from tests.support.lacks import needs_no_gpu
from tests.support.models.pyg import explicit_sample, module_of, scores_of

from gnnserve_worker.caching import sharding
from gnnserve_worker.gpu import buffers, placement
from gnnserve_worker.sampling.neighbours import Scratch, sample_neighbours


def test_percentiles_are_those_of_the_runs() -> None:
    times = summarize([float(i) for i in range(1, 102)])
    assert (times.runs, times.p50_ms, times.p99_ms, times.mean_ms) == (101, 51.0, 100.0, 51.0)


def test_rates_bounds_and_costs() -> None:
    assert gigabytes_per_s(500e6, 10.0) == 50.0
    assert bound_seeds_per_s(50.0, 200_000) == 250_000
    assert math.isinf(bound_seeds_per_s(50.0, 0))
    assert relative_cost(1.05, 1.0) == 0.05
    assert stage_shares(1.0, 2.0, 1.0) == {"sample": 0.25, "gather": 0.5, "compute": 0.25}
    assert stage_shares(0.0, 0.0, 0.0) == {"sample": 0.0, "gather": 0.0, "compute": 0.0}


def test_the_best_rate_is_the_highest_within_the_limit() -> None:
    points = [RatePoint(1024, 100.0, 4.0), RatePoint(2048, 180.0, 9.9), RatePoint(4096, 300.0, 10.0)]
    assert best_rate(points, 10.0) == points[1]
    assert best_rate(points, 5.0) == points[0]
    assert best_rate(points, 1.0) is None


def test_the_papers_window_and_ratio_stand_beside_ours() -> None:
    first = {"graph": "reddit", "model": "GraphSAGE", "factor": 1, "window_p50_ms": 12.0}
    row = {**first, "factor": 8, "window_p50_ms": 2.0}
    assert beside_paper(row, first) == {
        "ratio": 6.0, "paper_window_ms": 9.5, "paper_ratio": 5.459, "times_faster_than_paper": 4.75,
    }  # fmt: skip


def test_time_is_counted_from_the_beginning() -> None:
    now = 100.0
    budget = Budget(60.0, lambda: now)
    assert budget.allows(60)
    now = 150.0
    assert (budget.left_s, budget.allows(10), budget.allows(11)) == (10.0, True, False)


TIMES = {"runs": 9, "p50_ms": 0.15, "p99_ms": 0.3, "mean_ms": 0.2}
STAGES = {"sample_ms": 0.01, "gather_ms": 0.02, "compute_ms": 0.03, "window_p50_ms": 0.05, "window_p99_ms": 0.1}
EVERY_PART: dict[str, Row] = {
    "link": {
        "limit_gigabytes_per_s": 55.0,
        "gather": [
            {"graph": "reddit", "factor": 1, "columns": 602, "row_bytes": 2408, "gigabytes_per_s": 50.0,
             "share_of_limit": 0.91},
            {"graph": "reddit", "factor": 8, "columns": 75, "row_bytes": 300, "gigabytes_per_s": 40.0,
             "share_of_limit": 0.73},
        ],
    },
    "one_seed": {
        "rows": [
            {"graph": "reddit", "model": "GraphSAGE", "placement": "link", "factor": 1, "seeds": 1, **TIMES, **STAGES},
        ],
    },
    "latency": {
        "rows": [
            {"graph": "reddit", "model": "GIN", "placement": "link", "factor": 1, "seeds": 1, **TIMES, **STAGES},
            {"graph": "reddit", "model": "GIN", "placement": "link", "factor": 1, "seeds": 1024, **TIMES, **STAGES,
             "ratio": 1.0, "paper_ratio": 1.0, "paper_window_ms": 43.69},
        ],
    },
    "throughput": {
        "points": [
            {"graph": "reddit", "variant": "x1", "placement": "memory", "seeds": 4096, "seeds_per_s": 400_000.2,
             "p99_ms": 9.0},
        ],
        "best": [
            {"graph": "reddit", "variant": "x1", "placement": "memory", "limit_ms": 10.0, "seeds": 4096, "p99_ms": 9.0,
             "seeds_per_s": 400_000},
            {"graph": "reddit", "variant": "x1", "placement": "link", "limit_ms": 10.0, "seeds": 1024, "p99_ms": 9.0,
             "seeds_per_s": 60_000, "bound_seeds_per_s": 75_000, "share_of_bound": 0.8},
        ],
    },
    "stages": {
        "rows": [
            {"graph": "reddit", "variant": "x1", "placement": "cache", "p50_ms": 4.0, "link_bytes_per_batch": 1e6,
             "hit_rate": 0.4, "shares": {"sample": 0.1, "gather": 0.8, "compute": 0.1}},
            {"graph": "reddit", "variant": "x1", "placement": "memory", "p50_ms": 2.0, "link_bytes_per_batch": 0,
             "hit_rate": None, "shares": {"sample": 0.1, "gather": 0.8, "compute": 0.1}},
        ],
    },
    "updates": {
        "rows": [
            {"graph": "reddit", "policy": "FIFO", "with": TIMES, "without": TIMES, "p99_cost": 0.08, "p50_cost": 0.01,
             "changes_per_s": 1e5, "hit_rate_with": 0.1, "hit_rate_without": 0.1},
        ],
    },
    "distinct": {
        "rows": [
            {"graph": "reddit", "factor": 1, "seeds": 1024, "drawn": "popular", "direct_p50_ms": 3.0,
             "direct_p99_ms": 4.0, "shared_p50_ms": 2.0, "shared_p99_ms": 3.0, "ratio": 0.667, "link_share": 0.5},
        ],
    },
    "unseen": {
        "rows": [
            {"graph": "reddit", "new_nodes": 1, "seeds": 1024, "p50_ms": 2.5, "p99_ms": 3.0, "stored_p50_ms": 2.0,
             "stored_p99_ms": 2.2, "ratio": 1.25},
        ],
        "degree": 10,
    },
    "baseline": {
        "rows": [
            {"graph": "reddit", "model": "GIN", "factor": 1, "gather_ms": 60.0, "copy_ms": 13.0, "compute_ms": 4.0,
             "window_p50_ms": 77.0, "ours_window_ms": 12.0},
            {"graph": "flickr", "model": "GIN", "factor": 1, "gather_ms": 60.0, "copy_ms": 13.0, "compute_ms": 4.0,
             "window_p50_ms": 77.0, "ours_window_ms": None},
        ],
    },
}  # fmt: skip


CARD = {"name": "NVIDIA H200", "driver": "580.1", "torch": "2.11.0", "triton": "3.6.0"}


def judged(found: Row) -> list[bool]:
    return [verdict["passed"] for verdict in BENCHMARK.judged(found).values()]


def test_each_figure_that_was_measured_is_judged() -> None:
    assert judged(EVERY_PART) == [True, True, True, False]
    assert judged({}) == []
    assert judged({"one_seed": EVERY_PART["one_seed"]}) == [True]


@pytest.mark.parametrize(
    ("part", "rows", "figure", "value"),
    [
        ("one_seed", "rows", "p50_ms", 0.21), ("link", "gather", "share_of_limit", 0.84),
        ("throughput", "best", "seeds_per_s", 249_000), ("updates", "rows", "p99_cost", 0.05),
    ],
)  # fmt: skip
def test_every_verdict_fails_where_a_figure_is_bad(part: str, rows: str, figure: str, value: float) -> None:
    bad = {**EVERY_PART[part], rows: [{**row, figure: value} for row in EVERY_PART[part][rows]]}
    assert judged({part: bad}) == [False]


def test_the_rate_is_judged_by_the_slowest_graph_unpruned_and_in_memory() -> None:
    about: Row = {"graph": "reddit", "variant": "x1", "placement": "memory", "limit_ms": 10.0, "seeds_per_s": 400_000}
    best = [
        about, {**about, "variant": "x8", "seeds_per_s": 900_000}, {**about, "limit_ms": 5.0, "seeds_per_s": 90_000},
        {**about, "placement": "link", "seeds_per_s": 60_000}, {**about, "graph": "flickr", "seeds_per_s": 200_000},
    ]  # fmt: skip

    def rate(rows: list[Row], graphs: list[str]) -> float:
        return lowest_rate({"points": [{**about, "graph": graph} for graph in graphs], "best": rows})

    assert rate(best, ["reddit", "flickr"]) == 200_000
    assert rate(best[:-1], ["reddit"]) == 400_000
    assert rate(best[:-1], ["reddit", "flickr"]) == 0, "flickr had no batch within the limit"
    assert rate([], []) == 0


@pytest.mark.parametrize("part", MEASURES)
def test_every_part_has_a_table_of_its_rows(part: str) -> None:
    console = Console(width=140)
    with console.capture() as capture:
        console.print(SHEETS[part](EVERY_PART[part]).rich())
    assert "reddit" in capture.get()
    assert "| reddit |" in RENDERERS["gpu"]({part: EVERY_PART[part], "cards": {part: CARD}})


def test_the_most_telling_parts_come_first() -> None:
    assert [part.name for part in BENCHMARK.parts] == list(MEASURES)
    assert list(MEASURES)[:3] == ["one_seed", "link", "throughput"]
    assert list(FILES)[:2] == ["kernels", "answers"]


interpreted = needs_no_gpu("kernels are compiled for the GPU of this machine")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph of 400 nodes in place of flickr, small trees and small batches: kernels are interpreted."""
    patch_language_once()
    skip_overflow_checks(monkeypatch)
    graph, features = random_graph(400, seed=3), dense_features(400, 512, seed=4)
    paper = replace(GRAPHS["flickr"], nodes=400, features=512, classes=3, sage_hidden=8, gin_hidden=8, gin_mlp_hidden=4)
    monkeypatch.setitem(GRAPHS, "flickr", paper)
    opened = PaperGraph("flickr", graph, features, table_of(features))
    for part in (distinct, parts, unseen):
        monkeypatch.setattr(part, "opened_graph", lambda _: nullcontext(opened))
    for module, name, value in (
        (engines, "FANOUTS", (2, 2)), (engines, "FACTORS", (1, 8)), (engines, "_LEAST_RUNS", 2),
        (engines, "_SLACK_BYTES", 64), (parts, "FACTORS", (1, 8)), (parts, "_SEEDS", 2), (parts, "_BATCHES", 2),
        (parts, "_RATE_SIZES", (2, 3)), (parts, "_STEADY_S", 0.0), (parts, "_UPDATE_SEEDS", 2),
        (parts, "_CACHED_SHARE", 0.3), (buffers, "LARGEST_BUCKET", 2), (placement, "_LEAST_CACHE_BYTES", 0),
        (sharding, "_STAGING_BYTES", 4096), (unseen, "_SIZES", ((1, 1), (2, 3))), (unseen, "_BATCHES", 2),
        (distinct, "_SIZES", (2,)), (distinct, "_BATCHES", 2),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


def run_part(name: str) -> Row:
    saved: list[Row] = []
    budget, twin = Budget(600.0, time.monotonic), Twin()
    match name:
        case "latency":
            parts.measure_latency(twin, ["flickr"], ["GIN"], budget, saved.append, quick=True)
        case "throughput":
            parts.measure_throughput(twin, ["flickr"], 50.0, budget, saved.append, quick=True)
        case "stages":
            parts.measure_stages(twin, ["flickr"], budget, saved.append, quick=True)
        case "distinct":
            distinct.measure_distinct(twin, ["flickr"], budget, saved.append, quick=True)
        case "unseen":
            unseen.measure_unseen(twin, ["flickr"], budget, saved.append, quick=True)
        case "updates":
            parts.measure_updates(twin, ["flickr"], budget, saved.append, quick=True)
    assert twin.registered == {}, "what was pinned was released"
    return saved[-1]


def latencies_of_every_factor_are_measured_in_memory_and_over_the_link(found: Row) -> None:
    rows = found["rows"]
    assert len(rows) == 2 * 2 * 2
    assert {(row["placement"], row["seeds"]) for row in rows} == {
        ("link", 1), ("link", 2), ("memory", 1), ("memory", 2)
    }  # fmt: skip
    beside = [row for row in rows if "paper_window_ms" in row]
    assert {(row["placement"], row["seeds"]) for row in beside} == {("link", 2)}
    json.dumps(rows)


def rates_over_the_link_stand_beside_their_bound(found: Row) -> None:
    best = found["best"]
    assert {row["placement"] for row in best} <= {"memory", "link"}
    assert all(("bound_seeds_per_s" in row) == (row["placement"] == "link") for row in best)


def stages_are_measured_without_a_cache_with_one_and_in_memory(found: Row) -> None:
    rows = {(row["placement"], row["variant"]): row for row in found["rows"]}
    assert set(rows) == {(placement, variant) for placement in ("link", "cache", "memory") for variant in ("x1", "x8")}
    assert rows["memory", "x1"]["link_bytes_per_batch"] == 0
    assert rows["link", "x1"]["link_bytes_per_batch"] > 0
    assert rows["link", "x1"]["hit_rate"] is None


def rows_that_are_gathered_once_stand_beside_those_that_are_not(found: Row) -> None:
    rows = found["rows"]
    assert {(row["factor"], row["drawn"]) for row in rows} == {(f, d) for f in (1, 8) for d in ("popular", "uniform")}
    assert all(0 < row["link_share"] < 1 for row in rows)
    assert all(row["ratio"] == pytest.approx(row["shared_p50_ms"] / row["direct_p50_ms"], abs=1e-3) for row in rows)
    json.dumps(rows)


def updates_are_measured_and_then_stopped(found: Row) -> None:
    rows = found["rows"]
    assert [row["policy"] for row in rows] == ["Frequency", "FIFO"]
    assert all(row["with"]["runs"] >= 2 and row["without"]["runs"] >= 2 for row in rows)


def batches_with_new_nodes_stand_beside_those_of_stored_ones(found: Row) -> None:
    rows = found["rows"]
    assert [(row["new_nodes"], row["seeds"]) for row in rows] == [(1, 1), (2, 3)]
    assert all(row["p50_ms"] > 0 and row["stored_p50_ms"] > 0 and row["ratio"] > 0 for row in rows)
    json.dumps(rows)


CHECKS: dict[str, Callable[[Row], None]] = {
    "latency": latencies_of_every_factor_are_measured_in_memory_and_over_the_link,
    "throughput": rates_over_the_link_stand_beside_their_bound,
    "stages": stages_are_measured_without_a_cache_with_one_and_in_memory,
    "distinct": rows_that_are_gathered_once_stand_beside_those_that_are_not,
    "updates": updates_are_measured_and_then_stopped,
    "unseen": batches_with_new_nodes_stand_beside_those_of_stored_ones,
}
"""What has to be found in a part's result."""


@interpreted
@pytest.mark.usefixtures("small")
@pytest.mark.campaign
@pytest.mark.parametrize("part", CHECKS)
def test_a_part_measures_what_its_tables_show(part: str) -> None:
    CHECKS[part](run_part(part))


@pytest.mark.parametrize("architecture", ["GraphSAGE", "GIN"])
def test_the_baselines_batch_is_the_sample_that_was_drawn(architecture: str) -> None:
    graph, features = random_graph(60, seed=3), dense_features(60, 6, seed=4)
    seeds = np.array([5, 9, 5, 40], dtype=np.int64)
    sample = sample_neighbours(graph.indptr, graph.indices, seeds, (4, 3), 7, Scratch(), share=False)
    batch = subgraph_of(sample, len(seeds))
    assert len(batch.nodes) == len(set(batch.nodes.tolist())), "every node is gathered once"
    module = module_of(architecture, (4, 3), 6, mlp_hidden=5 if architecture == "GIN" else None)
    rows = torch.from_numpy(features)[batch.nodes]
    found = _infer(module, rows, batch.lower, batch.upper, batch.hidden, batch.seeds).numpy()
    ids, edges = explicit_sample(sample)
    expected = scores_of(module, features[ids], edges)[: len(seeds)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("run", [main, run_tests])
@pytest.mark.parametrize("options", [[], ["--quick"], ["--only", "kernels"]])
def test_without_a_gpu_it_says_so_and_ends_with_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run: Callable[[list[str]], int],
    options: list[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run([*options, "--out", str(tmp_path)]) == 2
    assert "no GPU: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_each_part_is_written_with_its_card_and_finds_what_earlier_ones_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With parts that only note what they are given."""
    monkeypatch.setattr(benchmark, "describe_card", lambda: CARD)
    monkeypatch.setattr(benchmark, "prepare", lambda _: None)
    earlier: list[Row] = []

    def measure(asked: Measurement) -> None:
        earlier.append(asked.earlier("link"))
        assert asked.budget.total_s == pytest.approx(50.0)
        asked.save({})
        asked.save(EVERY_PART["link"])

    monkeypatch.setattr(benchmark, "MEASURES", {"link": measure})
    options = argparse.Namespace(graphs=["flickr"], seconds=500.0, only="link", out=tmp_path)
    quiet = replace(BENCHMARK, around=lambda _: nullcontext())
    for _ in range(2):
        run_parts(quiet, Run(False, options), ["link"], None, tmp_path)
    assert earlier == [{}, EVERY_PART["link"]]
    written = json.loads((tmp_path / "gpu.json").read_text())["parts"]["link"]
    assert written["found"] == {"link": EVERY_PART["link"], "cards": {"link": CARD}}


JUNIT = """<testsuites><testsuite>
<testcase classname="tests.gpu.test_gat" name="a"/>
<testcase classname="tests.gpu.test_gat" name="b"><skipped/></testcase>
<testcase classname="tests.gpu.test_gat" name="c"><failure/></testcase>
<testcase classname="x" name="d"><error/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("report", "code", "counts"),
    [
        pytest.param(JUNIT, 1, (1, 2, 1), id="some fail"),
        pytest.param("<testsuites/>", 2, (0, 1, 0), id="nothing is collected"),
        pytest.param(None, -11, (0, 1, 0), id="it dies"),
    ],
)
def test_the_outcome_of_a_part_counts_whatever_went_wrong(
    report: str | None, code: int, counts: tuple[int, int, int]
) -> None:
    outcome = outcome_of(report, code)
    assert (outcome["passed"], outcome["failed"], outcome["skipped"]) == counts
    assert outcome["failures"]


@pytest.mark.parametrize(
    ("counts", "passed"), [((9, 0, 1), True), ((9, 1, 0), False), ((0, 0, 9), False)], ids=["pass", "fail", "skipped"]
)
def test_a_part_of_tests_passes_where_some_pass_and_none_fails(counts: tuple[int, int, int], passed: bool) -> None:
    outcome = dict(zip(("passed", "failed", "skipped"), counts, strict=True))
    for name in FILES:
        (verdict,) = gpu_tests.BENCHMARK.judged({"outcomes": {name: outcome}}).values()
        assert verdict["passed"] is passed


def test_the_interpreter_sees_no_gpu_and_writes_a_file_of_its_own() -> None:
    found = environment({"HOME": "/"}, interpreted=True)
    assert found == {"HOME": "/", "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    assert environment({"HOME": "/"}, interpreted=False) == {"HOME": "/"}
    assert gpu_tests.INTERPRETED.name != gpu_tests.BENCHMARK.name


def test_every_test_of_the_gpu_code_belongs_to_one_part() -> None:
    files = [file for names in FILES.values() for file in names]
    assert len(files) == len(set(files))
    there = {path.name for path in (gpu_tests.ROOT / "tests/gpu").glob("test_*.py")}
    assert there == {file for file in files if "/" not in file}
    assert all((gpu_tests.ROOT / "tests/gpu" / file).exists() for file in files)


def test_the_page_says_what_was_run_on_which_card(tmp_path: Path) -> None:
    assert render_cards(Results(tmp_path)) == "Nothing has been run on a GPU yet."
    outcome = {"passed": 120, "failed": 0, "skipped": 3, "failures": []}
    at = {"id": "a" * 40, "dirty": False}
    for of, part, found in (
        (gpu_tests.BENCHMARK, "kernels", {"outcomes": {"kernels": outcome}}),
        (BENCHMARK, "link", {"link": EVERY_PART["link"]}),
    ):  # fmt: skip
        record = measured({**found, "cards": {part: CARD}}, at, 60.0, ["worker"])
        write_part(of, part, record, tmp_path / f"{of.name}.json", quick=False)
    lines = render_cards(Results(tmp_path)).splitlines()
    about = "| NVIDIA H200 | 580.1 | 2.11.0, 3.6.0 |"
    assert lines[2].startswith(f"{about} `make test-gpu ONLY=kernels` | 120 passed, 3 skipped | aaaaaaa, 20")
    assert lines[3].startswith(f"{about} `make bench-gpu ONLY=link` | measured ([benchmarks.md]")
    assert "| kernels | NVIDIA H200 | 120 | 0 | 3 |" in RENDERERS["gpu_tests"](Results(tmp_path)["gpu_tests"])


@pytest.mark.parametrize("told", [None, "b" * 40])
def test_a_copy_without_a_clone_is_of_the_commit_that_is_told(
    monkeypatch: pytest.MonkeyPatch, told: str | None
) -> None:
    def no_git(*_: str) -> str:
        raise OSError

    monkeypatch.setattr(results, "_git", no_git)
    monkeypatch.delenv("GNNSERVE_COMMIT", raising=False)
    if told is not None:
        monkeypatch.setenv("GNNSERVE_COMMIT", told)
    assert results.commit() == {"id": told, "dirty": told is None}
