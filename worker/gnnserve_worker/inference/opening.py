"""From an opened revision to one that is served: its graph, its task, what computes it and what changes it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gnnserve_api.graph_schema import GraphSchema
from gnnserve_api.provenance import provenance_of
from gnnserve_api.repository import RevisionManifest
from gnnserve_worker.asking.changed_features import ChangedFeatures, FeaturesByType, PlainFeatures, UnknownFeatures
from gnnserve_worker.asking.naming import TargetNaming, naming_of
from gnnserve_worker.asking.overlay import NoOverlays, Overlays
from gnnserve_worker.asking.served_graph import ServedGraph, types_of_one
from gnnserve_worker.asking.type_ids import TargetIds, TypedIds
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.living_ids import LivingIds, look_up_one
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.inference.batch import infer_batch, warm_up
from gnnserve_worker.inference.cascade import with_cascades
from gnnserve_worker.inference.index_follower import IndexFollower, reach_of
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.overlay_support import overlays_of
from gnnserve_worker.inference.served import ServedCompute, ServedRevision
from gnnserve_worker.inference.served_changes import STILL, ServedChanges
from gnnserve_worker.nearest.parts import IndexPart
from gnnserve_worker.nearest.revision_index import RevisionIndex
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.tasks.opening import TaskParts
from gnnserve_worker.tasks.serving import opener_of


def served_revision(loaded: LoadedRevision, replica: LivingRevision | None = None) -> ServedRevision:
    """`replica`: what applies changes to it, where it was opened for them."""
    manifest = loaded.manifest
    if manifest is None:
        raise ValueError("a staged revision has no manifest: commit it, then load it")
    opener = opener_of(manifest)
    graph = _graph_of(loaded, replica, joins_types=opener.joins_types(manifest))
    edges = loaded.graph.edges if replica is None else replica.first_edges
    relations = tuple(one for one in graph.numbered.relations if one.name)
    overlays = overlays_of(loaded, manifest, graph)
    parts = TaskParts(
        manifest=manifest,
        graph=graph,
        provenance=provenance_of(manifest, loaded.source, edges, len(loaded.splits.train), relations),
        classes=loaded.classes,
        multi_label=loaded.multi_label,
        splits=loaded.splits,
        overlays=overlays,
        decoder=loaded.decoder,
    )
    task = opener.open(parts)
    indexes = _indexes_of(loaded, manifest.revision, task.recommending.parts)
    infer = with_cascades(partial(infer_batch, loaded), manifest.cascades)
    compute = ServedCompute(
        infer=infer if replica is None else replica.guarded(infer),
        warm_up=partial(_warm_up, loaded),
        overlays=overlays,
        files=loaded.files,
        indexes=indexes,
    )
    changes = STILL
    if replica is not None:
        features = _changed_features(loaded, manifest, compute.overlays)
        changes = _changes_of(loaded, replica, features, indexes)
    return ServedRevision(manifest, graph, task, compute, changes)


def _graph_of(loaded: LoadedRevision, replica: LivingRevision | None, *, joins_types: bool) -> ServedGraph:
    own = loaded.ids if replica is None else replica.graph.ids
    nodes, graph = loaded.answered_nodes, loaded.graph
    naming = naming_of(own, nodes, joins_types=joins_types)
    if not graph.schema.has_names:
        types = types_of_one(naming, loaded.features, loaded.graph.edges)
        return ServedGraph(
            naming=naming,
            types=types,
            ids=TypedIds(types, types, {"": own}),
            described=(),
            count=(lambda: nodes) if replica is None else lambda: replica.nodes,
            lists_by_relation=lambda node: ((0, graph.list_of(node)),),
            neighbours_of=graph.list_of,
            readers_of=graph.readers_of if replica is None else None,
            labels=loaded.labels,
        )
    types = _types_of(loaded, graph)
    of_type: dict[str, NodeIds | LivingIds | None] = dict(loaded.type_ids)
    if loaded.changes is not None:
        of_type = dict(zip(of_type, loaded.changes.graph.ids_of, strict=True))
    ids = (TypedIds if joins_types else TargetIds)(types, graph.schema, of_type)
    if not joins_types:
        naming = TargetNaming(naming, ids)
    return ServedGraph(
        naming=naming,
        types=types,
        ids=ids,
        described=() if joins_types else types.types,
        count=(lambda: nodes) if replica is None else lambda: replica.nodes,
        lists_by_relation=graph.lists_by_relation,
        neighbours_of=graph.list_of,
        labels=loaded.labels,
    )


def _types_of(loaded: LoadedRevision, graph: Graph) -> GraphSchema:
    """As the revision has them, without room for new nodes."""
    return graph.schema if loaded.changes is None else loaded.changes.graph.stored


def _changes_of(
    loaded: LoadedRevision, replica: LivingRevision, features: ChangedFeatures, indexes: tuple[RevisionIndex, ...]
) -> ServedChanges:
    return ServedChanges(
        replica=replica,
        applied_offset=lambda: replica.offset,
        is_gone=replica.graph.is_gone,
        features=features,
        would_wait=lambda: replica.is_busy,
        index_follower=IndexFollower(replica, indexes[0], reach_of(loaded)) if indexes else None,
    )


def _changed_features(loaded: LoadedRevision, manifest: RevisionManifest, overlays: Overlays) -> ChangedFeatures:
    graph = loaded.graph
    if graph.schema.has_names:
        if not loaded.type_rows:
            return UnknownFeatures("it keeps nothing of how rows are made", "generate it again")
        kinds = graph.schema.types
        columns = {kind.name: one.columns for kind, one in zip(kinds, loaded.type_rows, strict=True)}
        return FeaturesByType(columns, max(kind.features or 0 for kind in kinds))
    if isinstance(overlays, NoOverlays):
        return UnknownFeatures(overlays.why)
    assert manifest.row_source is not None  # noqa: S101  (overlays are made by it too)
    return PlainFeatures(FeatureColumns(loaded.features, manifest.row_source.columns))


def _indexes_of(loaded: LoadedRevision, revision: str, parts: Sequence[IndexPart]) -> tuple[RevisionIndex, ...]:
    if loaded.folder is None:
        return ()
    indexes = tuple(RevisionIndex(loaded.folder, revision, part) for part in parts)
    for index in indexes:
        index.look()
    return indexes


def _warm_up(loaded: LoadedRevision) -> None:
    warm_up(loaded)
    ids = loaded.ids if loaded.changes is None else loaded.changes.graph.ids
    if ids is not None:
        look_up_one(ids)
