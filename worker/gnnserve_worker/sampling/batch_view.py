"""The overlays of a batch's requests as one view of the graph: what sampling and gathering need of them.

Requests are numbered independently: N + k is the overlay node k of a request until its requests meet others in a
batch. Then all overlay nodes are numbered through, and seeds with them.

Their features are read where they lie. A batch may hold those of a thousand requests, 27 KB each where columns are
words. Copied into one array they are written to fresh pages and read again, which takes longer than multiplying what is
not zero of them. So a batch has the address of each row, and kernels read from there.
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

from gnnserve_worker.graph.overlay import PACKED_HEADER, EdgeRows, Overlay, OverlayPayload
from gnnserve_worker.kernel_cache import brief_kernel, inlined
from gnnserve_worker.kernels.view import (
    HAS_KEY,
    HAS_OVERLAY,
    HAS_OVERRIDES,
    SampleView,
    first_slot,
    packed_size,
    row_of_overlay,
    slots_of,
    unpack,
)
from gnnserve_worker.sampling.neighbours import NeighbourSample

_NEW_STREAMS = 1 << 32
"""Draws of a request's k-th new node depend on this + k: no stored node has such a number."""
_OF_PART = 7
"""Numbers that `_number` is told of each part: seeds, whether it has a key of its own, the key, the address and length
of its overlay, and the address and rows of its features."""


# --- features where they lie


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


# --- the view


class Part(msgspec.Struct, frozen=True):
    """A request's seeds in a batch, one after the other."""

    seeds: int
    overlay: Overlay | None
    seed: int | None
    """What the request's draws depend on in place of the batch's key."""


class BatchView(msgspec.Struct, frozen=True):
    sampling: SampleView
    features: FeatureRows | None
    """Features of new nodes, and of those with other ones. None: there are no overlay nodes."""
    stand_ins: np.ndarray | None = None
    """`Overlay.stand_ins` of all of `features`; None: there are none."""
    payload: OverlayPayload | None = None
    """That of all requests, by the entries and lists of the view; None: no request brings any."""

    def touches(self, part: slice) -> bool:
        """Whether any of that part of its seeds sees another graph than the stored one, or has a key of its own."""
        return self.sampling.touches(part)

    def of_seeds(self, part: slice) -> BatchView:
        """The view of a part of its seeds."""
        return BatchView(self.sampling.of_seeds(part), self.features, self.stand_ins, self.payload)

    def of_places(self, places: np.ndarray) -> BatchView:
        """The view of its seeds at these places."""
        return BatchView(self.sampling.of_places(places), self.features, self.stand_ins, self.payload)

    def of_distinct(self, views: np.ndarray) -> BatchView:
        """The view of a batch's distinct seeds. `views`, int32: that of each."""
        return BatchView(self.sampling.of_others(views), self.features, self.stand_ins, self.payload)


def view_of(nodes: int, parts: Sequence[Part], seeds: np.ndarray) -> BatchView | None:
    """The view in which a batch is answered; None: none of its requests has an overlay or a seed of its own.

    `nodes`: those of the stored graph. `seeds`, int64, are those of all parts, each in the numbering of its request;
    they are numbered anew, in place.
    """
    for part in parts:
        if part.overlay is not None or part.seed is not None:
            break
    else:
        return None
    told = np.zeros((len(parts), _OF_PART), np.int64)
    told[:, 0] = [part.seeds for part in parts]
    keys = [part.seed for part in parts]
    if keys.count(None) < len(keys):
        told[:, 1:3] = [(key is not None, key or 0) for key in keys]
    brought = [part.overlay for part in parts if part.overlay is not None]
    features = [overlay.features for overlay in brought]
    rows = [len(each) for each in features]
    if brought:
        has_overlay = slice(None) if len(brought) == len(parts) else [part.overlay is not None for part in parts]
        joined = [overlay.packed for overlay in brought]
        of_overlays = addresses_of(joined), [len(each) for each in joined], addresses_of(features), rows
        told[has_overlay, 3:] = np.array(of_overlays, np.int64).T
    packed = np.empty(_measure(told), dtype=np.int64)
    columns, addresses = features[0].shape[1] if brought else 0, np.empty(sum(rows), dtype=np.int64)
    _number(nodes, told, columns, seeds, packed, addresses)
    if not brought:
        return BatchView(SampleView(packed), None)
    payload = None
    for overlay in brought:
        if overlay.payload is not None:
            payload = _payload_of(brought)
            break
    return BatchView(
        SampleView(packed), FeatureRows(addresses, columns, tuple(features)), _stand_ins_of(brought), payload
    )


def _stand_ins_of(overlays: Sequence[Overlay]) -> np.ndarray | None:
    if all(overlay.stand_ins is None for overlay in overlays):
        return None
    return np.concatenate(
        [
            np.full(len(overlay.features), -1, np.int64) if overlay.stand_ins is None else overlay.stand_ins
            for overlay in overlays
        ]
    )


