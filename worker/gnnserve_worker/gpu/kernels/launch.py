"""Launching kernels: compiled on a GPU, or interpreted where there is none (`TRITON_INTERPRET=1`, for tests)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import torch
import triton
from torch import Tensor

from gnnserve_worker.gpu.arrays import MEASURED

INTERPRETED: Final[bool] = triton.knobs.runtime.interpret
"""Whether Triton interprets kernels: its own switch, read when kernels are defined."""

_INTERPRETED_NUMBERS: Final = 1 << 19
"""Numbers that an interpreted program works on at once: half of Triton's limit."""
_PROGRAMS_PER_PROCESSOR: Final = 16
_INTERPRETED_PROGRAMS: Final = 2
_launches = True
_one_at_a_time = threading.Lock()
"""Held while the interpreter runs: it keeps the running program in module variables."""


@contextmanager
def compile_only() -> Iterator[None]:
    """Context in which launches compile and launch nothing, for cards that are not there (`gpu/compile_ahead.py`)."""
    global _launches  # noqa: PLW0603  (a process compiles ahead, or serves)
    _launches = False
    try:
        yield
    finally:
        _launches = True


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Launch `programs` programs of `kernel` on the current stream, without waiting for them.

    The first launch with other `constants` or other types compiles, which must not happen inside a capture. Of arrays
    that are measured alone nothing is launched.
    """
    if any(isinstance(each, Tensor) and each.device == MEASURED for each in arguments):
        return
    if INTERPRETED:
        with _one_at_a_time:
            kernel[(programs,)](*arguments, **constants)
    elif _launches:
        kernel[(programs,)](*arguments, **constants, enable_fp_fusion=True)
    else:
        kernel.warmup(*arguments, grid=(programs,), **constants, enable_fp_fusion=True)


def resident_programs(items: int, device: torch.device) -> int:
    """Number of one-warp programs that are resident at once, at most one per item."""
    if device.type != "cuda":
        return min(items, _INTERPRETED_PROGRAMS)
    return min(items, _PROGRAMS_PER_PROCESSOR * _processors(device))


def rows_at_once(rows: int, numbers_per_row: int) -> int:
    """Rows per program: `rows`, or more in the interpreter, whose cost is per operation and not per number."""
    return min(256, max(1, _INTERPRETED_NUMBERS // numbers_per_row)) if INTERPRETED else rows


def as_words(tensor: Tensor) -> Tensor:
    """A view of a bfloat16 tensor as uint16; other tensors as they are. Kernels widen and round the bits themselves, so
    that results equal the interpreter's, which truncates where a GPU rounds."""
    return tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor


@cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
