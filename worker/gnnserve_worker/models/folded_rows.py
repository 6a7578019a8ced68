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

import numpy as np

from gnnserve_worker.graph.living_lists import LivingLists
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.models.folding import Folding
from gnnserve_worker.models.living_sums import LivingSums
from gnnserve_worker.models.rows import encode_to_write, write_rows
from gnnserve_worker.models.stored_layers import MadeRows
from gnnserve_worker.tables.table import Rows, Table


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
        """As `MakesLayer.make`."""
        rows = np.zeros((len(nodes), self.table.columns), np.float32)
        for place, node in enumerate(nodes.tolist()):
            rows[place] = self._row_of(node)
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
        for place in np.flatnonzero((now != before).any(axis=1)).tolist():
            node = int(nodes[place])
            length = float(np.linalg.norm(self._sum_of(node))) if self.has_length_1[node] else 1.0
            found[place] = length / max(1, len(self._joined_to(node)))
        return found

    def _joined_to(self, node: int) -> np.ndarray:
        """Distinct nodes: several relations may join two."""
        return np.unique(self.graph.list_of(node))

    def _sum_of(self, node: int) -> np.ndarray:
        """The row at whichever length, float32 [columns]; zeros of a node that is joined to none of which anything is
        known."""
        joined, rows = self._joined_to(node), self.source.rows
        scales = rows.scales[joined] if rows.format.has_scales else None
        found = rows.format.decode(rows.values[joined], scales)[:, : self.table.columns]
        if self.folding is None:
            return np.asarray(found.sum(axis=0))
        return self.folding.own_of(self.folding.shares[joined] @ found)

    def _row_of(self, node: int) -> np.ndarray:
        row = self._sum_of(node)
        length = float(np.linalg.norm(row)) if self.has_length_1[node] else 1.0
        folded: np.ndarray = row / np.float32(length) if length > 0 else row
        return folded
