"""Calls of a request: what two counts of a server differ by, of our own functions and of others, on all threads."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.calls import calls_between
from tools.counted_server import count_here, counted

FOLDER = Path("/checkout")
SERVE = ("main", "/checkout/worker/serving.py", 3, "serve")
SAMPLE = ("engine", "/checkout/worker/sampling.py", 7, "sample")
POLL = ("watch", "/checkout/worker/watch.py", 1, "poll")
LENGTH = ("main", "", 0, "len")
DOT = ("main", "/checkout/.venv/lib/site-packages/numpy/core.py", 843, "vdot")


def test_start_and_what_is_done_now_and_then_are_no_calls_of_a_request() -> None:
    before = {SERVE: 500, LENGTH: 9000, POLL: 10}
    after = {SERVE: 700, SAMPLE: 100, LENGTH: 9400, DOT: 100, POLL: 20}

    found = calls_between(before, after, 100, FOLDER)

    assert (found.own, found.modules, found.others) == (3.0, 2, 5.0)
    assert found.elsewhere == {"engine": 1.0}
    assert found.functions[0] == "   1.0  worker/sampling.py:7 sample"


def test_calls_of_python_code_and_of_built_in_functions_are_counted_by_thread() -> None:
    def twice() -> int:
        return len("a") + len("b")

    sys.setprofile(count_here("a test"))
    twice()
    sys.setprofile(None)

    found = {(name, number) for thread, _, _, name, number in counted() if thread == "a test"}
    assert {("twice", 1), ("len", 2)} <= found
