"""Ids of a graph whose nodes come and go: those that the revision has, those that came, without those that left.

It answers as `NodeIds` does. A graph whose nodes are called by position has integers as ids here: nodes that come have
ids of their client's choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gnnserve_api.files.repository import NodeIdKind
from gnnserve_worker.graph.change_ids import FORM_OF_KIND, ChangeIds
from gnnserve_worker.graph.ids import NodeIds, integer_ids, lay_out, string_ids, texts_of
from gnnserve_worker.growth import GrowingArray
from gnnserve_worker.kernel_cache import brief_kernel
from gnnserve_worker.kernels.primitives import mix, room_for

_FEWEST_SLOTS = 1024


class LivingIds:
    """One thread at a time writes; those that read meanwhile find a node or do not, as it is just then."""

    def __init__(self, stored: NodeIds | None, nodes: int, room: int, is_gone: np.ndarray | None = None) -> None:
        """`stored`: the revision's ids; None: its `nodes` are called by position. `room`: most nodes there may ever
        be. `is_gone`: where to note which have left, bool [room], all False; None: in an array of its own."""
        self.kind = NodeIdKind.INTEGERS if stored is None else stored.kind
        self.form = FORM_OF_KIND[self.kind]
        """The form of batches that call nodes by these ids alone."""
        self._stored = stored
        self._stored_nodes = nodes
        self.count = nodes
        """Positions that are taken, those of nodes that have left among them."""
        self.is_gone = np.zeros(room, np.bool_) if is_gone is None else is_gone
        """Whether the node at that position has left, bool [room]."""
        self.gone = 0
        self._integers = np.zeros((_FEWEST_SLOTS, 2), np.int64)
        """Ids that came, and their positions + 1; 0: the slot is empty. Open-addressed, at most half full."""
        self._texts: dict[str, int] = {}
        self._came_integers, self._came_texts = GrowingArray((), np.int64), list[str]()
        """Ids that came, in the order of their positions; of one of the two kinds."""

    @property
    def nodes(self) -> int:
        """How many nodes the graph has."""
        return self.count - self.gone

    @property
    def kept(self) -> np.ndarray:
        """Positions of the nodes that are there: int64, ascending."""
        return np.flatnonzero(~self.is_gone[: self.count])

    # As of NodeIds

    def find_integers(self, wanted: np.ndarray) -> np.ndarray:
        """Positions int64 of `wanted` (int64); -1 where there is no such node."""
        if self._stored is None:
            positions = np.where((wanted >= 0) & (wanted < self._stored_nodes), wanted, -1)
        else:
            positions = self._stored.find_integers(wanted)
        _settle(positions, np.array(wanted, np.int64), self.is_gone, self._integers)
        return positions

    def find_strings(self, text: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Positions int64 of texts laid out as in `values` and `offsets`; -1 where there is no such node."""
        if self._stored is None:
            raise ValueError("ids are integers")
        positions = self._stored.find_strings(text, offsets)
        positions[(positions >= 0) & self.is_gone[positions]] = -1
        if self._texts:
            whole, bounds = text.tobytes(), offsets.tolist()
            for i in np.flatnonzero(positions < 0).tolist():
                place = self._texts.get(whole[bounds[i] : bounds[i + 1]].decode(errors="replace"), -1)
                positions[i] = -1 if place < 0 or self.is_gone[place] else place
        return positions

    def find_texts(self, wanted: Sequence[str]) -> np.ndarray:
        return self.find_strings(*lay_out(wanted))

    def shown(self, start: int, end: int) -> list[int] | list[str]:
        """The ids of the nodes at positions start to end - 1 that are there."""
        end, stored = min(end, self.count), self._stored_nodes
        shown: list[Any] = []
        if start < stored:
            upto = min(end, stored)
            shown += range(start, upto) if self._stored is None else self._stored.shown(start, upto)
        came = slice(max(0, start - stored), max(0, end - stored))
        is_text = self.kind is NodeIdKind.STRINGS
        shown += self._came_texts[came] if is_text else self._came_integers.items[came].tolist()
        return [each for each, is_gone in zip(shown, self.is_gone[start:end].tolist(), strict=True) if not is_gone]

    def of_these(self, positions: np.ndarray) -> NodeIds | None:
        """The ids of the nodes at these positions (int64, ascending). None: each is called by its place among them."""
        own, came = positions[positions < self._stored_nodes], positions[positions >= self._stored_nodes]
        if self.kind is NodeIdKind.STRINGS:
            assert self._stored is not None  # noqa: S101
            texts, offsets = texts_of(self._stored.values, self._stored.offsets, own)
            came_texts, came_offsets = lay_out([self._came_texts[i] for i in (came - self._stored_nodes).tolist()])
            both = np.concatenate((texts, came_texts))
            return string_ids(both, np.concatenate((offsets, offsets[-1] + came_offsets[1:])))
        stored = own if self._stored is None else self._stored.values[own]
        ids = np.concatenate((stored, self._came_integers.items[came - self._stored_nodes]))
        if self._stored is None and np.array_equal(ids, np.arange(len(ids))):
            return None
        return integer_ids(ids)

    # Of batches of changes

    def find(self, ids: ChangeIds) -> np.ndarray:
        """Positions int64; -1 where there is no such node. ValueError: ids of the other kind."""
        if ids.kind is not self.kind:
            raise ValueError(f"ids are not {self.kind.lower()}")
        return ids.find_in(self)

    def add(self, ids: ChangeIds, count: int) -> None:
        """Give the first `count` of the ids, which no node has, the next positions."""
        ids.add_to(self, count)

    def add_integers(self, came: np.ndarray) -> None:
        """As `add`, int64."""
        positions = np.arange(self.count, self.count + len(came))
        self._came_integers.extend(came)
        if 2 * len(self._came_integers) > len(self._integers):
            slots = np.zeros((4 * room_for(len(self._came_integers)), 2), np.int64)
            _fill(slots, self._integers[self._integers[:, 1] != 0])
            self._integers = slots
        _fill(self._integers, np.stack((came, positions + 1), axis=1))
        self.count += len(came)

    def add_texts(self, came: Sequence[str]) -> None:
        """As `add`."""
        self._texts.update(zip(came, range(self.count, self.count + len(came)), strict=True))
        self._came_texts += came
        self.count += len(came)

    def remove(self, positions: np.ndarray) -> None:
        """Take away the nodes at these positions (int64), which are there."""
        self.is_gone[positions] = True
        self.gone += len(positions)


