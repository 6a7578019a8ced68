"""Rows of a table of embeddings that were learnt of nodes (LightGCN), made anew of a node's neighbours where the graph
changes.

Of a node whose lists have changed, the row is what a request would be answered that joins a node to all of its
neighbours (`tasks/score_links/folding.py`): the sum of the rows that these had as they were generated, each multiplied
by a number where rows are eigenvectors. So a change alters the rows of the nodes that it touches and no others, and
rows do not depend on the order in which changes came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gnnserve_worker.graph.living_lists import LivingLists
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.kernels.layout import type_of, unpack_layout
from gnnserve_worker.kernels.primitives import list_begin, list_end
from gnnserve_worker.models.folding import Folding
from gnnserve_worker.models.living_sums import LivingSums
from gnnserve_worker.models.rows import encode_to_write, write_rows
from gnnserve_worker.models.stored_layers import MadeRows, parts_of
from gnnserve_worker.sampling.neighbours import NeighbourSample, SampleWeights
from gnnserve_worker.tables.table import Aggregation, Aggregator, Own, Rows, Table, gather

_NO_BIAS, _NO_CHILDREN = np.zeros(0, np.float32), np.zeros(0, np.int32)
_SUM = Aggregation(Aggregator.SUM, Own.ADDED, 0.0, _NO_BIAS, relu=False)
_WEIGHTED_SUM = Aggregation(Aggregator.NORMALISED_SUM, Own.ADDED, 0.0, _NO_BIAS, relu=False)


@dataclass(frozen=True, slots=True)
class FoldedRowMaker:
    """A `MakesLayer`: every node has all in its own lists that it is joined to."""

    table: Table
    source: Table
    """The same as it was generated, which changes do not alter: new nodes have rows of zeros."""
    graph: Graph
    folding: Folding | None
    """Weights of as many nodes as the tables have rows; None: neighbours count alike."""
    has_length_1: np.ndarray
    """Whether the row of each node is brought to length 1, bool [nodes]."""
    weighs_neighbours: bool = False

    def rows_of_type(self, kind: int) -> int:
        """As of `RenewsRows`."""
        return 1

    def kept(self) -> Sequence[Rows]:
        """As `MakesLayer.kept`: nothing."""
        return ()

    def reading(self, graph: Graph, source: Table, neighbour_roots: np.ndarray | None) -> FoldedRowMaker:
        """As `MakesLayer.reading`."""
        return replace(self, graph=graph, source=source)

    def writing(self, table: Table) -> FoldedRowMaker:
        """As `MakesLayer.writing`."""
        return replace(self, table=table)

    def sums(self, lists: LivingLists, nodes: int) -> LivingSums | None:
        """As `MakesLayer.sums`: none are kept."""
        return None

    def make(self, nodes: np.ndarray, sums: LivingSums | None) -> MadeRows:
        """As `MakesLayer.make`, in the calling thread."""
        rows = self._sums_over(self._joined_to(nodes))
        rows /= self._lengths(nodes, rows)[:, None]
        return MadeRows(nodes, None, (encode_to_write(self.table.rows, rows),))

    def put(self, made: MadeRows, *, in_parallel: bool = False) -> None:
        """As `MakesLayer.put`."""
        ((values, scales),) = made.rows
        write_rows(self.table.rows, made.nodes, values, scales, in_parallel=in_parallel)

    def shares(self, nodes: np.ndarray) -> np.ndarray | None:
        """`Folding.shares` of these nodes (int64) as the graph is now, float32; None: there are none. Those of a node
        whose row has changed are of its own list."""
        if self.folding is None:
            return None
        found = np.array(self.folding.shares[nodes])
        now, before = (np.asarray(table.rows.values[nodes]) for table in (self.table, self.source))
        for places in parts_of(np.flatnonzero((now != before).any(axis=1))):
            joined = self._joined_to(nodes[places])
            lengths = self._lengths(nodes[places], self._sums_over(joined))
            found[places] = lengths / np.maximum(1, np.diff(joined.starts))
        return found

    def _joined_to(self, nodes: np.ndarray) -> NeighbourSample:
        """The distinct nodes in the lists of each node (int64): several relations may join two."""
        graph, starts = self.graph, np.empty(len(nodes) + 1, np.int64)
        _count_entries(graph.indptr, graph.layout, nodes, starts)
        joined = np.empty(int(starts[-1]), np.int32)
        _join(graph.indptr, graph.indices, graph.layout, nodes, starts, joined)
        ends = np.array([len(nodes)])
        return NeighbourSample(
            (len(nodes),), nodes.astype(np.int32), starts, joined[: starts[-1]], _NO_CHILDREN, None, starts, ends
        )

    def _sums_over(self, joined: NeighbourSample) -> np.ndarray:
        """Rows at whichever length, float32 [nodes, columns]; zeros of a node that is joined to none of which anything
        is known."""
        count, columns = len(joined.nodes), self.table.columns
        rows, folding = np.empty((count, columns), np.float32), self.folding
        if folding is None:
            gather(self.source, columns, joined, _SUM, rows.ravel())
            return rows
        weights = SampleWeights(folding.shares[joined.neighbours], np.zeros(count, np.float32))
        gather(self.source, columns, msgspec.structs.replace(joined, weights=weights), _WEIGHTED_SUM, rows.ravel())
        return folding.own_of(rows)

    def _lengths(self, nodes: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """What rows are divided by, float32 [nodes]."""
        lengths = np.linalg.norm(rows, axis=1)
        return np.where(self.has_length_1[nodes] & (lengths > 0), lengths, np.float32(1.0))


@inlined
def _lists_of(node: int, layout: np.ndarray) -> tuple[int, int]:
    """The first list of a node, and the end of its lists."""
    _, _, first_nodes, first_lists, slots, _, _ = unpack_layout(layout)
    kind = type_of(node, first_nodes)
    first = first_lists[kind] + (node - first_nodes[kind]) * slots[kind]
    return first, first + slots[kind]


@kernel
def _count_entries(indptr: np.ndarray, layout: np.ndarray, nodes: np.ndarray, starts: np.ndarray) -> None:
    """Set where each node's entries begin that stand one behind the other, int64 [nodes + 1]."""
    starts[0] = 0
    for place in range(len(nodes)):
        first, end = _lists_of(nodes[place], layout)
        entries = 0
        for one in range(first, end):
            entries += list_end(indptr, one) - list_begin(indptr, one)
        starts[place + 1] = starts[place] + entries


@kernel
def _join(
    indptr: np.ndarray, indices: np.ndarray, layout: np.ndarray, nodes: np.ndarray, starts: np.ndarray,
    joined: np.ndarray,
) -> None:  # fmt: skip
    """Write the distinct entries of each node's lists, ascending, one node's behind the other's, and where they begin.
    `joined`: int32, room for all entries."""
    end = 0
    for place in range(len(nodes)):
        begin = filled = end
        first, last = _lists_of(nodes[place], layout)
        for one in range(first, last):
            for entry in range(list_begin(indptr, one), list_end(indptr, one)):
                joined[filled] = indices[entry]
                filled += 1
        if last - first > 1:  # one list is ascending
            joined[begin:filled].sort()
        starts[place] = begin
        for entry in range(begin, filled):
            if end == begin or joined[entry] != joined[end - 1]:
                joined[end] = joined[entry]
                end += 1
    starts[len(nodes)] = end
