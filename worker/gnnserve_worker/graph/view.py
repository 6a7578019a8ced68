"""The overlays of a batch's requests as one view of the graph: what sampling and gathering need of them.

Requests are numbered independently: N + k is the overlay node k of a request until its requests meet others in a
batch. Then all overlay nodes are numbered through, and seeds with them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.kernel_cache import brief_kernel, inlined
from gnnserve_worker.sampling.kernels import slot_of
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.sampling.view import (
    HAS_KEY,
    HAS_OVERLAY,
    HAS_OVERRIDES,
    HEADER,
    SampleView,
    filter_bit,
    packed_size,
    unpack,
)

_NEW_STREAMS = 1 << 32
"""Draws of a request's k-th new node depend on this + k: no stored node has such a number."""
_OF_PART = 6
"""Numbers that `_number` is told of each part."""


class Part(msgspec.Struct, frozen=True):
    """A request's seeds in a batch, one after the other."""

    seeds: int
    overlay: Overlay | None
    seed: int | None
    """What the request's draws depend on in place of the batch's key."""


class BatchView(msgspec.Struct, frozen=True):
    sampling: SampleView
    features: np.ndarray | None
    """Features of new nodes, and of those with other ones: float32 [rows, features], as in the source. None: there are
    no overlay nodes."""
    stand_ins: np.ndarray | None = None
    """`Overlay.stand_ins` of all of `features`; None: there are none."""

    def touches(self, part: slice) -> bool:
        """Whether any of that part of its seeds sees another graph than the stored one, or has a key of its own."""
        return self.sampling.touches(part)

    def of_seeds(self, part: slice) -> BatchView:
        """The view of a part of its seeds."""
        return BatchView(self.sampling.of_seeds(part), self.features, self.stand_ins)

    def of_places(self, places: np.ndarray) -> BatchView:
        """The view of its seeds at these places."""
        return BatchView(self.sampling.of_places(places), self.features, self.stand_ins)

    def of_distinct(self, views: np.ndarray) -> BatchView:
        """The view of a batch's distinct seeds. `views`, int32: that of each."""
        return BatchView(self.sampling.of_others(views), self.features, self.stand_ins)


def view_of(nodes: int, parts: Sequence[Part], seeds: np.ndarray) -> BatchView | None:
    """The view in which a batch is answered; None: none of its requests has an overlay or a seed of its own.

    `nodes`: those of the stored graph. `seeds`, int64, are those of all parts, each in the numbering of its request;
    they are numbered anew, in place.
    """
    overlays: list[np.ndarray] = []
    features: list[np.ndarray] = []
    of_parts: list[int] = []
    views, count, entries = 1, 0, 0
    for part in parts:
        overlay, flags, rows = part.overlay, 0 if part.seed is None else HAS_KEY, 0
        if overlay is not None:
            flags |= HAS_OVERLAY
            overlays.append(overlay.packed)
            features.append(overlay.features)
            rows = len(overlay.features) * overlay.stride
            flags |= HAS_OVERRIDES if len(overlay.features) > overlay.new_nodes else 0
            count += overlay.nodes
            entries += overlay.edges
        view = views if flags else 0
        views += flags != 0
        of_parts += (part.seeds, view, flags, part.seed or 0, rows, 0 if overlay is None else len(overlay.packed))
    if views == 1:
        return None
    slots = 1 << max(1, 2 * count - 1).bit_length()
    packed = np.empty(packed_size(len(seeds), views, count, entries, slots), dtype=np.int64)
    packed[:HEADER] = (len(seeds), views, count, entries, slots)
    joined = overlays[0] if len(overlays) == 1 else np.concatenate(overlays) if overlays else _NOTHING
    _number(nodes, np.array(of_parts, np.int64), joined, seeds, packed)
    all_features = None if not features else features[0] if len(features) == 1 else np.concatenate(features)
    return BatchView(SampleView(packed), all_features, _stand_ins_of(parts))


def _stand_ins_of(parts: Sequence[Part]) -> np.ndarray | None:
    overlays = [part.overlay for part in parts if part.overlay is not None]
    if all(overlay.stand_ins is None for overlay in overlays):
        return None
    return np.concatenate(
        [
            np.full(len(overlay.features), -1, np.int64) if overlay.stand_ins is None else overlay.stand_ins
            for overlay in overlays
        ]
    )


_NOTHING = np.zeros(0, dtype=np.int64)


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
    _, _, _, _, _, rows, _, _, _, _, _ = unpack(packed)
    places = np.full(len(own_read), -1, dtype=np.int64)
    found = _name_each(stored, rows, nodes, places, own_read, 0)
    if not apart:
        found = _name_each(stored, rows, neighbours, places, own_read, found)
        return found, found
    places[:] = -1
    return _name_each(stored, rows, neighbours, places, read, 0), found


@inlined
def _name_each(stored: int, rows: np.ndarray, ids: np.ndarray, places: np.ndarray, read: np.ndarray, found: int) -> int:
    """`places` has the place in `read` of each row of features, -1 of those that are not in the first `found` of it.
    Returns how many are now."""
    for i in range(len(ids)):
        if ids[i] < stored:
            continue
        row = rows[ids[i] - stored]
        if row >= stored:
            if places[row - stored] < 0:
                places[row - stored] = found
                read[found] = row - stored
                found += 1
            row = stored + places[row - stored]
        ids[i] = row
    return found


@brief_kernel
def _number(stored: int, of_parts: np.ndarray, overlays: np.ndarray, seeds: np.ndarray, packed: np.ndarray) -> None:
    """`of_parts` has of each part: seeds, view, flags, key, rows of features, length in `overlays`. `packed` has its
    header."""
    seed_views, keys, flags, origins, streams, rows, starts, neighbours, found_keys, found_nodes, bits = unpack(packed)
    found_keys[:] = -1
    bits[:] = 0
    keys[0] = 0
    flags[0] = 0
    first_seed = 0
    first_node = 0
    first_entry = 0
    first_row = 0
    begin = 0
    for part in range(len(of_parts) // _OF_PART):
        own = of_parts[_OF_PART * part : _OF_PART * (part + 1)]
        view = own[1]
        if view > 0:
            flags[view] = own[2]
            keys[view] = own[3]
        for i in range(first_seed, first_seed + own[0]):
            seed_views[i] = view
            if seeds[i] >= stored:
                seeds[i] += first_node
        first_seed += own[0]
        if own[5] == 0:
            continue
        nodes = overlays[begin]
        entries = overlays[begin + 1]
        own_origins = begin + 2
        own_starts = own_origins + nodes
        own_neighbours = own_starts + nodes + 1
        for k in range(nodes):
            node = first_node + k
            origin = overlays[own_origins + k]
            origins[node] = origin
            starts[node] = first_entry + overlays[own_starts + k]
            rows[node] = stored + first_row + k if k < own[4] else origin
            if origin < 0:
                streams[node] = _NEW_STREAMS + k
                continue
            streams[node] = origin
            key = (view << np.int64(32)) | origin
            slot = slot_of(key, found_keys)
            found_keys[slot] = key
            bit = filter_bit(key, len(bits))
            bits[bit >> 6] |= np.int64(1) << np.int64(bit & 63)
            found_nodes[slot] = stored + node
        for entry in range(entries):
            neighbour = overlays[own_neighbours + entry]
            neighbours[first_entry + entry] = neighbour + first_node if neighbour >= stored else neighbour
        first_node += nodes
        first_entry += entries
        first_row += own[4]
        begin += own[5]
    starts[first_node] = first_entry
