"""A GPU's twin in the host's memory: the engine's own calls, one after the other, kernels in Triton's interpreter."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from gnnserve_worker.gpu.accelerator import RowsToWrite, Runner


@dataclass(slots=True)
class Twin:
    """Behaves as `gpu.cuda.CudaAccelerator`."""

    free: int = 4 * 2**30
    refuse: Callable[[int, bool], str | None] = lambda _size_bytes, _read_only: None
    """Why host memory of that size, which may only be read or not, cannot be pinned."""
    lenders: tuple[torch.device, ...] = ()
    registered: dict[int, int] = field(default_factory=dict)
    """Bytes by address."""
    written_rows: int = 0
    """Rows that were written into arrays, entries of lists among them."""
    runners: int = 0
    most_at_once: int = 0
    """Runners that had something to wait for."""
    at_once: int = 0

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def name(self) -> str:
        return "a twin"

    def runner(self) -> Runner:
        self.runners += 1
        return EagerRunner(self)

    def free_bytes(self) -> tuple[int, ...]:
        return (self.free, *(self.free for _ in self.lenders))

    def settle(self) -> None: ...

    def upload(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def write(self, writes: Iterable[RowsToWrite]) -> int:
        sent_bytes = 0
        for array, places, rows in writes:
            self.written_rows += len(places)
            sent_bytes += places.nbytes + rows.nbytes
            array.index_copy_(0, places, rows)
        return sent_bytes

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(size, dtype=dtype)

    def register(self, address: int, size_bytes: int, *, read_only: bool) -> str | None:
        refusal = self.refuse(size_bytes, read_only)
        if refusal is None:
            self.registered[address] = size_bytes
        return refusal

    def unregister(self, address: int) -> None:
        del self.registered[address]

    def give_back(self) -> None: ...


class EagerRunner:
    def __init__(self, twin: Twin) -> None:
        self._twin = twin
        self._marks: list[float] | None = None

    def run(self, key: Hashable, stages: Sequence[Callable[[], None]]) -> None:
        assert self._marks is None, "a lane was started twice"
        marks = [time.perf_counter()]
        self._twin.at_once += 1
        self._twin.most_at_once = max(self._twin.most_at_once, self._twin.at_once)
        self._marks = marks
        for stage in stages:
            stage()
            marks.append(time.perf_counter())

    def wait(self) -> list[float]:
        assert self._marks is not None, "nothing was started"
        marks, self._marks = self._marks, None
        self._twin.at_once -= 1
        return [(end - start) * 1e3 for start, end in pairwise(marks)]

    def abandon(self) -> None:
        if self._marks is not None:
            self._marks = None
            self._twin.at_once -= 1

    def forget(self, keys: Collection[Hashable] | None = None) -> None: ...
