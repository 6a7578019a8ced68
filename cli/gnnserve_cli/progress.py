"""Shows what generation reports: bars on a terminal, plain lines elsewhere.

To standard error, so that standard output stays the result.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from gnnserve_worker.progress import LineListener, Progress, ProgressListener, says_left

ALL_STEPS = "all steps"
"""Name of the bar of all steps together."""


@contextmanager
def showing_progress() -> Iterator[ProgressListener]:
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("[green]{task.fields[count]}"),
            TimeElapsedColumn(), TextColumn("[dim]{task.fields[detail]}"),
        )  # fmt: skip
        with Bars(*columns, console=console) as bars:
            yield BarListener(bars)
    else:
        yield LineListener(sys.stderr, time.monotonic)


class BarListener:
    """One bar per stage, below one of all steps together; finished ones stay as a record."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, progress: Progress) -> None:
        if (overall := progress.overall) is not None:
            left = f", {says_left(overall.left_s)}" if overall.share < 1 else ""
            count, percent = f"{overall.step}/{overall.steps}", f"{int(100 * overall.share)} %"
            self._show(ALL_STEPS, overall.share, 1.0, count, f"{percent}{left}")
        self._show(progress.stage, progress.done, progress.total, f"{progress.done}/{progress.total}", progress.detail)

    def _show(self, name: str, done: float, total: float, count: str, detail: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total, count="", detail="")
        self._bars.update(self._tasks[name], completed=done, total=total, count=count, detail=detail)
