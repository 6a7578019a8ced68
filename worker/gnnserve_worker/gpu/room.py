"""Memory of a lane that networks of listed layers are computed in, given out one array behind the other.

How much one takes is measured and not written down beside it: the network runs once over arrays without memory
(torch's device `meta`), for which no kernel is launched, and what it asks for is added up. Equal runs ask for equal
arrays in equal order, so that captured graphs find everything where it was.
"""

from __future__ import annotations

from typing import Final, Protocol

import torch
from torch import Tensor

from gnnserve_worker.gpu.arrays import MEASURED

_ALIGNED_BYTES: Final = 256
"""Arrays begin at multiples of it, as CUDA's allocations do."""


class HasRoom(Protocol):
    @property
    def room(self) -> DeviceRoom: ...  # pragma: no cover


class DeviceRoom:
    def __init__(self, size_bytes: int, device: torch.device) -> None:
        self._bytes = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        self._device = device
        self.used_bytes = 0

    @property
    def device(self) -> torch.device:
        return self._device

    def begin(self) -> None:
        """Take back what the run before was given."""
        self.used_bytes = 0

    def numbers(self, count: int, dtype: torch.dtype) -> Tensor:
        """[count], with any content."""
        begin, size = self.used_bytes, count * dtype.itemsize
        self.used_bytes = begin + -(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES
        if self._device == MEASURED:
            return torch.empty(count, dtype=dtype, device=MEASURED)
        if self.used_bytes > len(self._bytes):
            raise RuntimeError(f"{self.used_bytes:,} bytes of a room of {len(self._bytes):,}")
        return self._bytes[begin : begin + size].view(dtype)

    def rows(self, count: int, columns: int) -> Tensor:
        """float32 [count, columns], with any content."""
        return self.numbers(count * columns, torch.float32).view(count, columns)
