"""Progress of generation, and how a log shows it. The command line draws bars on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

LINE_INTERVAL_S = 10.0
"""Seconds between two lines about one stage: a log needs a sign of life, not every step."""


@dataclass(frozen=True, slots=True)
class Progress:
    stage: str
    """A short description, stable over the stage: `train x4`, `rank by Lasso`, `profile`."""
    done: int
    total: int
    detail: str = ""
    """The latest figure worth showing: `validation 0.963`."""


ProgressListener = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """A listener that shows nothing."""


class LineListener:
    """A listener that prints a line when a stage begins, when it ends, and every `LINE_INTERVAL_S` between."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock
        self._stage = ""
        self._printed_at = 0.0

    def __call__(self, progress: Progress) -> None:
        now = self._clock()
        begins = progress.stage != self._stage
        if not (begins or progress.done >= progress.total or now - self._printed_at >= LINE_INTERVAL_S):
            return
        self._stage, self._printed_at = progress.stage, now
        detail = f"  {progress.detail}" if progress.detail else ""
        print(f"{progress.stage}: {progress.done}/{progress.total}{detail}", file=self._stream, flush=True)
