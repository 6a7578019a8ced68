"""The table of edges of one relation: the positions of both ends, read in batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.spec.tables import DanglingEdge
from gnnserve_worker.graph.sources.table_columns import shortened
from gnnserve_worker.graph.sources.table_files import SourceTable
from gnnserve_worker.graph.sources.table_ids import EndColumns, NodeOrder
from gnnserve_worker.graph.sources.table_payload import PayloadColumns
from gnnserve_worker.progress import ProgressListener

_BATCH_ROWS = 1 << 18


class EdgeOptions(Protocol):
    """Options of a table of edges, as a manifest has them."""

    @property
    def features(self) -> tuple[str, ...] | None: ...  # pragma: no cover

    @property
    def time(self) -> str | None: ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class EdgeEndColumn:
    """One end of the edges: its column, and the nodes that it refers to."""

    option: str
    """The manifest's field that names the column: `source` or `target`."""
    column: str
    order: NodeOrder
    called: str = "id of the node table"
    """What a value of the column should be, for messages."""


def read_ends(
    table: SourceTable,
    source: EdgeEndColumn,
    target: EdgeEndColumn,
    dangling: DanglingEdge,
    add: Callable[[np.ndarray, np.ndarray], int],
    progress: ProgressListener,
    payload: PayloadColumns | None = None,
) -> str | None:
    """Hand the positions of the sources and targets to `add`, batch by batch, which returns the index of the first edge
    whose end is no node, or -1. Returns that edge's place and problem in words, of the first such edge of all; None:
    there is none. Raises InputError where such an edge is refused. `payload`: gets the rows of edges whose ends are
    nodes."""
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
    beside = [] if payload is None else payload.names
    for rows in table.read([*(end.column for end in ends), *beside], _BATCH_ROWS, progress, "read edges"):
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
        if beside and payload is not None:
            payload.add(rows, are_nodes(sources, source.order.nodes) & are_nodes(targets, target.order.nodes))
    return first


def payload_columns(
    table: SourceTable, source: EdgeEndColumn, target: EdgeEndColumn, options: EdgeOptions
) -> PayloadColumns:
    """The columns that are read beside those of the ends."""
    return PayloadColumns(table, (source.column, target.column), options.features or (), options.time)


def are_nodes(positions: np.ndarray, nodes: int) -> np.ndarray:
    """Which positions are those of one of so many nodes: bool."""
    found: np.ndarray = (positions >= 0) & (positions < nodes)
    return found


@dataclass
class EndPairs:
    """Collects edges whose ends are nodes."""

    source_nodes: int
    target_nodes: int
    dangling: int = 0
    _parts: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    def add(self, sources: np.ndarray, targets: np.ndarray) -> int:
        """As `read_ends` calls it."""
        kept = are_nodes(sources, self.source_nodes) & are_nodes(targets, self.target_nodes)
        self._parts.append((sources[kept].astype(np.int32), targets[kept].astype(np.int32)))
        self.dangling += int((~kept).sum())
        return -1 if kept.all() else int(kept.argmin())

    def joined(self) -> tuple[np.ndarray, np.ndarray]:
        sources, targets = zip(*self._parts, strict=True) if self._parts else ((), ())
        empty = np.zeros(0, np.int32)
        return np.concatenate([empty, *sources]), np.concatenate([empty, *targets])


def unread_columns(
    table: SourceTable, source: EdgeEndColumn, target: EdgeEndColumn, payload: PayloadColumns
) -> tuple[str, ...]:
    """Names of the columns beside those of the ends that are not read."""
    read = {source.column, target.column, *payload.names}
    return tuple(name for name in table.columns if name not in read)


@dataclass(frozen=True, slots=True)
class _Place:
    """An end of an edge that is not a node."""

    path: Path
    row: int
    end: EdgeEndColumn
    value: object

    @property
    def problem(self) -> str:
        return "is missing" if self.value is None else f"is {shortened(self.value)}, which is no {self.end.called}"
