"""The column of a node table that names nodes, and the columns of an edge table that refer to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from gnnserve_api.errors import InputError
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_worker.graph.ids import DuplicateIdError, NodeIds, integer_ids, string_ids
from gnnserve_worker.graph.sources.table_columns import (
    integers_of,
    is_integer,
    is_text,
    missing_rows,
    parsed_integers,
    plain,
    shortened,
    texts_of,
)
from gnnserve_worker.graph.sources.table_csv import CsvTable
from gnnserve_worker.graph.sources.table_files import RowFiles, SourceTable, TableRows


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """Position in the graph of each row of the node table, and the ids of the nodes."""

    kind: NodeIdKind
    ids: NodeIds | None
    """Ids of the nodes; None: nodes are named by their positions."""
    nodes: int
    positions: np.ndarray | None
    """int64 [nodes], the position of each row; None: row i is at position i."""


class IdColumn:
    """Collects ids batch by batch."""

    def __init__(self, table: SourceTable, column: str, places: RowFiles) -> None:
        self._table = table
        self._column = column
        self._places = places
        self._parses = isinstance(table, CsvTable)
        self._chunks: list[Any] = []
        kind = table.columns[column]
        if not is_text(kind) and not is_integer(kind):
            raise InputError(
                f"{table.field}.id", f"column {column!r} of {table.paths[0]} is {kind}, expected integers or texts",
                "convert the column, or name another",
            )  # fmt: skip
        self._is_text = is_text(kind)

    def add(self, rows: TableRows, first_row: int) -> None:
        array = plain(rows.batch.column(self._column))
        missing = missing_rows(array)
        if len(missing):
            raise self._error(first_row + int(missing[0]), "is missing, but requests and edges need it", "fill it in")
        if not (is_text if self._is_text else is_integer)(array.type):
            raise InputError(
                f"{rows.path}: column {self._column!r}", f"is {array.type}, but {self._table.columns[self._column]} in "
                f"{self._table.paths[0].name}", "write all files of the folder with the same types",
            )  # fmt: skip
        if not self._is_text:
            values, large = integers_of(array)
            if large >= 0:
                raise self._error(
                    first_row + large, f"is {array[large]}, beyond 64 bits with a sign", "write it as a text"
                )
            array = pa.array(values)
        self._chunks.append(array)

    def to_order(self) -> NodeOrder:
        if not self._is_text:
            return self._integers(np.concatenate([chunk.to_numpy() for chunk in self._chunks]))
        if self._parses:
            parsed = [parsed_integers(chunk) for chunk in self._chunks]
            if all(canonical.all() for _, canonical in parsed):
                return self._integers(np.concatenate([values for values, _ in parsed]))
        return self._texts()

    def _integers(self, values: np.ndarray) -> NodeOrder:
        nodes = len(values)
        if values.min() == 0 and values.max() == nodes - 1:
            taken = np.zeros(nodes, dtype=np.bool_)
            taken[values] = True
            if taken.all():
                is_in_place = bool((values == np.arange(nodes)).all())
                return NodeOrder(NodeIdKind.POSITIONS, None, nodes, None if is_in_place else values)
        try:
            return NodeOrder(NodeIdKind.INTEGERS, integer_ids(values), nodes, None)
        except DuplicateIdError as error:
            raise self._duplicate(error, str(values[error.first])) from error

    def _texts(self) -> NodeOrder:
        nodes = sum(map(len, self._chunks))
        offsets = np.zeros(nodes + 1, dtype=np.int64)
        parts, row = [], 0
        for chunk in self._chunks:
            texts = texts_of(chunk)
            lengths = np.diff(texts.offsets)
            offsets[row + 1 : row + 1 + len(chunk)] = lengths
            parts.append(texts.utf8[texts.offsets[0] : texts.offsets[-1]])
            row += len(chunk)
        empty = np.flatnonzero(offsets[1:] == 0)
        if len(empty):
            raise self._error(int(empty[0]), "is an empty text", "fill it in")
        np.cumsum(offsets, out=offsets)
        utf8 = np.concatenate(parts)
        self._chunks = []
        try:
            return NodeOrder(NodeIdKind.STRINGS, string_ids(utf8, offsets), nodes, None)
        except DuplicateIdError as error:
            text = utf8[offsets[error.first] : offsets[error.first + 1]].tobytes().decode()
            raise self._duplicate(error, shortened(text)) from error

    def _duplicate(self, error: DuplicateIdError, shown: str) -> InputError:
        first = self._places.place(error.first)
        return self._error(error.second, f"is {shown}, as already in {first}", "give every node an id of its own")

    def _error(self, row: int, problem: str, remedy: str) -> InputError:
        return self._places.error(row, self._column, problem, remedy)


class EndColumns:
    """Finds the ends of edges among the nodes."""

    def __init__(self, table: SourceTable, order: NodeOrder) -> None:
        self._ids = order.ids
        self._parses = isinstance(table, CsvTable)
        self._wants_text = self._parses or order.kind is NodeIdKind.STRINGS

    def check_type(self, where: str, kind: Any) -> None:
        if pa.types.is_null(kind) or (is_text(kind) if self._wants_text else is_integer(kind)):
            return
        expected = "texts" if self._wants_text else "integers"
        raise InputError(
            where, f"is {kind}, expected {expected} like the ids of the nodes",
            "write edges and nodes with ids of one type",
        )  # fmt: skip

    def positions(self, array: Any) -> np.ndarray:
        """Positions of the nodes, integers; a value outside 0 to nodes - 1 where there is no such node, or no id."""
        if pa.types.is_null(array.type):
            return np.full(len(array), -1, dtype=np.int64)
        if pa.types.is_dictionary(array.type):
            # Every id of the dictionary is searched once.
            found = np.append(self.positions(array.dictionary), -1)
            return np.asarray(found[array.indices.fill_null(len(array.dictionary)).to_numpy(zero_copy_only=False)])
        array = plain(array)
        if self._ids is not None and self._ids.kind is NodeIdKind.STRINGS:
            texts = texts_of(array)
            positions = self._ids.find_strings(texts.utf8, texts.offsets)
            # A missing id has no text, or an arbitrary one.
            positions[missing_rows(array)] = -1
            return positions
        return self._integer_positions(array)

    def _integer_positions(self, array: Any) -> np.ndarray:
        if self._parses:
            wanted, usable = parsed_integers(array)
            missing = np.flatnonzero(~usable)
        else:
            wanted, large = integers_of(array)
            missing = missing_rows(array)
            if large >= 0:  # as int64 these are negative
                unsigned = array.fill_null(0).to_numpy(zero_copy_only=False)
                missing = np.union1d(missing, np.flatnonzero(unsigned > np.uint64(np.iinfo(np.int64).max)))
        positions = wanted if self._ids is None else self._ids.find_integers(wanted)
        if len(missing):
            positions = positions if positions.flags.writeable else positions.copy()
            positions[missing] = -1
        return positions
