"""Which nodes of a revision that changes were applied to are the nodes of a new version, and where tables have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from gnnserve_api.repository import TableManifest
from gnnserve_api.typed import TypedGraphManifest
from gnnserve_worker.opening.typed_room import laid_out, own_types


@dataclass(frozen=True, slots=True)
class CarriedRows:
    """Rows of a table of the revision that a table of the new one is made of, in their order."""

    table: TableManifest
    """The new one's, over the files of the old one."""
    rows: np.ndarray
    """int64"""
    own_rows: np.ndarray
    """Those of nodes themselves, int64."""


class Kept(Protocol):
    @property
    def count(self) -> int:
        """How many nodes the new version has."""
        ...  # pragma: no cover

    def rows_of(self, table: TableManifest) -> CarriedRows:
        """`table`: the revision's, as it was published."""
        ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class KeptNodes:
    """Those of a graph of one type."""

    positions: np.ndarray
    """The position that each node has in the revision: int64."""

    @property
    def count(self) -> int:
        return len(self.positions)

    def rows_of(self, table: TableManifest) -> CarriedRows:
        return CarriedRows(table, self.positions, self.positions)


@dataclass(frozen=True, slots=True)
class KeptTypedNodes:
    """Those of a graph of several types."""

    positions: Sequence[np.ndarray]
    """The position that each node of a type has in the revision, within the type: int64, type after type."""
    stored: TypedGraphManifest
    """Types of the revision, as it was published."""
    grown: TypedGraphManifest
    """The same with the room that changes were applied in, in which its tables are open."""

    @property
    def count(self) -> int:
        return sum(map(len, self.positions))

    def rows_of(self, table: TableManifest) -> CarriedRows:
        assert table.typed  # noqa: S101 - tables over several types
        counts = zip(self.stored.types, self.positions, strict=True)
        types = tuple(msgspec.structs.replace(kind, nodes=len(positions)) for kind, positions in counts)
        kept = msgspec.structs.replace(self.stored, types=types)
        opened = laid_out(table.typed, self.stored, self.grown)
        rows = [
            first + self.positions[self.stored.place_of(relation.source)]
            for relation, first in zip(self.stored.relations, opened.first_rows, strict=True)
            if first is not None
        ]
        own_rows = [
            self.grown.first_nodes[kind] + self.positions[kind] for kind in range(own_types(table.typed, self.stored))
        ]
        carried = msgspec.structs.replace(table, typed=laid_out(table.typed, self.stored, kept))
        return CarriedRows(carried, _joined(rows), _joined(own_rows))


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate((np.zeros(0, np.int64), *parts))
