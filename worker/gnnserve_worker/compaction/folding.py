"""A graph as a log of changes has made it: applied as workers apply it, and then without what has left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_api.repository import ChangedSource
from gnnserve_worker.changes.follower import NoRoomError, Said, catch_up
from gnnserve_worker.changes.log import ChangeLog
from gnnserve_worker.compaction.source_changes import SourceChanges
from gnnserve_worker.graph.store import FeatureColumn, Features, GraphData, Splits
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.loaded import LoadedRevision

_STAGE = "apply the log of changes"


@dataclass(frozen=True, slots=True)
class Folded:
    data: GraphData
    kept: np.ndarray
    """The position that each of its nodes has in the revision that changes were applied to: int64."""
    living: LivingRevision
    """That revision."""


def fold(
    loaded: LoadedRevision,
    features: Features,
    log: ChangeLog,
    log_uid: str,
    room_bytes: int,
    progress: ProgressListener,
) -> Folded | None:
    """Apply the log as far as it goes, or as there is room. `loaded`: opened with that room. `features`: of its graph,
    as in the source. None: there is nothing to apply. Raises LogError."""
    manifest = loaded.manifest
    if manifest is None or manifest.row_source is None or manifest.edge_rules is None:
        raise ValueError("a revision that cannot follow changes")
    changes = SourceChanges(features, loaded.classes)
    living = LivingRevision(loaded, room_bytes, changes.note)
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
    kept = living.graph.kept
    data = GraphData(
        source=loaded.source,
        digest=paths.version_digest(made_of.source, made_of.log, made_of.offset, made_of.checksum),
        graph=living.graph.lists.of_these(kept),
        features=changes.features_of(kept),
        labels=changes.labels_of(loaded.labels, kept),
        classes=loaded.classes,
        splits=_splits(loaded, changes, kept),
        edge_rules=manifest.edge_rules,
        ids=living.graph.ids.of_these(kept),
        feature_columns=tuple(FeatureColumn(one.name, one.width, one.fill) for one in manifest.row_source.columns),
        made_of=made_of,
    )
    return Folded(data, kept, living)


def _made_of(loaded: LoadedRevision, log: ChangeLog, log_uid: str, offset: int) -> ChangedSource:
    manifest, before = loaded.manifest, loaded.made_of
    assert manifest is not None  # noqa: S101
    (record, *_) = log.read(offset - 1, 1)
    source = manifest.graph if before is None else before.source
    return ChangedSource(source, log_uid, offset, record.total_changes, record.checksum)


def _splits(loaded: LoadedRevision, changes: SourceChanges, kept: np.ndarray) -> Splits:
    """Nodes stay in the split that they are in; new ones that have a label are trained on."""
    parts = [np.flatnonzero(np.isin(kept, part)) for part in _parts(loaded.splits)]
    train, validation, test = parts
    return Splits(np.union1d(train, changes.newly_labelled(kept, len(loaded.labels))), validation, test)


def _parts(splits: Splits) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return splits.train, splits.validation, splits.test
