"""What generation reports while it works; drawing it is the caller's business."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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
    """For callers that show nothing."""
