"""Threads for work that releases the GIL: compiled kernels and matrix products.

A batch is split into chunks that go through all stages side by side, so no stage needs threads of its own: numba's
parallel loops may not be entered from several threads at once, and BLAS threads spin between products, which takes
processor time from all other threads.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

from threadpoolctl import threadpool_limits

T = TypeVar("T")


@cache
def thread_count() -> int:
    """Processors that this process may use, or `OMP_NUM_THREADS` where that is fewer. Determined once: every batch
    asks, and determining it takes microseconds.

    A pod's cpu limit reduces time, not processors, so `OMP_NUM_THREADS` is the only way to pass it on: threads beyond
    it would only wait for each other.
    """
    processors = len(os.sched_getaffinity(0))
    asked = re.match(r"\s*0*([1-9]\d{0,5})\b", os.environ.get("OMP_NUM_THREADS", ""))
    return min(int(asked[1]), processors) if asked else processors


def limit_blas_to_one_thread() -> None:
    """Set BLAS to one thread, for the whole process from now on."""
    threadpool_limits(limits=1, user_api="blas")


def map_parallel(work: Callable[[int], T], count: int) -> list[T]:
    """[work(0), …, work(count - 1)], in `thread_count()` threads, the caller's among them."""
    if count == 1:
        return [work(0)]
    results: dict[int, T] = {}
    numbers = itertools.count()

    def pull() -> None:
        while (number := next(numbers)) < count:
            results[number] = work(number)

    pool = _own.pool or _pool()
    others = [pool.submit(pull) for _ in range(min(thread_count(), count) - 1)]
    try:
        pull()
    finally:
        # Also when this thread's share failed: no thread may still be writing when the caller goes on.
        for other in others:
            other.exception()
    for other in others:
        other.result()
    return [results[number] for number in range(count)]


class _Own(threading.local):
    pool: ThreadPoolExecutor | None = None
    """Threads for the calling thread's work alone; None: it shares those of the process."""


_own = _Own()


@contextmanager
def own_threads() -> Iterator[None]:
    """Within it, `map_parallel` of the calling thread has threads of its own: work that may wait for long, for another
    process, keeps none of those that others compute in."""
    _own.pool = _made_pool()
    try:
        yield
    finally:
        _own.pool.shutdown(wait=False)
        _own.pool = None


@cache
def _pool() -> ThreadPoolExecutor:
    return _made_pool()


def _made_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=max(1, thread_count() - 1), thread_name_prefix="chunk")
