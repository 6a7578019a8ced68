"""From an opened revision to one that is served: its graph, its task, what computes it and what changes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TypedDict

from gnnserve_api.families import CHANGED_GRAPH
from gnnserve_api.files.programs import ProgramLimits
from gnnserve_api.files.provenance import provenance_of
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_worker.asking.asked_nodes import AskedNodes, GraphTypes
from gnnserve_worker.asking.changed_features import ChangedFeatures
from gnnserve_worker.asking.served_graph import ServedGraph
from gnnserve_worker.graph.living_ids import look_up_one
from gnnserve_worker.inference.batch import Infer, infer_batch, warm_up, with_cascades
from gnnserve_worker.inference.index_follower import IndexFollower, reach_of
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.overlay_support import changed_features_of, overlays_of
from gnnserve_worker.inference.refreshed import InferWithin, StaleComparison, refreshed
from gnnserve_worker.inference.served import ServedCompute, ServedRevision
from gnnserve_worker.inference.served_changes import STILL, AppliedLog, MarkedGoneNodes, ServedChanges
from gnnserve_worker.nearest.revision_index import RevisionIndex
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.parallel import own_threads
from gnnserve_worker.programs.stats import ProgramRun, total_stats
from gnnserve_worker.tasks.opening import TaskParts
from gnnserve_worker.tasks.recommending import Recommender
from gnnserve_worker.tasks.served import ServedTask
from gnnserve_worker.tasks.served_labels import LiveLabels
from gnnserve_worker.tasks.serving import opener_of


class ComputingMembers(TypedDict):
    """Functions that compute batches, as `computing` returns them."""

    infer: Infer
    infer_within: InferWithin | None


def served_revision(loaded: LoadedRevision, replica: LivingRevision | None = None) -> ServedRevision:
    """`replica`: what applies changes to it, where it was opened for them."""
    manifest = loaded.manifest
    if manifest is None:
        raise ValueError("a staged revision has no manifest: commit it, then load it")
    opener = opener_of(manifest)
    graph = _graph_of(loaded, replica, opener.asked(manifest))
    edges = loaded.graph.edges if replica is None else replica.first_edges
    relations = tuple(one for one in graph.numbered.relations if one.name)
    overlays = overlays_of(loaded, manifest, graph)
    parts = TaskParts(
        manifest=manifest,
        graph=graph,
        provenance=provenance_of(manifest, loaded.origin.source, edges, len(loaded.labels.splits.train), relations),
        classes=loaded.labels.classes,
        multi_label=loaded.labels.multi_label,
        splits=loaded.labels.splits,
        overlays=overlays,
        folder=loaded.origin.folder,
    )
    task = opener.open(parts)
    indexes = _indexes_of(loaded, manifest.revision, task.recommending)
    changes = STILL
    if replica is not None:
        features = changed_features_of(loaded, manifest, graph)
        changes = _changes_of(loaded, replica, features, indexes, task.live_labels)
    is_elsewhere = bool(loaded.programs)
    compute = ServedCompute(
        **computing(partial(infer_batch, loaded), loaded, manifest, task, changes),
        warm_up=partial(_warm_up, loaded, own_threads if is_elsewhere else nullcontext),
        is_elsewhere=is_elsewhere,
        overlays=overlays,
        files=loaded.origin.files,
        programs=lambda: total_stats([program.stats for program in loaded.programs]),
        program_runs=partial(_runs_between, loaded),
        limit_programs=partial(_limit_programs, loaded),
        indexes=indexes,
    )
    return ServedRevision(manifest, graph, task, compute, changes)


def computing(
    infer: Infer, loaded: LoadedRevision, manifest: RevisionManifest, task: ServedTask, changes: ServedChanges
) -> ComputingMembers:
    """Members of `ServedCompute` by `infer` of a revision's networks, on whatever device."""
    refreshing = refreshed(infer, loaded, changes.living)

    def within(most_permille: float, most_us: float = math.inf) -> Infer:
        infer = with_cascades(refreshing(most_permille, most_us), manifest.cascades, task.decides)
        return changes.log.guarded(infer)

    return {"infer": within(math.inf), "infer_within": None if changes.living is None else within}


def _runs_between(loaded: LoadedRevision, began_ms: float, ended_ms: float) -> list[ProgramRun]:
    return [run for program in loaded.programs for run in program.runs_between(began_ms, ended_ms)]


def _limit_programs(loaded: LoadedRevision, limits: ProgramLimits) -> None:
    for program in loaded.programs:
        program.limit(limits)


def _graph_of(loaded: LoadedRevision, replica: LivingRevision | None, asked: AskedNodes) -> ServedGraph:
    graph, of_graph = loaded.graph, _types_of(loaded)
    called = asked.call(loaded.answered_nodes, of_graph)
    return ServedGraph(
        naming=called.naming,
        types=of_graph.types,
        ids=called.ids,
        described=called.described,
        count=called.count,
        lists_by_relation=graph.lists_by_relation,
        neighbours_of=graph.list_of,
        readers_of=graph.readers_of if replica is None else replica.readers_of,
        labels=loaded.labels.values,
    )


def _types_of(loaded: LoadedRevision) -> GraphTypes:
    schema = loaded.graph.schema
    if loaded.changes is None:
        return GraphTypes(schema, schema, loaded.ids.by_type, loaded.ids.of_all)
    living = loaded.changes.graph
    ids = dict(zip(loaded.ids.by_type, living.ids_of, strict=True))
    return GraphTypes(living.stored, schema, ids, loaded.ids.of_all)


def _changes_of(
    loaded: LoadedRevision, replica: LivingRevision, features: ChangedFeatures, indexes: tuple[RevisionIndex, ...],
    live: LiveLabels,
) -> ServedChanges:  # fmt: skip
    may_be_stale = bool(replica.refreshing.layers)
    return ServedChanges(
        log=AppliedLog(replica),
        gone=MarkedGoneNodes(replica.graph.is_gone),
        features=features,
        would_wait=lambda: replica.is_busy,
        index_follower=IndexFollower(replica, indexes, reach_of(loaded)) if indexes else None,
        living=replica if may_be_stale else None,
        comparison=StaleComparison(loaded, replica, live) if may_be_stale else None,
        latest=replica.latest,
        needed=CHANGED_GRAPH,
    )


def _indexes_of(loaded: LoadedRevision, revision: str, task: Recommender) -> tuple[RevisionIndex, ...]:
    if (folder := loaded.origin.folder) is None:
        return ()
    indexes = tuple(RevisionIndex(folder, revision, part, task.comparison(part)) for part in task.parts)
    for index in indexes:
        index.look()
    return indexes


def _warm_up(loaded: LoadedRevision, threads: Callable[[], AbstractContextManager[None]]) -> None:
    with threads():
        warm_up(loaded)
    ids = loaded.ids.asked if loaded.changes is None else loaded.changes.graph.ids
    if ids is not None:
        look_up_one(ids)
