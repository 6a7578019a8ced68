"""The bound that the engine is measured against, and the kernels that measure memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks.bandwidth import _fetch_rows, _read_all, _read_rows, measure_rows
from benchmarks.roofline import Counts, compare_with_paper, compute_bound
from benchmarks.shapes import Shape

SHAPE = Shape("six", nodes=100, edges=600, features=100, hidden=10, classes=5)


def _variant(columns: int, *, projected: bool) -> Any:
    return SimpleNamespace(columns=columns, table=SimpleNamespace(projected=projected))


def test_the_bound_is_bytes_over_bandwidth_plus_operations_over_peak() -> None:
    bound = compute_bound(
        Counts(rows=1000, neighbours=9000), 100, _variant(50, projected=False), SHAPE,
        gathered_bytes=4e6, table_gb_per_s=4.0, graph_gb_per_s=0.64, peak_gflop_per_s=1.0,
    )  # fmt: skip
    assert bound.table_ms == pytest.approx(1.0)
    assert bound.graph_ms == pytest.approx(1.0)  # a line for each row and each neighbour
    # Neighbours and the node itself, two operations each: 1000 rows of 50 x 10, then 100 seeds of 10 x 5.
    assert bound.products_ms == pytest.approx(2.0 + 0.02)
    assert bound.total_ms == pytest.approx(4.02)


def test_a_projected_table_has_the_first_product_behind_it() -> None:
    bound = compute_bound(Counts(1000, 9000), 100, _variant(10, projected=True), SHAPE, 1, 1, 1, 1.0)
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
