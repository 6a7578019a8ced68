"""Stale rows of one stored layer: marks with the estimated error of each, the worst first.

Rows stand in lists by the power of two of their error, linked both ways through the arrays: to mark a row, to take its
mark away and to find one of the worst takes the same short time, however many there are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.kernels.primitives import prefetch, scratch_for
from gnnserve_worker.tables.growing import empty_growing

_LISTS = 24
"""Errors from 1 down to 2^-23; smaller ones stand in the last list."""
_AHEAD = 8
"""Rows by which prefetching is ahead."""
_STEP = 1 << 13
"""Rows that are marked at a time."""


class StaleRows:
    """Any thread may call it. Errors are read without a lock: a moment's older ones do no harm."""

    def __init__(self, rows: int) -> None:
        """`rows`: as many as there may ever be."""
        self.errors = empty_growing((rows,), np.float32)
        """The estimated error of each row, at most 1; 0: it is right."""
        self._next, self._before = (empty_growing((rows,), np.int32) for _ in range(2))
        """The next one and the one before in its list, as their number + 1; 0: none."""
        self._heads = np.zeros(_LISTS, np.int32)
        self._count, self._sum = np.zeros(1, np.int64), np.zeros(1, np.float64)
        self._is_found = empty_growing((rows,), np.bool_)
        """As of `_find_among`; False between its calls."""
        self._found = np.empty(0, np.int64)
        self._lock = threading.Lock()
        self._is_held = False
        # No request is to wait until these are compiled.
        self.among(np.zeros(0, np.int64), np.zeros(0, np.int32))
        self.clear(np.zeros(0, np.int64))
        self.worst(0)

    @property
    def count(self) -> int:
        """How many rows are stale."""
        return int(self._count[0])

    @property
    def error(self) -> float:
        """Sum of all estimated errors."""
        return max(0.0, float(self._sum[0])) if self._count[0] else 0.0

    def mark(self, nodes: np.ndarray, amounts: np.ndarray, give_way: Callable[[], None] = lambda: None) -> None:
        """Add to the errors of these rows (int64, distinct; float32, above 0). `give_way` is called between steps."""
        for start in range(0, len(nodes), _STEP):
            give_way()
            part = slice(start, start + _STEP)
            with self._lock:
                _mark(
                    self.errors, self._next, self._before, self._heads, self._count, self._sum, nodes[part],
                    amounts[part],
                )  # fmt: skip

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within it marks are kept by whatever is refreshed: rows are marked for changes that are not published yet,
        and a row that is made before would not have them."""
        with self._lock:
            self._is_held = True
        try:
            yield
        finally:
            with self._lock:
                self._is_held = False

    def clear(self, nodes: np.ndarray) -> None:
        """Take the marks of these rows (int64) away, which are right now."""
        with self._lock:
            if not self._is_held:
                _clear(self.errors, self._next, self._before, self._heads, self._count, self._sum, nodes)

    def among(self, *parts: np.ndarray) -> np.ndarray:
        """The stale ones of these rows (int32 or int64, in any order), each once: int64. Numbers of other rows than
        there may be are passed over. For one thread at a time."""
        self._found = scratch_for(self._found, sum(map(len, parts)))
        count = 0
        for nodes in parts:
            count = _find_among(self.errors, nodes, self._is_found, self._found, count)
        found = self._found[:count].copy()
        self._is_found[found] = False
        return found

    def mean_among(self, *parts: np.ndarray) -> float:
        """Mean error of these rows (as of `among`), each as often as it is named; of numbers of other rows it is 0."""
        total = sum(float(self.errors[nodes[nodes < len(self.errors)]].sum(dtype=np.float64)) for nodes in parts)
        return total / max(1, sum(map(len, parts)))

    def worst(self, most: int) -> np.ndarray:
        """Rows whose errors are the largest, to a power of two: int64, at most `most`. None while marks are held, since
        some would be refreshed again and again."""
        found = np.empty(most, np.int64)
        with self._lock:
            count = 0 if self._is_held else _find_worst(self._next, self._heads, found)
        return found[:count]


@inlined
def _list_of(error: float) -> int:
    # The exponent, by which numbers from 0.5 to 1 are of list 0.
    exponent = int((np.float32(error).view(np.int32) >> 23) - 126)
    return min(_LISTS - 1, max(0, -exponent))


@inlined
def _unlink(node: int, following: np.ndarray, before: np.ndarray, heads: np.ndarray, number: int) -> None:
    after = following[node]
    if before[node] > 0:
        following[before[node] - 1] = after
    else:
        heads[number] = after
    if after > 0:
        before[after - 1] = before[node]


@inlined
def _link(node: int, following: np.ndarray, before: np.ndarray, heads: np.ndarray, number: int) -> None:
    head = heads[number]
    following[node] = head
    before[node] = 0
    if head > 0:
        before[head - 1] = node + 1
    heads[number] = node + 1


@kernel
def _mark(
    errors: np.ndarray, following: np.ndarray, before: np.ndarray, heads: np.ndarray, count: np.ndarray,
    total: np.ndarray, nodes: np.ndarray, amounts: np.ndarray,
) -> None:  # fmt: skip
    for i in range(len(nodes)):
        node = nodes[i]
        if i + _AHEAD < len(nodes):
            ahead = nodes[i + _AHEAD]
            prefetch(errors, ahead)
            prefetch(following, ahead)
            prefetch(before, ahead)
        old = errors[node]
        new = min(np.float32(1.0), old + amounts[i])
        errors[node] = new
        total[0] += new - old
        number = _list_of(new)
        if old > 0:
            if _list_of(old) == number:
                continue
            _unlink(node, following, before, heads, _list_of(old))
        else:
            count[0] += 1
        _link(node, following, before, heads, number)


@kernel
def _clear(
    errors: np.ndarray, following: np.ndarray, before: np.ndarray, heads: np.ndarray, count: np.ndarray,
    total: np.ndarray, nodes: np.ndarray,
) -> None:  # fmt: skip
    for i in range(len(nodes)):
        node = nodes[i]
        error = errors[node]
        if error > 0:
            _unlink(node, following, before, heads, _list_of(error))
            errors[node] = 0
            count[0] -= 1
            total[0] -= error


@kernel
def _find_among(
    errors: np.ndarray, nodes: np.ndarray, is_found: np.ndarray, found: np.ndarray, count: int
) -> int:  # fmt: skip
    """Returns how many are found then."""
    for i in range(len(nodes)):
        node = nodes[i]
        if node < len(errors) and errors[node] > 0 and not is_found[node]:
            is_found[node] = True
            found[count] = node
            count += 1
    return count


@kernel
def _find_worst(following: np.ndarray, heads: np.ndarray, found: np.ndarray) -> int:
    count = 0
    for number in range(len(heads)):
        node = heads[number]
        while node > 0 and count < len(found):
            found[count] = node - 1
            count += 1
            node = following[node - 1]
    return count
