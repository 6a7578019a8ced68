"""Tables with room for the rows of new nodes behind those of each type, or of each relation that reads it.

Files have them without room between them, so what changes are written into are copies in the worker's memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema, RelationRowPlaces
from gnnserve_worker.tables.growing import empty_growing, read_only
from gnnserve_worker.tables.table import Rows, Table, WritableRows

_ROWS_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True)
class SpreadTable:
    table: Table
    first_rows: tuple[int | None, ...]
    """As in `RelationRowPlaces`."""


def spread_table(table: Table, described: RelationRowPlaces, schema: GraphSchema, grown: GraphSchema) -> SpreadTable:
    """A copy of the table with room for the rows of new nodes behind those of each relation, and of each type."""
    moved = laid_out(described, schema, grown)
    blocks = [
        (first, to, schema.types[schema.place_of(relation.source)].nodes)
        for relation, first, to in zip(schema.relations, described.first_rows, moved.first_rows, strict=True)
        if first is not None and to is not None
    ]
    own_blocks = [
        (schema.first_nodes[kind], grown.first_nodes[kind], schema.types[kind].nodes)
        for kind in range(own_types(described, schema))
    ]
    spread = Table(
        table.kind,
        table.columns,
        _spread_rows(table.rows, blocks, moved.rows),
        _spread_rows(table.own, own_blocks, moved.own_rows),
    )
    return SpreadTable(spread, moved.first_rows)


def spread_types(table: Table, types: int, schema: GraphSchema, grown: GraphSchema) -> Table:
    """A copy of a table that has one row of each node of so many types, the first ones, with room for those of new
    nodes behind each type."""
    blocks = [
        (first, to, kind.nodes)
        for first, to, kind in zip(schema.first_nodes, grown.first_nodes, schema.types[:types], strict=False)
    ]
    rows = _spread_rows(table.rows, blocks, grown.first_nodes[types])
    return Table(table.kind, table.columns, rows, rows)


def laid_out(
    described: RelationRowPlaces, schema: GraphSchema, other: GraphSchema
) -> RelationRowPlaces:  # fmt: skip
    """Where a table has its rows over a graph that has other numbers of nodes. `schema`: that of `described`."""
    first_rows: list[int | None] = []
    rows = 0
    for relation, first in zip(schema.relations, described.first_rows, strict=True):
        first_rows.append(None if first is None else rows)
        if first is not None:
            rows += other.types[schema.place_of(relation.source)].nodes
    return RelationRowPlaces(rows, tuple(first_rows), other.first_nodes[own_types(described, schema)])


def own_types(described: RelationRowPlaces, schema: GraphSchema) -> int:
    """How many types the table has rows of nodes themselves of: the first ones."""
    return sum(end <= described.own_rows for end in schema.first_nodes[1:])


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
        for begin in range(0, count, _ROWS_AT_ONCE):
            yield source + begin, target + begin, min(_ROWS_AT_ONCE, count - begin)
