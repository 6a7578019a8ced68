"""Bandwidth of this machine's memory: sequential reads, and reads of random rows.

The kernels do nothing but add up 64-bit words. Rows are read in two ways: `fetch` looks at one word of each cache line,
which is what memory can deliver; `read` reads every word, as any use of a row does, and is slower although it adds in
vectors, because fewer lines are on their way at a time. Both ask ahead for the rows that come next; without that the
figure would be the latency of memory. How far ahead is best depends on the row and on the machine, so several distances
are tried; all take turns, so that a slow moment of the machine meets each of them, and the best round counts.
"""

from __future__ import annotations

import itertools
import mmap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit

from gnnserve_worker.kernels.primitives import prefetch

LINE_BYTES = 64
_WORDS_PER_LINE = LINE_BYTES // 8
_LINES_AHEAD = (0, 32, 64)
"""Cache lines that are asked for ahead, at least: a row that is longer is asked for whole."""
_ROUND_BYTES = 1 << 28
"""Bytes of the rows of one round: more than most last-level caches, and short enough for many rounds."""
_LEAST_TURNS = 4
"""Fewest turns of each way, the first of which does not count."""
_USUAL_LAST_CACHE_BYTES = 64 << 20
"""Size of the last cache where the system does not tell it."""
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


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
    round_s = fastest_round_s(lambda i: _read_all(parts[i]), threads, seconds)
    return _digits(words.nbytes / round_s / 1e9)


@dataclass(frozen=True, slots=True)
class RowRates:
    """10^9 bytes per second of random rows."""

    fetch: float
    """Bytes per second that are fetched, at least `read`: reading every word fetches every line."""
    read: float

    def best(self, other: RowRates) -> RowRates:
        """The better of two measurements that should be equal."""
        return RowRates(max(self.fetch, other.fetch), max(self.read, other.read))


def last_cache_bytes(folder: Path = _CACHES) -> int:
    """Bytes of the first processor's last-level cache as Linux reports it; 64 MiB where it does not."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = [file.read_text().strip() for file in folder.glob("index*/size")]
    return max((int(size[:-1]) * units[size[-1]] for size in sizes), default=_USUAL_LAST_CACHE_BYTES)


def measure_rows(table: np.ndarray, row_bytes: int, rows: np.ndarray, threads: int, seconds: float) -> RowRates:
    """Rates of reading `table[row, :row_bytes]` for each of `rows`, in their order.

    `table` is in C order, and its rows are whole words of 8 bytes. Lines are fetched whole; what counts is `row_bytes`.
    """
    words = table.reshape(-1).view(np.int64)
    stride = table.nbytes // len(table) // 8
    row_lines, row_words = -(-row_bytes // LINE_BYTES), -(-row_bytes // 8)
    pieces = [
        [part * stride for part in np.array_split(piece, threads)]
        for piece in np.array_split(rows.astype(np.int64), max(1, len(rows) * row_bytes // _round_bytes()))
    ]
    ways = [
        (kernel, ahead)
        for kernel in (_fetch_rows, _read_rows)
        for ahead in dict.fromkeys(-(-lines // row_lines) for lines in _LINES_AHEAD)
    ]
    rates = dict.fromkeys((kernel for kernel, _ in ways), 0.0)
    kernel, ahead = ways[0]

    def work(number: int) -> None:
        kernel(words, parts[number], row_lines, row_words, ahead)

    give_up_at_s = time.perf_counter() + seconds
    for done, parts in enumerate(itertools.cycle(pieces)):
        kernel, ahead = ways[done % len(ways)]
        size_bytes = sum(len(part) for part in parts) * row_bytes
        round_s = _one_round(work, threads)
        # The first turn of each maps pages and compiles.
        if done >= len(ways):
            rates[kernel] = max(rates[kernel], size_bytes / round_s / 1e9)
        if done + 1 >= _LEAST_TURNS * len(ways) and time.perf_counter() >= give_up_at_s:
            break
    read = _digits(rates[_read_rows])
    return RowRates(fetch=max(_digits(rates[_fetch_rows]), read), read=read)


def _round_bytes() -> int:
    return max(_ROUND_BYTES, 2 * last_cache_bytes())


def _digits(rate: float) -> float:
    """Four that count, so that no rate, however slow, is written as none."""
    return float(f"{rate:.4g}")


def fastest_round_s(work: Callable[[int], object], threads: int, seconds: float) -> float:
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
