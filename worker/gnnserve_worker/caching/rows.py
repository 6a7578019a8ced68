"""Cutting blocks of columns out of the host's rows, to be copied into a cache's slots."""

from __future__ import annotations

import numpy as np

from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.kernels.primitives import prefetch_row

_AHEAD = 4
"""Rows are prefetched this many turns ahead."""


@kernel
def copy_blocks(rows: np.ndarray, nodes: int, items: np.ndarray, out: np.ndarray) -> None:
    """rows: uint8 [nodes, row bytes]; items: int64 [n], block · nodes + node; out: uint8 [n or more, block bytes].

    The part of a block beyond the row's end is filled with zeros.
    """
    row_bytes = rows.shape[1]
    block_bytes = out.shape[1]
    count = len(items)
    for place in range(count):
        if place + _AHEAD < count:
            ahead = items[place + _AHEAD]
            begin = (ahead // nodes) * block_bytes
            prefetch_row(rows, ahead % nodes, begin, min(begin + block_bytes, row_bytes))
        item = items[place]
        node = item % nodes
        begin = (item // nodes) * block_bytes
        width = max(0, min(block_bytes, row_bytes - begin))
        for byte in range(width):
            out[place, byte] = rows[node, begin + byte]
        for byte in range(width, block_bytes):
            out[place, byte] = 0
