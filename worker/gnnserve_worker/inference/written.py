"""Elements of a revision's arrays that changes have written, for copies of them elsewhere: on a GPU, say.

Changes are noted as they are applied and taken together, so that a row that was written many times is fetched once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gnnserve_worker.tables.table import Table

_LOOSE = 1 << 18
"""Nodes that are noted before repeated ones are left out."""
_NO_NODES = np.zeros(0, np.int64)


class WrittenSince:
    """Not to be noted and read at the same time: both happen while neither predictions nor changes do."""

    def __init__(self) -> None:
        self._lists = _Nodes()
        self._rows: dict[tuple[int, ...], tuple[tuple[Table, ...], _Nodes]] = {}
        """By the tables' identities."""

    @property
    def is_empty(self) -> bool:
        return self._lists.is_empty and not self._rows

    @property
    def lists(self) -> np.ndarray:
        """Nodes whose neighbour lists, or what they weigh, are others: int64, ascending, distinct."""
        return self._lists.distinct()

    @property
    def rows(self) -> Iterator[tuple[Table, np.ndarray]]:
        """Tables, with the nodes whose rows are others: int64, ascending, distinct."""
        for tables, nodes in self._rows.values():
            found = nodes.distinct()
            for table in tables:
                yield table, found

    def note_lists(self, nodes: np.ndarray) -> None:
        self._lists.add(nodes)

    def note_rows(self, tables: Sequence[Table], nodes: np.ndarray) -> None:
        """These nodes' rows (int64) of every one of the tables."""
        if not len(nodes) or not tables:
            return
        key = tuple(map(id, tables))
        known = self._rows.get(key)
        if known is None:
            known = self._rows[key] = (tuple(tables), _Nodes())
        known[1].add(nodes)

    def clear(self) -> None:
        """All of it was fetched."""
        self._lists = _Nodes()
        self._rows.clear()


class _Nodes:
    """A set of nodes, in memory for each of them once, or a few."""

    def __init__(self) -> None:
        self._parts: list[np.ndarray] = []
        self._loose = 0
        self._limit = _LOOSE

    @property
    def is_empty(self) -> bool:
        return not self._parts

    def add(self, nodes: np.ndarray) -> None:
        if not len(nodes):
            return
        self._parts.append(nodes)
        self._loose += len(nodes)
        if self._loose > self._limit:
            # So that each node is sorted a few times in all.
            self._limit = max(_LOOSE, 2 * len(self.distinct()))

    def distinct(self) -> np.ndarray:
        if len(self._parts) > 1 or self._loose:
            self._parts = [np.unique(np.concatenate(self._parts))]
            self._loose = 0
        return self._parts[0] if self._parts else _NO_NODES
