"""Sharing work between threads: everything done once, answers in order, errors not lost."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from gnnserve_worker import parallel
from gnnserve_worker.parallel import map_parallel


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
def test_every_part_is_done_once_and_answers_keep_their_order(
    monkeypatch: pytest.MonkeyPatch, threads: int, count: int
) -> None:
    monkeypatch.setattr(parallel, "thread_count", lambda: threads)
    calls: Counter[int] = Counter()

    def work(number: int) -> int:
        calls[number] += 1
        return number * number

    assert map_parallel(work, count) == [number * number for number in range(count)]
    assert calls == Counter(range(count))


def test_a_single_part_stays_on_the_callers_thread() -> None:
    assert map_parallel(lambda _: threading.get_ident(), 1) == [threading.get_ident()]


def test_another_thread_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part waits for the other, so one thread alone could never finish."""
    monkeypatch.setattr(parallel, "thread_count", lambda: 2)
    both_at_work = threading.Barrier(2, timeout=60)

    def work(_: int) -> int:
        both_at_work.wait()
        return threading.get_ident()

    assert len(set(map_parallel(work, 2))) == 2


@pytest.mark.parametrize("failing", [0, 1, 5])
def test_an_error_reaches_the_caller_after_all_threads_have_stopped(
    monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    monkeypatch.setattr(parallel, "thread_count", lambda: 2)
    running: set[int] = set()

    def work(number: int) -> int:
        running.add(number)
        try:
            if number == failing:
                raise ValueError(f"part {number}")
            return number
        finally:
            running.discard(number)

    with pytest.raises(ValueError, match=f"part {failing}"):
        map_parallel(work, 6)

    assert not running


def test_a_failure_leaves_the_threads_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "thread_count", lambda: 2)
    with pytest.raises(ZeroDivisionError):
        map_parallel(lambda number: 1 // number, 4)

    assert map_parallel(lambda number: number, 4) == [0, 1, 2, 3]
