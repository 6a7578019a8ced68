"""The source's own ids of nodes, and the position of each in the graph.

They lie in a hash table with open addressing, at most half full, whose files are mapped: millions of texts cost no
Python objects, nothing is built when a server starts, and processes share the memory. The same kernels find ids in
tables of edges during an import.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_api.files.repository import NodeIdKind
from gnnserve_worker.graph.words import equal_texts, hash_text, mixed
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.kernels.primitives import prefetch
from gnnserve_worker.parallel import map_parallel

NO_OFFSETS = np.empty(0, dtype=np.int64)
_TOGETHER = 16
"""Ids that are searched side by side: memory is prefetched for all of them before any is read."""
_ONE = np.uint64(1)
_SHARE = 1 << 16
"""Ids that one thread searches per task. A request has no more, unless `maxQueuedSeeds` was raised."""


class DuplicateIdError(ValueError):
    """Two nodes have one id."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"nodes {first} and {second} have the same id")
        self.first = first
        self.second = second


@dataclass(frozen=True, slots=True, eq=False)
class NodeIds:
    """Ids of the nodes with their hash table. Arrays may be memory-mapped."""

    kind: NodeIdKind
    """Whether ids are integers or texts."""
    values: np.ndarray
    """int64 [nodes]; for texts their concatenated UTF-8, uint8 [bytes]."""
    offsets: np.ndarray
    """int64 [nodes + 1], where each text begins and ends; empty for integers."""
    slots: np.ndarray
    """The hash table, int32 [a power of two]: the position of a node, or -1 for an empty slot."""

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
    """Texts as UTF-8 (uint8) and offsets (int64), the layout of `NodeIds`."""
    joined = "".join(texts)
    encoded = joined.encode()
    # Encode all texts in one call; if all are ASCII that gives the lengths too. A request waits for this.
    lengths = map(len, texts) if len(encoded) == len(joined) else [len(text.encode()) for text in texts]
    offsets = np.fromiter(itertools.accumulate(lengths, initial=0), dtype=np.int64, count=len(texts) + 1)
    return np.frombuffer(encoded, dtype=np.uint8), offsets


def texts_of(text: np.ndarray, offsets: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The texts at these positions (int64), laid out as all of them are in `text` and `offsets`."""
    lengths = offsets[positions + 1] - offsets[positions]
    ends = np.cumsum(lengths)
    # Bytes of each text are numbered from where it begins.
    within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    return text[np.repeat(offsets[positions], lengths) + within], np.concatenate(([0], ends)).astype(np.int64)


def integer_ids(values: np.ndarray) -> NodeIds:
    """Ids from `values`, int64 [nodes]. Raises DuplicateIdError."""
    slots = _empty_slots(len(values))
    _raise_duplicate(*_fill_integers(values, slots))
    return NodeIds(NodeIdKind.INTEGERS, values, NO_OFFSETS, slots)


def string_ids(text: np.ndarray, offsets: np.ndarray) -> NodeIds:
    """Ids from `text` (uint8) and `offsets` (int64 [nodes + 1]). Raises DuplicateIdError."""
    slots = _empty_slots(len(offsets) - 1)
    _raise_duplicate(*_fill_strings(text, offsets, slots))
    return NodeIds(NodeIdKind.STRINGS, text, offsets, slots)


def _share_out(find: Callable[[int, int], None], count: int) -> None:
    """Split the search over threads where that pays: only for far more ids than a request may have."""
    if count <= _SHARE:
        find(0, count)
        return
    shares = -(-count // _SHARE)
    map_parallel(lambda share: find(share * _SHARE, min((share + 1) * _SHARE, count)), shares)


def slot_count(nodes: int) -> int:
    """Slots of the hash table: at most half are used, so that a search takes one or two reads."""
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
