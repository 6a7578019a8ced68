"""The CUDA operations: streams, graphs, events, pinned memory. This module neither decides nor computes.

Batches are computed on streams of high priority; a cache is updated on one of low priority (`cache.py`).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
import triton
from torch import Tensor

from gnnserve_api.errors import DeviceError
from gnnserve_worker.gpu.accelerator import RowsToWrite
from gnnserve_worker.gpu.shipped_kernels import link_shipped
from gnnserve_worker.gpu.waiting import Waits, sleep_until_idle

_BEFORE_OTHERS: Final = -1
"""A stream's priority; 0 is the lowest."""
_FEWEST_CAPABILITY: Final = (7, 5)
"""Lowest compute capability that the Triton of torch 2.15 compiles for: Turing, of 2018."""
_PORTABLE, _MAPPED, _READ_ONLY = 1, 2, 8
"""CU_MEMHOSTREGISTER_*: for all contexts; with an address on the device; the device only reads it."""
_capturing: Final = threading.Lock()
"""Lock: only one stream of a process may be captured at a time, and no kernel may be loaded meanwhile."""


def use_first_gpu() -> CudaAccelerator:
    """DeviceError: there is none that works."""
    try:
        torch.cuda.init()
        device = torch.device("cuda", 0)
        torch.cuda.set_device(device)
        # Creates the context: a GPU that is seen and cannot be used says so here.
        torch.zeros(1, device=device)
        torch.cuda.current_stream(device).synchronize()
    except (RuntimeError, AssertionError) as error:
        raise DeviceError(
            f"CUDA cannot use it: {first_line(error)}", "look at nvidia-smi on the node, and for Xid in its log"
        ) from error
    name = torch.cuda.get_device_name(device)
    capability = torch.cuda.get_device_capability(device)
    if capability < _FEWEST_CAPABILITY:
        raise DeviceError(
            f"{name} has compute capability {capability[0]}.{capability[1]}",
            f"use one of {_FEWEST_CAPABILITY[0]}.{_FEWEST_CAPABILITY[1]} or more, or spec.worker.device: CPU",
        )
    link_shipped(10 * capability[0] + capability[1], Path(triton.knobs.cache.dir))
    _compute_exactly()
    others = range(1, torch.cuda.device_count())
    lenders = tuple(torch.device("cuda", i) for i in others if torch.cuda.can_device_access_peer(device, i))
    return CudaAccelerator(device, lenders, name if not lenders else f"{name}, and memory of {len(lenders)} more")


