"""The random numbers of `kernels/primitives.py`, bit for bit: counter-based (SplitMix64), so that a node's draws depend
on the key, the depth and the node alone, not on the processor that makes them."""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

GOLDEN: Final = tl.constexpr(0x9E3779B97F4A7C15)


def salt_of(depth: int) -> int:
    """The constant that a depth adds to the key."""
    return (depth + 1) * int(GOLDEN.value) % 2**64


@triton.jit
def mix(z):
    """SplitMix64's finaliser, on uint64."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def stream(key, SALT: tl.constexpr, node):
    """Start of an independent stream of draws for each node (int32, none negative) at one depth; key is uint64."""
    return mix(mix(key + SALT) ^ node.to(tl.uint64))


@triton.jit
def below(bound, state):
    """A number in [0, bound), int32, by multiply and shift; the bias is under bound / 2^32."""
    return (((mix(state) >> 32) * bound.to(tl.uint64)) >> 32).to(tl.int32)
