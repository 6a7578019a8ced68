"""A revision over a graph of several types in memory: what `loaded.py` is for graphs of one type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from msgspec import UNSET
from safetensors import SafetensorError

from gnnserve_api.errors import DamagedError, RepositoryError
from gnnserve_api.repository import TableManifest, VariantManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.store import Splits
from gnnserve_worker.graph.typed_lists import TypedGraph
from gnnserve_worker.models.build import build_network, table_layer
from gnnserve_worker.models.relation_rows import RelationRowMaker, relation_row_maker
from gnnserve_worker.models.relation_table import RelationTable
from gnnserve_worker.models.relational import RelationalLayer, RelationalShape, default_key, layer_of, moment_key
from gnnserve_worker.models.scaling import Scaling
from gnnserve_worker.models.stored_layers import StoredRelationMaker
from gnnserve_worker.opening.decoder import open_decoder
from gnnserve_worker.opening.draft import Draft
from gnnserve_worker.opening.followed import followed_of
from gnnserve_worker.opening.loaded import CORRECTION, LoadedRevision, LoadedVariant, TypeRowRecipe
from gnnserve_worker.opening.typed_room import SpreadTable, living_typed_graphs, spread_table, with_room
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.graph_files import open_graph, open_ids, open_names
from gnnserve_worker.repository.revision_files import RevisionFiles, open_graph_array, open_table, read_tensors
from gnnserve_worker.sampling.repeats import effective_nodes
from gnnserve_worker.sampling.samplers import sampler_of


def open_typed_revision(revision: RevisionFiles) -> LoadedRevision:
    manifest = revision.graph
    mapped = partial(open_graph_array, revision)
    path = revision.graph_folder / paths.INDICES
    stored = open_graph(manifest, mapped, path, revision.graph_remedy)
    asked = manifest.schema.target.nodes
    ids = open_ids(manifest, mapped)
    recipe = _open_recipe(revision, stored)
    if revision.room is None:
        living = draft = None
    else:
        if recipe is None:
            raise RepositoryError(
                revision.folder,
                "an earlier gnnserve generated it and kept nothing of how rows of new nodes are made",
                "generate it again, or leave spec.updates out",
            )
        grown = with_room(stored.typed, revision.tables, revision.room)
        living, draft = living_typed_graphs(stored, ids, grown, revision.room)
    graph = stored if living is None else living.graph
    # Before tables are copied with room for changes: rows that are not there cannot be.
    for one in revision.variants:
        _check_fit(revision, one, stored)
    tables = {name: _open_spread(revision, table, stored, graph) for name, table in revision.tables.items()}
    variants = {one.name: _open_variant(revision, one, graph, tables[one.table], recipe) for one in revision.variants}
    followed = () if living is None or recipe is None else _followed(revision, graph, tables, recipe)
    sources = {id(products.table): products for _, products in followed}
    makers = [one.rows for one in variants.values() if isinstance(one.rows, RelationRowMaker)]
    made = sources | {id(maker.table): maker for maker in makers}
    drafted = {
        id(tables[name].table): _open_spread(revision, table, stored, graph).table
        for name, table in revision.tables.items()
        if id(tables[name].table) in sources
    }
    return LoadedRevision(
        source=manifest.source,
        graph=graph,
        effective_nodes=effective_nodes(stored.indptr),
        variants=variants,
        tables={name: spread.table for name, spread in tables.items()},
        ids=open_names(manifest, mapped) or ids[manifest.schema.target.name],
        type_ids=ids,
        type_rows=() if recipe is None else recipe.types,
        sample=sampler_of(graph),
        classes=manifest.classes,
        multi_label=manifest.multi_label,
        labels=(
            mapped(paths.LABELS, np.uint8, asked, len(manifest.classes))
            if manifest.multi_label
            else mapped(paths.LABELS, np.int64, asked)
        ),
        splits=Splits(
            train=mapped(paths.TRAIN, np.int64, manifest.train_nodes),
            validation=mapped(paths.VALIDATION, np.int64, manifest.validation_nodes),
            test=mapped(paths.TEST, np.int64, manifest.test_nodes),
        ),
        manifest=revision.manifest,
        features=manifest.features,
        folder=revision.folder,
        files=revision.watched,
        living=living,
        made_of=None if manifest.version is UNSET else manifest.version.made_of,
        draft=None if draft is None else Draft(draft, drafted, None),
        typed_stored=tuple(maker for maker, _ in followed),
        typed_makers=() if living is None else tuple(made.values()),
        decoder=open_decoder(revision.folder, revision.manifest),
    )


def _open_spread(
    revision: RevisionFiles, described: TableManifest, stored: TypedGraph, graph: TypedGraph
) -> SpreadTable:
    """A table; of a graph that changes with room for new nodes. Whether it fits the graph is not looked at."""
    assert described.typed  # noqa: S101 - tables over several types
    if graph is stored:
        return SpreadTable(open_table(revision, described), described.typed.first_rows)
    return spread_table(open_table(replace(revision, room=None), described), described.typed, stored.typed, graph.typed)


@dataclass(frozen=True, slots=True)
class _Recipe:
    """What rows of nodes that the graph does not have are made by."""

    first: RelationalLayer
    types: tuple[TypeRowRecipe, ...]


def _open_recipe(revision: RevisionFiles, graph: TypedGraph) -> _Recipe | None:
    """None: the revision is staged, and its new nodes are not measured."""
    source = None if revision.manifest is None else revision.manifest.row_source
    if source is None or source.tensors is None or not source.types:
        return None
    path = revision.folder / source.tensors
    try:
        tensors = read_tensors(revision, path)
        types, columns = [], list(source.columns)
        for place, (kind, rows) in enumerate(zip(graph.typed.types, source.types, strict=True)):
            moments = [tensors.get(moment_key(place, moment)) for moment in ("mean", "deviation")]
            if rows.normalization is None:
                types.append(TypeRowRecipe(None, Scaling(Normalization.DISABLED), tensors[default_key(place)]))
                continue
            own, columns = columns[: rows.columns], columns[rows.columns :]
            scaling = Scaling(Normalization(rows.normalization), *moments)
            types.append(TypeRowRecipe(FeatureColumns(kind.features or 0, tuple(own)), scaling, None))
        return _Recipe(layer_of(0, tensors), tuple(types))
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        problem = f"does not hold what rows of its tables are made by: {error}"
        raise DamagedError(path, problem, revision.remedy) from error


def _open_variant(
    revision: RevisionFiles, variant: VariantManifest, graph: TypedGraph, spread: SpreadTable, recipe: _Recipe | None
) -> LoadedVariant:
    path, table = revision.folder / variant.weights, spread.table
    try:
        reads = RelationTable.of(graph, spread.first_rows)
        tensors = read_tensors(revision, path)
        network = build_network(
            variant.network, tensors, table.columns, projected=True, compute=variant.compute, relations=reads
        )
        rows = None
        if recipe is not None and variant.stored is None:
            shape = RelationalShape(
                graph.typed,
                variant.network.hidden,
                variant.network.classes,
                variant.network.layers,
                None,
                variant.network.attention,
            )
            attention = variant.network.attention
            first = recipe.first if attention is None else replace(recipe.first, heads=shape.heads_of(0))
            rows = _product_maker(spread, graph, shape, first, recipe)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise DamagedError(path, f"does not hold the weights of {variant.name}: {error}", revision.remedy) from error
    fanouts = () if variant.relation_fanouts is UNSET else variant.relation_fanouts
    return LoadedVariant(variant.name, table, variant.columns, variant.fanouts, network, rows, fanouts)


def _product_maker(
    spread: SpreadTable, graph: TypedGraph, shape: RelationalShape, first: RelationalLayer, recipe: _Recipe
) -> RelationRowMaker:
    """Makes rows of a table of the first layer's products."""
    widths = [shape.width(place) for place in range(len(graph.typed.types))]
    scalings = [one.scaling for one in recipe.types]
    return relation_row_maker(spread.table, RelationTable.of(graph, spread.first_rows), first, scalings, widths)