def first_line(error: BaseException) -> str:
    """torch adds advice for people who debug kernels."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _compute_exactly() -> None:
    """float32 products in float32, whatever TORCH_ALLOW_TF32_CUBLAS_OVERRIDE or another library chose."""
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


@dataclass(frozen=True, slots=True)
class CudaAccelerator:
    device: torch.device
    lenders: tuple[torch.device, ...]
    name: str

    def runner(self) -> CudaRunner:
        return CudaRunner(self.device)

    def free_bytes(self) -> tuple[int, ...]:
        return tuple(map(_free_bytes, (self.device, *self.lenders)))

    def settle(self) -> None:
        sleep_until_idle(torch.cuda.current_stream(self.device))

    def upload(self, tensor: Tensor) -> Tensor:
        # Not on the default stream, with which other streams may synchronise.
        stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(stream):
            copy = tensor.to(self.device, copy=True)
        sleep_until_idle(stream)
        return copy

    def write(self, writes: Iterable[RowsToWrite]) -> int:
        sent_bytes = 0
        # Not on the default stream, as for `upload`. Rows in pinned memory the host writes itself, at once.
        stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(stream):
            for array, places, rows in writes:
                array.index_copy_(0, places.to(array.device), rows.to(array.device))
                sent_bytes += places.nbytes + rows.nbytes if array.is_cuda else 0
        sleep_until_idle(stream)
        return sent_bytes

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(size, dtype=dtype, pin_memory=True)

    def register(self, address: int, size_bytes: int, *, read_only: bool) -> str | None:
        # By the driver's function: after an error of the runtime's, torch would report it of its next kernel.
        flags = _PORTABLE | _MAPPED | (_READ_ONLY if read_only else 0)
        _bind_context(self.device)
        driver = _driver()
        refusal = _error_of(driver.cuMemHostRegister_v2(ctypes.c_void_p(address), size_bytes, flags))
        if refusal is not None:
            return refusal
        # Kernels are given the host's address, and of a table in several blocks only the first one's could be replaced.
        seen = ctypes.c_uint64()
        refusal = _error_of(driver.cuMemHostGetDevicePointer_v2(ctypes.byref(seen), ctypes.c_void_p(address), 0))
        if refusal is None and seen.value != address:
            refusal = "the device sees it at another address"
        if refusal is not None:
            self.unregister(address)
        return refusal

    def unregister(self, address: int) -> None:
        # It fails where the device is lost, and then there is nothing left to undo.
        with suppress(RuntimeError):
            _bind_context(self.device)
            _driver().cuMemHostUnregister(ctypes.c_void_p(address))

    def give_back(self) -> None:
        with _capturing:
            torch.cuda.empty_cache()


def _free_bytes(device: torch.device) -> int:
    free, _ = torch.cuda.mem_get_info(device)
    return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _bind_context(device: torch.device) -> None:
    """Binds the context to this thread, for the driver's own functions. The runtime does it at a thread's first call;
    choosing the device that is chosen anyway is none, as torch does it."""
    torch.cuda.mem_get_info(device)


@cache
def _driver() -> Any:
    library = ctypes.CDLL("libcuda.so.1")
    library.cuMemHostRegister_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
    library.cuMemHostGetDevicePointer_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_void_p, ctypes.c_uint]
    library.cuMemHostUnregister.argtypes = [ctypes.c_void_p]
    library.cuGetErrorName.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    return library


def _error_of(code: int) -> str | None:
    if code == 0:
        return None
    name = ctypes.c_char_p()
    _driver().cuGetErrorName(code, ctypes.byref(name))
    return f"error {code}" if name.value is None else name.value.decode()


@dataclass(frozen=True, slots=True)
class _CapturedGraph:
    graph: torch.cuda.CUDAGraph
    marks: tuple[torch.cuda.Event, ...]
    """Events before the first stage, and after each; recorded by the graph itself."""


class CudaRunner:
    """A graph per key, replayed on a stream of its own.

    No two runners share a stream, nor what was allocated while it was captured: the workspace of matrix products
    belongs to the stream, and graphs of several runners run at once.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=_BEFORE_OTHERS)
        self._pool = torch.cuda.graph_pool_handle()
        """Memory pool of graphs that never run at once."""
        self._graphs: dict[Hashable, _CapturedGraph] = {}
        self._running: tuple[Hashable, _CapturedGraph] | None = None
        # One that a thread sleeps for, where it does not spin.
        self._ended = torch.cuda.Event(blocking=True)
        self._waits = Waits()

    def run(self, key: Hashable, stages: Sequence[Callable[[], None]]) -> None:
        captured = self._graphs.get(key)
        if captured is None:
            captured = self._graphs[key] = self._capture(stages)
        with torch.cuda.stream(self._stream):
            captured.graph.replay()
            # Not one of the graph's: until the graph has reached it, that one is still what the last replay made it.
            self._ended.record(self._stream)
        self._running = key, captured

    def wait(self) -> list[float]:
        if self._running is None:
            raise RuntimeError("nothing was started")
        (key, captured), self._running = self._running, None
        self._waits.wait(self._ended, key)
        marks = captured.marks
        return [start.elapsed_time(end) for start, end in pairwise(marks)]

    def abandon(self) -> None:
        self._running = None
        sleep_until_idle(self._stream)

    def forget(self, keys: Collection[Hashable] | None = None) -> None:
        if keys is not None:
            for key in keys:
                self._graphs.pop(key, None)
            return
        self._graphs.clear()
        self._waits.forget()
        # torch asserts that a pool which graphs have shared is still one's, unless it has been emptied meanwhile.
        self._pool = torch.cuda.graph_pool_handle()

    def _capture(self, stages: Sequence[Callable[[], None]]) -> _CapturedGraph:
        stream = self._stream
        with _capturing, torch.cuda.stream(stream):
            # Kernels are compiled and loaded, and workspaces allocated, none of which is possible while capturing.
            for stage in stages:
                stage()
            sleep_until_idle(stream)
            marks = tuple(torch.cuda.Event(enable_timing=True, external=True) for _ in range(len(stages) + 1))
            graph = torch.cuda.CUDAGraph()
            # Other threads go on meanwhile: they serve.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                marks[0].record(stream)
                for stage, mark in zip(stages, marks[1:], strict=True):
                    stage()
                    mark.record(stream)
            except BaseException:
                # A capture that was broken ends with an error of its own, which says less than the first one.
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        return _CapturedGraph(graph, marks)