@brief_kernel
def _settle(positions: np.ndarray, wanted: np.ndarray, is_gone: np.ndarray, came: np.ndarray) -> None:
    """`positions`: those of the revision, in place."""
    mask = len(came) - 1
    for i in range(len(positions)):
        if positions[i] >= 0 and not is_gone[positions[i]]:
            continue
        slot = np.int64(mix(np.uint64(wanted[i]))) & mask
        positions[i] = -1
        while came[slot, 1] != 0:
            if came[slot, 0] == wanted[i]:
                found = came[slot, 1] - 1
                positions[i] = -1 if is_gone[found] else found
                break
            slot = (slot + 1) & mask


@brief_kernel
def _fill(slots: np.ndarray, came: np.ndarray) -> None:
    """An id that came before gets its new position."""
    mask = len(slots) - 1
    for i in range(len(came)):
        slot = np.int64(mix(np.uint64(came[i, 0]))) & mask
        while slots[slot, 1] != 0 and slots[slot, 0] != came[i, 0]:
            slot = (slot + 1) & mask
        slots[slot, 0] = came[i, 0]
        slots[slot, 1] = came[i, 1]


def look_up_one(ids: NodeIds | LivingIds) -> None:
    """Compile or load what finds ids, as they come out of requests: those of the binary form cannot be written to."""
    if ids.kind is NodeIdKind.STRINGS:
        ids.find_texts([""])
        return
    wanted = np.zeros(1, np.int64)
    ids.find_integers(wanted)
    ids.find_integers(np.frombuffer(wanted.tobytes(), np.int64))
