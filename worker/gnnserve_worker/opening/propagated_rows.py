"""Rows of one-row variants over several hops, made anew where the graph changes: products of features that are
propagated over whole lists, from rows of features in float32, as `generation/training_set.py` and
`generation/node_rows.py` made them.

A row is made of all that it meets within its hops. What is propagated is not kept for each hop: that would be as many
rows of features as hops, for all nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import scipy.sparse as sp
from msgspec import UNSET

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.repository import VariantManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.graph.found_nodes import distinct
from gnnserve_worker.graph.living_lists import LivingLists
from gnnserve_worker.graph.relation_lists import TypePlaces, places_of
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.models.feature_products import Scaling, product_of
from gnnserve_worker.models.living_sums import LivingSums
from gnnserve_worker.models.network import Linear
from gnnserve_worker.models.registry import spec_of
from gnnserve_worker.models.rows import encode_to_write, write_rows
from gnnserve_worker.models.stored_layers import MadeRows
from gnnserve_worker.opening.changes import FollowedLayer, FollowedRows
from gnnserve_worker.opening.loaded import CORRECTION
from gnnserve_worker.sampling.batch_view import FeatureRows
from gnnserve_worker.tables.table import Rows, Table

# --- which features rows are made of


@dataclass(frozen=True, slots=True)
class PropagatedBlock:
    """Columns of a row, which are features of nodes of one type, so many hops away."""

    hop: int
    """0: the node's own features."""
    origin: int
    """Place of the type that the features are of."""


def blocks_of(schema: GraphSchema, widths: Sequence[int], kind: int, hops: int) -> list[PropagatedBlock]:
    """Blocks of rows of a type (its place), in the order of their columns. `widths`: columns of features of each
    type."""
    found = [PropagatedBlock(0, kind)] if widths[kind] else []
    for hop, met in enumerate(_met(schema, widths, hops)[1:], start=1):
        found += [PropagatedBlock(hop, origin) for origin in sorted(met[kind])]
    return found


def _met(schema: GraphSchema, widths: Sequence[int], hops: int) -> list[list[dict[int, int]]]:
    """By hop and by type, the types whose features walks of so many hops end at, each with the number of relations by
    which it is met."""
    met = [[{kind: 1} if width else {} for kind, width in enumerate(widths)]]
    for _ in range(hops):
        read: list[dict[int, int]] = [{} for _ in widths]
        for one in schema.relations:
            own = read[schema.place_of(one.target)]
            for origin in met[-1][schema.place_of(one.source)]:
                own[origin] = own.get(origin, 0) + 1
        met.append(read)
    return met


# --- one hop


class PropagatesRows(Protocol):
    """Propagates rows over one hop of whole lists."""

    def lists_of(self, nodes: np.ndarray) -> np.ndarray:
        """The lists of nodes (int64) that are read: int64."""
        ...  # pragma: no cover

    def propagate(self, nodes: np.ndarray, read: np.ndarray, rows: np.ndarray, hop: int) -> np.ndarray:
        """Rows of `nodes`, float32 [nodes, columns], from those of `read`, which are the nodes themselves and all that
        their lists name. Both int64, ascending. `hop`: from 1."""
        ...  # pragma: no cover


