"""Processor seconds are counted by test, with those of programs, and gathered from all processes."""

from __future__ import annotations

import subprocess
import sys

from tests.support.processor_time import ProcessorTime, ProcessorTimes

COMPUTES = "import time\nwhile time.process_time() < 0.2: pass\n"


def test_a_program_counts_for_the_test_that_waits_for_it() -> None:
    times = ProcessorTimes()
    with times.counting("test_a.py::test_one"):
        subprocess.run([sys.executable, "-c", COMPUTES], check=True)
    with times.counting("test_b.py::test_one"):
        pass
    assert times.by_test["test_a.py::test_one"].programs_s > 0.1
    assert times.by_test["test_b.py::test_one"].programs_s < 0.1


def test_a_program_that_runs_on_counts_for_the_test_in_which_it_computes() -> None:
    times = ProcessorTimes()
    command = [sys.executable, "-c", f"{COMPUTES}print(flush=True)\ninput()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None and program.stdout is not None
        with times.counting("test_a.py::test_one"):
            program.stdout.readline()
        with times.counting("test_b.py::test_one"):
            program.stdin.write(b"\n")
    assert times.by_test["test_a.py::test_one"].programs_s > 0.1


def test_tests_of_all_processes_are_added_and_the_longest_come_first() -> None:
    times = ProcessorTimes()
    times.add({"test_a.py::test_one": [1.0, 2.0], "test_b.py::test_one": [0.5, 0.0]})
    other = ProcessorTimes()
    other.by_test["test_b.py::test_two"] += ProcessorTime(0.0, 2.75)
    times.add(other.as_sent())
    assert times.lines(1) == [
        "      own  programs",
        "    1.50s     4.75s all",
        "    0.50s     2.75s test_b.py",
        "    1.00s     2.00s test_a.py::test_one",
    ]
    assert len(times.lines(0)) == 2 + 2 + 3
