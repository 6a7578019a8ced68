"""Which nodes of a revision that changes were applied to are the nodes of a new version, and where tables have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.repository import TableManifest
from gnnserve_worker.opening.spread_tables import laid_out, own_types


@dataclass(frozen=True, slots=True)
class CarriedRows:
    """Rows of a table of the revision that a table of the new one is made of, in their order."""

    table: TableManifest
    """The new one's, over the files of the old one."""
    rows: np.ndarray
    """int64"""
    own_rows: np.ndarray
    """Rows of nodes themselves, int64."""


@dataclass(frozen=True, slots=True)
class KeptNodes:
    positions: Sequence[np.ndarray]
    """The position that each node of a type has in the revision, within the type: int64, type after type."""
    room: Sequence[int]
    """Nodes of each type that there is room for in the revision, with which its tables are open."""
    schema: GraphSchema
    """Types of the revision, as it was published."""

    @property
    def count(self) -> int:
        """How many nodes the new version has."""
        return sum(map(len, self.positions))

    def rows_of(self, table: TableManifest) -> CarriedRows:
        """`table`: the revision's, as it was published."""
        if not table.by_relation:  # it has a row for each node
            firsts = np.cumsum([0, *self.room]).tolist()
            positions = self.positions[: table.types_with_rows(self.schema)]
            nodes = _joined([first + own for first, own in zip(firsts, positions, strict=False)])
            return CarriedRows(table, nodes, nodes)
        schema = self.schema
        kept, grown = _of_so_many(schema, [*map(len, self.positions)]), _of_so_many(schema, self.room)
        opened = laid_out(table.by_relation, schema, grown)
        rows = [
            first + self.positions[schema.place_of(relation.source)]
            for relation, first in zip(schema.relations, opened.first_rows, strict=True)
            if first is not None
        ]
        own_rows = [
            grown.first_nodes[kind] + self.positions[kind] for kind in range(own_types(table.by_relation, schema))
        ]
        carried = msgspec.structs.replace(table, by_relation=laid_out(table.by_relation, schema, kept))
        return CarriedRows(carried, _joined(rows), _joined(own_rows))


def _of_so_many(schema: GraphSchema, counts: Sequence[int]) -> GraphSchema:
    """The types with so many nodes each."""
    types = (msgspec.structs.replace(kind, nodes=count) for kind, count in zip(schema.types, counts, strict=True))
    return msgspec.structs.replace(schema, types=tuple(types))


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate((np.zeros(0, np.int64), *parts))
