"""The source's own ids of nodes, and where in the graph each of them is.

A hash table with open addressing, at most half full, of which a file is mapped as it is: millions of texts cost no
Python objects, nothing is built when a server starts, and processes share it. The same kernels find ids in tables of
edges while they are imported.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_api.repository import NodeIdKind
from gnnserve_worker.graph.words import equal_texts, hash_text, mixed
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.parallel import map_parallel
from gnnserve_worker.sampling.kernels import prefetch

NO_OFFSETS = np.empty(0, dtype=np.int64)
_TOGETHER = 16
"""How many ids are looked for side by side: memory is asked for all of them before any of them waits for it."""
_ONE = np.uint64(1)
_SHARE = 1 << 16
"""Ids that a thread looks for at once. A request has no more, unless `maxQueuedSeeds` was raised."""


class DuplicateIdError(ValueError):
    """Two nodes have one id."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"nodes {first} and {second} have the same id")
        self.first = first
        self.second = second


@dataclass(frozen=True, slots=True, eq=False)
class NodeIds:
    """Arrays may be memory-mapped."""

    kind: NodeIdKind
    """Integers or Strings."""
    values: np.ndarray
    """int64 [nodes], or the texts' UTF-8 one after the other, uint8 [bytes]."""
    offsets: np.ndarray
    """int64 [nodes + 1], where each text begins and ends; empty for integers."""
    slots: np.ndarray
    """int32 [a power of two], the position of a node or -1: the hash table."""

    def __len__(self) -> int:
        return len(self.values) if self.kind is NodeIdKind.INTEGERS else len(self.offsets) - 1

    def find_integers(self, wanted: np.ndarray) -> np.ndarray:
        """Positions int64 of `wanted` (int64); -1 where there is no such node."""
        positions = np.empty(len(wanted), dtype=np.int64)

        def find(start: int, end: int) -> None:
            _find_integers(self.values, self.slots, wanted[start:end], positions[start:end])

        _share_out(find, len(wanted))
        return positions

    def find_strings(self, text: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Positions int64 of texts laid out as in `values` and `offsets`; -1 where there is no such node."""
        positions = np.empty(len(offsets) - 1, dtype=np.int64)

        def find(start: int, end: int) -> None:
            _find_strings(self.values, self.offsets, self.slots, text, offsets[start : end + 1], positions[start:end])

        _share_out(find, len(positions))
        return positions

    def find_texts(self, wanted: Sequence[str]) -> np.ndarray:
        return self.find_strings(*lay_out(wanted))

    def shown(self, start: int, end: int) -> list[int] | list[str]:
        """The ids of positions start to end - 1."""
        if self.kind is NodeIdKind.INTEGERS:
            integers: list[int] = self.values[start:end].tolist()
            return integers
        bounds = self.offsets[start : end + 1].tolist()
        text = self.values[bounds[0] : bounds[-1]].tobytes() if len(bounds) > 1 else b""
        return [text[low - bounds[0] : high - bounds[0]].decode() for low, high in itertools.pairwise(bounds)]


def lay_out(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """UTF-8 (uint8) and offsets (int64), as `NodeIds` keeps them."""
    joined = "".join(texts)
    encoded = joined.encode()
    # One call for all of them where that tells the lengths too: a request waits for this.
    lengths = map(len, texts) if len(encoded) == len(joined) else [len(text.encode()) for text in texts]
    offsets = np.fromiter(itertools.accumulate(lengths, initial=0), dtype=np.int64, count=len(texts) + 1)
    return np.frombuffer(encoded, dtype=np.uint8), offsets


def integer_ids(values: np.ndarray) -> NodeIds:
    """`values` int64 [nodes]. Raises DuplicateIdError."""
    slots = _empty_slots(len(values))
    _raise_duplicate(*_fill_integers(values, slots))
    return NodeIds(NodeIdKind.INTEGERS, values, NO_OFFSETS, slots)


def string_ids(text: np.ndarray, offsets: np.ndarray) -> NodeIds:
    """`text` uint8, `offsets` int64 [nodes + 1]. Raises DuplicateIdError."""
    slots = _empty_slots(len(offsets) - 1)
    _raise_duplicate(*_fill_strings(text, offsets, slots))
    return NodeIds(NodeIdKind.STRINGS, text, offsets, slots)


def _share_out(find: Callable[[int, int], None], count: int) -> None:
    """Among threads from where that pays: far more than a request may ask for, whose threads have other work."""
    if count <= _SHARE:
        find(0, count)
        return
    shares = -(-count // _SHARE)
    map_parallel(lambda share: find(share * _SHARE, min((share + 1) * _SHARE, count)), shares)


def slot_count(nodes: int) -> int:
    """At most half of them are taken, so that a search ends after a look or two."""
    return 1 << max(1, (2 * nodes - 1).bit_length())


def _empty_slots(nodes: int) -> np.ndarray:
    return np.full(slot_count(nodes), -1, dtype=np.int32)


def _raise_duplicate(first: int, second: int) -> None:
    if first >= 0:
        raise DuplicateIdError(int(first), int(second))


@kernel
def _fill_integers(values: np.ndarray, slots: np.ndarray) -> tuple[int, int]:
    mask = np.uint64(len(slots) - 1)
    for position in range(len(values)):
        slot = mixed(np.uint64(values[position])) & mask
        while slots[slot] >= 0:
            if values[slots[slot]] == values[position]:
                return slots[slot], position
            slot = (slot + _ONE) & mask
        slots[slot] = position
    return -1, -1


@kernel
def _find_integers(values: np.ndarray, slots: np.ndarray, wanted: np.ndarray, positions: np.ndarray) -> None:
    mask = np.uint64(len(slots) - 1)
    first_slots = np.empty(_TOGETHER, dtype=np.uint64)
    for start in range(0, len(wanted), _TOGETHER):
        end = min(start + _TOGETHER, len(wanted))
        for i in range(start, end):
            first_slots[i - start] = mixed(np.uint64(wanted[i])) & mask
            prefetch(slots, first_slots[i - start])
        for i in range(start, end):
            prefetch(values, slots[first_slots[i - start]])
        for i in range(start, end):
            slot = first_slots[i - start]
            while slots[slot] >= 0 and values[slots[slot]] != wanted[i]:
                slot = (slot + _ONE) & mask
            positions[i] = slots[slot]


@kernel
def _fill_strings(text: np.ndarray, offsets: np.ndarray, slots: np.ndarray) -> tuple[int, int]:
    mask = np.uint64(len(slots) - 1)
    base = np.uint64(text.ctypes.data)
    for position in range(len(offsets) - 1):
        start = base + np.uint64(offsets[position])
        length = np.uint64(offsets[position + 1] - offsets[position])
        slot = hash_text(start, length) & mask
        found = slots[slot]
        while found >= 0:
            first = offsets[found]
            if np.uint64(offsets[found + 1] - first) == length and equal_texts(base + np.uint64(first), start, length):
                return found, position
            slot = (slot + _ONE) & mask
            found = slots[slot]
        slots[slot] = position
    return -1, -1


@kernel
def _find_strings(
    text: np.ndarray, offsets: np.ndarray, slots: np.ndarray,
    wanted: np.ndarray, wanted_offsets: np.ndarray, positions: np.ndarray,
) -> None:  # fmt: skip
    mask = np.uint64(len(slots) - 1)
    base, wanted_base = np.uint64(text.ctypes.data), np.uint64(wanted.ctypes.data)
    count = len(wanted_offsets) - 1
    first_slots = np.empty(_TOGETHER, dtype=np.uint64)
    for begin in range(0, count, _TOGETHER):
        end = min(begin + _TOGETHER, count)
        for i in range(begin, end):
            start = wanted_base + np.uint64(wanted_offsets[i])
            length = np.uint64(wanted_offsets[i + 1] - wanted_offsets[i])
            first_slots[i - begin] = hash_text(start, length) & mask
            prefetch(slots, first_slots[i - begin])
        for i in range(begin, end):
            prefetch(offsets, slots[first_slots[i - begin]])
        for i in range(begin, end):
            found = slots[first_slots[i - begin]]
            if found >= 0:
                prefetch(text, offsets[found])
        for i in range(begin, end):
            start = wanted_base + np.uint64(wanted_offsets[i])
            length = np.uint64(wanted_offsets[i + 1] - wanted_offsets[i])
            slot = first_slots[i - begin]
            found = slots[slot]
            while found >= 0:
                first = offsets[found]
                if np.uint64(offsets[found + 1] - first) == length and equal_texts(
                    base + np.uint64(first), start, length
                ):
                    break
                slot = (slot + _ONE) & mask
                found = slots[slot]
            positions[i] = found
