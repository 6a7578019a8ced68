"""Tables in which a node has a row for each relation that reads it, and one for itself: networks over them, and what
makes their rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from msgspec import UNSET
from safetensors import SafetensorError

from gnnserve_api.errors import DamagedError
from gnnserve_api.repository import TableManifest, VariantManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.models.architecture import RelationalLayer, RelationalShape, default_key, layer_of
from gnnserve_worker.models.build import build_network, table_layer
from gnnserve_worker.models.feature_products import Scaling
from gnnserve_worker.models.network import VariantNetwork
from gnnserve_worker.models.relation_rows import relation_row_maker
from gnnserve_worker.models.relation_table import RelationTable
from gnnserve_worker.models.rows import MakesRows, RowMaker
from gnnserve_worker.models.stored_layers import StoredRelationMaker
from gnnserve_worker.opening.changes import FollowedRows
from gnnserve_worker.opening.graph import OpenedGraph
from gnnserve_worker.opening.loaded import CORRECTION, TypeRowRecipe
from gnnserve_worker.opening.networks import followed_of
from gnnserve_worker.opening.spread_tables import SpreadTable, spread_table
from gnnserve_worker.opening.type_recipe import type_recipe
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.revision_files import RevisionFiles, open_table, read_tensors
from gnnserve_worker.sampling.neighbours import Sampler
from gnnserve_worker.sampling.relations import sample_relations
from gnnserve_worker.tables.table import Table


class RowsByRelation:
    """A `variants.TableRows`."""

    mapped_nodes = 0

    def __init__(self, revision: RevisionFiles, graph: OpenedGraph) -> None:
        stored, seen = graph.stored, graph.seen
        self._revision, self._graph, self._stored = revision, seen, stored
        self.sample: Sampler = partial(sample_relations, layout=seen.layout)
        self._recipe = _open_recipe(revision, stored)
        # Before tables are copied with room for changes: rows that are not there cannot be.
        for one in revision.variants:
            _check_fit(revision, one, stored)
        self._spread = {name: _open_spread(revision, table, stored, seen) for name, table in revision.tables.items()}
        self.tables = {name: spread.table for name, spread in self._spread.items()}
        self.type_rows = () if self._recipe is None else self._recipe.types
        self._products: dict[int, RowMaker] = {}
        """What makes rows of products of features, by the identity of their table."""

    def open_table(self, name: str) -> Table:
        return _open_spread(self._revision, self._revision.tables[name], self._stored, self._graph).table

    def open(self, variant: VariantManifest) -> tuple[VariantNetwork, MakesRows | None]:
        tensors = read_tensors(self._revision, self._revision.folder / variant.weights)
        graph, spread, recipe = self._graph, self._spread[variant.table], self._recipe
        reads = RelationTable.of(graph, spread.first_rows)
        network = build_network(
            variant.network, tensors, spread.table.columns, projected=True, compute=variant.compute, relations=reads
        )
        if recipe is None or variant.stored is not None:
            return network, None
        shape = RelationalShape(
            graph.schema,
            variant.network.hidden,
            variant.network.classes,
            variant.network.layers,
            None,
            variant.network.attention,
        )
        attention = variant.network.attention
        first = recipe.first if attention is None else replace(recipe.first, heads=shape.heads_of(0))
        rows = _product_maker(spread, graph, shape, first, recipe)
        self._products[id(rows.table)] = rows
        return network, rows

    def followed(self) -> FollowedRows:
        if self._recipe is None:
            return FollowedRows(tuple(self._products.values()), ())
        found = _followed(self._revision, self._graph, self._spread, self._recipe)
        sources = {id(products.table): products for _, products in found}
        layers = tuple(maker for maker, _ in found)
        return FollowedRows(tuple((sources | self._products).values()), (layers,) if layers else ())


def _open_spread(revision: RevisionFiles, described: TableManifest, stored: Graph, graph: Graph) -> SpreadTable:
    """A table; of a graph that changes with room for new nodes. Whether it fits the graph is not looked at."""
    assert described.by_relation  # noqa: S101 - tables over several types
    if graph is stored:
        return SpreadTable(open_table(revision, described), described.by_relation.first_rows)
    return spread_table(
        open_table(replace(revision, room=None), described), described.by_relation, stored.schema, graph.schema
    )


@dataclass(frozen=True, slots=True)
class _Recipe:
    """What rows of nodes that the graph does not have are made by."""

    first: RelationalLayer
    types: tuple[TypeRowRecipe, ...]
    scalings: tuple[Scaling, ...]
    """How features of each type were scaled."""


def _open_recipe(revision: RevisionFiles, graph: Graph) -> _Recipe | None:
    """None: the revision is staged, and its new nodes are not measured."""
    source = None if revision.manifest is None else revision.manifest.row_source
    if source is None or source.tensors is None or not source.types:
        return None
    path = revision.folder / source.tensors
    try:
        tensors = read_tensors(revision, path)
        recipe = type_recipe(source, graph.schema, tensors, lambda place: tensors[default_key(place)])
        return _Recipe(layer_of(0, tensors), recipe.types, recipe.scalings)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        problem = f"does not hold what rows of its tables are made by: {error}"
        raise DamagedError(path, problem, revision.remedy) from error


def _product_maker(
    spread: SpreadTable, graph: Graph, shape: RelationalShape, first: RelationalLayer, recipe: _Recipe
) -> RowMaker:
    """Makes rows of a table of the first layer's products."""
    widths = [shape.width(place) for place in range(len(graph.schema.types))]
    reads = RelationTable.of(graph, spread.first_rows)
    return relation_row_maker(spread.table, reads, first, recipe.scalings, widths)


