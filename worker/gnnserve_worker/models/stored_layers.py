"""Rows of tables that store a layer, made anew where the graph changes: what it computes of a node and all neighbours,
from products of the layer's inputs in float32, as generation made it.

Of later layers these products are the rows of the layer before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from gnnserve_worker.graph.living_lists import LivingLists
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.kernels.layout import unpack_layout
from gnnserve_worker.models.feature_products import product_of
from gnnserve_worker.models.living_sums import LivingSums
from gnnserve_worker.models.network import Layer, Linear, NetworkLayer, copy_of_seeds, finish_aggregation, linear_part
from gnnserve_worker.models.rows import RenewedRows, RowMaker, encode_to_write, write_rows
from gnnserve_worker.models.whole_lists import LayerScratch
from gnnserve_worker.parallel import map_parallel
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.tables.table import Rows, RowsBehind, Table

_space = LayerScratch()
_MOST_WRITTEN = 512
"""Nodes whose rows are written at a time: what is computed of them stays in a core's cache."""


class MadeRows(NamedTuple):
    """Rows of some nodes in a table that stores a layer."""

    nodes: np.ndarray
    """int64"""
    aggregated: np.ndarray | None
    """float32 [nodes, columns that are aggregated]; None: it is not kept."""
    rows: tuple[tuple[np.ndarray, np.ndarray], ...]
    """The table's rows and scales, in its format; then those of a node itself, where they are others."""


class MadeForNodes(Protocol):
    """Rows that a maker made, which the same maker, or one of another table, writes."""

    @property
    def nodes(self) -> np.ndarray:
        """int64"""
        ...  # pragma: no cover


class MakesLayer(Protocol):
    """Makes rows of a table that stores a layer, for nodes whose neighbours or their rows have changed for good."""

    @property
    def table(self) -> Table: ...  # pragma: no cover

    @property
    def source(self) -> Table:
        """Products of the layer's inputs, in float32."""
        ...  # pragma: no cover

    @property
    def weighs_neighbours(self) -> bool:
        """Whether the layer weighs neighbours by their degrees."""
        ...  # pragma: no cover

    def rows_of_type(self, kind: int) -> int:
        """As of `RenewsRows`."""
        ...  # pragma: no cover

    def kept(self) -> Sequence[Rows]:
        """Rows that are kept of each node beside the table's, or sums as wide as they."""
        ...  # pragma: no cover

    def reading(self, graph: Graph, source: Table, neighbour_roots: np.ndarray | None) -> Self:
        """A maker that reads another graph, and the same products in another table. `neighbour_roots`: `inverse_roots`
        of the graph, where a layer weighs neighbours."""
        ...  # pragma: no cover

    def writing(self, table: Table) -> Self:
        """A maker that writes rows to another table alone."""
        ...  # pragma: no cover

    def sums(self, lists: LivingLists, nodes: int) -> LivingSums | None:
        """Sums of the products over the lists of a graph that changes, of which the table has `nodes`. None: the layer
        aggregates something that cannot be continued."""
        ...  # pragma: no cover

    def make(self, nodes: np.ndarray, sums: LivingSums | None) -> MadeForNodes:
        """Rows of these nodes (int64, distinct), over all of their neighbours as they are now. `sums`: those of the
        products, None: neighbours are read."""
        ...  # pragma: no cover

    def put(self, made: Any, *, in_parallel: bool = False) -> None:
        """Write what such a maker made. `in_parallel`: other threads do so at the same time."""
        ...  # pragma: no cover


def write_layer(maker: MakesLayer, nodes: np.ndarray, sums: LivingSums | None) -> None:
    """Write the table's rows of these nodes (int64) anew, and what the layer aggregates of them, over all of their
    neighbours as they are now. `sums`: as of `MakesLayer.make`. On all threads."""
    parts = parts_of(nodes)
    map_parallel(lambda i: maker.put(maker.make(parts[i], sums), in_parallel=True), len(parts))


