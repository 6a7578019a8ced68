"""A graph as a log of changes has made it: applied as workers apply it, and then without what has left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from gnnserve_api.repository import ChangedSource
from gnnserve_worker.changes.follower import NoRoomError, Said, catch_up
from gnnserve_worker.changes.log import ChangeLog
from gnnserve_worker.compaction.kept_nodes import Kept, KeptNodes
from gnnserve_worker.compaction.source_changes import SourceChanges
from gnnserve_worker.compaction.source_features import SourceFeatures
from gnnserve_worker.compaction.typed_folding import TypedFolding
from gnnserve_worker.graph.change_batch import ChangeBatch
from gnnserve_worker.graph.found_nodes import FoundNodes
from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.graph.living_typed import LivingTypedGraph
from gnnserve_worker.graph.store import FeatureColumn, Features, GraphData
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository import paths

_STAGE = "apply the log of changes"


@dataclass(frozen=True, slots=True)
class Folded:
    data: GraphData
    kept: Kept
    """Which nodes of the revision that changes were applied to are its nodes."""
    living: LivingRevision
    """That revision."""


class Folding(Protocol):
    """What changes make of a graph, of one kind of graphs."""

    def note(self, batch: ChangeBatch, found: FoundNodes) -> None:
        """To be called for each batch that is applied."""
        ...  # pragma: no cover

    def data(self, digest: str, made_of: ChangedSource) -> tuple[GraphData, Kept]:
        """The graph as it is now, under that digest."""
        ...  # pragma: no cover


def fold(
    loaded: LoadedRevision,
    features: SourceFeatures,
    log: ChangeLog,
    log_uid: str,
    room_bytes: int,
    progress: ProgressListener,
) -> Folded | None:
    """Apply the log as far as it goes, or as there is room. `loaded`: opened with that room. `features`: of its graph,
    as in the source. None: there is nothing to apply. Raises LogError."""
    folding = _folding_of(loaded, features)
    living = LivingRevision(loaded, room_bytes, folding.note)
    last = log.position().last
    if (total := last - living.base_offset) > 0:
        progress(Progress(_STAGE, 0, total))

    def tell(_: Sequence[Said]) -> None:
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
    return Folded(data, kept, living)


def _folding_of(loaded: LoadedRevision, features: SourceFeatures) -> Folding:
    graph = loaded.living
    if isinstance(graph, LivingTypedGraph):
        return TypedFolding(loaded, cast("Sequence[Features | None]", features), graph)
    if graph is None or loaded.manifest is None:
        raise ValueError("a revision that was not opened for changes")
    return _OneTypeFolding(loaded, cast("Features", features), graph)


class _OneTypeFolding:
    def __init__(self, loaded: LoadedRevision, features: Features, graph: LivingGraph) -> None:
        """`graph`: that of `loaded`."""
        self._loaded, self._graph = loaded, graph
        self._changes = SourceChanges(features, loaded.classes)

    def note(self, batch: ChangeBatch, found: FoundNodes) -> None:
        self._changes.note(batch, found)

    def data(self, digest: str, made_of: ChangedSource) -> tuple[GraphData, Kept]:
        loaded, changes, manifest = self._loaded, self._changes, self._loaded.manifest
        if manifest is None or manifest.row_source is None or manifest.edge_rules is None:
            raise ValueError("a revision that cannot follow changes")
        kept = self._graph.kept
        data = GraphData.of_one_type(
            source=loaded.source,
            digest=digest,
            graph=self._graph.lists.of_these(kept),
            features=changes.features_of(kept),
            labels=changes.labels_of(loaded.labels, kept),
            classes=loaded.classes,
            splits=changes.splits_of(loaded.splits, kept, len(loaded.labels)),
            edge_rules=manifest.edge_rules,
            ids=self._graph.ids.of_these(kept),
            feature_columns=tuple(FeatureColumn(one.name, one.width, one.fill) for one in manifest.row_source.columns),
            made_of=made_of,
        )
        return data, KeptNodes(kept)


def _made_of(loaded: LoadedRevision, log: ChangeLog, log_uid: str, offset: int) -> ChangedSource:
    manifest, before = loaded.manifest, loaded.made_of
    assert manifest is not None  # noqa: S101
    (record, *_) = log.read(offset - 1, 1)
    source = manifest.graph if before is None else before.source
    return ChangedSource(source, log_uid, offset, record.total_changes, record.checksum)
