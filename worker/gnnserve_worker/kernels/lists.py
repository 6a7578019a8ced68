"""Where neighbour lists begin and end, for kernels: of a graph that stays as it is, and of one that changes.

A graph that stays has its lists one behind the other: `indptr` is int64 [nodes + 1]. One that changes has them anywhere
in `indices`: `indptr` is then int64 [nodes, 2], begin and end of each. Kernels are compiled for either, and what stands
here under the other is left out of the code.
"""

from __future__ import annotations

import numpy as np

from gnnserve_worker.kernel_cache import inlined
from gnnserve_worker.kernels.primitives import prefetch


@inlined
def list_count(indptr: np.ndarray) -> int:
    """How many lists there are; in a graph that changes, room for new nodes included."""
    if indptr.ndim == 1:
        return len(indptr) - 1
    return len(indptr)


@inlined
def list_begin(indptr: np.ndarray, node: int) -> int:
    if indptr.ndim == 1:
        return int(indptr[node])
    return int(indptr[node, 0])


@inlined
def list_end(indptr: np.ndarray, node: int) -> int:
    if indptr.ndim == 1:
        return int(indptr[node + 1])
    return int(indptr[node, 1])


@inlined
def prefetch_bounds(indptr: np.ndarray, node: int) -> None:
    """Prefetch where the node's list begins and ends. Any node is safe."""
    if indptr.ndim == 1:
        prefetch(indptr, node)
    else:
        prefetch(indptr, 2 * node)
