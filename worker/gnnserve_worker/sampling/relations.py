"""Neighbour sampling over several relations: as `neighbours.py`, with a draw of its own for each relation.

Rows of a hop stand type after type, so that each type's matrix products run over rows that lie together. The
neighbours of a row stand together, relation after relation: layer 1 gathers them by one weighted sum. A graph of one
type and one relation draws what `neighbours.py` draws of it.

Overlay node j of a batch's view is called N + j · `stride`: it has that many entries in `kernels/view.py`, one for the
list of each slot, the first of which stands for the node. Where it stands for no stored node, the first entry has
-1 - its type as its origin.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.kernels.layout import type_of, unpack_layout
from gnnserve_worker.kernels.primitives import (
    BLOCK,
    choose_positions,
    list_begin,
    list_end,
    prefetch,
    prefetch_bounds,
    stream,
)
from gnnserve_worker.kernels.view import (
    HAS_KEY,
    HAS_OVERLAY,
    HAS_OVERRIDES,
    SampleView,
    drawn_by,
    row_in_view,
    seen_as,
    unpack,
)
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch, row_of

Fanouts = tuple[int, ...] | tuple[tuple[int, ...], ...]
"""Fan-outs of each layer, or those of each relation."""
_DEPTHS_OF_SLOT = 64
"""Draws of a node for its next list depend on a depth that is this much larger: more than any network has layers."""


def sample_relations(
    indptr: np.ndarray,
    indices: np.ndarray,
    seeds: np.ndarray,
    fanouts: Fanouts,
    key: int,
    scratch: Scratch,
    *,
    layout: np.ndarray,
    share: bool,
    view: SampleView | None = None,
    names_leaves: bool = True,
    names_positions: bool = False,
) -> NeighbourSample:
    """Sample up to as many distinct neighbours of every row of a hop by each relation; -1 takes all of them.

    `indptr`: int64 [lists + 1], or [lists, 2] (`kernels/primitives.py`). `indices`: numbers of nodes, int32. `seeds`:
    numbers of nodes of any types, int64. `fanouts`: of each layer, the same by every relation; or of each relation, its
    layers. `layout`: `layout.pack_layout` of the graph. `share` gives a node that a hop meets twice one row. Equal keys
    draw the same sample. `names_leaves`, `names_positions`: as of `sample_neighbours`; leaves are named in any case.
    """
    counts = _by_relation(fanouts, int(layout[2]))
    types, stride, layers = int(layout[0]), int(layout[1]), len(counts)
    rows, edges, most = len(seeds), 1, max(1, int(counts.max(initial=1)))
    while True:
        scratch.reserve(len(seeds), rows, edges, most, layers, has_views=view is not None, lists=stride)
        positions = scratch.reserve_positions() if names_positions else None
        scratch.reserve_types(stride, layers * types)
        overlay = None if view is None else (scratch.views, view.packed, view.first_seed)
        known = scratch.known
        scratch.seeds[: len(seeds)] = seeds
        rows, edges = _sample(
            indptr, indices, layout, scratch.seeds[: len(seeds)], counts, key, share,
            scratch.nodes, scratch.types, scratch.fresh, scratch.starts, scratch.segments,
            scratch.neighbours, scratch.children, scratch.seed_rows, scratch.ends, scratch.type_ends,
            scratch.offsets, scratch.bitmap, scratch.table, known.entries, known.rows, known.generation, overlay,
            positions,
        )  # fmt: skip
        if rows <= len(scratch.nodes) and edges <= len(scratch.neighbours):
            break
    return NeighbourSample(
        tuple(scratch.ends[:layers].tolist()), scratch.nodes[:rows], scratch.starts[: rows + 1],
        scratch.neighbours[:edges], scratch.children, scratch.seed_rows[: len(seeds)],
        scratch.segments[: rows * stride + 1], scratch.type_ends[: layers * types],
        None, None if view is None else scratch.views[:rows], None if positions is None else positions[:edges],
    )  # fmt: skip


@lru_cache(256)
def _by_relation(fanouts: Fanouts, relations: int) -> np.ndarray:
    """Fan-outs of each layer and relation, int64."""
    given = np.array(fanouts, dtype=np.int64)
    return np.ascontiguousarray(given.T) if given.ndim == 2 else np.repeat(given[:, None], relations, axis=1)


@kernel
def _sample(
    indptr: np.ndarray, indices: np.ndarray, layout: np.ndarray, seeds: np.ndarray, fanouts: np.ndarray, key: int,
    share: bool, nodes: np.ndarray, row_types: np.ndarray, fresh: np.ndarray, starts: np.ndarray, segments: np.ndarray,
    neighbours: np.ndarray, children: np.ndarray, seed_rows: np.ndarray, ends: np.ndarray, type_ends: np.ndarray,
    offsets: np.ndarray, bitmap: np.ndarray, table: np.ndarray,
    known: np.ndarray, known_rows: np.ndarray, generation: np.ndarray,
    overlay: tuple[np.ndarray, np.ndarray, int] | None, positions: np.ndarray | None,
) -> tuple[int, int]:  # fmt: skip
    """Rows and edges that were sampled; where scratch is too small, a lower bound of those needed.

    What stands under `overlay is None` is left out of the compiled code where there is one, and the other way round; so
    it is with `positions`.
    """
    types, layers = layout[0], len(fanouts)
    rows = _place_seeds(
        seeds, layout, share, nodes, row_types, fresh, seed_rows, type_ends, known, known_rows, generation, overlay
    )
    starts[0] = 0
    segments[0] = 0
    begin = 0
    edges = 0
    for depth in range(layers):
        end = rows
        ends[depth] = end
        generation[0] += 1
        first_edge = edges
        kind = 0
        block = begin
        while block < end:
            while block >= type_ends[depth * types + kind]:
                kind += 1
            stop = min(block + BLOCK, type_ends[depth * types + kind])
            rows, edges = _sample_block(
                indptr, indices, layout, fanouts, depth, kind, block, stop, rows, edges, key, share, nodes, row_types,
                starts, segments, neighbours, children, offsets, bitmap, table, known, known_rows, generation[0],
                overlay, positions,
            )  # fmt: skip
            if rows > len(nodes) or edges > len(neighbours):
                return rows, edges
            block = stop
        if depth < layers - 1:
            _group(
                end, rows, types, nodes, row_types, fresh, children, first_edge, edges, type_ends, (depth + 1) * types
            )
            if overlay is not None:
                _reorder(end, rows, overlay[0], fresh)
        begin = end
    return rows, edges


@inlined
def _place_seeds(
    seeds: np.ndarray, layout: np.ndarray, share: bool, nodes: np.ndarray, row_types: np.ndarray, fresh: np.ndarray,
    seed_rows: np.ndarray, type_ends: np.ndarray, known: np.ndarray, known_rows: np.ndarray, generation: np.ndarray,
    overlay: tuple[np.ndarray, np.ndarray, int] | None,
) -> int:  # fmt: skip
    types, _, first_nodes, _, _, _, _ = unpack_layout(layout)
    stored = first_nodes[types]
    if overlay is not None:
        views, packed, first_seed = overlay
        seed_views, _, _, _, origins, _, _, _, _ = unpack(packed)
    rows = 0
    generation[0] += 1
    for i in range(len(seeds)):
        node = seeds[i]
        row = rows
        if share:
            if overlay is None:
                row = row_of(node, rows, known, known_rows, generation[0])
            else:
                row = row_in_view(node, seed_views[first_seed + i], rows, known, known_rows, views, generation[0])
        seed_rows[i] = row
        if row == rows:
            nodes[rows] = node
            if overlay is None or node < stored:
                row_types[rows] = type_of(node, first_nodes)
            else:
                row_types[rows] = _overlay_type(origins[node - stored], first_nodes)
            if overlay is not None:
                views[rows] = seed_views[first_seed + i]
            rows += 1
    _group(0, rows, types, nodes, row_types, fresh, seed_rows, 0, len(seeds), type_ends, 0)
    if overlay is not None:
        _reorder(0, rows, views, fresh)
    return rows


@inlined
def _sample_block(
    indptr: np.ndarray, indices: np.ndarray, layout: np.ndarray, fanouts: np.ndarray, depth: int, kind: int,
    block: int, stop: int, rows: int, edges: int, key: int, share: bool, nodes: np.ndarray, row_types: np.ndarray,
    starts: np.ndarray, segments: np.ndarray, neighbours: np.ndarray, children: np.ndarray, offsets: np.ndarray,
    bitmap: np.ndarray, table: np.ndarray, known: np.ndarray, known_rows: np.ndarray, generation: int,
    overlay: tuple[np.ndarray, np.ndarray, int] | None, positions: np.ndarray | None,
) -> tuple[int, int]:  # fmt: skip
    """Sample for rows block to stop - 1, all of one type; rows and edges that there are then, or as `_sample` says.

    First draw for every row of the block and prefetch what was drawn; then read it."""
    last, first_edge = len(fanouts) - 1, edges
    if fanouts[depth].any():
        _prefetch_lists(indptr, layout, kind, block, stop, nodes, overlay)
    edges = _draw(
        indptr, indices, layout, fanouts, depth, kind, block, stop, edges, key, nodes, starts, segments, offsets,
        bitmap, table, overlay,
    )  # fmt: skip
    if edges > len(neighbours):
        return rows, 2 * edges
    _read(
        indptr, indices, layout, kind, block, stop, nodes, segments, neighbours, offsets, overlay, positions,
        depth < last,
    )  # fmt: skip
    if depth == last:
        return rows, edges
    needed = rows + edges - first_edge
    if needed > len(nodes):
        return 2 * needed, edges
    rows = _add_rows(
        layout, kind, block, stop, rows, share, nodes, row_types, segments, neighbours, children, known, known_rows,
        generation, overlay,
    )  # fmt: skip
    return rows, edges


@inlined
def _prefetch_lists(
    indptr: np.ndarray, layout: np.ndarray, kind: int, block: int, stop: int, nodes: np.ndarray,
    overlay: tuple[np.ndarray, np.ndarray, int] | None,
) -> None:  # fmt: skip
    types, _, first_nodes, first_lists, slots, _, _ = unpack_layout(layout)
    lists = slots[kind]
    if overlay is not None:
        origins = unpack(overlay[1])[4]
    for row in range(block, stop):
        node = np.int64(nodes[row])
        if overlay is not None and node >= first_nodes[types]:
            node = max(origins[node - first_nodes[types]], first_nodes[kind])
        prefetch_bounds(indptr, first_lists[kind] + (node - first_nodes[kind]) * lists)


@inlined
def _draw(
    indptr: np.ndarray, indices: np.ndarray, layout: np.ndarray, fanouts: np.ndarray, depth: int, kind: int,
    block: int, stop: int, edges: int, key: int, nodes: np.ndarray, starts: np.ndarray, segments: np.ndarray,
    offsets: np.ndarray, bitmap: np.ndarray, table: np.ndarray, overlay: tuple[np.ndarray, np.ndarray, int] | None,
) -> int:  # fmt: skip
    """Draw for each row, by each relation, and prefetch what was drawn, whose places in its list `offsets` gets where
    the list is not read whole; how many edges there are then."""
    types, stride, first_nodes, first_lists, slots, relation_of, _ = unpack_layout(layout)
    stored, lists = first_nodes[types], slots[kind]
    if overlay is not None:
        views, packed, _ = overlay
        _, keys, flags, _, origins, streams, extra_starts, _, _ = unpack(packed)
    chosen = 0
    for row in range(block, stop):
        node = np.int64(nodes[row])
        origin = node
        drawn_as = node
        own_key = np.int64(key)
        if overlay is not None:
            own_key = keys[views[row]] if flags[views[row]] & HAS_KEY else np.int64(key)
            if node >= stored:
                origin = origins[node - stored]
                drawn_as = np.int64(drawn_by(int(node), stored, origins, streams))
        first_list = first_lists[kind] + (origin - first_nodes[kind]) * lists
        for slot in range(stride):
            degree = 0
            first = 0
            fanout = fanouts[depth, relation_of[kind * stride + slot]] if slot < lists else 0
            # Nothing is read of a list of which nothing is drawn: where a layer is stored, of none.
            if fanout != 0:
                if origin >= 0:
                    first = list_begin(indptr, first_list + slot)
                    degree = list_end(indptr, first_list + slot) - first
                if overlay is not None and node >= stored:
                    degree += extra_starts[node - stored + slot + 1] - extra_starts[node - stored + slot]
                if fanout < 0 or degree <= fanout:
                    prefetch(indices, first)
                    edges += degree
                else:
                    draws = stream(int(own_key), depth + _DEPTHS_OF_SLOT * slot, int(drawn_as))
                    choose_positions(degree, fanout, draws, offsets, chosen, bitmap, table)
                    for i in range(chosen, chosen + fanout):
                        prefetch(indices, first + offsets[i])
                    chosen += fanout
                    edges += fanout
            segments[row * stride + slot + 1] = edges
        starts[row + 1] = edges
    return edges


@inlined
def _read(
    indptr: np.ndarray, indices: np.ndarray, layout: np.ndarray, kind: int, block: int, stop: int, nodes: np.ndarray,
    segments: np.ndarray, neighbours: np.ndarray, offsets: np.ndarray,
    overlay: tuple[np.ndarray, np.ndarray, int] | None, positions: np.ndarray | None, names_all: bool,
) -> None:  # fmt: skip
    """Read what was drawn for each row. `names_all`: whether nodes that only gain neighbours get the names that they
    have in the view, too."""
    types, stride, first_nodes, first_lists, slots, _, _ = unpack_layout(layout)
    stored, lists = first_nodes[types], slots[kind]
    if overlay is not None:
        views, packed, _ = overlay
        _, _, flags, first_slots, origins, _, extra_starts, extra, found_nodes = unpack(packed)
    chosen = 0
    for row in range(block, stop):
        node = np.int64(nodes[row])
        origin = node if overlay is None or node < stored else origins[node - stored]
        first_list = first_lists[kind] + (origin - first_nodes[kind]) * lists
        for slot in range(lists):
            edge = segments[row * stride + slot]
            count = segments[row * stride + slot + 1] - edge
            if count == 0:
                continue
            first = 0
            listed = 0
            if origin >= 0:
                first = list_begin(indptr, first_list + slot)
                listed = list_end(indptr, first_list + slot) - first
            degree = listed
            extra_first = np.int64(0)
            if overlay is not None and node >= stored:
                extra_first = extra_starts[node - stored + slot]
                degree += extra_starts[node - stored + slot + 1] - extra_first
            is_whole = count == degree
            for i in range(count):
                place = i if is_whole else offsets[chosen + i]
                if overlay is None or place < listed:
                    neighbours[edge + i] = indices[first + place]
                    if positions is not None:
                        positions[edge + i] = first + place
                else:
                    neighbours[edge + i] = extra[extra_first + place - listed]
                    if positions is not None:
                        positions[edge + i] = len(indices) + extra_first + place - listed
            if not is_whole:
                chosen += count
            if overlay is not None and flags[views[row]] & (HAS_OVERLAY if names_all else HAS_OVERRIDES):
                for i in range(edge, edge + count):
                    if neighbours[i] < stored:
                        neighbours[i] = seen_as(neighbours[i], views[row], stored, first_slots, found_nodes, origins)


@inlined
def _add_rows(
    layout: np.ndarray, kind: int, block: int, stop: int, rows: int, share: bool, nodes: np.ndarray,
    row_types: np.ndarray, segments: np.ndarray, neighbours: np.ndarray, children: np.ndarray, known: np.ndarray,
    known_rows: np.ndarray, generation: int, overlay: tuple[np.ndarray, np.ndarray, int] | None,
) -> int:  # fmt: skip
    """Add rows for the neighbours of each row; how many rows there are then."""
    _, stride, _, _, slots, relation_of, source_of = unpack_layout(layout)
    if overlay is not None:
        views = overlay[0]
    for row in range(block, stop):
        for slot in range(slots[kind]):
            source = source_of[relation_of[kind * stride + slot]]
            for edge in range(segments[row * stride + slot], segments[row * stride + slot + 1]):
                node = np.int64(neighbours[edge])
                child = rows
                if share:
                    if overlay is None:
                        child = row_of(int(node), rows, known, known_rows, generation)
                    else:
                        child = row_in_view(int(node), views[row], rows, known, known_rows, views, generation)
                children[edge] = child
                if child == rows:
                    nodes[rows] = node
                    row_types[rows] = source
                    if overlay is not None:
                        views[rows] = views[row]
                    rows += 1
    return rows


@inlined
def _overlay_type(origin: int, first_nodes: np.ndarray) -> int:
    """The type of an overlay node, by what it stands for."""
    return type_of(origin, first_nodes) if origin >= 0 else int(-1 - origin)


@inlined
def _group(
    begin: int, end: int, types: int, nodes: np.ndarray, row_types: np.ndarray, fresh: np.ndarray,
    named: np.ndarray, first_named: int, end_named: int, type_ends: np.ndarray, first_end: int,
) -> None:  # fmt: skip
    """Put rows begin to end - 1 type after type, keeping their order within a type, and name them anew in that part of
    `named`. `fresh` has the new place of each afterwards."""
    for kind in range(types):
        type_ends[first_end + kind] = 0
    for row in range(begin, end):
        type_ends[first_end + row_types[row]] += 1
    # First where each type begins; each row moves that on, up to where it ends.
    before = begin
    for kind in range(types):
        count = type_ends[first_end + kind]
        type_ends[first_end + kind] = before
        before += count
    for row in range(begin, end):
        fresh[row - begin] = type_ends[first_end + row_types[row]]
        type_ends[first_end + row_types[row]] += 1
    _reorder(begin, end, nodes, fresh)
    for i in range(first_named, end_named):
        named[i] = fresh[named[i] - begin]


@inlined
def _reorder(begin: int, end: int, values: np.ndarray, fresh: np.ndarray) -> None:
    """Move each of values[begin:end] to its new place, which `fresh` has first."""
    count = end - begin
    for i in range(count):
        fresh[count + i] = values[begin + i]
    for i in range(count):
        values[fresh[i]] = fresh[count + i]
