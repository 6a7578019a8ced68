"""Rows of tables that kernels gather, prefetched before their turn."""

from __future__ import annotations

import numpy as np

from gnnserve_worker.kernel_cache import inlined
from gnnserve_worker.kernels.primitives import prefetch

ROWS_AHEAD = 2
"""Rows by which prefetching is ahead. Further ahead, rows are evicted again before they are read."""
_LINE_BYTES = 64


@inlined
def prefetch_row(
    row: int, values: np.ndarray, scales: np.ndarray, own_values: np.ndarray, own_scales: np.ndarray, columns: int,
    nodes: np.ndarray, starts: np.ndarray, neighbours: np.ndarray,
) -> None:  # fmt: skip
    """Prefetch what a row of a sample reads of a table: the leading `columns` of the rows of its neighbours and of its
    own one, and their scales. A row beyond the sample's reads nothing."""
    if row >= len(nodes):
        return
    line = _LINE_BYTES // values.itemsize
    own_line = _LINE_BYTES // own_values.itemsize
    for edge in range(starts[row], starts[row + 1]):
        begin = np.int64(neighbours[edge]) * values.shape[1]
        for column in range(0, columns, line):
            prefetch(values, begin + column)
        if len(scales):
            prefetch(scales, neighbours[edge])
    begin = np.int64(nodes[row]) * own_values.shape[1]
    for column in range(0, columns, own_line):
        prefetch(own_values, begin + column)
    if len(own_scales):
        prefetch(own_scales, nodes[row])
