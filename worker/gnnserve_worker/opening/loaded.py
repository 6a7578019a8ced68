"""A revision in memory: everything that answering a request needs, opened once and never written to.

Arrays are memory-mapped, so two processes on one machine share them, and a graph larger than memory still serves.
Whether the files are what was published is `checks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from msgspec import UNSET
from safetensors import SafetensorError

from gnnserve_api.classes import Classes
from gnnserve_api.errors import DamagedError, RepositoryError
from gnnserve_api.profile import Compute
from gnnserve_api.repository import (
    ChangedSource,
    NetworkManifest,
    RevisionManifest,
    VariantManifest,
)
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.graph.store import Graph, Splits
from gnnserve_worker.models.decoder import LinkDecoder
from gnnserve_worker.models.dense import Linear
from gnnserve_worker.models.network import Layer, Network
from gnnserve_worker.models.registry import spec_of
from gnnserve_worker.models.relation_rows import RelationRowMaker
from gnnserve_worker.models.rows import MakesRows, RowMaker, first_products, row_maker
from gnnserve_worker.models.scaling import Scaling
from gnnserve_worker.models.stored_layers import StoredLayerMaker, StoredRelationMaker
from gnnserve_worker.models.stored_rows import StoredRowMaker
from gnnserve_worker.models.tail import tail_tensors
from gnnserve_worker.opening.decoder import open_decoder
from gnnserve_worker.opening.draft import Draft, draft_of
from gnnserve_worker.opening.followed import correction_of, followed_layers, followed_of, made_of_features
from gnnserve_worker.opening.living_graphs import draft_graph, living_graph, roots_with_room
from gnnserve_worker.repository import checks, paths
from gnnserve_worker.repository.graph_files import open_graph, open_ids
from gnnserve_worker.repository.revision_files import (
    RevisionFiles,
    RowRecipe,
    open_graph_array,
    open_table,
    read_tensors,
)
from gnnserve_worker.repository.watched import WatchedFiles
from gnnserve_worker.sampling.neighbours import sample_neighbours
from gnnserve_worker.sampling.repeats import effective_nodes
from gnnserve_worker.sampling.samplers import Sampler, sampler_of
from gnnserve_worker.tables.table import Table


class NetworkBuilder(Protocol):
    """`models/build.py`, or a test's stand-in."""

    def __call__(
        self,
        manifest: NetworkManifest,
        tensors: Mapping[str, np.ndarray],
        columns: int,
        projected: bool,
        compute: Compute,
    ) -> Network[Layer]: ...  # pragma: no cover


CORRECTION = "correction."
"""Before the keys of the weights that make rows of a stored layer (`CorrectionManifest`)."""


@dataclass(frozen=True, slots=True)
class LoadedVariant:
    name: str
    table: Table
    columns: int
    """Leading columns of the table that this variant reads."""
    fanouts: tuple[int, ...]
    """Neighbours that are sampled per layer, the seed's draw first; all -1: full neighbourhood."""
    network: Network[Any]
    """Its layers are of any kind. GPUs and exported programs compute `Layer` alone; others are refused before."""
    rows: MakesRows | None = None
    """Makes rows of the table for nodes that it has none for. None: its family cannot, or nothing of what the table's
    rows were made by is kept."""
    relation_fanouts: tuple[tuple[int, ...], ...] = ()
    """As in `VariantManifest`; empty: as many by each relation."""


@dataclass(frozen=True, slots=True)
class TypeRowRecipe:
    """What a new node of a type comes with."""

    columns: FeatureColumns | None
    """Features of a node, as in the source; None: its type has none."""
    scaling: Scaling
    default: np.ndarray | None
    """The mean of the type's embeddings, float32, in place of features; None: it has features."""


