"""Errors of a GPU, and what each leaves of the process's CUDA context: to retry, or to begin anew.

torch, Triton and the driver raise exceptions of their own for the same error. Where one carries the error's number
(`torch.AcceleratorError.error_code`), the number decides, otherwise CUDA's words for it in the message. Which errors
leave "the process in an inconsistent state" is what the documentation of `CUresult` says (cuda.h), and of errors of the
hardware, what NVIDIA's list of Xids does. An error of the device that is not in the table is taken for such a one: a
wrong answer is worse than a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import torch


class Consequence(StrEnum):
    """Consequence of an error for the process that sees it."""

    MEMORY = "memory"
    """Nothing was lost but an allocation: give memory back, and try again."""
    REFUSED = "refused"
    """One call or launch was not carried out. The context lives: try again, or let the CPU answer this batch."""
    UNPREPARED = "unprepared"
    """The device did not say it, but what prepares its work: a compiler that is missing. The context lives."""
    LOST = "lost"
    """Nothing of the context may be used any more: it takes a new process."""
    BROKEN = "broken"
    """As LOST, and a new process may fail too: the card, its link or its driver is at fault."""


LASTING: Final = frozenset({Consequence.LOST, Consequence.BROKEN})
"""Consequences that hold for all that the process would still do on its GPU."""


@dataclass(frozen=True, slots=True)
class KnownError:
    codes: tuple[int, ...]
    """Numbers of cudaError_t, which are those of CUresult but for 9 and 98."""
    words: tuple[str, ...]
    """Words of the message, in lower case."""
    consequence: Consequence


KNOWN_ERRORS: Final = (
    KnownError((2,), ("out of memory", "cublas_status_alloc_failed", "cuda_error_out_of_memory"), Consequence.MEMORY),
    KnownError((1,), ("invalid argument",), Consequence.REFUSED),
    KnownError((9,), ("invalid configuration argument",), Consequence.REFUSED),
    KnownError((98,), ("invalid device function",), Consequence.REFUSED),
    KnownError((200, 209), ("kernel image is invalid", "no kernel image is available"), Consequence.REFUSED),
    KnownError((218, 222), ("ptx jit compilation failed", "unsupported toolchain"), Consequence.REFUSED),
    KnownError((701,), ("too many resources requested for launch",), Consequence.REFUSED),
    KnownError((720,), ("too many blocks in cooperative launch",), Consequence.REFUSED),
    KnownError((801,), ("operation not supported",), Consequence.REFUSED),
    KnownError(
        (900, 901, 902, 903, 904, 905, 906, 907, 908, 910),
        ("when stream is capturing", "during capture", "capturing stream", "graph update was not performed"),
        Consequence.REFUSED,
    ),
    KnownError((), ("cublas_status_not_supported", "cublas_status_invalid_value"), Consequence.REFUSED),
    KnownError((700,), ("illegal memory access",), Consequence.LOST),
    KnownError((702,), ("launch timed out",), Consequence.LOST),
    KnownError((709,), ("context is destroyed",), Consequence.LOST),
    KnownError((710,), ("device-side assert",), Consequence.LOST),
    KnownError((714, 715), ("hardware stack error", "illegal instruction"), Consequence.LOST),
    KnownError((716, 717), ("misaligned address", "on global/shared address space"), Consequence.LOST),
    KnownError((718, 719, 721), ("invalid program counter", "unspecified launch failure"), Consequence.LOST),
    KnownError((999,), ("unknown error",), Consequence.LOST),
    KnownError((214,), ("uncorrectable ecc error",), Consequence.BROKEN),
    KnownError((220, 226), ("uncorrectable nvlink error", "contained error"), Consequence.BROKEN),
    KnownError((46, 100, 101), ("busy or unavailable", "no cuda-capable device", "invalid device ordinal"),
               Consequence.BROKEN),
    KnownError((802, 803, 804), ("system not yet initialized", "driver combination", "forward compatibility"),
               Consequence.BROKEN),
    KnownError((911,), ("external device",), Consequence.BROKEN),
)  # fmt: skip
"""Errors whose consequence is known; the first row whose words a message has decides where there is no number."""
_DEVICE_WORDS: Final = ("cuda error", "cuda driver error", "[cuda]", "cublas_status_", "cudnn_status_")
_OF_CODE: Final = {code: known.consequence for known in KNOWN_ERRORS for code in known.codes}


def consequence_of(error: BaseException) -> Consequence:
    if isinstance(error, torch.OutOfMemoryError):
        return Consequence.MEMORY
    code = getattr(error, "error_code", None) if isinstance(error, torch.AcceleratorError) else None
    if code in _OF_CODE:
        return _OF_CODE[code]
    text = str(error).lower()
    is_of_device = isinstance(error, torch.AcceleratorError) or any(words in text for words in _DEVICE_WORDS)
    for known in KNOWN_ERRORS:
        if any(words in text for words in known.words) and (is_of_device or known.consequence is Consequence.MEMORY):
            return known.consequence
    return Consequence.LOST if is_of_device else Consequence.UNPREPARED


def describe(error: BaseException) -> str:
    """The error's message, without the advice for debugging kernels that torch adds."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def advice_on(consequence: Consequence) -> str:
    """Advice for people, to be put behind the error's description; empty where a new process is all that it takes."""
    if consequence is not Consequence.BROKEN:
        return ""
    return ", which a new process may not mend: look at nvidia-smi, and for Xid in the node's log"
