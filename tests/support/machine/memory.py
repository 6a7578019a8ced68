"""Arrays beside memory that ends the process when it is touched, so that no read out of bounds goes unnoticed."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np


def between_forbidden_pages(array: np.ndarray) -> np.ndarray:
    """A read-only copy; `array` is a whole number of pages."""
    if array.nbytes % mmap.PAGESIZE:
        raise ValueError(f"{array.nbytes} bytes, expected a multiple of {mmap.PAGESIZE}")
    mapping = mmap.mmap(-1, array.nbytes + 2 * mmap.PAGESIZE)
    copy = np.frombuffer(mapping, dtype=array.dtype, count=array.size, offset=mmap.PAGESIZE).reshape(array.shape)
    copy[:] = array
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    libc = ctypes.CDLL(None, use_errno=True)
    for forbidden in (start, start + mmap.PAGESIZE + array.nbytes):
        assert libc.mprotect(ctypes.c_void_p(forbidden), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    copy.setflags(write=False)
    return copy
