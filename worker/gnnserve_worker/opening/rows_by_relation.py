"""Tables in which a node has a row for each relation that reads it, and one for itself: networks over them, and what
makes their rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
from safetensors import SafetensorError

from gnnserve_api.errors import DamagedError
from gnnserve_api.families import point_of
from gnnserve_api.files.repository import FollowedManifest, NetworkManifest, TableManifest, VariantManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.models.architecture import RelationalLayer, RelationalShape, default_key, layer_of
from gnnserve_worker.models.feature_products import Scaling
from gnnserve_worker.models.network import VariantNetwork
from gnnserve_worker.models.registry import build_network, table_layer
from gnnserve_worker.models.relation_rows import relation_row_maker
from gnnserve_worker.models.relation_table import RelationTable
from gnnserve_worker.models.rows import MakesRows, RowMaker
from gnnserve_worker.models.stored_layers import StoredRelationMaker
from gnnserve_worker.opening.changes import FollowedRows, layers_by_number
from gnnserve_worker.opening.loaded import CORRECTION, OpenedGraph, TypeRowRecipe
from gnnserve_worker.opening.networks import fanouts_misfit, followed_of
from gnnserve_worker.opening.overlay_reach import OverlayReach
from gnnserve_worker.opening.overlay_rows import OverlayRows, RelationSeenRows
from gnnserve_worker.opening.spread_tables import SpreadTable, spread_table
from gnnserve_worker.opening.type_recipe import type_recipe
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.revision_files import RevisionFiles, open_table, read_tensors
from gnnserve_worker.sampling.neighbours import Sampler
from gnnserve_worker.sampling.relations import sample_relations
from gnnserve_worker.tables.table import Table


class RowsByRelation:
    """The `RevisionRows` of tables with rows for each relation."""

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
        self._products: dict[str, RowMaker] = {}
        """What makes rows of products of features, by the name of their table."""

    def open_table(self, name: str) -> Table:
        return _open_spread(self._revision, self._revision.tables[name], self._stored, self._graph).table

    def open(self, variant: VariantManifest) -> tuple[VariantNetwork, MakesRows | None]:
        tensors = read_tensors(self._revision, self._revision.folder / variant.weights)
        spread, recipe = self._spread[variant.table], self._recipe
        network = build_network(
            variant.network, tensors, spread.table.columns, projected=True, compute=variant.compute,
            relations=self._reads(variant.table),
        )  # fmt: skip
        if recipe is None or variant.stored is not None:
            return network, None if recipe is None else self._overlaid_rows(variant, recipe)
        return network, self._product_maker(variant.table, variant.network, recipe)

    def followed(self) -> FollowedRows:
        """Makers of rows of tables that store a layer, one of each, and of the products that these are made of."""
        made: dict[str, StoredRelationMaker] = {}
        if (recipe := self._recipe) is not None:
            for variant in self._revision.variants:
                if (followed := followed_of(variant)) is not None:
                    made = self._stored_layers(variant, followed, recipe) | made
        return FollowedRows(tuple(self._products.values()), layers_by_number(made.values()))

    def _overlaid_rows(self, variant: VariantManifest, recipe: _Recipe) -> OverlayRows | None:
        """Maker of rows of a table that stores a layer, where requests reach; None: they cannot be made there."""
        followed = followed_of(variant)
        if followed is None or not point_of(variant).capabilities.overlay:
            return None
        made = self._stored_layers(variant, followed, recipe)
        reach = OverlayReach(self._graph, weighs_neighbours=False, names_leaves=False)
        rows: MakesRows = self._product_maker(followed.layers[0].products, followed.network, recipe)
        for maker in made.values():
            rows = OverlayRows(RelationSeenRows(maker), rows, reach, maker.number)
        assert isinstance(rows, OverlayRows)  # noqa: S101 - a layer is stored
        return rows

    def _reads(self, table: str) -> RelationTable:
        return RelationTable.of(self._graph, self._spread[table].first_rows)

    def _product_maker(self, table: str, whole: NetworkManifest, recipe: _Recipe) -> RowMaker:
        """Makes rows of a table of the first layer's products. `whole`: the network that it is the first layer of."""
        if table not in self._products:
            shape = RelationalShape.of(self._graph.schema, whole)
            first = shape.with_heads(recipe.firsts[self._revision.tables[table].made_by], 0)
            self._products[table] = relation_row_maker(
                self._spread[table].table, self._reads(table), first, recipe.scalings, recipe.widths
            )
        return self._products[table]

    def _stored_layers(
        self, variant: VariantManifest, followed: FollowedManifest, recipe: _Recipe
    ) -> dict[str, StoredRelationMaker]:
        """Makers of rows of the table that the variant reads, and of those of layers before it, by table."""
        whole, shape = followed.network, RelationalShape.of(self._graph.schema, followed.network)
        names = [*(layer.products for layer in followed.layers), variant.table]
        path = self._revision.folder / variant.weights
        made: dict[str, StoredRelationMaker] = {}
        try:
            tensors = read_tensors(self._revision, path)
            self._product_maker(names[0], whole, recipe)
            layer = shape.with_heads(recipe.firsts[self._revision.tables[names[0]].made_by], 0)
            for number, (source, name) in enumerate(pairwise(names), start=1):
                if number == whole.layers:
                    made[name] = self._stored_maker(source, name, layer, _as_it_is(layer), number, is_last=True)
                    break
                behind = shape.with_heads(layer_of(number, tensors, CORRECTION), number)
                made[name] = self._stored_maker(source, name, layer, behind, number)
                layer = behind
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            problem = f"does not hold what rows of {variant.table} are made by: {error}"
            raise DamagedError(path, problem, self._revision.remedy) from error
        return made

    def _stored_maker(
        self, source: str, name: str, layer: RelationalLayer, behind: RelationalLayer, number: int, *,
        is_last: bool = False,
    ) -> StoredRelationMaker:  # fmt: skip
        """Makes rows of a table, which are `behind`'s products of what `layer` makes of the table `source`."""
        products, kinds = self._spread[source].table, range(len(self._graph.schema.types))
        computed = table_layer(layer, products.columns, self._reads(source), relu=False)
        rows = relation_row_maker(
            self._spread[name].table, self._reads(name), behind,
            [Scaling(Normalization.DISABLED)] * len(kinds), [computed.outputs] * len(kinds),
        )  # fmt: skip
        without = tuple(kind for kind in kinds if kind not in layer.biases)
        return StoredRelationMaker(rows, computed, without, products, self._graph, number, is_last)


