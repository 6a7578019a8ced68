"""The graph of a revision with room for changes, twice: as predictions see it, and the draft that changes are applied
to first, which are equal. How much room there is says `repository/room.py`.

Files have types without room between them. So, unlike those of a graph of one type, which has room behind the mapped
file, entries of lists of several types are copies in the worker's memory (`moves_blocks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from gnnserve_api.files.edges import Direction
from gnnserve_api.files.graph_schema import NAMES_OF_TYPES, WITHOUT_NAMES, GraphSchema, SchemaNames
from gnnserve_api.files.repository import TableManifest
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.living_graph import LivingGraph, Names
from gnnserve_worker.graph.living_ids import LivingIds
from gnnserve_worker.graph.living_lists import LivingLists, reversed_lists, spread_lists
from gnnserve_worker.graph.living_payload import LivingPayload
from gnnserve_worker.graph.names_by_id import NamesById
from gnnserve_worker.graph.names_by_type import NamesByType
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.relation_lists import TypePlaces, places_of
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.repository.room import MOST_NODES, GraphRoom
from gnnserve_worker.sampling.normalised import inverse_roots
from gnnserve_worker.tables.growing import empty_growing

MOST_PLACES = 2**31 - 2**24
"""Numbers of lists and of rows are int32; behind those of a table come rows of overlays."""
_ENTRIES_AT_ONCE = 1 << 22
_MOST_ROWS = 2**31 - 1
"""Rows of payload are int32."""
_NAMES: Mapping[SchemaNames, Callable[[GraphSchema], Names]] = {
    WITHOUT_NAMES: lambda _: NamesById(),
    NAMES_OF_TYPES: NamesByType,
}
"""How batches of changes name nodes, by the names that the graph has. Made for its types with room."""


def living_graphs(
    stored: Graph, ids: Mapping[str, NodeIds | None], grown: GraphSchema, room: int,
    entries: Callable[[], np.ndarray] | None = None, payloads: Sequence[EdgePayload | None] = (),
) -> tuple[LivingGraph, LivingGraph]:  # fmt: skip
    """`ids`: of each type. `grown`: `with_room` of the types. `room`: for so many entries of lists more. `entries`:
    opens the graph's own, writable, with that room behind, once more for each graph; None: they are copied. `payloads`:
    of the edges of each relation; empty: none has any."""
    schema, own, places = stored.schema, places_of(stored.schema), places_of(grown)
    # Batches call nodes as requests do: by ids alone, or behind the names of their types.
    names = _NAMES[schema.names](grown)
    counts, most = np.diff(own.first_nodes).tolist(), np.diff(places.first_nodes).tolist()
    first_nodes, first_lists = places.first_nodes.tolist(), places.first_lists.tolist()
    readers = None
    if _says_less_than_readers(places):
        starts, found = reversed_lists(stored.indptr, stored.indices, stored.nodes)
        moved = _moved(found, own.first_lists, places.first_lists, room)
        readers = _lists(starts, moved, first_nodes[-1], list(zip(counts, first_nodes, strict=False)))

    tables = _living_payloads(schema, payloads, room)
    if len(stored.payload_rows) and not tables:
        raise ValueError("entries have rows of payload, and no payload was given, so that changes would lose it")

    def graph() -> LivingGraph:
        moved = _moved(stored.indices, own.first_nodes, places.first_nodes, room) if entries is None else entries()
        blocks = zip(np.diff(own.first_lists).tolist(), first_lists, strict=False)
        rows = _rows_with_room(stored.payload_rows, len(moved)) if tables else None
        lists = _lists(stored.indptr, moved, first_lists[-1], list(blocks), rows)
        is_gone = np.zeros(first_nodes[-1], np.bool_)
        of_types = zip(schema.types, counts, most, first_nodes, strict=False)
        ids_of = tuple(
            LivingIds(ids[kind.name], count, large, is_gone[first : first + large])
            for kind, count, large, first in of_types
        )
        plain = lists.graph
        seen = Graph(plain.indptr, plain.indices, grown, plain.payload_rows)
        return LivingGraph(seen, lists, readers, places, ids_of, is_gone, names, schema, tables)

    # What is read while changes are applied alone, both graphs have the same of: who reads a node; and payload, whose
    # rows are only ever added.
    return graph(), graph()


def with_room(schema: GraphSchema, tables: Mapping[str, TableManifest], room: GraphRoom) -> GraphSchema:
    """The types with room for new nodes behind each, as much as `room` says where there is so much."""
    relations = len(schema.relations)
    rows = [MOST_PLACES - table.by_relation.rows for table in tables.values() if table.by_relation]
    of_relations = min([MOST_PLACES - schema.lists, *rows]) // max(1, relations)
    of_types = (MOST_NODES - schema.first_nodes[-1]) // len(schema.types)
    each = max(0, min(room.nodes, of_types, of_relations))
    types = tuple(msgspec.structs.replace(kind, nodes=kind.nodes + each) for kind in schema.types)
    return msgspec.structs.replace(schema, types=types)


def moves_blocks(schema: GraphSchema, grown: GraphSchema) -> bool:
    """Whether nodes or lists of a type have other numbers where there is room (`with_room`): those behind the first
    type's."""
    own, places = places_of(schema), places_of(grown)
    firsts = ((own.first_nodes, places.first_nodes), (own.first_lists, places.first_lists))
    return not all(np.array_equal(before[:-1], after[:-1]) for before, after in firsts)