def _followed(
    revision: RevisionFiles, graph: Graph, tables: Mapping[str, SpreadTable], recipe: _Recipe
) -> tuple[tuple[StoredRelationMaker, RowMaker], ...]:
    """Makers of rows of tables that store the first layer, one of each, and of the products that these are made of."""
    made: dict[str, tuple[StoredRelationMaker, RowMaker]] = {}
    sources: dict[str, RowMaker] = {}
    for variant in revision.variants:
        followed = followed_of(variant)
        if followed is None or variant.table in made:
            continue
        path, whole = revision.folder / variant.weights, followed.network
        try:
            shape = RelationalShape(graph.schema, whole.hidden, whole.classes, whole.layers, None, whole.attention)
            heads = [None if whole.attention is None else shape.heads_of(number) for number in (0, 1)]
            first = replace(recipe.first, heads=heads[0])
            tensors = read_tensors(revision, path)
            kept = {key.removeprefix(CORRECTION): one for key, one in tensors.items() if key.startswith(CORRECTION)}
            later = replace(layer_of(1, kept), heads=heads[1])
            source, spread = tables[followed.layers[0].products], tables[variant.table]
            name = followed.layers[0].products
            products = sources.setdefault(name, _product_maker(source, graph, shape, first, recipe))
            reads = RelationTable.of(graph, source.first_rows)
            layer = table_layer(first, source.table.columns, reads, relu=False)
            kinds = range(len(graph.schema.types))
            rows = relation_row_maker(
                spread.table, RelationTable.of(graph, spread.first_rows), later,
                [Scaling(Normalization.DISABLED)] * len(kinds), [layer.outputs] * len(kinds),
            )  # fmt: skip
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            problem = f"does not hold what rows of {variant.table} are made by: {error}"
            raise DamagedError(path, problem, revision.remedy) from error
        without = tuple(kind for kind in kinds if kind not in first.biases)
        made[variant.table] = (StoredRelationMaker(rows, layer, without, source.table, graph), products)
    return tuple(made.values())


def _check_fit(revision: RevisionFiles, variant: VariantManifest, graph: Graph) -> None:
    """Raise DamagedError where a table that the variant reads does not fit the graph as it is stored."""
    followed = followed_of(variant)
    answers_all = revision.manifest is not None and revision.manifest.answers_all_types
    read = [(variant.table, _Reach(any(variant.fanouts), answers_all or variant.network.layers > 1), variant.columns)]
    if followed is not None:
        products = followed.layers[0].products
        read.append((products, _Reach(neighbours=True, of_all=True), revision.tables[products].columns))
    if (problem := _fanouts_misfit(variant, graph)) is not None:
        raise DamagedError(revision.folder / paths.REVISION_COMMIT, problem, revision.remedy)
    for name, reach, columns in read:
        if (misfit := _misfit(revision.tables[name], graph, variant.name, reach, columns)) is not None:
            raise DamagedError(revision.folder / paths.rows_of(name), misfit, revision.remedy)


def _fanouts_misfit(variant: VariantManifest, graph: Graph) -> str | None:
    """What of its fan-outs by relation contradicts the graph, which the sampler relies on; None: nothing."""
    own, relations = variant.relation_fanouts, len(graph.schema.relations)
    if own is UNSET or (len(own) == relations and all(len(one) == len(variant.fanouts) for one in own)):
        return None
    found = f"has {len(own)} lists of fan-outs by relation for variant {variant.name}"
    return f"{found}, expected {relations} of {len(variant.fanouts)} numbers"


@dataclass(frozen=True, slots=True)
class _Reach:
    """Which rows of a table a network may read."""

    neighbours: bool
    """Rows of relations; not where no neighbours are drawn."""
    of_all: bool
    """Those that nodes of all types read, and of these themselves; not where the one layer that is computed from it is
    of nodes of the first type alone."""


def _misfit(table: TableManifest, graph: Graph, variant: str, reach: _Reach, columns: int) -> str | None:
    """What of the table contradicts the graph, so that kernels would read beyond its rows; None: nothing. `variant`:
    name of one that reads so many columns of it."""
    if not table.by_relation or len(table.by_relation.first_rows) != len(graph.schema.relations):
        return f"does not say where the rows of each of {len(graph.schema.relations)} relations are"
    for first, relation in zip(table.by_relation.first_rows, graph.schema.relations, strict=True):
        source = graph.schema.types[graph.schema.place_of(relation.source)]
        if first is not None and not 0 <= first <= table.by_relation.rows - source.nodes:
            return f"holds {table.by_relation.rows:,} rows, and those of {relation.key} are to be from {first:,} on"
        if first is None and reach.neighbours and (reach.of_all or relation.target == graph.schema.target.name):
            return f"holds no rows of {relation.key}, which variant {variant} reads"
    wanted = graph.nodes if reach.of_all else graph.schema.target.nodes
    if table.own is None or table.by_relation.own_rows < wanted:
        return f"holds {table.by_relation.own_rows:,} rows of nodes themselves, expected {wanted:,}"
    if columns != table.columns:
        return f"holds {table.columns} columns, and {variant} is to read {columns} of them"
    return None
