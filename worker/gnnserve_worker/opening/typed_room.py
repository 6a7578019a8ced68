"""Room for changes behind the nodes of each type: the graph, and tables, with it.

Files have types without room between them. So, unlike those of graphs of one type, arrays that changes are written into
are copies of the files in the worker's memory, not mapped ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from gnnserve_api.edges import Direction, EdgeRules
from gnnserve_api.repository import TableManifest
from gnnserve_api.typed import TypedGraphManifest, TypedTableManifest
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.living_ids import LivingIds
from gnnserve_worker.graph.living_lists import LivingLists, reversed_lists, spread_lists
from gnnserve_worker.graph.living_typed import LivingTypedGraph
from gnnserve_worker.graph.typed_lists import TypedGraph
from gnnserve_worker.graph.typed_places import places_of
from gnnserve_worker.repository.room import GraphRoom
from gnnserve_worker.tables.growing import empty_growing, read_only
from gnnserve_worker.tables.table import Rows, Table, WritableRows

_MOST_NODES = 2**30
"""Numbers of nodes are int32, and nodes of requests' overlays are numbered behind the graph's."""
_MOST_PLACES = 2**31 - 2**24
"""Numbers of lists and of rows are int32; behind those of a table come rows of overlays."""
_ENTRIES_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True)
class SpreadTable:
    table: Table
    first_rows: tuple[int | None, ...]
    """As in `TypedTableManifest`."""


def with_room(typed: TypedGraphManifest, tables: Mapping[str, TableManifest], room: GraphRoom) -> TypedGraphManifest:
    """The types with room for new nodes behind each, as much as `room` says where there is so much."""
    relations = len(typed.relations)
    rows = [_MOST_PLACES - table.typed.rows for table in tables.values() if table.typed]
    of_relations = min([_MOST_PLACES - typed.lists, *rows]) // max(1, relations)
    of_types = (_MOST_NODES - typed.first_nodes[-1]) // len(typed.types)
    each = max(0, min(room.nodes, of_types, of_relations))
    types = tuple(msgspec.structs.replace(kind, nodes=kind.nodes + each) for kind in typed.types)
    return msgspec.structs.replace(typed, types=types)


def living_typed_graphs(
    stored: TypedGraph, ids: Mapping[str, NodeIds | None], grown: TypedGraphManifest, room: GraphRoom
) -> tuple[LivingTypedGraph, LivingTypedGraph]:
    """The graph with room for changes, twice: as predictions see it, and the draft that changes are applied to first,
    which are equal. `grown`: `with_room` of its types."""
    typed = stored.typed
    places, own_places = places_of(grown), places_of(typed)
    counts = np.diff(own_places.first_lists).tolist()
    blocks = list(zip(counts, places.first_lists[:-1].tolist(), strict=True))
    starts, found = reversed_lists(stored.indptr, stored.indices, stored.nodes)
    nodes = [kind.nodes for kind in typed.types]
    readers = _spread(
        starts, found, own_places.first_lists, places.first_lists, room.entries, grown.first_nodes[-1],
        list(zip(nodes, grown.first_nodes, strict=False)),
    )  # fmt: skip

    def graph() -> LivingTypedGraph:
        lists = _spread(
            stored.indptr, stored.indices, own_places.first_nodes, places.first_nodes, room.entries, grown.lists, blocks
        )
        left = np.zeros(grown.first_nodes[-1], np.bool_)
        of_types = tuple(
            LivingIds(ids[kind.name], kind.nodes, large.nodes, left[first : first + large.nodes])
            for kind, large, first in zip(typed.types, grown.types, grown.first_nodes, strict=False)
        )
        rules = EdgeRules(Direction.DIRECTED)
        return LivingTypedGraph(
            lists, readers, of_types[0], rules, grown.types[0].nodes, typed, grown, places, of_types, left
        )

    return graph(), graph()


def _spread(
    indptr: np.ndarray, entries: np.ndarray, firsts: np.ndarray, moved: np.ndarray, room: int, lists: int,
    blocks: Sequence[tuple[int, int]],
) -> LivingLists:  # fmt: skip
    """Lists with room between blocks of them, and for as many entries more as `room`. What entries name is moved with
    its block: those from `firsts` on to `moved` on, int64 [blocks + 1]. `lists`: how many there may be."""
    indices = empty_growing((len(entries) + room,), np.int32)
    shifts = moved[:-1] - firsts[:-1]
    for begin in range(0, len(entries), _ENTRIES_AT_ONCE):
        some = entries[begin : begin + _ENTRIES_AT_ONCE]
        kinds = np.searchsorted(firsts, some, side="right") - 1
        indices[begin : begin + len(some)] = some + shifts[kinds]
    bounds, places = empty_growing((lists, 2), np.int64), empty_growing((lists,), np.int32)
    return spread_lists(indptr, indices, bounds, places, blocks)


def spread_table(
    table: Table, described: TypedTableManifest, typed: TypedGraphManifest, grown: TypedGraphManifest
) -> SpreadTable:
    """A copy of the table with room for the rows of new nodes behind those of each relation, and of each type."""
    moved = laid_out(described, typed, grown)
    blocks = [
        (first, to, typed.types[typed.place_of(relation.source)].nodes)
        for relation, first, to in zip(typed.relations, described.first_rows, moved.first_rows, strict=True)
        if first is not None and to is not None
    ]
    own_blocks = [
        (typed.first_nodes[kind], grown.first_nodes[kind], typed.types[kind].nodes)
        for kind in range(own_types(described, typed))
    ]
    spread = Table(
        table.kind,
        table.columns,
        _spread_rows(table.rows, blocks, moved.rows),
        _spread_rows(table.own, own_blocks, moved.own_rows),
    )
    return SpreadTable(spread, moved.first_rows)


def laid_out(
    described: TypedTableManifest, typed: TypedGraphManifest, other: TypedGraphManifest
) -> TypedTableManifest:  # fmt: skip
    """Where a table has its rows over a graph that has other numbers of nodes. `typed`: that of `described`."""
    first_rows: list[int | None] = []
    rows = 0
    for relation, first in zip(typed.relations, described.first_rows, strict=True):
        first_rows.append(None if first is None else rows)
        if first is not None:
            rows += other.types[typed.place_of(relation.source)].nodes
    return TypedTableManifest(rows, tuple(first_rows), other.first_nodes[own_types(described, typed)])


def own_types(described: TypedTableManifest, typed: TypedGraphManifest) -> int:
    """How many types the table has rows of nodes themselves of: the first ones."""
    return sum(end <= described.own_rows for end in typed.first_nodes[1:])


def _spread_rows(rows: Rows, blocks: Sequence[tuple[int, int, int]], count: int) -> Rows:
    """`blocks`: from which row on, to which row on, and how many."""
    values = empty_growing((count, *rows.values.shape[1:]), rows.values.dtype)
    scales = empty_growing((count,), np.float32) if rows.format.has_scales else rows.scales
    for source, target, part in _parts(blocks):
        values[target : target + part] = rows.values[source : source + part]
        if rows.format.has_scales:
            scales[target : target + part] = rows.scales[source : source + part]
    return Rows(rows.format, read_only(values), read_only(scales), WritableRows(values, scales))


def _parts(blocks: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Blocks in parts that are copied at a time, so that pages of files need not be held all at once."""
    for source, target, count in blocks:
        for begin in range(0, count, _ENTRIES_AT_ONCE):
            yield source + begin, target + begin, min(_ENTRIES_AT_ONCE, count - begin)