def _as_it_is(layer: RelationalLayer) -> RelationalLayer:
    """What makes rows that are the layer's output itself."""
    same = np.eye(layer.outputs, dtype=np.float32)
    return RelationalLayer({}, dict.fromkeys(layer.biases, same), {})


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
    """Recipe of rows of nodes that the graph does not have."""

    firsts: Mapping[str, RelationalLayer]
    """The first layer of each network, without its heads, by `TableManifest.made_by`."""
    types: tuple[TypeRowRecipe, ...]
    scalings: tuple[Scaling, ...]
    """How features of each type were scaled."""
    widths: tuple[int, ...]
    """Columns that first layers read of each type."""


def _open_recipe(revision: RevisionFiles, graph: Graph) -> _Recipe | None:
    """None: the revision is staged, and its new nodes are not measured."""
    source = None if revision.manifest is None else revision.manifest.row_source
    if source is None or source.tensors is None or not source.types:
        return None
    path = revision.folder / source.tensors
    try:
        tensors = read_tensors(revision, path)
        recipe = type_recipe(source, graph.schema, tensors, lambda place: tensors[default_key(place)])
        products = {
            revision.tables[name].made_by for one in revision.variants if (name := _products_of(one)) is not None
        }
        firsts = {prefix: layer_of(0, tensors, prefix) for prefix in products}
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        problem = f"does not hold what rows of its tables are made by: {error}"
        raise DamagedError(path, problem, revision.remedy) from error
    widths = zip(graph.schema.types, recipe.types, strict=True)
    return _Recipe(
        firsts, recipe.types, recipe.scalings,
        tuple((kind.features or 0) if made.default is None else len(made.default) for kind, made in widths),
    )  # fmt: skip


def _products_of(variant: VariantManifest) -> str | None:
    """The table of products that rows are made of for the variant; None: none are made."""
    if variant.stored is None:
        return variant.table
    return None if variant.stored.followed is None else variant.stored.followed.layers[0].products


def _check_fit(revision: RevisionFiles, variant: VariantManifest, graph: Graph) -> None:
    """Raise DamagedError where a table that the variant reads does not fit the graph as it is stored."""
    answers_all = revision.manifest is not None and revision.manifest.answers_all_types
    read = [(variant.table, _Reach(any(variant.fanouts), answers_all or variant.network.layers > 1), variant.columns)]
    if (followed := followed_of(variant)) is not None:
        for number, layer in enumerate(followed.layers, start=1):
            reach = _Reach(neighbours=True, of_all=answers_all or number < followed.network.layers)
            read.append((layer.products, reach, revision.tables[layer.products].columns))
    if (problem := fanouts_misfit(variant, graph)) is not None:
        raise DamagedError(revision.folder / paths.REVISION_COMMIT, problem, revision.remedy)
    for name, reach, columns in read:
        if (misfit := _misfit(revision.tables[name], graph, variant.name, reach, columns)) is not None:
            raise DamagedError(revision.folder / paths.rows_of(name), misfit, revision.remedy)


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