def entries_of(graph: Graph, lists: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All entries of these lists (int64), one list behind the other, int32; and where each list begins among them,
    int64 [lists + 1]."""
    bounds = graph.indptr
    begins, ends = (bounds[lists], bounds[lists + 1]) if bounds.ndim == 1 else (bounds[lists, 0], bounds[lists, 1])
    starts = np.concatenate(([0], np.cumsum(ends - begins))).astype(np.int64)
    places = np.repeat(begins - starts[:-1], ends - begins) + np.arange(starts[-1])
    return graph.indices[places], starts


@dataclass(frozen=True, slots=True)
class OverOneList:
    """By S = D^-1/2 (A + I) D^-1/2, where each node has one list."""

    graph: Graph
    roots: np.ndarray
    """`inverse_roots` of the graph."""

    def lists_of(self, nodes: np.ndarray) -> np.ndarray:
        return nodes

    def propagate(self, nodes: np.ndarray, read: np.ndarray, rows: np.ndarray, hop: int) -> np.ndarray:
        """As `PropagatesRows.propagate`."""
        entries, starts = entries_of(self.graph, nodes)
        readers, roots = np.repeat(nodes, np.diff(starts)), self.roots
        # Exactly one self-loop for each node, whatever its list has.
        weights = roots[readers] * roots[entries] * (entries != readers)
        lists = sp.csr_array((weights, np.searchsorted(read, entries), starts), shape=(len(nodes), len(read)))
        own = roots[nodes] ** 2
        made: np.ndarray = lists @ rows + own[:, np.newaxis] * rows[np.searchsorted(read, nodes)]
        return made


@dataclass(frozen=True)
class OverRelations:
    """By the mean of what each relation reads, and of these over the relations: of those that meet features of a type,
    apart for each type."""

    graph: Graph
    widths: tuple[int, ...]
    """Columns of features of each type, which rows have one type after the other."""
    hops: int

    @cached_property
    def places(self) -> TypePlaces:
        return places_of(self.graph.schema)

    @cached_property
    def met(self) -> list[list[dict[int, int]]]:
        """As `_met`."""
        return _met(self.graph.schema, self.widths, self.hops)

    def columns_of(self, origin: int) -> slice:
        """Columns of rows that are features of a type (its place)."""
        begin = sum(self.widths[:origin])
        return slice(begin, begin + self.widths[origin])

    def lists_of(self, nodes: np.ndarray) -> np.ndarray:
        return self.places.lists_of(nodes)

    def propagate(self, nodes: np.ndarray, read: np.ndarray, rows: np.ndarray, hop: int) -> np.ndarray:
        """As `PropagatesRows.propagate`."""
        places, made = self.places, np.zeros((len(nodes), rows.shape[1]), np.float32)
        kinds = places.kinds_of(nodes)
        for relation, target in enumerate(places.targets.tolist()):
            if not len(own := np.flatnonzero(kinds == target)):
                continue
            entries, starts = entries_of(self.graph, places.list_by(relation, nodes[own]))
            lengths = np.diff(starts)
            shares = np.repeat((1.0 / np.maximum(lengths, 1)).astype(np.float32), lengths)
            lists = sp.csr_array((shares, np.searchsorted(read, entries), starts), shape=(len(own), len(read)))
            made[own] += lists @ rows
        for kind, met in enumerate(self.met[hop]):
            own = np.flatnonzero(kinds == kind)
            for origin, relations in met.items():
                made[own, self.columns_of(origin)] /= np.float32(relations)
        return made


# --- rows


@dataclass(frozen=True, slots=True)
class RowsOfType:
    """How rows of nodes of one type are made of what they meet."""

    kind: int
    """Place of the type."""
    columns: tuple[slice, ...]
    """Columns of what is propagated, of each block in the order of a row."""
    hops: tuple[int, ...]
    """Hops to the nodes whose features each block has."""
    scalings: tuple[Scaling, ...]
    """Scaling of each block once it is propagated."""
    product: Linear
    """What the blocks beside each other are multiplied by."""

    def make(self, met: Sequence[np.ndarray]) -> np.ndarray:
        """Rows of some nodes, float32 [nodes, outputs]. `met`: by hop what is propagated to them, float32 [nodes,
        columns]."""
        blocks = [self._block(met, place) for place in range(len(self.hops))]
        return product_of(np.ascontiguousarray(np.concatenate(blocks, axis=1)), self.product)

    def _block(self, met: Sequence[np.ndarray], place: int) -> np.ndarray:
        block = met[self.hops[place]][:, self.columns[place]]
        width, count = block.shape[1], len(block)
        read = np.arange(count)
        return self.scalings[place].scale(FeatureRows.of(block), read, np.arange(width), width)


@dataclass(frozen=True, slots=True)
class PropagatedRowMaker:
    """A `MakesLayer` of a table of products of propagated features."""

    table: Table
    source: Table
    """Features of all nodes, scaled, in float32."""
    graph: Graph
    neighbour_roots: np.ndarray | None
    """`inverse_roots` of the graph, where each node has one list; None: it has lists by relation."""
    widths: tuple[int, ...]
    """Columns of features of each type."""
    rows: tuple[RowsOfType, ...]
    """Recipe of the rows of each type that has some, the first ones."""
    hops: int
    number: int = 1

    @property
    def weighs_neighbours(self) -> bool:
        return self.neighbour_roots is not None

    def rows_of_type(self, kind: int) -> int:
        """As of `RenewsRows`."""
        return 1 if kind < len(self.rows) else 0

    def kept(self) -> Sequence[Rows]:
        """As `MakesLayer.kept`: nothing."""
        return ()

    def reading(self, graph: Graph, source: Table, neighbour_roots: np.ndarray | None) -> PropagatedRowMaker:
        """As `MakesLayer.reading`."""
        roots = neighbour_roots if self.weighs_neighbours else None
        return replace(self, graph=graph, source=source, neighbour_roots=roots)

    def writing(self, table: Table) -> PropagatedRowMaker:
        """As `MakesLayer.writing`."""
        return replace(self, table=table)

    def sums(self, lists: LivingLists, nodes: int) -> LivingSums | None:
        """As `MakesLayer.sums`: none are kept of several hops."""
        return None

    def put(self, made: MadeRows, *, in_parallel: bool = False) -> None:
        """As `MakesLayer.put`."""
        for values, scales in made.rows:
            write_rows(self.table.rows, made.nodes, values, scales, in_parallel=in_parallel)

    def make(self, nodes: np.ndarray, sums: LivingSums | None) -> MadeRows:
        """As `MakesLayer.make`, in the calling thread. Nodes of types without rows are left out."""
        kinds = self._kinds_of(nodes)
        nodes, kinds = nodes[kinds < len(self.rows)], kinds[kinds < len(self.rows)]
        made = np.zeros((len(nodes), self.table.columns), np.float32)
        if len(nodes):
            met = [*self._met(nodes)]
            for one in self.rows:
                own = np.flatnonzero(kinds == one.kind)
                made[own] = one.make([rows[own] for rows in met])
        return MadeRows(nodes, None, (encode_to_write(self.table.rows, made),))

    def _met(self, nodes: np.ndarray) -> Iterator[np.ndarray]:
        """By hop what is propagated to these nodes (int64), float32 [nodes, columns]; first their own features."""
        over = self._over
        reached = [distinct([nodes])]
        for _ in range(self.hops):
            entries, _ = entries_of(self.graph, over.lists_of(reached[-1]))
            reached.append(distinct([reached[-1], entries.astype(np.int64)]))
        rows = self._features_of(reached[-1])
        for hop, read in enumerate(reversed(reached)):
            if hop:
                rows = over.propagate(read, reached[self.hops - hop + 1], rows, hop)
            yield rows[np.searchsorted(read, nodes)]

    @property
    def _over(self) -> PropagatesRows:
        if self.neighbour_roots is not None:
            return OverOneList(self.graph, self.neighbour_roots)
        return OverRelations(self.graph, self.widths, self.hops)

    def _kinds_of(self, nodes: np.ndarray) -> np.ndarray:
        firsts = np.asarray(self.graph.schema.first_nodes)
        return np.asarray(np.searchsorted(firsts, nodes, side="right") - 1)

    def _features_of(self, nodes: np.ndarray) -> np.ndarray:
        """Features of nodes (int64), those of each type in columns of their own: float32 [nodes, columns]."""
        stored = self.source.rows.values
        if len(self.widths) == 1:
            found: np.ndarray = stored[nodes, : self.widths[0]]
            return found
        kinds, first = self._kinds_of(nodes), 0
        found = np.zeros((len(nodes), sum(self.widths)), np.float32)
        for kind, width in enumerate(self.widths):
            own = np.flatnonzero(kinds == kind)
            found[own, first : first + width] = stored[nodes[own], :width]
            first += width
        return found


@dataclass(frozen=True, slots=True)
class PropagatedSource:
    """Parts of a revision that propagated rows are made by."""

    tables: Mapping[str, Table]
    graph: Graph
    roots: Callable[[], np.ndarray] | None
    """Makes `inverse_roots` of the graph; None: nodes have lists by relation."""
    widths: Sequence[int]
    """Columns of features of each type."""
    scalings: Sequence[Scaling]
    """How features of each type are scaled."""
    types_with_rows: Callable[[str], int]
    """How many types a table has rows of, by its name."""

    def followed(
        self, variants: Iterable[VariantManifest], tensors_of: Callable[[VariantManifest], Mapping[str, np.ndarray]]
    ) -> FollowedRows:
        """Makers of all such rows. `tensors_of`: weights of a variant. ValueError and KeyError: they do not fit."""
        found: dict[str, PropagatedRowMaker] = {}
        for variant in variants:
            if variant.propagated is not UNSET and variant.table not in found:
                read = {
                    key.removeprefix(CORRECTION): tensor
                    for key, tensor in tensors_of(variant).items()
                    if key.startswith(CORRECTION)
                }
                found[variant.table] = self.maker(variant, variant.propagated.features, read)
        makers = tuple(found.values())
        return FollowedRows(layers=(FollowedLayer(makers, max(maker.hops for maker in makers)),))

    def maker(self, variant: VariantManifest, features: str, weights: Mapping[str, np.ndarray]) -> PropagatedRowMaker:
        """`features`: the table of features. `weights`: the first product's, and moments by `block_key`."""
        table, hops = self.tables[variant.table], variant.network.hops or 0
        weight = spec_of(variant.network.architecture).project(weights).rows
        made, first = list[RowsOfType](), 0
        for kind in range(self.types_with_rows(variant.table)):
            one, first = self._rows_of_type(kind, hops, weights, weight, first)
            made.append(one)
        if weight.shape != (first, table.columns):
            raise ValueError(f"the first product is {list(weight.shape)}, expected {[first, table.columns]}")
        roots = None if self.roots is None else self.roots()
        widths = tuple(self.widths)
        return PropagatedRowMaker(table, self.tables[features], self.graph, roots, widths, tuple(made), hops)

    def _rows_of_type(
        self, kind: int, hops: int, weights: Mapping[str, np.ndarray], weight: np.ndarray, first: int
    ) -> tuple[RowsOfType, int]:
        """How rows of a type are made, of the columns of `weight` from `first` on; and where those of the next
        begin."""
        begins = np.concatenate(([0], np.cumsum(self.widths))).tolist()
        blocks = blocks_of(self.graph.schema, self.widths, kind, hops)
        columns = tuple(slice(begins[one.origin], begins[one.origin + 1]) for one in blocks)
        scalings = tuple(
            _scaling_of(weights, self.scalings[one.origin], kind, place) if one.hop else _AS_THEY_ARE
            for place, one in enumerate(blocks)
        )
        end = first + sum(one.stop - one.start for one in columns)
        own = weight[first:end]
        product = Linear.build(own, np.zeros(own.shape[1], np.float32), relu=False, compute="float32")
        return RowsOfType(kind, columns, tuple(one.hop for one in blocks), scalings, product), end


_AS_THEY_ARE = Scaling(Normalization.DISABLED)
"""Features of the table are scaled already."""


def block_key(kind: int, place: int, moment: str) -> str:
    """Key of a moment of a block, by its place among those of rows of a type."""
    return f"propagated.{kind}.{place}.{moment}"


def _scaling_of(weights: Mapping[str, np.ndarray], features: Scaling, kind: int, place: int) -> Scaling:
    if features.method is not Normalization.STANDARDIZE:
        return Scaling(features.method)
    mean, deviation = (weights[block_key(kind, place, moment)] for moment in ("mean", "deviation"))
    return Scaling(features.method, mean.astype(np.float64), deviation.astype(np.float64))