@dataclass(frozen=True, slots=True)
class StoredLayerMaker:
    """A `MakesLayer` over one list of each node."""

    table: Table
    graph: Graph
    layer: Layer
    """Over `source`, in float32."""
    source: Table
    """Products of the layer's inputs, in float32."""
    aggregated: Rows | None
    """What the layer aggregates over all neighbours, before its bias. None: it cannot be continued, or is not kept."""
    neighbour_roots: np.ndarray | None
    """`inverse_roots` of the graph, where the layer weighs neighbours."""
    next_products: tuple[Linear, ...]
    """What the layer's output is multiplied by: for the table's rows, and for those of a node itself, as wide as these
    with their padding: of a few classes that takes half as long as to multiply and to pad. Empty: it is stored as it
    is."""
    number: int = 1
    """The first layer is 1."""

    @property
    def weighs_neighbours(self) -> bool:
        return self.neighbour_roots is not None

    def rows_of_type(self, kind: int) -> int:
        return 1

    def kept(self) -> Sequence[Rows]:
        """As `MakesLayer.kept`."""
        aggregated = () if self.aggregated is None else (self.aggregated,)
        return (*aggregated, self.source.rows) if self.layer.aggregation.plain else aggregated

    def reading(self, graph: Graph, source: Table, neighbour_roots: np.ndarray | None) -> StoredLayerMaker:
        """As `MakesLayer.reading`."""
        roots = neighbour_roots if self.weighs_neighbours else None
        return replace(self, graph=graph, source=source, neighbour_roots=roots)

    def writing(self, table: Table) -> StoredLayerMaker:
        """As `MakesLayer.writing`: what is aggregated is not kept."""
        return replace(self, table=table, aggregated=None)

    def sums(self, lists: LivingLists, nodes: int) -> LivingSums | None:
        """As `MakesLayer.sums`."""
        if not self.layer.aggregation.plain:
            return None
        return LivingSums(self.source, lists, self.aggregated, self.layer, nodes)

    def put(self, made: MadeRows, *, in_parallel: bool = False) -> None:
        """As `MakesLayer.put`."""
        if self.aggregated is not None:
            write_rows(self.aggregated, made.nodes, made.aggregated, None, in_parallel=in_parallel)
        for rows, (values, scales) in zip((self.table.rows, self.table.own), made.rows, strict=False):
            write_rows(rows, made.nodes, values, scales, in_parallel=in_parallel)

    def make(self, nodes: np.ndarray, sums: LivingSums | None) -> MadeRows:
        """As `MakesLayer.make`, in the calling thread."""
        layer, count = self.layer, len(nodes)
        aggregated = self._aggregate(nodes, sums)
        flat = _space.activations.hidden(aggregated.size)
        finish_aggregation(layer, aggregated, flat)
        hidden = layer.multiply(flat, count, _space.activations)[: count * layer.outputs]
        hidden = hidden.reshape(count, layer.outputs)
        kept = None if self.aggregated is None else aggregated
        if not self.next_products:
            return MadeRows(nodes, kept, (encode_to_write(self.table.rows, hidden.copy()),))
        both = zip(self.next_products, (self.table.rows, self.table.own), strict=False)
        made = ((rows, product_of(hidden, product)) for product, rows in both)
        return MadeRows(nodes, kept, tuple(encode_to_write(rows, each) for rows, each in made))

    def _aggregate(self, nodes: np.ndarray, sums: LivingSums | None) -> np.ndarray:
        """What the layer aggregates, without bias and ReLU: float32 [nodes, columns]."""
        columns = self.layer.aggregated
        if sums is not None:
            aggregated = np.empty((len(nodes), columns), np.float32)
            sums.aggregate(nodes, aggregated)
            return aggregated
        linear = linear_part(self.layer)
        sample = _space.sample(self.graph, nodes, self.neighbour_roots)
        flat = linear.gather(self.source, sample, _space.activations)
        return flat[: len(nodes) * columns].reshape(len(nodes), columns).copy()


def parts_of(nodes: np.ndarray) -> list[np.ndarray]:
    """Nodes (int64) in parts whose rows are made at a time."""
    return [nodes[begin : begin + _MOST_WRITTEN] for begin in range(0, len(nodes), _MOST_WRITTEN)]


@dataclass(frozen=True, slots=True)
class StoredRelationMaker:
    """A `MakesLayer` over a list by each relation."""

    rows: RowMaker
    """They make the rows of the table that stores the layer, from hidden states."""
    layer: NetworkLayer
    """Over `source`, without its ReLU."""
    without_output: tuple[int, ...]
    """Places of the types that the layer gives nothing for: their hidden states are 0."""
    source: Table
    """Products of features, in float32."""
    graph: Graph
    number: int = 1
    """The first layer is 1."""
    is_last: bool = False
    """Whether it is the network's last layer, whose output has no ReLU, for the nodes that the table has a row of."""
    weighs_neighbours: bool = False

    @property
    def table(self) -> Table:
        return self.rows.table

    def rows_of_type(self, kind: int) -> int:
        return self.rows.rows_of_type(kind)

    def kept(self) -> Sequence[Rows]:
        """As `MakesLayer.kept`: nothing."""
        return ()

    def reading(self, graph: Graph, source: Table, neighbour_roots: np.ndarray | None) -> StoredRelationMaker:
        """As `MakesLayer.reading`."""
        return replace(self, graph=graph, source=source)

    def writing(self, table: Table) -> StoredRelationMaker:
        """As `MakesLayer.writing`."""
        return replace(self, rows=replace(self.rows, table=table))

    def sums(self, lists: LivingLists, nodes: int) -> LivingSums | None:
        """As `MakesLayer.sums`: none are kept by relation."""
        return None

    def make(self, nodes: np.ndarray, sums: LivingSums | None) -> RenewedRows:
        """As `MakesLayer.make`."""
        if self.is_last:
            nodes = nodes[nodes < len(self.table.own.values)]
        kinds = np.searchsorted(unpack_layout(self.graph.layout)[2], nodes, side="right") - 1
        return self.rows.renew(self.hidden_of(_space.sample_relations(self.graph, nodes), kinds, _space), nodes)

    def put(self, made: RenewedRows, *, in_parallel: bool = False) -> None:
        """As `MakesLayer.put`."""
        replace(made, table=self.table).put(in_parallel=in_parallel)

    def hidden_of(
        self, sample: NeighbourSample, kinds: np.ndarray, space: LayerScratch, behind: RowsBehind | None = None
    ) -> np.ndarray:
        """What the layer makes of the seeds of a sample of whole lists: float32 [seeds, outputs]. `kinds`: the place of
        the type of each, int64. `behind`: rows behind those of `source`."""
        layer, outputs, rows = self.layer, self.layer.outputs, len(sample.nodes)
        flat = layer.gather(self.source, sample, space.activations, behind)
        hidden = np.empty((len(kinds), outputs), np.float32)
        copy_of_seeds(sample, flat[: rows * outputs].reshape(rows, outputs), hidden)
        if not self.is_last:
            np.maximum(hidden, 0, out=hidden)
        if self.without_output:
            hidden[np.isin(kinds, self.without_output)] = 0
        return hidden
