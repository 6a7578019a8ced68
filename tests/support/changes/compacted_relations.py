"""A service of several types whose log of changes is compacted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.changes.living import write_and_apply
from tests.support.changes.living_types import ROOM_BYTES

from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.changes.options import SqliteFile, UpdatesOptions
from gnnserve_worker.compaction.compact import compact
from gnnserve_worker.generation import pipeline
from gnnserve_worker.graph.change_batch import ChangeBatch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository

UID = "f7b4c2a0-0000-4000-8000-000000000002"


@dataclass
class Service:
    """A service that has a log of changes."""

    folder: Path
    service: GNNService
    sequence: int = 0

    def __post_init__(self) -> None:
        self.repository = Repository(self.folder / "repository", "default", "shop")
        self.updates = UpdatesOptions(SqliteFile(self.folder / "log.sqlite"), UID, ROOM_BYTES)
        self.manifest: RevisionManifest = pipeline.generate(self.service, self.repository)

    def opened(self) -> LivingRevision:
        """The newest revision as a worker opens it that starts, with what the log has beyond it."""
        return LivingRevision(load_revision(self.repository, self.manifest.revision, ROOM_BYTES), ROOM_BYTES)

    def write(self, living: LivingRevision, batches: Sequence[ChangeBatch]) -> None:
        """Append them to the log, and let a worker apply them."""
        self.sequence = write_and_apply(self.updates, self.sequence, living, batches)

    def compact(self, *, retrain: bool = False) -> LoadedRevision:
        self.manifest = compact(self.service, self.repository, self.updates, retrain=retrain)
        return load_revision(self.repository, self.manifest.revision)