@dataclass(frozen=True, slots=True)
class LoadedRevision:
    source: str
    """Name of the graph's source, for messages."""
    graph: Graph
    effective_nodes: float
    """`sampling.repeats.effective_nodes` of the graph: how soon draws meet the same node again."""
    variants: Mapping[str, LoadedVariant]
    """Variants by name, in the order of the profile."""
    ids: NodeIds | None
    """The source's own ids of the nodes, mapped; None: it numbers them from 0."""
    classes: Classes
    """The graph's own label of each score column."""
    multi_label: bool
    labels: np.ndarray
    """int64 [nodes], class indices with -1 for unknown; or uint8 [nodes, classes] when multi-label. Mapped."""
    splits: Splits
    manifest: RevisionManifest | None
    """The revision's manifest; None while the revision is staged: it has no profile yet, because this is what gets
    profiled."""
    neighbour_roots: np.ndarray | None = None
    """`sampling.normalised.inverse_roots` of the graph, float32 [nodes]; None where no variant weighs neighbours."""
    features: int = 0
    """Features of a node, as in the source."""
    files: WatchedFiles | None = None
    """Files that it was opened from; None where no other process can reach them, or it is not published yet."""
    living: LivingGraph | None = None
    """The graph where it was opened for changes. Then all arrays have room behind: `graph.nodes` and rows of tables
    count it."""
    tables: Mapping[str, Table] = field(default_factory=dict)
    """Tables by name, those that no variant gathers from among them."""
    made_of: ChangedSource | None = None
    """What its graph is made of beside its source; None: nothing."""
    makers: tuple[RowMaker, ...] = ()
    """Makers of rows from features, of each table that has such rows, where it was opened for changes."""
    typed_makers: tuple[RelationRowMaker, ...] = ()
    """The same where nodes are of several types."""
    typed_stored: tuple[StoredRelationMaker, ...] = ()
    """Makers of rows of stored layers, of each table that follows changes, where nodes are of several types."""
    followed: tuple[StoredLayerMaker, ...] = ()
    """Makers of stored layers that follow changes over several hops, where it was opened for changes. Those of one
    variant stand together, the first layer's first."""
    folder: Path | None = None
    """The folder of the revision."""
    draft: Draft | None = None
    """What changes are applied to first, where it was opened for them."""
    type_ids: Mapping[str, NodeIds | None] = field(default_factory=dict)
    """`ids` of each type, where nodes are of several; else empty."""
    decoder: LinkDecoder | None = None  # what scores pairs; None: it scores none, or is staged

    type_rows: tuple[TypeRowRecipe, ...] = ()
    """How rows of new nodes are made, of each type; empty where nodes are of one, or none are made."""
    sample: Sampler = sample_neighbours
    """Draws neighbours in the graph."""

    @property
    def answered_nodes(self) -> int:
        """Nodes that can be asked about, which are the first ones: of several types, those of the one that is
        classified, or all where links are scored."""
        return self.graph.schema.target.nodes if self.decoder is None else self.graph.nodes

    @property
    def answered_type(self) -> str:
        """Their type; empty where all nodes are of one."""
        return self.graph.schema.target.name


def open_one_type(revision: RevisionFiles, build: NetworkBuilder) -> LoadedRevision:
    """A revision over a graph whose nodes are of one type."""
    graph = revision.graph
    mapped = partial(open_graph_array, revision)
    rules = None if revision.manifest is None else revision.manifest.edge_rules
    stored = open_graph(graph, mapped, revision.graph_folder / paths.INDICES, revision.graph_remedy, rules)
    tables = {name: open_table(revision, table) for name, table in revision.tables.items()}
    stored_ids = open_ids(graph, mapped)[graph.schema.target.name]
    living = None if revision.room is None else _open_living(revision, stored, stored_ids)
    roots = cache(partial(roots_with_room, stored, revision.node_room))
    opened = stored if living is None else living.graph
    parts = _Parts(revision, opened, tables, _open_row_makers(revision, tables), build, roots)
    variants = {variant.name: _open_variant(parts, variant) for variant in revision.variants}
    weighs_neighbours = any(variant.network.weighs_neighbours for variant in variants.values())
    followed = () if living is None else _followed(parts)
    draft = None if living is None else _open_draft(parts, living, stored, stored_ids, variants, followed)
    return LoadedRevision(
        source=graph.source,
        graph=parts.graph,
        sample=sampler_of(parts.graph),
        effective_nodes=effective_nodes(stored.indptr),
        variants=variants,
        tables=tables,
        ids=stored_ids,
        classes=graph.classes,
        multi_label=graph.multi_label,
        labels=(
            mapped(paths.LABELS, np.uint8, graph.nodes, len(graph.classes))
            if graph.multi_label
            else mapped(paths.LABELS, np.int64, graph.nodes)
        ),
        splits=Splits(
            train=mapped(paths.TRAIN, np.int64, graph.train_nodes),
            validation=mapped(paths.VALIDATION, np.int64, graph.validation_nodes),
            test=mapped(paths.TEST, np.int64, graph.test_nodes),
        ),
        manifest=revision.manifest,
        neighbour_roots=roots() if weighs_neighbours else None,
        features=graph.features,
        living=living,
        folder=revision.folder,
        files=revision.watched,
        made_of=None if graph.version is UNSET else graph.version.made_of,
        makers=tuple(parts.makers.values()) if living is not None else (),
        followed=followed,
        draft=draft,
        decoder=open_decoder(revision.folder, revision.manifest),
    )


