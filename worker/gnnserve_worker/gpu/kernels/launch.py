"""Starting kernels: compiled on a GPU, or as Python where there is none (`TRITON_INTERPRET=1`, for tests)."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any, Final

import torch
import triton
from torch import Tensor

INTERPRETED: Final[bool] = triton.knobs.runtime.interpret
"""Triton's own switch, as it was when kernels were defined."""

_INTERPRETED_NUMBERS: Final = 1 << 19
"""That a program then works on at once: half of what triton takes."""
_PROGRAMS_PER_PROCESSOR: Final = 16
_INTERPRETED_PROGRAMS: Final = 2
_one_at_a_time = threading.Lock()
"""The interpreter keeps the program that runs in variables of its module."""


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Start `programs` of `kernel` on the current stream, and do not wait for them.

    The first launch with other `constants` or other types compiles, which must not happen inside a capture.
    """
    if INTERPRETED:
        with _one_at_a_time:
            kernel[(programs,)](*arguments, **constants)
    else:
        kernel[(programs,)](*arguments, **constants, enable_fp_fusion=True)


def resident_programs(items: int, device: torch.device) -> int:
    """As many programs of one warp as go round all items and find room at once."""
    if device.type != "cuda":
        return min(items, _INTERPRETED_PROGRAMS)
    return min(items, _PROGRAMS_PER_PROCESSOR * _processors(device))


def rows_at_once(rows: int, numbers_per_row: int) -> int:
    """`rows`, or as many as the interpreter likes best: it pays for operations, not for numbers."""
    return min(256, max(1, _INTERPRETED_NUMBERS // numbers_per_row)) if INTERPRETED else rows


def as_words(tensor: Tensor) -> Tensor:
    """A view of a bfloat16 tensor as uint16: kernels widen and round its bits themselves, so that they do the same in
    the interpreter, which cuts off where a GPU rounds. Other tensors as they are."""
    return tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor


@cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
