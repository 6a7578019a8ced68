"""A service whose pod compacts its log of changes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
from tests.support.changes.living import batch_of
from tests.support.pods.generating_pod import environ_of, manifest_of

from gnnserve_api.files.edges import Direction
from gnnserve_api.pods.generation import GenerationResult, decode_result
from gnnserve_api.pods.interface import PodExit
from gnnserve_worker.changes.log import Entry
from gnnserve_worker.changes.options import SqliteFile, UpdatesOptions
from gnnserve_worker.changes.sqlite_log import SqliteLog
from gnnserve_worker.graph.change_batch import ChangeBatch, encode_batch
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.pods import generate
from gnnserve_worker.pods.followed_log import FollowedLog
from gnnserve_worker.repository.repository import Repository

UID = "f7b4c2a0-0000-4000-8000-000000000001"
NODES, COLUMNS = 200, 9
MAX_DELTA_BYTES = 1 << 26


class Service:
    """A service with a log, whose Jobs run in this process."""

    def __init__(self, root: Path, uid: str = UID) -> None:
        self.root, self.uid = root, uid
        self.repository = Repository(root / "repository", "default", "tiny")
        self.path = self.repository.folder / "updates" / uid / "log.sqlite"
        self.manifest = manifest_of(root)
        self._sequence = 0

    def job(self, compacts: str | None = None, *, retrain: bool = False, exit_code: PodExit = PodExit.OK) -> str:
        """Run a Job; what it leaves for the operator."""
        environ = environ_of(self.root, self.manifest) | {
            "GNNSERVE_SERVICE_UID": self.uid,
            "GNNSERVE_SQLITE_LOG": str(self.path),
            "GNNSERVE_MAX_DELTA": str(MAX_DELTA_BYTES),
        }
        if compacts is not None:
            environ["GNNSERVE_COMPACT"] = compacts
        if retrain:
            environ["GNNSERVE_RETRAIN"] = "true"
        assert generate.main(environ) == exit_code
        return (self.root / "termination-log").read_text()

    def made(self, compacts: str | None = None, *, retrain: bool = False) -> GenerationResult:
        return decode_result(self.job(compacts, retrain=retrain))

    def append(self, *batches: ChangeBatch) -> None:
        with closing(SqliteLog(self.path, self.uid)) as log:
            for batch in batches:
                self._sequence += 1
                log.append([Entry("tests", self._sequence, batch.counts.items, encode_batch(batch))])

    def direction_of(self, revision: str) -> Direction:
        rules = load_revision(self.repository, revision).manifest.edge_rules
        return rules.direction

    def first_offset(self) -> int:
        with closing(SqliteLog(self.path, self.uid)) as log:
            return log.position().first

    def serve(self, revision: str) -> int:
        """Open a revision as a worker does; the offset that it answers at."""
        followed = FollowedLog(UpdatesOptions(SqliteFile(self.path), self.uid, MAX_DELTA_BYTES))
        served = followed.open(lambda most_bytes: load_revision(self.repository, revision, most_bytes), served_revision)
        offset = served.changes.log.offset
        assert offset is not None
        return offset


def new_node(id_: int, label: bytes = b"") -> ChangeBatch:
    batch = batch_of(np.ones((1, COLUMNS), np.float32), new=[id_], edges=[(0, id_)])
    return ChangeBatch(batch.counts, batch.ids, batch.features, label)
