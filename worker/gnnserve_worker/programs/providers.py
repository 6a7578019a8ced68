"""Execution providers of ONNX Runtime: which one a program runs by, and how it is kept within its memory there."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_CUDA_OPTIONS = {
    "device_id": "0",
    # Scores are held against those of the CPU, in float32.
    "use_tf32": "0",
    "arena_extend_strategy": "kSameAsRequested",
}


class ProgramDevice(msgspec.Struct, frozen=True):
    """Where a program is wanted to run."""

    is_gpu: bool = False
    gpu_memory_bytes: int | None = None
    """Most memory of the GPU; None: all that is free."""


ON_CPU = ProgramDevice()


class MissingProviderError(Exception):
    """The ONNX Runtime that is installed cannot use a GPU."""


def providers(device: ProgramDevice, available: Sequence[str]) -> list[str | tuple[str, dict[str, str]]]:
    """Providers of a session, as ONNX Runtime takes them. MissingProviderError."""
    if not device.is_gpu:
        return [CPU]
    if CUDA not in available:
        raise MissingProviderError(
            "the ONNX Runtime that is installed has no CUDA provider: install onnxruntime-gpu in place of onnxruntime"
        )
    limit = {} if device.gpu_memory_bytes is None else {"gpu_mem_limit": str(device.gpu_memory_bytes)}
    # What CUDA has no kernel for is computed by the CPU.
    return [(CUDA, _CUDA_OPTIONS | limit), CPU]


def limited_resource(device: ProgramDevice) -> tuple[int, str]:
    """The resource that bounds a process's memory, and the name of its column in /proc/self/status. CUDA reserves
    address space for all memory that there is, so that there what is written to is bounded."""
    return (resource.RLIMIT_DATA, "VmData") if device.is_gpu else (resource.RLIMIT_AS, "VmSize")


def limit_memory(device: ProgramDevice, memory_bytes: int) -> None:
    """Let this process take so much more than it has now, and no more; and leave no core dump."""
    limited, column = limited_resource(device)
    limit = _status_bytes(column) + memory_bytes
    resource.setrlimit(limited, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def came_near_limit(memory_bytes: int) -> bool:
    """Whether this process, on the CPU, has had more than seven eighths of what `limit_memory` lets it take: protobuf
    does not tell that memory was short."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return limit != resource.RLIM_INFINITY and _status_bytes("VmPeak") > limit - memory_bytes // 8


def _status_bytes(column: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{column}:"))


def prepare(onnxruntime: Any, device: ProgramDevice, options: Any) -> None:
    """Set what a session needs beside its providers."""
    if device.is_gpu:
        # Sums into one index are in the same order in each run.
        options.use_deterministic_compute = True
        onnxruntime.preload_dlls()