def _payload_of(brought: Sequence[Overlay]) -> OverlayPayload:
    """Payload of all overlays, whose entries and lists are numbered as `_number` does it: first those of overlay nodes
    with features, overlay after overlay, then those of the others. Overlays without payload have entries too."""
    edges, rows, other_rows, replaced = list[EdgeRows](), list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    first_row, first_list, first_other = 0, 0, sum(int(overlay.packed[2]) for overlay in brought)
    for overlay in brought:
        featured = int(overlay.packed[2])
        own, listed_by_featured = overlay.payload, overlay.starts[featured]
        shifted = np.full(overlay.edges, -1, np.int64) if own is None else own.rows + first_row
        rows.append(shifted[:listed_by_featured])
        other_rows.append(shifted[listed_by_featured:])
        if own is not None:
            again = own.replaced.copy()
            again[:, 0] += np.where(again[:, 0] < featured, first_list, first_other - featured)
            again[:, 2] += first_row
            replaced.append(again)
            edges.append(own.edges)
            first_row += len(own.edges.features)
        first_list += featured
        first_other += overlay.nodes - featured
    joined = EdgeRows(np.concatenate([one.features for one in edges]), np.concatenate([one.times for one in edges]))
    return OverlayPayload(joined, np.concatenate(rows + other_rows), np.concatenate(replaced))


class RowsNamed(msgspec.Struct, frozen=True):
    """Rows of a view's features that a sample reads, by number (int64), each once: what was not drawn needs no row."""

    neighbours: np.ndarray
    own: np.ndarray
    """Those that are read of nodes themselves."""


def name_rows(view: BatchView, sample: NeighbourSample, nodes: int, *, apart: bool) -> RowsNamed:
    """Put the rows that are gathered in place of overlay nodes, in the sample's own arrays: positions, and N + i for
    the i-th of the named ones. `nodes`: N, those of the stored graph. `apart`: neighbours and nodes themselves read
    other rows, so that they are named apart; otherwise both name the same ones."""
    count = 0 if view.features is None else len(view.features)
    own, neighbours = np.empty(count, dtype=np.int64), np.empty(count if apart else 0, dtype=np.int64)
    found, found_own = _name_rows(nodes, view.sampling.packed, sample.nodes, sample.neighbours, own, neighbours, apart)
    own = own[:found_own]
    return RowsNamed(neighbours[:found] if apart else own, own)


@brief_kernel
def _name_rows(
    stored: int, packed: np.ndarray, nodes: np.ndarray, neighbours: np.ndarray, own_read: np.ndarray,
    read: np.ndarray, apart: bool,
) -> tuple[int, int]:  # fmt: skip
    _, _, _, _, origins, streams, _, _, _ = unpack(packed)
    places = np.full(len(own_read), -1, dtype=np.int64)
    found = _name_each(stored, origins, streams, nodes, places, own_read, 0)
    if not apart:
        found = _name_each(stored, origins, streams, neighbours, places, own_read, found)
        return found, found
    places[:] = -1
    return _name_each(stored, origins, streams, neighbours, places, read, 0), found


@inlined
def _name_each(
    stored: int, origins: np.ndarray, streams: np.ndarray, ids: np.ndarray, places: np.ndarray, read: np.ndarray,
    found: int,
) -> int:  # fmt: skip
    """`places` has the place in `read` of each row of features, -1 of those that are not in the first `found` of it.
    Returns how many are now."""
    for i in range(len(ids)):
        if ids[i] < stored:
            continue
        row = row_of_overlay(ids[i], stored, origins, streams)
        if row >= stored:
            if places[row - stored] < 0:
                places[row - stored] = found
                read[found] = row - stored
                found += 1
            row = stored + places[row - stored]
        ids[i] = row
    return found


@inlined
def _overlay_at(told: np.ndarray, part: int) -> np.ndarray:
    """`Overlay.packed` of a part; empty: it has no overlay."""
    return numbers_at(told[part, 3], told[part, 4])


@inlined
def _count(told: np.ndarray) -> tuple[int, int, int, int, int, int]:
    """The header of the view of these parts."""
    seeds, views, nodes, featured, entries, slots = 0, 1, 0, 0, 0, 0
    for part in range(len(told)):
        overlay = _overlay_at(told, part)
        seeds += told[part, 0]
        views += len(overlay) > 0 or told[part, 1] > 0
        if len(overlay) > 0:
            nodes += overlay[0]
            entries += overlay[1]
            featured += overlay[2]
            slots += slots_of(overlay[4])
    return seeds, views, nodes, featured, entries, slots


