"""Bytes of texts, eight at a time: hashed and compared in a few steps, whatever they are aligned to.

By address (`array.ctypes.data`), because numba counts references to every array that a function of a kernel takes, and
that takes longer than what these functions do. Whoever calls them holds the array.
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
"""Eight bytes as an uint64, the lowest first as on every processor that kernels are compiled for."""
byte: Any = intrinsic(_load(8))

_SEED, _FACTOR = np.uint64(0xCBF29CE484222325), np.uint64(0x9E3779B97F4A7C15)
_1, _8, _32 = np.uint64(1), np.uint64(8), np.uint64(32)


@inlined
def mixed(value: np.uint64) -> np.uint64:
    """splitmix64's last step: ids that follow one another are spread."""
    value ^= value >> np.uint64(30)
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(27)
    value *= np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@inlined
def hash_text(address: np.uint64, length: np.uint64) -> np.uint64:
    """Of so many bytes. Tables on disk were filled by it: another one is another schema."""
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
        # The last eight, of which some may be in it already: a loop over what is left would be mispredicted.
        rest = word(end - _8)
    return mixed((value ^ rest) * _FACTOR)


@inlined
def equal_texts(left: np.uint64, right: np.uint64, length: np.uint64) -> bool:
    """Whether so many bytes at two addresses are the same."""
    same = True
    place = np.uint64(0)
    if length < _8:
        while place < length:
            same &= byte(left + place) == byte(right + place)
            place += _1
    else:
        # The last eight first: there ids differ most.
        last = length - _8
        same = word(left + last) == word(right + last)
        while same and place < last:
            same = word(left + place) == word(right + place)
            place += _8
    return same
