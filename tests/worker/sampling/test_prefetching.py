"""Prefetching rows of tables within kernels: what it may be asked for, and what it leaves in a kernel's code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

from gnnserve_worker.kernels.primitives import prefetch_row, prefetch_rows


def _read_ahead(
    values: np.ndarray, scales: np.ndarray, rows: np.ndarray, starts: np.ndarray, columns: int
) -> int:  # fmt: skip
    for row in range(len(starts) - 1):
        prefetch_rows(values, scales, rows, starts[row], starts[row + 1], columns)
        prefetch_row(values, row, 0, columns)
    return len(rows)


@pytest.fixture(scope="module")
def read_ahead() -> Any:
    return njit(_read_ahead)


@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.int8])
def test_rows_may_lie_beyond_the_array_and_lists_may_be_empty(read_ahead: Any, dtype: type[np.generic]) -> None:
    values, scales = np.zeros((4, 600), dtype), np.zeros(4 if dtype is np.int8 else 0, np.float32)
    rows = np.array([0, 3, 1_000_000, -5], np.int32)
    for columns in (0, 1, 64, 600, 5000):
        assert read_ahead(values, scales, rows, np.array([0, 2, 2, 4]), columns) == 4
    assert read_ahead(values, scales, rows[:0], np.array([0, 0]), 600) == 0


def test_prefetching_in_a_loop_counts_no_references_to_arrays(read_ahead: Any) -> None:
    read_ahead(np.zeros((4, 600), np.float32), np.zeros(0, np.float32), np.zeros(1, np.int32), np.array([0, 1]), 600)
    code = read_ahead.inspect_llvm(read_ahead.signatures[0])
    assert "call void @llvm.prefetch" in code
    assert "call void @NRT_incref" not in code
