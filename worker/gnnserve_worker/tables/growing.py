"""Arrays that changes are written into: a file's numbers, with room for more behind them.

The file is mapped privately at the beginning of reserved address space, so that what is not written to is shared with
other processes and may be dropped from memory, and a page that is written to is copied once. Address space behind it
costs nothing until it is used. For kernels it is one array.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np

from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.tables.table import read_header

_PAGE_BYTES = 4096
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip


def map_growing(path: Path, rows: int) -> np.ndarray:
    """A writable array over a .npy file, with room for `rows` in all; those behind the file's are zeros. The file stays
    as it is.

    ValueError: not such a file, or it has more rows. OSError: it cannot be read, or there is no address space.
    """
    with path.open("rb") as file:
        header = read_header(file)
        if rows < header.shape[0]:
            raise ValueError(f"{header.shape[0]:,} rows, and room for {rows:,}")
        shape = (rows, *header.shape[1:])
        reserved = _reserve(header.bytes + int(np.prod(shape)) * header.dtype.itemsize)
        size = header.bytes + int(np.prod(header.shape)) * header.dtype.itemsize
        _map_over(reserved, file.fileno(), size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        reserved.madvise(mmap.MADV_HUGEPAGE)
    count = int(np.prod(shape))
    return np.frombuffer(reserved, dtype=header.dtype, count=count, offset=header.bytes).reshape(shape)


def empty_growing(
    shape: tuple[int, ...], dtype: type[np.generic] | np.dtype, *, in_huge_pages: bool = False
) -> np.ndarray:
    """A writable array of zeros, whose memory is taken as it is written to. `in_huge_pages`: where items beside each
    other are written to; of items far from each other huge pages would take five hundred times as much. OSError: there
    is no address space."""
    count = int(np.prod(shape))
    reserved = _reserve(max(1, count) * np.dtype(dtype).itemsize)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        reserved.madvise(mmap.MADV_HUGEPAGE if in_huge_pages else mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(reserved, dtype=dtype, count=count).reshape(shape)


class CopiedPages:
    """Memory that writing to items of a mapped file has taken: a page is copied when it is first written to."""

    def __init__(self, items: int, item_bytes: int) -> None:
        self._items, self._item_bytes = items, item_bytes
        self._is_small = item_bytes < _PAGE_BYTES
        units = -(-items * item_bytes // _PAGE_BYTES) if self._is_small else items
        self._is_copied = np.zeros(units + 1, np.bool_)
        """Pages; or items, where one takes pages."""
        self._copied = 0

    def note(self, written: np.ndarray) -> None:
        """These items (int64) are written to. Those behind the file's are not counted."""
        if self._items and len(written):
            item_bytes = self._item_bytes if self._is_small else 0
            self._copied += int(_note(self._is_copied, written, self._items, item_bytes))

    @property
    def nbytes(self) -> int:
        pages = 1 if self._is_small else -(-self._item_bytes // _PAGE_BYTES)
        return self._copied * pages * _PAGE_BYTES


@kernel
def _note(is_copied: np.ndarray, written: np.ndarray, items: int, item_bytes: int) -> int:
    """Mark the pages of these items, and return how many were not marked yet. `item_bytes`: 0: the items are marked
    themselves."""
    copied = 0
    for i in range(len(written)):
        item = written[i]
        if item >= items:
            continue
        first = item
        last = item
        if item_bytes > 0:
            first = item * item_bytes // _PAGE_BYTES
            last = ((item + 1) * item_bytes - 1) // _PAGE_BYTES
        for unit in range(first, last + 1):
            if not is_copied[unit]:
                is_copied[unit] = True
                copied += 1
    return copied


def read_only(array: np.ndarray) -> np.ndarray:
    """A view of the array that cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


def _reserve(size: int) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return mmap.mmap(-1, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _map_over(reserved: mmap.mmap, descriptor: int, size: int) -> None:
    """Put the file's first `size` bytes at the beginning of the reserved space, which ends with it."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(reserved))
    flags = mmap.MAP_PRIVATE | _MAP_FIXED | _MAP_NORESERVE
    found = _libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, 0)
    if found != address:
        number = ctypes.get_errno()
        raise OSError(number, f"mapping a file to write changes over it: {os.strerror(number)}")
