"""An accelerator between the engine and a GPU, or its twin: it fails when it is told to, and notes what was captured.

Failures are raised where a GPU's come out, at the wait for a batch, as the exceptions that torch and Triton raise. The
batch itself has run by then, so that on a GPU nothing of it is left on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gnnserve_worker.gpu.accelerator import Accelerator, RowsToWrite, Runner


@dataclass(slots=True)
class Interposed:
    """Behaves as the accelerator within."""

    within: Accelerator
    failures: list[BaseException] = field(default_factory=list)
    """Raised by the next waits, one each."""
    refuse: Callable[[int, bool], str | None] = lambda _size_bytes, _read_only: None
    """Why host memory of that size, which may only be read or not, cannot be pinned."""
    on_give_back: Callable[[], object] = lambda: None
    on_settle: Callable[[], object] = lambda: None
    captured: list[Hashable] = field(default_factory=list)
    """Keys of what a GPU captured, or would have, in order."""

    @property
    def device(self) -> torch.device:
        return self.within.device

    @property
    def lenders(self) -> tuple[torch.device, ...]:
        return self.within.lenders

    @property
    def name(self) -> str:
        return self.within.name

    def runner(self) -> Runner:
        return _InterposedRunner(self, self.within.runner())

    def free_bytes(self) -> tuple[int, ...]:
        return self.within.free_bytes()

    def settle(self) -> None:
        self.within.settle()
        self.on_settle()

    def upload(self, tensor: Tensor) -> Tensor:
        return self.within.upload(tensor)

    def write(self, writes: Iterable[RowsToWrite]) -> int:
        return self.within.write(writes)

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        return self.within.pinned(size, dtype)

    def register(self, address: int, size_bytes: int, *, read_only: bool) -> str | None:
        refusal = self.refuse(size_bytes, read_only)
        return self.within.register(address, size_bytes, read_only=read_only) if refusal is None else refusal

    def unregister(self, address: int) -> None:
        self.within.unregister(address)

    def give_back(self) -> None:
        self.on_give_back()
        self.within.give_back()


class _InterposedRunner:
    def __init__(self, told: Interposed, within: Runner) -> None:
        self._told = told
        self._within = within
        self._known: set[Hashable] = set()

    def run(self, key: Hashable, stages: Sequence[Callable[[], None]]) -> None:
        if key not in self._known:
            self._known.add(key)
            self._told.captured.append(key)
        self._within.run(key, stages)

    def wait(self) -> list[float]:
        times = self._within.wait()
        if self._told.failures:
            raise self._told.failures.pop(0)
        return times

    def abandon(self) -> None:
        self._within.abandon()

    def forget(self, keys: Collection[Hashable] | None = None) -> None:
        self._known.difference_update(self._known.copy() if keys is None else keys)
        self._within.forget(keys)
