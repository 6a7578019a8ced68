"""Rows of features that requests bring, read where they lie.

A batch may hold the features of a thousand requests, 27 KB each where columns are words. Copied into one array they are
written to fresh pages and read again, which takes longer than multiplying what is not zero of them. So a batch has the
address of each row, and kernels read from there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from gnnserve_worker.kernel_cache import brief_kernel, inlined


class FeatureRows(msgspec.Struct, frozen=True):
    """Features of several nodes, float32, as in the source."""

    addresses: np.ndarray
    """int64 [rows]: where in memory each row begins."""
    columns: int
    held: tuple[np.ndarray, ...]
    """The arrays in which the rows are: they must stay as long as this does."""

    def __len__(self) -> int:
        return len(self.addresses)

    @staticmethod
    def of(features: np.ndarray) -> FeatureRows:
        """All rows of an array: float32 [rows, columns]."""
        features = np.ascontiguousarray(features, np.float32)
        rows, columns = features.shape
        addresses = addresses_of([features])[0] + np.arange(rows, dtype=np.int64) * (columns * features.itemsize)
        return FeatureRows(addresses, columns, (features,))


def addresses_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Addresses in memory at which the arrays begin, int64. A thousand arrays take 0.1 ms; asking each of them by
    `ctypes.data` or `__array_interface__` takes 2 ms."""
    if not _objects_tell():
        return np.array([each.ctypes.data for each in arrays], np.int64)
    addresses = np.array([*map(id, arrays)], np.int64)
    _read_addresses(addresses)
    return addresses


@cache
def _objects_tell() -> bool:
    """Whether an array's object is where its id says, and has the address of its data right behind its header, as
    numpy's binary interface has it (`PyArrayObject_fields`): so in CPython. Other interpreters may differ."""
    probe = np.zeros(1)
    if sys.implementation.name != "cpython" or type(probe).__basicsize__ <= _DATA_OFFSET:
        return False
    told = np.array([id(probe)], np.int64)
    _read_addresses(told)
    return int(told[0]) == probe.ctypes.data


_DATA_OFFSET = object.__basicsize__
"""Length of an object's header, in bytes."""


def _pointer_to(_typing: Any, address: Any) -> Any:
    """A pointer to an address that is given as a number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.voidptr(types.int64), generate


_as_pointer: Any = intrinsic(_pointer_to)


@inlined
def row_at(address: int, columns: int) -> np.ndarray:
    """The row of so many float32 that begins there."""
    row: np.ndarray = carray(_as_pointer(address), (columns,), np.float32)
    return row


@inlined
def bits_at(address: int, columns: int) -> np.ndarray:
    """The same as uint32: zero where the number is 0.0."""
    row: np.ndarray = carray(_as_pointer(address), (columns,), np.uint32)
    return row


@inlined
def numbers_at(address: int, count: int) -> np.ndarray:
    """So many int64 that begin there."""
    numbers: np.ndarray = carray(_as_pointer(address), (count,), np.int64)
    return numbers


@brief_kernel
def _read_addresses(objects: np.ndarray) -> None:
    """Put the address of an array's data in place of that of its object."""
    for i in range(len(objects)):
        objects[i] = numbers_at(objects[i] + _DATA_OFFSET, 1)[0]
