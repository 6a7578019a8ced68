"""A revision over a graph of several types in memory: what `loaded.py` is for graphs of one type."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from safetensors import SafetensorError

from gnnserve_api.errors import DamagedError
from gnnserve_api.repository import TableManifest, VariantManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.store import Splits
from gnnserve_worker.graph.typed_lists import TypedGraph
from gnnserve_worker.models.rows import Scaling
from gnnserve_worker.models.typed.architecture import RelationalLayer, TypedShape
from gnnserve_worker.models.typed.build import build_typed_network, default_key, layer_of, moment_key
from gnnserve_worker.models.typed.rows import typed_row_maker
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.loaded import LoadedRevision, LoadedVariant, TypeRowRecipe
from gnnserve_worker.repository.revision_files import RevisionFiles, open_graph_array, open_table, read_tensors
from gnnserve_worker.repository.typed_files import open_type_ids, open_typed_graph
from gnnserve_worker.sampling.neighbours import effective_nodes
from gnnserve_worker.tables.table import Table


def open_typed_revision(revision: RevisionFiles) -> LoadedRevision:
    manifest = revision.graph
    assert manifest.typed  # noqa: S101 - only such revisions come here
    mapped = partial(open_graph_array, revision)
    path = revision.graph_folder / paths.INDICES
    graph = open_typed_graph(manifest, mapped, path, revision.graph_remedy)
    asked = manifest.typed.target.nodes
    tables = {name: open_table(revision, table) for name, table in revision.tables.items()}
    recipe = _open_recipe(revision, graph)
    variants = {one.name: _open_variant(revision, one, graph, tables[one.table], recipe) for one in revision.variants}
    ids = open_type_ids(manifest, mapped)
    return LoadedRevision(
        source=manifest.source,
        graph=graph,
        effective_nodes=effective_nodes(graph.indptr),
        variants=variants,
        tables=tables,
        ids=ids[manifest.typed.target.name],
        type_ids=ids,
        type_rows=() if recipe is None else recipe.types,
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
    )


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
    revision: RevisionFiles, variant: VariantManifest, graph: TypedGraph, table: Table, recipe: _Recipe | None
) -> LoadedVariant:
    described = revision.tables[variant.table]
    if (misfit := _misfit(described, graph, variant)) is not None:
        raise DamagedError(revision.folder / paths.rows_of(variant.table), misfit, revision.remedy)
    assert described.typed  # noqa: S101 - checked as a misfit
    path = revision.folder / variant.weights
    try:
        network = build_typed_network(
            variant.network, read_tensors(revision, path), graph, described.typed.first_rows, table.columns,
            variant.compute,
        )  # fmt: skip
        rows = None
        if recipe is not None and variant.stored is None:
            shape = TypedShape(
                graph.typed,
                variant.network.hidden,
                variant.network.classes,
                variant.network.layers,
                None,
                variant.network.attention,
            )
            scalings = [one.scaling for one in recipe.types]
            attention = variant.network.attention
            first = recipe.first if attention is None else replace(recipe.first, heads=shape.heads_of(0))
            rows = typed_row_maker(table, shape, graph.layout, first, scalings)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise DamagedError(path, f"does not hold the weights of {variant.name}: {error}", revision.remedy) from error
    return LoadedVariant(variant.name, table, variant.columns, variant.fanouts, network, rows)


def _misfit(table: TableManifest, graph: TypedGraph, variant: VariantManifest) -> str | None:
    """What of the table contradicts the graph, so that kernels would read beyond its rows; None: nothing."""
    if not table.typed or len(table.typed.first_rows) != len(graph.typed.relations):
        return f"does not say where the rows of each of {len(graph.typed.relations)} relations are"
    for first, relation in zip(table.typed.first_rows, graph.typed.relations, strict=True):
        source = graph.typed.types[graph.typed.place_of(relation.source)]
        if first is not None and not 0 <= first <= table.typed.rows - source.nodes:
            return f"holds {table.typed.rows:,} rows, and those of {relation.key} are to be from {first:,} on"
        if first is None and (variant.network.layers > 1 or relation.target == graph.typed.target.name):
            return f"holds no rows of {relation.key}, which variant {variant.name} reads"
    wanted = graph.nodes if variant.network.layers > 1 else graph.typed.target.nodes
    if table.own is None or table.typed.own_rows < wanted:
        return f"holds {table.typed.own_rows:,} rows of nodes themselves, expected {wanted:,}"
    if variant.columns != table.columns:
        return f"holds {table.columns} columns, and {variant.name} is to read {variant.columns} of them"
    return None