def _open_living(revision: RevisionFiles, stored: Graph, stored_ids: NodeIds | None) -> LivingGraph:
    """The graph with room for changes. `stored`: as it is mapped."""
    manifest = revision.manifest
    if manifest is None or manifest.edge_rules is None:
        raise RepositoryError(
            revision.folder,
            "an earlier gnnserve generated it and kept nothing of how edges become neighbour lists",
            "generate it again, or leave spec.updates out",
        )
    return living_graph(stored, _open_entries(revision, stored), stored_ids, manifest.edge_rules, revision.node_room)


def _open_entries(revision: RevisionFiles, stored: Graph) -> np.ndarray:
    path, room = revision.graph_folder / paths.INDICES, 0 if revision.room is None else revision.room.entries
    entries = revision.graph.edges + room
    return checks.open_growing(path, np.dtype(np.int32), stored.indices.shape, entries, revision.graph_remedy)


def _open_draft(
    parts: _Parts, living: LivingGraph, stored: Graph, stored_ids: NodeIds | None,
    variants: Mapping[str, LoadedVariant], followed: Sequence[StoredLayerMaker],
) -> Draft:  # fmt: skip
    revision, names = parts.revision, {id(table): name for name, table in parts.tables.items()}
    made = [one.rows.stored for one in variants.values() if isinstance(one.rows, StoredRowMaker)]
    makers = (*made, *followed)
    return draft_of(
        draft_graph(living, stored, _open_entries(revision, stored), stored_ids),
        [maker.source for maker in makers],
        parts.roots() if any(maker.neighbour_roots is not None for maker in makers) else None,
        lambda table: open_table(revision, revision.tables[names[id(table)]]),
    )


def _open_row_makers(revision: RevisionFiles, tables: Mapping[str, Table]) -> dict[str, RowMaker]:
    """For the tables of variants that can answer about nodes that the graph does not have."""
    source = None if revision.manifest is None else revision.manifest.row_source
    if source is None and revision.rows is None:
        return {}
    # Tables of one family alone: a table of propagated features is read by no other. Rows of stored layers are made of
    # products of the first one.
    made = {name: variant for variant in revision.variants if (name := made_of_features(variant)) is not None}
    path = revision.folder / ((None if source is None else source.tensors) or paths.REVISION_COMMIT)
    try:
        recipe = revision.rows or _read_recipe(revision, path)
        tensors = recipe.tensors
        scaling = Scaling(recipe.normalization, tensors.get("mean"), tensors.get("deviation"))
        # One projection for all storages of a first layer.
        stored = {revision.tables[name].made_by: variant for name, variant in made.items() if tables[name].projected}
        products = {prefix: _first_products(variant, prefix, tensors) for prefix, variant in stored.items()}
        return {
            name: row_maker(
                tables[name],
                revision.graph.features,
                scaling,
                np.array(revision.tables[name].source_columns or recipe.columns, np.int64),
                products[revision.tables[name].made_by] if tables[name].projected else (),
            )
            for name in made
        }
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        problem = f"does not hold what rows of its tables are made by: {error}"
        raise DamagedError(path, problem, revision.remedy) from error


