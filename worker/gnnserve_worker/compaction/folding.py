"""A graph as a log of changes has made it: applied as workers apply it, and then without what has left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gnnserve_api.files.repository import ChangedSource
from gnnserve_worker.changes.follower import NoRoomError, RecordOutcome, catch_up
from gnnserve_worker.changes.log import ChangeLog
from gnnserve_worker.compaction.kept_nodes import KeptNodes
from gnnserve_worker.compaction.source_changes import SourceChanges
from gnnserve_worker.graph.change_batch import ChangeBatch
from gnnserve_worker.graph.found_nodes import FoundNodes
from gnnserve_worker.graph.links import names_of_all
from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.graph.living_payload import LivingPayload
from gnnserve_worker.graph.relation_lists import without_unused_payload
from gnnserve_worker.graph.store import Features, Graph, GraphData, NodeType, Relation, Splits
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.graph_files import columns_of

_STAGE = "apply the log of changes"


@dataclass(frozen=True, slots=True)
class FoldedGraph:
    data: GraphData
    kept: KeptNodes
    """Which nodes of the revision that changes were applied to are its nodes."""
    living: LivingRevision
    """That revision."""


def fold(
    loaded: LoadedRevision,
    features: Sequence[Features | None],
    log: ChangeLog,
    log_uid: str,
    room_bytes: int,
    progress: ProgressListener,
) -> FoldedGraph | None:
    """Apply the log as far as it goes, or as there is room. `loaded`: opened with that room. `features`: of each
    type, as in the source; None: it has none. Returns None where there is nothing to apply. Raises LogError."""
    if loaded.changes is None or loaded.manifest is None or not loaded.new_nodes.types:
        raise ValueError("a revision that was not opened for changes")
    folding = GraphFolding(loaded, features, loaded.changes.graph)
    living = LivingRevision(loaded, room_bytes, folding.note)
    last = log.position().last
    if (total := last - living.base_offset) > 0:
        progress(Progress(_STAGE, 0, total))

    def tell(_: Sequence[RecordOutcome]) -> None:
        progress(Progress(_STAGE, min(living.offset - living.base_offset, total), total))

    try:
        catch_up(log, living, tell)
    except NoRoomError as error:
        progress(Progress(_STAGE, 1, 1, f"up to offset {living.offset:,}: {error}"))
    if living.offset == living.base_offset:
        return None
    living.make_stored_rows_anew()
    made_of = _made_of(loaded, log, log_uid, living.offset)
    digest = paths.version_digest(made_of.source, made_of.log, made_of.offset, made_of.checksum)
    data, kept = folding.data(digest, made_of)
    return FoldedGraph(data, kept, living)


class GraphFolding:
    """Graph that changes are folded into, type by type and relation by relation."""

    def __init__(self, loaded: LoadedRevision, features: Sequence[Features | None], graph: LivingGraph) -> None:
        """`features`: of each type, as in the source; None: it has none. `graph`: that of `loaded`, before changes."""
        self._loaded, self._graph = loaded, graph
        self._changes = [
            SourceChanges(np.zeros((ids.count, 0), np.float32) if own is None else own, loaded.labels.classes)
            for own, ids in zip(features, graph.ids_of, strict=True)
        ]

    def note(self, batch: ChangeBatch, found: FoundNodes) -> None:
        """Take note of a batch that is applied; called for each."""
        new, places = len(found.new), self._graph.places
        kinds, kinds_overridden = places.kinds_of(found.new), places.kinds_of(found.overridden)
        for kind, changes in enumerate(self._changes):
            own, overridden = np.flatnonzero(kinds == kind), np.flatnonzero(kinds_overridden == kind)
            first, width = places.first_nodes[kind], changes.width
            changes.note_rows(
                found.new[own] - first, batch.features[own, :width],
                found.overridden[overridden] - first, batch.features[new + overridden, :width],
            )  # fmt: skip
        # Of the type that is classified, which is the first one, positions are numbers. Others have no labels.
        self._changes[0].note_labels(batch, found)

    def data(self, digest: str, made_of: ChangedSource) -> tuple[GraphData, KeptNodes]:
        """The graph as it is now, under that digest."""
        graph, loaded, places = self._graph, self._loaded, self._graph.places
        kept = [ids.kept for ids in graph.ids_of]
        asked, types = self._changes[0], tuple(self._type(kind, own) for kind, own in enumerate(kept))
        answers_all = loaded.manifest is not None and loaded.manifest.answers_all_types
        data = GraphData(
            source=loaded.origin.source,
            digest=digest,
            types=types,
            relations=folded_relations(graph, kept),
            labels=asked.labels_of(loaded.labels.values, kept[0]),
            classes=loaded.labels.classes,
            splits=splits_of_all(loaded.labels.splits, graph.stored.first_nodes, kept)
            if answers_all
            else asked.splits_of(loaded.labels.splits, kept[0], len(loaded.labels.values)),
            made_of=made_of,
            names=names_of_all(types) if answers_all else None,
        )
        return data, KeptNodes(kept, np.diff(places.first_nodes).tolist(), graph.stored)

    def _type(self, kind: int, kept: np.ndarray) -> NodeType:
        columns = self._loaded.new_nodes.types[kind].columns
        return NodeType(
            self._graph.stored.types[kind].name,
            len(kept),
            None if columns is None else self._changes[kind].features_of(kept),
            () if columns is None else columns_of(columns.columns),
            self._graph.ids_of[kind].of_these(kept),
        )


def splits_of_all(splits: Splits, first_nodes: Sequence[int], kept: Sequence[np.ndarray]) -> Splits:
    """Splits of nodes of all types in their new numbering. `first_nodes`: number of each type's first node before, and
    behind them that of all; `kept`: as of `folded_relations`. New nodes are in none."""
    numbers, came = np.full(first_nodes[-1], -1, np.int64), 0
    for first, end, own in zip(first_nodes[:-1], first_nodes[1:], kept, strict=True):
        stored = own[own < end - first]
        numbers[first + stored] = came + np.arange(len(stored))
        came += len(own)
    parts = (numbers[part] for part in (splits.train, splits.validation, splits.test))
    return Splits(*(part[part >= 0] for part in parts))


def folded_relations(graph: LivingGraph, kept: Sequence[np.ndarray]) -> tuple[Relation, ...]:
    """The relations as they are now. `kept`: the nodes of each type that are there, int64, ascending: their positions
    become those within it."""
    firsts, places = graph.places.first_nodes, graph.places
    names = np.zeros(int(firsts[-1]), np.int32)
    for first, own in zip(firsts.tolist(), kept, strict=False):
        names[first + own] = np.arange(len(own), dtype=np.int32)
    relations = []
    for place, (one, kind) in enumerate(zip(graph.stored.relations, places.targets.tolist(), strict=True)):
        lists = graph.lists.renumbered(places.list_by(place, firsts[kind] + kept[kind]), names)
        relations.append(Relation(one.source, one.name, one.target, lists, one.reverse_of, one.edge_rules))
    return tuple(relations) if not graph.payloads else _with_payload(graph.payloads, relations)


def _with_payload(payloads: Sequence[LivingPayload | None], relations: Sequence[Relation]) -> tuple[Relation, ...]:
    """The relations with the payload that their entries name, without the rows that none does. A reverse relation
    shares that of its own."""
    in_use = {id(one): one.in_use for one in payloads if one is not None}
    found = []
    for one, payload in zip(relations, payloads, strict=True):
        if payload is None:
            found.append(replace(one, lists=Graph(one.lists.indptr, one.lists.indices)))
        else:
            found.append(replace(one, payload=in_use[id(payload)]))
    return without_unused_payload(found)


def _made_of(loaded: LoadedRevision, log: ChangeLog, log_uid: str, offset: int) -> ChangedSource:
    manifest, before = loaded.manifest, loaded.origin.made_of
    assert manifest is not None  # noqa: S101
    (record, *_) = log.read(offset - 1, 1)
    source = manifest.graph if before is None else before.source
    return ChangedSource(source, log_uid, offset, record.total_changes, record.checksum)