def _followed(
    revision: RevisionFiles, graph: TypedGraph, tables: Mapping[str, SpreadTable], recipe: _Recipe
) -> tuple[tuple[StoredRelationMaker, RelationRowMaker], ...]:
    """Makers of rows of tables that store the first layer, one of each, and of the products that these are made of."""
    made: dict[str, tuple[StoredRelationMaker, RelationRowMaker]] = {}
    sources: dict[str, RelationRowMaker] = {}
    for variant in revision.variants:
        followed = followed_of(variant)
        if followed is None or variant.table in made:
            continue
        path, whole = revision.folder / variant.weights, followed.network
        try:
            shape = RelationalShape(graph.typed, whole.hidden, whole.classes, whole.layers, None, whole.attention)
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
            kinds = range(len(graph.typed.types))
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


def _check_fit(revision: RevisionFiles, variant: VariantManifest, graph: TypedGraph) -> None:
    """Raise DamagedError where a table that the variant reads does not fit the graph as it is stored."""
    followed = followed_of(variant)
    scores_links = revision.manifest is not None and revision.manifest.links is not None
    read = [(variant.table, _Reach(any(variant.fanouts), scores_links or variant.network.layers > 1), variant.columns)]
    if followed is not None:
        products = followed.layers[0].products
        read.append((products, _Reach(neighbours=True, of_all=True), revision.tables[products].columns))
    if (problem := _fanouts_misfit(variant, graph)) is not None:
        raise DamagedError(revision.folder / paths.REVISION_COMMIT, problem, revision.remedy)
    for name, reach, columns in read:
        if (misfit := _misfit(revision.tables[name], graph, variant.name, reach, columns)) is not None:
            raise DamagedError(revision.folder / paths.rows_of(name), misfit, revision.remedy)


def _fanouts_misfit(variant: VariantManifest, graph: TypedGraph) -> str | None:
    """What of its fan-outs by relation contradicts the graph, which the sampler relies on; None: nothing."""
    own, relations = variant.relation_fanouts, len(graph.typed.relations)
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


def _misfit(table: TableManifest, graph: TypedGraph, variant: str, reach: _Reach, columns: int) -> str | None:
    """What of the table contradicts the graph, so that kernels would read beyond its rows; None: nothing. `variant`:
    name of one that reads so many columns of it."""
    if not table.typed or len(table.typed.first_rows) != len(graph.typed.relations):
        return f"does not say where the rows of each of {len(graph.typed.relations)} relations are"
    for first, relation in zip(table.typed.first_rows, graph.typed.relations, strict=True):
        source = graph.typed.types[graph.typed.place_of(relation.source)]
        if first is not None and not 0 <= first <= table.typed.rows - source.nodes:
            return f"holds {table.typed.rows:,} rows, and those of {relation.key} are to be from {first:,} on"
        if first is None and reach.neighbours and (reach.of_all or relation.target == graph.typed.target.name):
            return f"holds no rows of {relation.key}, which variant {variant} reads"
    wanted = graph.nodes if reach.of_all else graph.typed.target.nodes
    if table.own is None or table.typed.own_rows < wanted:
        return f"holds {table.typed.own_rows:,} rows of nodes themselves, expected {wanted:,}"
    if columns != table.columns:
        return f"holds {table.columns} columns, and {variant} is to read {columns} of them"
    return None