def _says_less_than_readers(places: TypePlaces) -> bool:
    """Whether a node's own lists do not say which nodes read it: they do where it has one, and all edges go both
    ways."""
    return [rules.direction for rules in places.rules] != [Direction.UNDIRECTED] or len(places.slots) > 1


def _living_payloads(
    schema: GraphSchema, payloads: Sequence[EdgePayload | None], room: int
) -> tuple[LivingPayload | None, ...]:
    """Payload of each relation with room for so many more rows; empty: no relation has any."""
    if not any(payload is not None for payload in payloads):
        return ()
    made: dict[str, LivingPayload | None] = {}
    for one, payload in zip(schema.relations, payloads, strict=True):
        if one.reverse_of is None:
            key = one.key if len(schema.relations) > 1 else ""
            made[one.key] = None if payload is None else _with_room(key, payload, room)
    return tuple(
        made[one.key if one.reverse_of is None else f"{one.target} {one.reverse_of} {one.source}"]
        for one in schema.relations
    )


def _with_room(key: str, payload: EdgePayload, room: int) -> LivingPayload:
    rows = min(len(payload.features) + room, _MOST_ROWS)
    features = empty_growing((rows, len(payload.columns)), np.float32)
    features[: len(payload.features)] = payload.features
    times = np.zeros(0, np.int64)
    if payload.time_column:
        times = empty_growing((rows,), np.int64)
        times[: len(payload.times)] = payload.times
    state = np.array([len(payload.features)], np.int64)
    return LivingPayload(key, payload.columns, features, payload.time_column, times, state)


def _rows_with_room(rows: np.ndarray, most: int) -> np.ndarray:
    grown = empty_growing((most,), np.int32)
    grown[: len(rows)] = rows
    return grown


def _lists(
    indptr: np.ndarray, entries: np.ndarray, most: int, blocks: Sequence[tuple[int, int]],
    payload_rows: np.ndarray | None = None,
) -> LivingLists:  # fmt: skip
    """`most`: how many lists there may be. `blocks`, `payload_rows`: as of `spread_lists`."""
    bounds, places = empty_growing((most, 2), np.int64), empty_growing((most,), np.int32)
    return spread_lists(indptr, entries, bounds, places, blocks, payload_rows)


def _moved(entries: np.ndarray, firsts: np.ndarray, moved: np.ndarray, room: int) -> np.ndarray:
    """A copy of the entries, with room behind for as many more as `room`. What they name is moved with its block: those
    from `firsts` on to `moved` on, int64 [blocks + 1]."""
    copied = empty_growing((len(entries) + room,), np.int32)
    shifts = moved[:-1] - firsts[:-1]
    for begin in range(0, len(entries), _ENTRIES_AT_ONCE):
        some = entries[begin : begin + _ENTRIES_AT_ONCE]
        kinds = np.searchsorted(firsts, some, side="right") - 1
        copied[begin : begin + len(some)] = some + shifts[kinds]
    return copied


def roots_with_room(stored: Graph, room: int) -> np.ndarray:
    """`inverse_roots` of the graph, with room for as many nodes in all."""
    roots = inverse_roots(stored.indptr, stored.indices)
    if room == len(roots):
        return roots
    grown = empty_growing((room,), np.float32)
    grown[: len(roots)] = roots
    return grown
