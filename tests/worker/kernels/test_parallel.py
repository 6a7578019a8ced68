"""Sharing work between threads: everything done once, answers in order, errors not lost."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from tests.support.machine.waiting import WAIT_S

from gnnserve_worker import parallel
from gnnserve_worker.parallel import map_parallel, own_threads, thread_count


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
    both_at_work = threading.Barrier(2, timeout=WAIT_S)

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


@pytest.mark.parametrize(
    ("omp_num_threads", "expected"),
    [
        pytest.param(None, 4, id="not set"),
        pytest.param("", 4, id="empty"),
        pytest.param("2", 2, id="fewer than there are processors"),
        pytest.param("64", 4, id="more than there are processors"),
        pytest.param(" 3 ", 3, id="with spaces"),
        pytest.param("3,2", 3, id="a list by nesting level"),
        pytest.param("0", 4, id="none at all"),
        pytest.param("-1", 4, id="negative"),
        pytest.param("many", 4, id="a word"),
    ],
)
def test_threads_are_the_processors_or_as_few_as_openmp_may_use(
    monkeypatch: pytest.MonkeyPatch, omp_num_threads: str | None, expected: int
) -> None:
    monkeypatch.setattr(parallel.os, "sched_getaffinity", lambda _pid: {0, 1, 5, 7})
    if omp_num_threads is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", omp_num_threads)
    assert thread_count.__wrapped__() == expected


def test_parts_that_wait_in_threads_of_their_own_hold_up_no_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "thread_count", lambda: 2)
    both_wait, go_on = threading.Barrier(3, timeout=WAIT_S), threading.Event()

    def wait(_: int) -> bool:
        both_wait.wait()
        return go_on.wait(WAIT_S)

    def wait_apart() -> None:
        with own_threads():
            assert map_parallel(wait, 2) == [True, True]

    waiting = threading.Thread(target=wait_apart)
    waiting.start()
    both_wait.wait()
    threads = threading.Barrier(2, timeout=WAIT_S)
    map_parallel(lambda _: threads.wait(), 2)
    go_on.set()
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
