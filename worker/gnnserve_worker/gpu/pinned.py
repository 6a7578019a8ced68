"""Host memory that the GPU's kernels read in place: the mapped files of a repository, or a copy where that cannot be.

Pages are pinned by registering them with the driver, in blocks: some drivers refuse more than a gigabyte at once
(Quiver, arXiv 2305.10863, registers the same way), and what was refused says how far it got. A mapped file can only be
read, which the driver has to support (cudaHostRegisterReadOnly); where it does not, or where the memory that a process
may lock is limited, an anonymous copy is pinned instead. Either way the pod has to have the memory: a file's pages,
once pinned, are not given up any more, and a container that lacks them would be killed rather than slowed down. So it
is counted first.
"""

from __future__ import annotations

import mmap
import resource
from dataclasses import dataclass
from typing import Final

import numpy as np

from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.memory import Claim, HostMemory

BLOCK_BYTES: Final = 2**30


class UnpinnableError(Exception):
    """Neither the array's own memory nor a copy can be pinned; the text says why, for people."""


@dataclass(slots=True)
class PinnedArray:
    """An array in memory that the GPU reads, as long as this is not released."""

    array: np.ndarray
    message: str | None
    """Why it is a copy; None: it is not."""
    _accelerator: Accelerator
    _blocks: list[int]
    _claim: Claim | None
    """Claim on the file's pages, where they are not a copy."""

    def release(self) -> None:
        """Unpins the array. Call it once no kernel reads it any more, and before the memory goes."""
        while self._blocks:
            self._accelerator.unregister(self._blocks.pop())
        if self._claim is not None:
            self._claim.release()


def pin(name: str, array: np.ndarray, accelerator: Accelerator, host: HostMemory) -> PinnedArray:
    """`array` (C order) where it is, or else a copy. `name`: for people."""
    needed, spare = array.nbytes, host.spare_bytes()
    if needed > spare:
        raise UnpinnableError(f"{name}: pinning it takes {needed:,} bytes of memory, of which {spare:,} are to be had")
    blocks, refusal = _register(array, accelerator, read_only=not array.flags.writeable)
    if refusal is None:
        return PinnedArray(array, None, accelerator, blocks, host.pinned_files.claim(needed))
    why = f"{name}: its mapping cannot be pinned ({refusal}{_locked_memory()})"
    try:
        copy = _anonymous_copy(array)
    except OSError as error:
        raise UnpinnableError(f"{why}, and there is no memory for a copy ({error.strerror})") from error
    blocks, refusal = _register(copy, accelerator, read_only=False)
    if refusal is not None:
        raise UnpinnableError(f"{why}, and neither can a copy ({refusal})")
    return PinnedArray(
        copy, f"{why}: a copy of it takes {needed:,} bytes of the host's memory", accelerator, blocks, None
    )


def pin_copy(name: str, array: np.ndarray, accelerator: Accelerator, host: HostMemory) -> PinnedArray:
    """A copy of `array` (C order) that is the process's own, to be written to."""
    needed, spare = array.nbytes, host.spare_bytes()
    if needed > spare:
        raise UnpinnableError(f"{name}: a copy takes {needed:,} bytes of memory, of which {spare:,} are to be had")
    try:
        copy = _anonymous_copy(array)
    except OSError as error:
        raise UnpinnableError(f"{name}: there is no memory for a copy ({error.strerror})") from error
    blocks, refusal = _register(copy, accelerator, read_only=False)
    if refusal is not None:
        raise UnpinnableError(f"{name}: a copy of it cannot be pinned ({refusal}{_locked_memory()})")
    return PinnedArray(copy, None, accelerator, blocks, None)


def _register(array: np.ndarray, accelerator: Accelerator, *, read_only: bool) -> tuple[list[int], str | None]:
    """The blocks' addresses; or none of them, and why."""
    first = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    end = -(-(array.ctypes.data + array.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    blocks: list[int] = []
    for address in range(first, end, BLOCK_BYTES):
        size_bytes = min(BLOCK_BYTES, end - address)
        refusal = accelerator.register(address, size_bytes, read_only=read_only)
        if refusal is not None:
            for block in blocks:
                accelerator.unregister(block)
            return [], f"{refusal} after {address - first:,} of {end - first:,} bytes"
        blocks.append(address)
    return blocks, None


def _anonymous_copy(array: np.ndarray) -> np.ndarray:
    """A copy in anonymous pages, huge ones where available: kernels read rows at random."""
    memory = mmap.mmap(-1, max(1, array.nbytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    copy = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def _locked_memory() -> str:
    """Message about the limit of locked memory, where it is too low."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "" if soft == resource.RLIM_INFINITY else f"; RLIMIT_MEMLOCK is {soft:,} bytes"
