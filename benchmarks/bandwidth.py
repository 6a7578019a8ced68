"""What this machine's memory gives: sequential reads, and reads of random rows.

The kernels do nothing but add up 64-bit words. Rows are read in two ways: `fetch` looks at one word of each cache line,
which is what memory can deliver; `read` looks at every word, as whoever uses a row must, and is slower although it
adds in vectors, because fewer lines are on their way at a time. Both ask ahead for the rows that come next; without
that the figure would be the latency of memory.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit

from gnnserve_worker.sampling.kernels import prefetch

LINE_BYTES = 64
_WORDS_PER_LINE = LINE_BYTES // 8
_LINES_AHEAD = 32
"""The best of 0 to 128 for rows of 64 B; for longer ones the processor's own prefetchers make it matter little."""


@njit(nogil=True, fastmath=True)
def _read_all(words: np.ndarray) -> int:
    total = np.int64(0)
    for i in range(len(words)):
        total += words[i]
    return total


@njit(nogil=True)
def _fetch_rows(words: np.ndarray, starts: np.ndarray, row_lines: int, row_words: int, ahead: int) -> int:
    """`starts`: int64, the first word of each row, in the order in which they are read."""
    total = np.int64(0)
    for i in range(len(starts)):
        if i + ahead < len(starts):
            following = starts[i + ahead]
            for line in range(row_lines):
                prefetch(words, following + line * _WORDS_PER_LINE)
        start = starts[i]
        for line in range(row_lines):
            total += words[start + line * _WORDS_PER_LINE]
    return total


@njit(nogil=True)
def _read_rows(words: np.ndarray, starts: np.ndarray, row_lines: int, row_words: int, ahead: int) -> int:
    total = np.int64(0)
    for i in range(len(starts)):
        if i + ahead < len(starts):
            following = starts[i + ahead]
            for line in range(row_lines):
                prefetch(words, following + line * _WORDS_PER_LINE)
        start = starts[i]
        for word in range(row_words):
            total += words[start + word]
    return total


def huge_words(size_bytes: int) -> np.ndarray:
    """int64 ones in anonymous memory: written, so that it is there; in huge pages where the kernel grants them."""
    mapped = mmap.mmap(-1, size_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    words = np.frombuffer(mapped, dtype=np.int64)
    words[:] = 1
    return words


def sequential_gb_per_s(words: np.ndarray, threads: int, seconds: float) -> float:
    """10^9 bytes per second; each thread reads a part of its own."""
    parts = np.array_split(words, threads)
    round_s = _fastest_round(lambda i: _read_all(parts[i]), threads, seconds)
    return _gb_per_s(words.nbytes, round_s)


@dataclass(frozen=True, slots=True)
class RowRates:
    """10^9 bytes per second of random rows."""

    fetch: float
    read: float


def measure_rows(table: np.ndarray, row_bytes: int, rows: np.ndarray, threads: int, seconds: float) -> RowRates:
    """Of `table[row, :row_bytes]` for each of `rows`, in their order.

    `table` is in C order, and its rows are whole words of 8 bytes. Lines are fetched whole; what counts is `row_bytes`.
    """
    words = table.reshape(-1).view(np.int64)
    stride = table.nbytes // len(table) // 8
    row_lines, row_words = -(-row_bytes // LINE_BYTES), -(-row_bytes // 8)
    ahead = max(1, _LINES_AHEAD // row_lines)
    parts = [part * stride for part in np.array_split(rows.astype(np.int64), threads)]

    def rate(kernel: Callable[..., int]) -> float:
        round_s = _fastest_round(lambda i: kernel(words, parts[i], row_lines, row_words, ahead), threads, seconds)
        return _gb_per_s(len(rows) * row_bytes, round_s)

    return RowRates(fetch=rate(_fetch_rows), read=rate(_read_rows))


def _gb_per_s(size_bytes: int, elapsed_s: float) -> float:
    """To four digits that count, so that no rate, however slow, is written as none."""
    return float(f"{size_bytes / elapsed_s / 1e9:.4g}")


def _fastest_round(work: Callable[[int], object], threads: int, seconds: float) -> float:
    """Seconds of the fastest round in which every thread does its part once; rounds go on for `seconds`."""
    for number in range(threads):
        work(number)
    fastest_s, give_up_at_s = float("inf"), time.perf_counter() + seconds
    while True:
        fastest_s = min(fastest_s, _one_round(work, threads))
        if time.perf_counter() >= give_up_at_s:
            return fastest_s


def _one_round(work: Callable[[int], object], threads: int) -> float:
    ready = threading.Barrier(threads + 1)
    done = threading.Barrier(threads + 1)

    def run(number: int) -> None:
        ready.wait()
        work(number)
        done.wait()

    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    ready.wait()
    began_s = time.perf_counter()
    done.wait()
    elapsed_s = time.perf_counter() - began_s
    for worker in workers:
        worker.join()
    return elapsed_s
