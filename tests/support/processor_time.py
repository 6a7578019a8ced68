"""Processor seconds of tests and of their files: what adds up unseen, since durations also count what tests wait for.

Each process that runs tests counts its own seconds and those of all programs below it, whether these run still (as a
server that others are forked from) or have ended, all threads included. A fixture counts for the test that it is made
or taken down with; imports and collection are counted apart, since each process has them once.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Seconds of user and system together."""

    own_s: float = 0.0
    programs_s: float = 0.0
    """Seconds of programs that were started."""

    @classmethod
    def so_far(cls) -> ProcessorTime:
        """Read the clocks of this process and of those below it."""
        times = os.times()
        running_s = _running_ticks(os.getpid()) / os.sysconf("SC_CLK_TCK")
        return cls(times.user + times.system, times.children_user + times.children_system + running_s)

    def __add__(self, other: ProcessorTime) -> ProcessorTime:
        return ProcessorTime(self.own_s + other.own_s, self.programs_s + other.programs_s)

    def __sub__(self, other: ProcessorTime) -> ProcessorTime:
        return ProcessorTime(self.own_s - other.own_s, self.programs_s - other.programs_s)


@dataclass(frozen=True, slots=True)
class ProcessorTimes:
    """Processor time by test, of one process or of all that ran tests."""

    by_test: dict[str, ProcessorTime] = field(default_factory=lambda: defaultdict(ProcessorTime))

    @contextmanager
    def counting(self, test: str) -> Iterator[None]:
        """Count what is spent meanwhile for the test."""
        before = ProcessorTime.so_far()
        try:
            yield
        finally:
            self.by_test[test] += ProcessorTime.so_far() - before

    def collected(self) -> None:
        """Count what was spent since this process began, before its first test."""
        self.by_test["(imports and collection)"] += ProcessorTime.so_far()

    def handed_out(self) -> None:
        """Count what this process needed to hand tests out and to gather reports; its programs ran the tests."""
        self.by_test["(handing tests out)"] += ProcessorTime(ProcessorTime.so_far().own_s)

    def as_sent(self) -> dict[str, list[float]]:
        """Encode for another process."""
        return {test: [one.own_s, one.programs_s] for test, one in self.by_test.items()}

    def add(self, sent: Mapping[str, list[float]]) -> None:
        """Add what another process has sent."""
        for test, seconds in sent.items():
            self.by_test[test] += ProcessorTime(*seconds)

    def lines(self, most: int) -> list[str]:
        """The sum, the files that took the most, and the tests; `most` 0: all of either."""
        by_file: dict[str, ProcessorTime] = defaultdict(ProcessorTime)
        for test, one in self.by_test.items():
            by_file[test.partition("::")[0]] += one
        total = {"all": sum(self.by_test.values(), ProcessorTime())}
        return ["      own  programs", *_longest(total, 1), *_longest(by_file, most), *_longest(self.by_test, most)]


def _running_ticks(pid: int) -> int:
    """Of all processes below this one that have not ended, with what they have waited for; 0: the system does not
    tell. A process may end meanwhile: then it counts from the next time on."""
    ticks = 0
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                spent = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:15]
                ticks += sum(map(int, spent)) + _running_ticks(child)
    return ticks


def _longest(times: Mapping[str, ProcessorTime], most: int) -> Sequence[str]:
    found = sorted(times.items(), key=lambda one: -one[1].own_s - one[1].programs_s)
    return [f"{one.own_s:8.2f}s {one.programs_s:8.2f}s {name}" for name, one in found[: most or None]]
