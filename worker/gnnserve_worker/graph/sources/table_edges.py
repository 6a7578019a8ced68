"""The table of edges of one relation: the positions of both ends, read in batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.spec.tables import DanglingEdge
from gnnserve_worker.graph.sources.table_columns import shortened
from gnnserve_worker.graph.sources.table_files import SourceTable
from gnnserve_worker.graph.sources.table_ids import EndColumns, NodeOrder
from gnnserve_worker.progress import ProgressListener

_BATCH_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class End:
    """One end of the edges: its column, and the nodes that it refers to."""

    option: str
    """The manifest's field that names the column: `source` or `target`."""
    column: str
    order: NodeOrder
    called: str = "id of the node table"
    """What a value of the column should be, for messages."""


def read_ends(
    table: SourceTable,
    source: End,
    target: End,
    dangling: DanglingEdge,
    add: Callable[[np.ndarray, np.ndarray], int],
    progress: ProgressListener,
) -> str | None:
    """Hand the positions of the sources and targets to `add`, batch by batch, which returns the index of the first edge
    whose end is no node, or -1. Returns that edge's place and problem in words, of the first such edge of all; None:
    there is none. Raises InputError where such an edge is refused."""
    ends = (source, target)
    columns = [(end, EndColumns(table, end.order)) for end in ends]
    for end, column in columns:
        table.require(end.option, end.column)
        where = f"{table.field}.{end.option}: column {end.column!r} of {table.paths[0]}"
        column.check_type(where, table.columns[end.column])
    if source.column == target.column:
        raise InputError(
            f"{table.field}.target", f"names the column {target.column!r}, which source names already",
            "name the column of the other end",
        )  # fmt: skip
    first: str | None = None
    for rows in table.read([end.column for end in ends], _BATCH_ROWS, progress, "read edges"):
        for end, column in columns:  # of every file: the first one's types are not those of the others
            column.check_type(f"{rows.path}: column {end.column!r}", rows.batch.column(end.column).type)
        sources, targets = (column.positions(rows.batch.column(end.column)) for end, column in columns)
        found = add(sources, targets)
        if found >= 0 and first is None:
            bad = source if not 0 <= sources[found] < source.order.nodes else target
            place = _Place(rows.path, rows.first + found, bad, rows.batch.column(bad.column)[found].as_py())
            if dangling is DanglingEdge.REFUSE:
                raise table.error(
                    place.path, place.row, bad.column, place.problem,
                    f"correct it, or set {table.field}.dangling to Drop",
                )  # fmt: skip
            first = f"{table.place(place.path, place.row)}, column {bad.column!r}: {place.problem}"
    return first


def unread_columns(table: SourceTable, source: End, target: End) -> tuple[str, ...]:
    """Names of the columns beside those of the ends."""
    return tuple(name for name in table.columns if name not in {source.column, target.column})


@dataclass(frozen=True, slots=True)
class _Place:
    """An end of an edge that is not a node."""

    path: Path
    row: int
    end: End
    value: object

    @property
    def problem(self) -> str:
        return "is missing" if self.value is None else f"is {shortened(self.value)}, which is no {self.end.called}"
