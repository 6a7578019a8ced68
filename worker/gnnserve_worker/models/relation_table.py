"""Rows of a table of products by relation: where a table has them, and which of them a sample reads.

A table has rows for each relation that the network reads, one for each node of the relation's source type, and for each
node itself one by its type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.kernels.layout import unpack_layout
from gnnserve_worker.kernels.primitives import room_for, scratch_for
from gnnserve_worker.models.network import Activations
from gnnserve_worker.sampling.neighbours import NeighbourSample


class NamedRows:
    """Rows of a table that the neighbours of a sample are, in memory of one thread. It grows to the largest sample
    seen."""

    def __init__(self) -> None:
        self.rows = np.empty(0, dtype=np.int32)
        """Row of each neighbour."""
        self.weights = np.empty(0, dtype=np.float32)
        """Weight of each neighbour: one over the neighbours of its relation."""
        self.ones = np.empty(0, dtype=np.float32)
        """Weight of each row of the sample itself."""

    def reserve(self, rows: int, edges: int) -> None:
        if len(self.rows) < edges:
            self.rows, self.weights = scratch_for(self.rows, edges), scratch_for(self.weights, edges)
        if len(self.ones) < rows:
            self.ones = np.ones(room_for(rows), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class RelationTable:
    """Where a table has the rows of each relation."""

    schema: GraphSchema
    layout: np.ndarray
    """`kernels.layout.pack_layout` of the graph."""
    first_rows: np.ndarray
    """int64 [relations]: the first row of each relation; -1: it has none of them."""
    sources: tuple[int, ...]
    """The type that each relation reads."""
    types: int = field(init=False)
    stride: int = field(init=False)
    """Relations that the type reads which reads most."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", int(self.layout[0]))
        object.__setattr__(self, "stride", int(self.layout[1]))

    @staticmethod
    def of(graph: Graph, first_rows: Sequence[int | None]) -> RelationTable:
        """`first_rows`: None where the table has no rows of a relation."""
        schema = graph.schema
        return RelationTable(
            schema,
            graph.layout,
            np.array([-1 if first is None else first for first in first_rows], np.int64),
            tuple(schema.place_of(relation.source) for relation in schema.relations),
        )

    def name(self, sample: NeighbourSample, table_rows: int, scratch: Activations) -> NamedRows:
        """The row of each neighbour of the sample by its relation, in scratch memory. `table_rows`: rows of the table,
        behind which are those of what is behind the stored nodes."""
        named = scratch.beside(NamedRows)
        named.reserve(len(sample.nodes), len(sample.neighbours))
        _name_table_rows(
            self.layout, sample.segments, sample.type_ends, sample.neighbours, self.first_rows, table_rows,
            named.rows, named.weights,
        )  # fmt: skip
        return named


@kernel
def _name_table_rows(
    layout: np.ndarray, segments: np.ndarray, type_ends: np.ndarray, neighbours: np.ndarray, first_rows: np.ndarray,
    table_rows: int, named: np.ndarray, weights: np.ndarray,
) -> None:  # fmt: skip
    """For each neighbour, the row of the table by its relation, and one over the neighbours of that relation. What is
    behind the stored nodes is behind the table's rows, in the same order."""
    types, stride, first_nodes, _, slots, relation_of, source_of = unpack_layout(layout)
    stored = first_nodes[types]
    begin = 0
    for place in range(len(type_ends)):
        kind = place % types
        end = type_ends[place]
        for slot in range(slots[kind]):
            relation = relation_of[kind * stride + slot]
            moved = first_rows[relation] - first_nodes[source_of[relation]]
            for row in range(begin, end):
                first = segments[row * stride + slot]
                last = segments[row * stride + slot + 1]
                weight = np.float32(1.0) / np.float32(max(last - first, 1))
                for edge in range(first, last):
                    node = np.int64(neighbours[edge])
                    named[edge] = node + moved if node < stored else node - stored + table_rows
                    weights[edge] = weight
        begin = end