@brief_kernel
def _measure(told: np.ndarray) -> int:
    """Length of the array that `_number` fills in."""
    seeds, views, nodes, featured, entries, slots = _count(told)
    return packed_size(seeds, views, nodes, featured, entries, slots)


@brief_kernel
def _number(
    stored: int, told: np.ndarray, columns: int, seeds: np.ndarray, packed: np.ndarray, addresses: np.ndarray
) -> None:
    """Number the seeds, and fill in `packed` and the addresses of all rows of features. Overlay nodes with features
    come first, those of all parts, so that the number of each is that of its row."""
    packed[0], packed[1], packed[2], packed[3], packed[4], packed[5] = _count(told)
    seed_views, keys, flags, first_slots, origins, streams, starts, neighbours, slots = unpack(packed)
    keys[0] = 0
    flags[0] = 0
    first_slots[:2] = 0
    slots[:] = -1
    # Entries are in the order of the nodes whose lists gain them.
    first_entry = 0
    first_other_entry = 0
    first_address = 0
    for part in range(len(told)):
        overlay = _overlay_at(told, part)
        if len(overlay) > 0:
            first_other_entry += overlay[PACKED_HEADER + overlay[0] + overlay[2]]
        for row in range(told[part, 6]):
            addresses[first_address + row] = told[part, 5] + row * columns * 4
        first_address += told[part, 6]
    first_seed = 0
    first_row = 0
    first_other = len(streams)
    views = 0
    for part in range(len(told)):
        overlay = _overlay_at(told, part)
        view = 0
        rows = 0
        if len(overlay) > 0 or told[part, 1] > 0:
            views += 1
            view = views
            flags[view] = HAS_KEY if told[part, 1] > 0 else 0
            keys[view] = told[part, 2]
            first_slots[view + 1] = first_slots[view]
        if len(overlay) > 0:
            rows = overlay[2]
            flags[view] |= HAS_OVERLAY | (HAS_OVERRIDES if overlay[3] > 0 else 0)
            first_slots[view + 1] += slots_of(overlay[4])
        # What is added to the number of an overlay node of this part that has features, and of the others.
        row_shift = first_row
        other_shift = first_other - rows
        for i in range(first_seed, first_seed + told[part, 0]):
            seed_views[i] = view
            if seeds[i] >= stored:
                seeds[i] += row_shift if seeds[i] - stored < rows else other_shift
        first_seed += told[part, 0]
        if len(overlay) == 0:
            continue
        listed_by_rows = overlay[PACKED_HEADER + overlay[0] + rows]
        _number_overlay(
            stored, overlay, row_shift, other_shift, first_entry, first_other_entry, listed_by_rows,
            slots[first_slots[view] : first_slots[view + 1]], origins, streams, starts, neighbours,
        )  # fmt: skip
        first_row += rows
        first_other += overlay[0] - rows
        first_entry += listed_by_rows
        first_other_entry += overlay[1] - listed_by_rows
    starts[len(origins)] = len(neighbours)


@inlined
def _number_overlay(
    stored: int, overlay: np.ndarray, row_shift: int, other_shift: int, first_entry: int, first_other_entry: int,
    listed_by_rows: int, own_slots: np.ndarray, origins: np.ndarray, streams: np.ndarray, starts: np.ndarray,
    neighbours: np.ndarray,
) -> None:  # fmt: skip
    """Fill in what `packed` has of the overlay nodes of one part, and of the entries that their lists gain.

    Entries go from `first_entry` on for nodes with features, which list `listed_by_rows` of them, and from
    `first_other_entry` on for the others."""
    nodes, rows = overlay[0], overlay[2]
    ends_origins = PACKED_HEADER + nodes
    own_origins = overlay[PACKED_HEADER:ends_origins]
    own_starts = overlay[ends_origins : ends_origins + nodes + 1]
    first_listed = ends_origins + nodes + 1
    listed = overlay[first_listed : first_listed + overlay[1]]
    for k in range(nodes):
        origin = own_origins[k]
        if k < rows:
            node = k + row_shift
            streams[node] = origin if origin >= 0 else _NEW_STREAMS + k
            starts[node] = first_entry + own_starts[k]
        else:
            node = k + other_shift
            starts[node] = first_other_entry + own_starts[k] - listed_by_rows
        origins[node] = origin
        if origin >= 0:
            slot = first_slot(origin, len(own_slots) - 1)
            while own_slots[slot] >= 0:
                slot = (slot + 1) & (len(own_slots) - 1)
            own_slots[slot] = stored + node
    for entry in range(len(listed)):
        neighbour = listed[entry]
        if neighbour >= stored:
            neighbour += row_shift if neighbour - stored < rows else other_shift
        if entry < listed_by_rows:
            neighbours[first_entry + entry] = neighbour
        else:
            neighbours[first_other_entry + entry - listed_by_rows] = neighbour
