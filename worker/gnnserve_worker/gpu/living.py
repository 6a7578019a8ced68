"""A graph that changes, on a GPU: copies of its lists and rows, which fetch what changes have written.

Changes are applied on the host, to arrays with address space behind them (`inference/living.py`). The GPU reads copies
that have some room of their own: in its memory, or in pinned memory of the host where the mapped file of a revision
that stays would be read in place. What changes have written since is copied before the next batch, each row once, while
no batch runs and no change is applied: so a batch sees all of a group or nothing. Cached rows that changed are dropped,
and copied again by the cache. Where new nodes or lists outgrow the room, all is placed anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from gnnserve_worker.gpu.accelerator import Accelerator, RowsToWrite
from gnnserve_worker.gpu.arrays import DeviceGraph, DeviceTable, DeviceWeights, tensor_over
from gnnserve_worker.gpu.cache import FeatureCache
from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.inference.written import WrittenSince
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.tables.formats import TableFormat
from gnnserve_worker.tables.table import Rows, Table

FEWEST_NODES: Final = 4096
"""Least room for new nodes."""
FEWEST_ENTRIES: Final = 65_536
"""Least room for entries of neighbour lists."""
_NODES_SHARE: Final = 4
"""Room for a quarter more nodes."""
_ENTRIES_SHARE: Final = 2
"""Room for half as many entries more: a list that grows moves, and leaves its place."""
_AT_ONCE_BYTES: Final = 8 * 2**20
"""Largest part of what is written that is on its way at a time."""
WRITING_BYTES: Final = 4 * _AT_ONCE_BYTES
"""GPU memory that writing takes: the rows and their numbers, rounded up by the allocator."""


def cut_to_room(loaded: LoadedRevision) -> LoadedRevision:
    """The revision as far as copies of it reach: its arrays as they are now, with some room for what comes. One that
    stays as it is, whole."""
    if loaded.changes is None:
        return loaded
    living = loaded.changes.graph
    lists = living.lists
    nodes = _with_room(living.taken, _NODES_SHARE, FEWEST_NODES, loaded.graph.nodes)
    entries = _with_room(lists.used_entries, _ENTRIES_SHARE, FEWEST_ENTRIES, len(lists.indices))
    cut: dict[int, Rows] = {}
    tables: dict[int, Table] = {}

    def cut_rows(rows: Rows) -> Rows:
        if id(rows) not in cut:
            cut[id(rows)] = replace(rows, values=rows.values[:nodes], scales=rows.scales[:nodes], written=None)
        return cut[id(rows)]

    def cut_table(table: Table) -> Table:
        if id(table) not in tables:
            tables[id(table)] = replace(table, rows=cut_rows(table.rows), own=cut_rows(table.own))
        return tables[id(table)]

    roots = loaded.reading.neighbour_roots
    return replace(
        loaded,
        graph=Graph(lists.bounds[:nodes], lists.indices[:entries]),
        reading=replace(loaded.reading, neighbour_roots=None if roots is None else roots[:nodes]),
        variants={name: replace(one, table=cut_table(one.table)) for name, one in loaded.variants.items()},
    )


def _with_room(used: int, share: int, fewest: int, most: int) -> int:
    return min(most, used + max(used // share, fewest))


@dataclass(frozen=True, slots=True)
class _Copy:
    """An array and what the GPU reads in place of it, row by row the same."""

    array: np.ndarray
    copy: Tensor
    format: TableFormat | None = None

    def renewed(self, rows: np.ndarray) -> Iterator[RowsToWrite]:
        """Rows (int64) as they are now, some at a time."""
        row_bytes = self.array.itemsize * int(np.prod(self.array.shape[1:]))
        step = max(1, _AT_ONCE_BYTES // row_bytes)
        for begin in range(0, len(rows), step):
            part = rows[begin : begin + step]
            yield RowsToWrite(self.copy, torch.from_numpy(part), tensor_over(self.array[part], self.format))


class LivingCopies:
    """Copies that the GPU reads of a revision that changes."""

    def __init__(
        self,
        living: LivingGraph,
        tables: Mapping[str, tuple[Table, DeviceTable]],
        roots: np.ndarray | None,
        graph: DeviceGraph,
        weights: DeviceWeights | None,
        accelerator: Accelerator,
    ) -> None:
        """`tables`: by variant. `roots`: those of which `weights` has copies."""
        self._living = living
        self._accelerator = accelerator
        lists = living.lists
        self._bounds = _Copy(lists.bounds, graph.indptr)
        self._indices = _Copy(lists.indices, graph.indices)
        self._roots = None if weights is None or roots is None else _Copy(roots, weights.roots)
        self._rows: dict[int, list[_Copy]] = {}
        """Copies of each table's arrays, by its identity."""
        for table, on_device in tables.values():
            self._rows.setdefault(id(table), _copies_of(table, on_device))

    @property
    def has_room(self) -> bool:
        """Whether all nodes and lists that there are now fit into the copies."""
        fits = self._living.ids.count <= len(self._bounds.copy)
        return fits and self._living.lists.used_entries <= len(self._indices.copy)

    def write(self, written: WrittenSince, caches: Mapping[int, FeatureCache]) -> int:
        """Fetch what was written. `caches`: by the identity of the table whose rows they hold. No batch may run.
        Returns the bytes that went over the link."""
        sent_bytes = self._accelerator.write(self._all_of(written))
        for table, nodes in written.rows:
            if (cache := caches.get(id(table))) is not None:
                cache.invalidate(nodes)
        return sent_bytes

    def warm_up(self) -> None:
        """Load what writing needs, since nothing may be loaded while another revision is captured."""
        self._accelerator.write(
            rows
            for copy in (*self._of_graph, *(copy for copies in self._rows.values() for copy in copies))
            for rows in copy.renewed(np.zeros(min(1, len(copy.copy)), np.int64))
        )

    @property
    def _of_graph(self) -> tuple[_Copy, ...]:
        return (self._bounds, self._indices) if self._roots is None else (self._bounds, self._indices, self._roots)

    def _all_of(self, written: WrittenSince) -> Iterator[RowsToWrite]:
        nodes = written.lists
        for copy in self._of_graph:
            rows = self._entries_of(nodes) if copy is self._indices else (nodes,)
            for part in rows:
                yield from copy.renewed(part)
        for table, changed in written.rows:
            for copy in self._rows.get(id(table), ()):
                yield from copy.renewed(changed)

    def _entries_of(self, nodes: np.ndarray) -> Iterator[np.ndarray]:
        """Where the lists of these nodes lie, some at a time."""
        lengths = self._living.lists.lengths(nodes)
        ends = np.cumsum(lengths)
        begin = 0
        while begin < len(nodes):
            done = int(ends[begin - 1]) if begin else 0
            # At least one list, however long it is.
            end = max(begin + 1, int(np.searchsorted(ends, done + _AT_ONCE_BYTES // 8, side="right")))
            counts = lengths[begin:end]
            first = self._living.lists.bounds[nodes[begin:end], 0] - (ends[begin:end] - counts - done)
            yield np.repeat(first, counts) + np.arange(int(ends[end - 1]) - done)
            begin = end


def _copies_of(table: Table, on_device: DeviceTable) -> list[_Copy]:
    found: list[_Copy] = []
    pairs = [(table.rows, on_device.rows)]
    if table.own is not table.rows:
        pairs.append((table.own, on_device.own))
    for rows, there in pairs:
        found.append(_Copy(rows.values, there.values, rows.format))
        if there.scales is not None:
            found.append(_Copy(rows.scales, there.scales))
    return found
