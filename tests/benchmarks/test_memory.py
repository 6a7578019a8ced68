"""The memory of a server, as it is read from outside."""

from __future__ import annotations

import os
import threading

import pytest
from benchmarks.memory import Memory, MemoryWatch, read_memory
from tests.support.machine.waiting import WAIT_S


def test_anonymous_and_mapped_memory_are_parts_of_all_and_processes_are_added_up() -> None:
    one, twice = read_memory([os.getpid()]), read_memory([os.getpid(), os.getpid()])
    assert 0 < one.anonymous_bytes < one.rss_bytes
    assert 0 < one.file_bytes < one.rss_bytes
    assert twice.rss_bytes > 1.5 * one.rss_bytes


def test_the_most_is_kept_though_it_was_neither_at_the_beginning_nor_at_the_end() -> None:
    found = iter([10, 90])
    looked_between = threading.Event()

    def read() -> Memory:
        anonymous_bytes = next(found, 20)
        if anonymous_bytes == 20:
            looked_between.set()
        return Memory(100, anonymous_bytes, 0)

    with MemoryWatch(read, every_s=1e-4) as watch:
        assert looked_between.wait(WAIT_S)
    assert watch.most_anonymous_bytes == 90


def test_a_load_that_fails_is_what_is_told_though_the_server_is_gone_too() -> None:
    def read() -> Memory:
        if failed:
            raise FileNotFoundError("/proc/1/status")
        return Memory(1, 1, 0)

    failed = False
    with pytest.raises(SystemExit, match="no figure"), MemoryWatch(read, every_s=3600):
        failed = True
        raise SystemExit("no figure to report")
