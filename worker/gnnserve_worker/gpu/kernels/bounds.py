"""Most registers that a lane of each kernel may take, and most bytes that it may spill.

A processor has 65,536 registers, so that their number says how many warps fit on it, and with them how many reads are
in flight (`gather.py`): 96 leave room for 21, 128 for 16, 168 for 12, 255 for 8. A change of a kernel, or of what
compiles it, that takes more than before fails a test, where it would only be seen as a slower GPU. Numbers are those of
the oldest and the newest Triton that were tried (3.6 and 3.9), whichever takes more, rounded up to the eight by which
registers are given out. Lower a row where its kernel takes fewer by design; raise it only with what was won for it.

Cases are those of `tests/support/gpu/gpu_compilation.py`: every kernel with the constants of some revisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ARCHITECTURES: Final = (80, 90, 100)
"""Compute capabilities, times ten: Ampere, Hopper, Blackwell."""

MOST_REGISTERS: Final[Mapping[str, Mapping[str, tuple[int, int, int]]]] = {
    "_sample_hop": {
        "sample (25, 10)": (96, 96, 72),
        "sample (1024,)": (224, 255, 168),
        "sample of a graph that changes": (96, 96, 72),
        "sample with positions": (112, 120, 96),
    },
    "_gather": {
        "gather torch.float32 devices=1": (96, 72, 96),
        "gather torch.float16 devices=0": (96, 96, 96),
        "gather torch.bfloat16 devices=2": (112, 120, 96),
        "gather torch.int8 devices=1": (168, 168, 184),
        "gather added": (120, 72, 96),
        "gather weighted": (255, 168, 184),
        "gather weighted of a graph that changes": (255, 168, 184),
        "gather torch.float16 devices=0 behind": (112, 96, 96),
        "gather torch.int8 devices=1 behind": (168, 168, 184),
        "gather weighed before": (255, 255, 248),
        "attention": (128, 96, 112),
        "attention int8": (255, 248, 255),
        "attention behind": (255, 168, 168),
        "attention stored": (240, 168, 168),
        "shared rows": (120, 80, 96),
        "shared rows int8": (168, 168, 168),
        "shared rows attention": (168, 128, 160),
        "gather short": (192, 168, 168),
    },
    "_score": {
        "attention": (128, 120, 120),
        "attention int8": (160, 168, 168),
        "attention behind": (128, 112, 120),
        "attention stored": (48, 48, 48),
        "shared rows attention": (128, 136, 128),
    },
    "_share_out": {
        "attention": (208, 192, 192),
        "attention int8": (208, 192, 192),
        "attention behind": (208, 192, 192),
        "attention stored": (208, 192, 192),
    },
    "_mark": {
        "shared rows": (64, 64, 64),
        "shared rows int8": (24, 32, 32),
        "shared rows attention": (48, 48, 48),
    },
    "_list_nodes": {
        "shared rows": (32, 32, 32),
        "shared rows int8": (32, 32, 32),
        "shared rows attention": (32, 32, 32),
    },
    "_assign_slots": {
        "shared rows": (40, 40, 40),
        "shared rows int8": (40, 40, 40),
        "shared rows attention": (40, 40, 40),
    },
    "_fetch_rows": {
        "shared rows": (128, 128, 128),
        "shared rows int8": (96, 96, 96),
        "shared rows attention": (128, 128, 128),
    },
    "_aggregate": {
        "aggregate": (80, 72, 72),
        "aggregate added": (96, 96, 96),
        "aggregate attending": (96, 112, 96),
        "aggregate weighted": (128, 128, 128),
        "aggregate weighted of a graph that changes": (128, 128, 128),
    },
    "_mark_first": {
        "lists by node": (24, 24, 24),
    },
    "_list_first": {
        "lists by node": (32, 32, 32),
    },
    "_take_first": {
        "lists by node": (48, 48, 48),
    },
    "_reduce": {
        "aggregate Max": (88, 96, 88),
        "aggregate Min": (88, 96, 88),
        "aggregate Var": (88, 72, 80),
        "aggregate Std": (80, 72, 80),
    },
    "_score_edge": {
        "attention of both ends": (56, 56, 56),
        "attention of keys": (88, 88, 88),
    },
    "_share_edge": {
        "attention of both ends": (192, 160, 160),
        "attention of keys": (120, 128, 128),
        "attention added": (208, 168, 152),
    },
    "_sum_shared": {
        "attention of both ends": (160, 160, 160),
        "attention of keys": (96, 96, 72),
    },
}
"""Most registers of a lane by kernel and case, one number for each of the architectures."""

_MOST_SPILLED_BYTES: Final[Mapping[str, int]] = {"3.6": 32}
"""By the minor version of Triton; none with any other. The assembler of 3.6 keeps to 64, 72, 128 or 168 registers, with
which one more warp fits on a processor, and spills the few values that are too many."""


def most_spilled_bytes(triton_version: str) -> int:
    """Most bytes that a lane may spill."""
    return _MOST_SPILLED_BYTES.get(".".join(triton_version.split(".")[:2]), 0)


def exceeded(
    kernel: str, case: str, architecture: int, registers: int, spilled_bytes: int, triton_version: str
) -> str | None:
    """Words about a kernel that takes more than it may; None: it does not."""
    where = f"{kernel} ({case}) for sm_{architecture}, by Triton {triton_version}"
    bounds = MOST_REGISTERS.get(kernel, {}).get(case)
    if bounds is None:
        return f"{where}: it has no bound; it takes {registers} registers and spills {spilled_bytes} bytes"
    most, most_spilled = bounds[ARCHITECTURES.index(architecture)], most_spilled_bytes(triton_version)
    if registers <= most and spilled_bytes <= most_spilled:
        return None
    return (
        f"{where}: {registers} registers and {spilled_bytes} spilled bytes a lane, where {most} and {most_spilled} are "
        "the bound (gpu/kernels/bounds.py)"
    )
