"""Hashing and comparing texts eight bytes at a time, whatever their alignment.

Texts are passed by address (`array.ctypes.data`), because numba counts references to every array that a function of a
kernel takes, which takes longer than these functions. Callers keep the array alive.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gnnserve_worker.kernel_cache import inlined


def _load(bits: int) -> Any:
    def loading(_typing: Any, address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            loaded = builder.load(builder.inttoptr(args[0], ir.IntType(bits).as_pointer()), align=1)
            return builder.zext(loaded, ir.IntType(64))

        return types.uint64(types.uint64), generate

    return loading


word: Any = intrinsic(_load(64))
"""Eight bytes as an uint64, little-endian like every processor that kernels are compiled for."""
byte: Any = intrinsic(_load(8))

_SEED, _FACTOR = np.uint64(0xCBF29CE484222325), np.uint64(0x9E3779B97F4A7C15)
_1, _8, _32 = np.uint64(1), np.uint64(8), np.uint64(32)


@inlined
def mixed(value: np.uint64) -> np.uint64:
    """The last step of SplitMix64: it spreads consecutive ids."""
    value ^= value >> np.uint64(30)
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(27)
    value *= np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@inlined
def hash_text(address: np.uint64, length: np.uint64) -> np.uint64:
    """Hash of `length` bytes. Tables on disk depend on it: another function needs another schema version."""
    value = _SEED ^ length
    end = address + length
    if length < _8:
        rest = np.uint64(0)
        while address < end:
            rest = (rest << _8) | byte(address)
            address += _1
    else:
        while address + _8 < end:
            value = (value ^ word(address)) * _FACTOR
            value ^= value >> _32
            address += _8
        # Hash the last eight bytes, some of them again: the branches of a loop over the rest would be mispredicted.
        rest = word(end - _8)
    return mixed((value ^ rest) * _FACTOR)


@inlined
def equal_texts(left: np.uint64, right: np.uint64, length: np.uint64) -> bool:
    """Whether `length` bytes at two addresses are equal."""
    same = True
    place = np.uint64(0)
    if length < _8:
        while place < length:
            same &= byte(left + place) == byte(right + place)
            place += _1
    else:
        # Compare the last eight bytes first: ids differ there most often.
        last = length - _8
        same = word(left + last) == word(right + last)
        while same and place < last:
            same = word(left + place) == word(right + place)
            place += _8
    return same
