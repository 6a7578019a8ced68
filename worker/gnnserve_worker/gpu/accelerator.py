"""Operations that the engine asks of a GPU, and no more: everything that only a GPU can do lies behind these two
protocols.

`cuda.py` has the real ones. The tests' run the same calls on arrays in the host's memory, one after the other, and so
exercise all the rest of this floor where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class RowsToWrite(NamedTuple):
    """Rows of an array that are to be others."""

    array: Tensor
    """In the device's memory, or in memory of the host that the device reads."""
    places: Tensor
    """int64, distinct; in the host's memory."""
    rows: Tensor
    """In the host's memory."""


class Runner(Protocol):
    """Runs the stages of one batch in order, beside other runners. To be used only by the holder of its lane."""

    def run(self, key: Hashable, stages: Sequence[Callable[[], None]]) -> None:
        """Start `stages`, and do not wait for them. Equal keys: the same stages, over the same arrays; with the first
        of them whatever has to be compiled is compiled."""
        ...

    def wait(self) -> list[float]:
        """Wait for what was started; returns the stages' durations in ms. Raises the device's error."""
        ...

    def abandon(self) -> None:
        """Wait until nothing of it runs any more, whether it was started or failed on the way."""
        ...

    def forget(self, keys: Collection[Hashable] | None = None) -> None:
        """Drops what was kept of these keys, or of every key."""
        ...


class Accelerator(Protocol):
    @property
    def device(self) -> torch.device: ...

    @property
    def lenders(self) -> tuple[torch.device, ...]:
        """Others whose memory it reads directly: they can hold a share of a cache."""
        ...

    @property
    def name(self) -> str:
        """Name of the device, for messages."""
        ...

    def runner(self) -> Runner: ...

    def free_bytes(self) -> tuple[int, ...]:
        """Memory that can be allocated now: on the device, and on each lender."""
        ...

    def settle(self) -> None:
        """Wait until everything that this thread started on the device, except by runners, has ended."""
        ...

    def upload(self, tensor: Tensor) -> Tensor:
        """A copy in the device's memory."""
        ...

    def write(self, writes: Iterable[RowsToWrite]) -> int:
        """Write rows, one after the other as they are asked for; all of them are there when this returns. Nothing may
        read the arrays meanwhile. Returns the bytes that went over the link."""
        ...

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        """A flat array in host memory that the device reads and writes."""
        ...

    def register(self, address: int, size_bytes: int, *, read_only: bool) -> str | None:
        """Pin whole pages of host memory, so that kernels read them in place. None, or why that is not possible."""
        ...

    def unregister(self, address: int) -> None: ...

    def give_back(self) -> None:
        """Memory that is allocated and not used."""
        ...
