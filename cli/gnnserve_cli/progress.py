"""Shows what generation reports: bars on a terminal, plain lines elsewhere.

To standard error, so that standard output stays the result.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from gnnserve_worker.progress import LineListener, Progress, ProgressListener


@contextmanager
def showing_progress() -> Iterator[ProgressListener]:
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[detail]}"),
        )  # fmt: skip
        with Bars(*columns, console=console) as bars:
            yield BarListener(bars)
    else:
        yield LineListener(sys.stderr, time.monotonic)


class BarListener:
    """One bar per stage; finished ones stay as a record."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, progress: Progress) -> None:
        if progress.stage not in self._tasks:
            self._tasks[progress.stage] = self._bars.add_task(progress.stage, total=progress.total, detail="")
        task = self._tasks[progress.stage]
        self._bars.update(task, completed=progress.done, total=progress.total, detail=progress.detail)
