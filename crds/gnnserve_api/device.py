"""The device that workers compute on, and which rows of a table they keep in a GPU's memory.

The words are the manifest's, the command line's and the worker's alike.
"""

from __future__ import annotations

import re
from enum import StrEnum

SIZE = r"^[1-9][0-9]{0,6}(Mi|Gi|Ti)$"
SIZE_REQUIREMENT = "a size, as in 500Mi, 40Gi or 1Ti"
_UNIT_BYTES = {"Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


class Device(StrEnum):
    AUTO = "Auto"
    """The GPU where there is one that serves; the CPU otherwise, and `/v1/route` says why."""
    CPU = "CPU"
    """The processor, also where there is a GPU."""
    GPU = "GPU"
    """The GPU or nothing: a worker that has none, or loses it, is not ready."""


class CachePolicy(StrEnum):
    """Choice of the rows that a GPU's memory keeps of a table that does not fit."""

    FREQUENCY = "Frequency"
    """Those that were met most often lately: admitted and evicted by decayed access counts."""
    DEGREE = "Degree"
    """Those of the nodes that most neighbour lists name, from the start and for good."""
    PRESAMPLED = "Presampled"
    """Those that a trial run from training nodes met most often, from the start and for good."""
    FIFO = "FIFO"
    """The last ones that were met and not there."""
    LFU = "LFU"
    """Like FIFO, but the row that was met least often is dropped."""
    NONE = "None"
    """Every row comes over the link."""


def size_bytes(size: str) -> int:
    """Bytes of a text that matches `SIZE`: `500Mi`, `40Gi`. Raises ValueError where it does not."""
    if re.fullmatch(SIZE, size) is None:
        raise ValueError(f"{size!r} is not {SIZE_REQUIREMENT}")
    return int(size[:-2]) * _UNIT_BYTES[size[-2:]]
