"""Threads for kernels that release the GIL.

numba's own parallel loops may not be entered from several threads at once (its default layer aborts the process),
so ranges are split here, over one small pool per process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache


def thread_count() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=max(1, thread_count() - 1), thread_name_prefix="kernel")


def for_ranges(length: int, work: Callable[[int, int], None], *, smallest: int) -> None:
    """Call `work(start, stop)` over a partition of range(length), in as many threads as pay.

    Below `smallest` items per thread the hand-over costs more than it saves; then the caller's thread does it all.
    """
    threads = min(thread_count(), max(1, length // smallest))
    if threads == 1:
        work(0, length)
        return
    bounds = [length * i // threads for i in range(threads + 1)]
    others = [_pool().submit(work, bounds[i], bounds[i + 1]) for i in range(1, threads)]
    work(bounds[0], bounds[1])
    for other in others:
        other.result()
