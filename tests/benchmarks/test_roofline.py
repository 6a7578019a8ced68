"""The bound that the engine is measured against, and the kernels that measure memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.engine.bandwidth import RowRates, _fetch_rows, _read_all, _read_rows, last_cache_bytes, measure_rows
from benchmarks.engine.engine import Timing
from benchmarks.engine.gemm import best_peaks, packed_gflop_per_s
from benchmarks.engine.roofline import (
    Bound,
    Counts,
    Measured,
    compute_bound,
    rates_of_alike,
)
from benchmarks.engine.roofline_report import compare_with_paper, faults_of_bound
from benchmarks.shapes import Shape

from gnnserve_api.variants import Storage

SHAPE = Shape("six", nodes=100, edges=600, features=100, hidden=10, classes=5)


def test_the_bound_is_bytes_over_bandwidth_plus_operations_over_peak() -> None:
    bound = compute_bound(
        Counts(rows=1000, neighbours=9000), 100, 50, False, SHAPE,
        gathered_bytes=4e6, table_gb_per_s=4.0, graph_gb_per_s=0.64, peak_gflop_per_s=1.0,
    )  # fmt: skip
    assert bound.table_ms == pytest.approx(1.0)
    assert bound.graph_ms == pytest.approx(1.0)  # a line for each row and each neighbour
    # Neighbours and the node itself, two operations each: 1000 rows of 50 x 10, then 100 seeds of 10 x 5.
    assert bound.products_ms == pytest.approx(2.0 + 0.02)
    assert bound.total_ms == pytest.approx(4.02)


def test_a_projected_table_has_the_first_product_behind_it() -> None:
    bound = compute_bound(Counts(1000, 9000), 100, 10, True, SHAPE, 1, 1, 1, 1.0)
    assert bound.products_ms == pytest.approx(0.02)


def test_pruning_is_compared_with_the_papers_ratios_per_storage() -> None:
    def timing(p50_ms: float, storage: str, *, projected: bool = False) -> dict[str, Any]:
        return {"storage": storage, "projected": projected, "seeds": {1024: {"p50_ms": p50_ms}}}

    paper, wide, narrow = compare_with_paper(
        "reddit",
        {
            "x1": timing(40, "float32"),
            "x2": timing(20, "float32"),
            "x4": timing(16, "float32"),
            "projected": timing(1, "float32", projected=True),
            "x1-int8": timing(10, "int8"),
            "x2-int8": timing(12, "int8"),
        },
    )
    assert paper["paper_ratios"] == [1.85, 3.31, 5.46]
    assert (wide["ratios"], wide["each_faster"]) == ([2.0, 2.5], True)
    assert (narrow["ratios"], narrow["each_faster"]) == ([0.83], False)


def test_the_kernels_look_at_what_they_are_asked_for() -> None:
    words = np.arange(64, dtype=np.int64)
    starts = np.array([0, 16, 0])  # rows of two lines, and a line is eight words
    assert _read_all(words) == words.sum()
    assert _fetch_rows(words, starts, 2, 16, 1) == (0 + 8) + (16 + 24) + (0 + 8)
    assert _read_rows(words, starts, 2, 16, 1) == 2 * words[:16].sum() + words[16:32].sum()


def test_a_row_shorter_than_a_line_is_read_from_any_table() -> None:
    table = np.ones((100, 16), dtype=np.int8)
    rates = measure_rows(table, 12, np.arange(100), threads=2, seconds=0.0)
    assert rates.fetch > 0
    assert rates.read > 0


def test_who_reads_every_word_has_fetched_every_line() -> None:
    table = np.ones((1000, 64), dtype=np.int64)
    for row_bytes in (64, 300, 512):
        rates = measure_rows(table, row_bytes, np.arange(1000), threads=1, seconds=0.0)
        assert rates.fetch >= rates.read > 0


def test_the_last_cache_is_the_largest_that_linux_names(tmp_path: Path) -> None:
    for number, size in enumerate(("48K", "2048K", "105M")):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(f"{size}\n")
    assert last_cache_bytes(tmp_path) == 105 << 20
    assert last_cache_bytes(tmp_path / "absent") == 64 << 20


def test_the_peak_is_that_of_the_threads_that_are_fastest_together() -> None:
    peaks = {1: {"float32": 129.0, "bfloat16": 1114.0}, 2: {"float32": 261.0, "bfloat16": 984.0}}
    assert best_peaks(peaks) == {"float32": 261.0, "bfloat16": 1114.0}


def test_packed_products_are_timed_side_by_side() -> None:
    assert packed_gflop_per_s("float32", threads=2, seconds=0.0) > 0


def _measured(row_bytes: int, sampled: RowRates, random: RowRates) -> Measured:
    return Measured("x1", Storage.FLOAT32, False, 32, 10, 128, {}, {}, row_bytes, sampled, random)


def test_variants_whose_rows_are_alike_get_the_best_rates_of_all_of_them() -> None:
    rates = rates_of_alike(
        [
            _measured(64, RowRates(24.6, 18.9), RowRates(20.0, 16.0)),
            _measured(64, RowRates(18.2, 19.1), RowRates(21.0, 15.0)),
            _measured(128, RowRates(30.0, 29.0), RowRates(28.0, 27.0)),
        ]
    )
    assert rates == {
        (10, 128, 64): (RowRates(24.6, 19.1), RowRates(21.0, 16.0)),
        (10, 128, 128): (RowRates(30.0, 29.0), RowRates(28.0, 27.0)),
    }


def _timing(sample_ms: float, gather_ms: float, compute_ms: float) -> Timing:
    total_ms = sample_ms + gather_ms + compute_ms
    return Timing(1024, 20, total_ms, total_ms, sample_ms, gather_ms, compute_ms, gathered_bytes=1)


def test_a_stage_that_is_faster_than_its_bound_is_named() -> None:
    bound = Bound(table_ms=10, graph_ms=1, products_ms=16)
    assert bound.beaten_by(_timing(2, 11, 17)) == []
    assert bound.beaten_by(_timing(2, 12, 15)) == ["compute"]
    assert bound.beaten_by(_timing(0.5, 9, 15)) == ["sample", "gather", "compute", "whole"]


def test_faults_of_the_bound_are_gathered_by_variant() -> None:
    variants = {
        "x1": {"seeds": {1: {"faster_than_bound": []}, 1024: {"faster_than_bound": ["compute"]}}},
        "x2": {"seeds": {1024: {"faster_than_bound": []}}},
    }
    assert faults_of_bound(variants) == {"x1, 1024 seeds": ["compute"]}
