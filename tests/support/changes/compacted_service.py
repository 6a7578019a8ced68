"""A service of one type of nodes whose log of changes is compacted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp
from tests.support.changes.living import ROOM_BYTES, VARIANTS, PlainGraph, generated, ids_of, stored_ids

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_worker.changes.log import Entry
from gnnserve_worker.changes.sqlite_log import SqliteLog
from gnnserve_worker.compaction.carrying import carry_over
from gnnserve_worker.compaction.folding import FoldedGraph, fold
from gnnserve_worker.graph.change_batch import ChangeBatch, encode_batch
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository

NODES = 40
CLOSE = 2e-5
UNDIRECTED = EdgeRules(Direction.UNDIRECTED)
UID = "f7b4c2a0-0000-4000-8000-000000000001"


class Service:
    """A revision over a graph of its own, with a log."""

    def __init__(
        self, root: Path, plain: PlainGraph, architecture: str = "GraphSAGE", variants: dict[str, object] = VARIANTS
    ) -> None:
        self._variants = variants
        self.root, self.plain, self.architecture = root, plain, architecture
        self.log = SqliteLog(root / "log.sqlite", UID)
        ids = None if plain.first_ids == [*range(len(plain.first_ids))] else stored_ids(plain.first_ids)
        self.features: np.ndarray | sp.csr_array = plain.built()[1]
        loaded = generated(root, "source", architecture, plain.built(), ids=ids, variants=variants)
        assert loaded.manifest is not None
        self.manifest: RevisionManifest = loaded.manifest
        self.repository = Repository(root, "tests", "source")
        self._sequence = 0

    def append(self, *batches: ChangeBatch) -> None:
        for batch in batches:
            self._sequence += 1
            self.log.append([Entry("tests", self._sequence, batch.counts.items, encode_batch(batch))])

    def opened(self) -> LoadedRevision:
        return load_revision(self.repository, self.manifest.revision, ROOM_BYTES)

    def fold(self, room_bytes: int = ROOM_BYTES) -> FoldedGraph | None:
        """Fold the log into the graph, and publish a revision over it."""
        loaded = load_revision(self.repository, self.manifest.revision, room_bytes)
        folded = fold(loaded, [self.features], self.log, UID, room_bytes, silent)
        if folded is not None:
            self.repository.put_graph(folded.data)
            self.manifest = carry_over(self.manifest, loaded, folded, self.repository, silent)
            self.features = self.repository.read_graph(folded.data.digest).features
        return folded

    def assert_equal_to_the_graph_built_anew(self, *opened: LivingRevision) -> None:
        """`opened`: revisions that have changed since; none: the newest as it is."""
        rebuilt = generated(
            self.root, f"rebuilt-{self._sequence}", self.architecture, self.plain.built(), variants=self._variants
        )
        for living in opened or [None]:
            self._assert_equal(rebuilt, living)

    def _assert_equal(self, rebuilt: LoadedRevision, living: LivingRevision | None) -> None:
        loaded = load_revision(self.repository, self.manifest.revision) if living is None else living.loaded
        wanted = ids_of([*self.plain.lists])
        if living is not None:
            positions = living.graph.ids.find(wanted)
        elif loaded.ids.asked is None:
            positions = wanted.integers
        else:
            positions = wanted.find_in(loaded.ids.asked)
        assert positions is not None and positions.min() >= 0
        served = served_revision(loaded, living)
        for name in loaded.variants:
            expected = infer_batch(rebuilt, name, np.arange(len(positions)), 0).scores
            found = served.infer_by(name, None, most_permille=0)(name, positions, 0).scores
            close = 3e-2 if name.endswith("-int8") else CLOSE
            np.testing.assert_allclose(found, expected, atol=close, rtol=close, err_msg=name)