def _read_recipe(revision: RevisionFiles, path: Path) -> RowRecipe:
    """That of a published revision. `path`: of its tensors, if it has any."""
    manifest = revision.manifest
    assert manifest is not None and manifest.row_source is not None  # noqa: S101
    source = manifest.row_source
    return RowRecipe(
        Normalization(source.normalization),
        {} if source.tensors is None else read_tensors(revision, path),
        np.array(manifest.ranking.columns, np.int64),
    )


def _first_products(variant: VariantManifest, prefix: str, tensors: Mapping[str, np.ndarray]) -> tuple[Linear, ...]:
    """What rows of the variant's projected table are made by, from tensors whose keys begin with the prefix."""
    found = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    followed = followed_of(variant)
    network = variant.network if followed is None else followed.network
    return first_products(spec_of(network.architecture).project(found))


@dataclass(frozen=True)
class _Parts:
    """What variants are put together from."""

    revision: RevisionFiles
    graph: Graph
    tables: Mapping[str, Table]
    makers: Mapping[str, RowMaker]
    """Makers of rows from features, by table."""
    build: NetworkBuilder
    roots: Callable[[], np.ndarray]
    """`inverse_roots` of the graph."""


def _open_variant(parts: _Parts, variant: VariantManifest) -> LoadedVariant:
    revision, table, columns = parts.revision, parts.tables[variant.table], variant.columns
    if not 1 <= columns <= table.columns or (table.projected and columns != table.columns):
        raise DamagedError(
            revision.folder / paths.rows_of(variant.table),
            f"holds {table.columns} columns, and {variant.name} is to read {columns} of them",
            revision.remedy,
        )
    path = revision.folder / variant.weights
    try:
        tensors = read_tensors(revision, path)
        network = parts.build(variant.network, tensors, columns, table.projected, variant.compute)
        rows = _stored_rows(parts, variant, tensors, network) or parts.makers.get(variant.table)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise DamagedError(path, f"does not hold the weights of {variant.name}: {error}", revision.remedy) from error
    return LoadedVariant(variant.name, table, columns, variant.fanouts, network, rows)


def _stored_rows(
    parts: _Parts, variant: VariantManifest, tensors: Mapping[str, np.ndarray], rest: Network[Layer]
) -> StoredRowMaker | None:
    """Maker of rows of a table that stores a layer; None: it stores none, or its rows cannot be made. `rest`: the
    variant's network, behind that layer."""
    correction = correction_of(variant)
    if correction is None or (products := parts.makers.get(correction.products)) is None:
        return None
    own = {key.removeprefix(CORRECTION): tensor for key, tensor in tensors.items() if key.startswith(CORRECTION)}
    network = parts.build(correction.network, own, products.table.columns, projected=True, compute="float32")
    layer, table = network.layers[0], parts.tables[variant.table]
    projection = spec_of(correction.network.architecture).project(tail_tensors(own, 1))
    stored = StoredLayerMaker(
        table,
        parts.graph,
        layer,
        products.table,
        None if correction.aggregated is None else parts.tables[correction.aggregated].rows,
        parts.roots() if layer.weighs_neighbours else None,
        first_products(projection, table.rows.values.shape[1]),
    )
    return StoredRowMaker(stored, products, averages=rest.layers[0].aggregation.plain)


def _followed(parts: _Parts) -> tuple[StoredLayerMaker, ...]:
    """One of each table."""
    found: dict[int, StoredLayerMaker] = {}
    for variant in parts.revision.variants:
        if (followed := followed_of(variant)) is not None:
            tensors = read_tensors(parts.revision, parts.revision.folder / variant.weights)
            own = {key.removeprefix(CORRECTION): one for key, one in tensors.items() if key.startswith(CORRECTION)}
            layers = followed_layers(followed, variant.table, own, parts.tables, parts.graph, parts.build, parts.roots)
            found |= {id(maker.table): maker for maker in layers}
    return tuple(found.values())
