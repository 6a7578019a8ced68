"""The index of a served revision: opened when it is there, looked for again while it is not, or is another one.

It is made after the revision is published, so a worker may answer before it exists. Opening verifies a checksum, which
takes a second for a large index: a thread of its own does it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msgspec import UNSET

from gnnserve_api.errors import GnnserveError
from gnnserve_api.files.embeddings import IndexManifest, IndexState
from gnnserve_worker.nearest.columns import IndexColumns, columns_folder, open_columns
from gnnserve_worker.nearest.columns import read_manifest as read_columns
from gnnserve_worker.nearest.comparison import ByCosine, Comparison
from gnnserve_worker.nearest.files import index_folder, open_index, read_manifest
from gnnserve_worker.nearest.parts import IndexPart
from gnnserve_worker.nearest.search import NearestIndex

_log = logging.getLogger(__name__)
_LOOK_EVERY_S = 2.0
"""Seconds between two looks for an index, while there is none."""
_RENEW_EVERY_S = 30.0
"""Seconds between two looks whether there is a newer one, as where the spec names another variant."""


_BY_COSINE = ByCosine()


@dataclass(frozen=True, slots=True)
class OpenIndex:
    manifest: IndexManifest
    search: NearestIndex

    @property
    def state(self) -> IndexState:
        """As answers tell it where the graph does not change."""
        made = self.manifest
        return IndexState(
            made.revision,
            made.variant,
            made.kind,
            made.nodes,
            made.built_at,
            made.recall,
            metric=made.metric,
            type=made.type or UNSET,
        )


class RevisionIndex:
    def __init__(self, revision: Path, name: str, part: IndexPart, comparison: Comparison = _BY_COSINE) -> None:
        """`revision`: the folder of the published revision of that name. `part`: the index's nodes, as published."""
        self.part = part
        self.comparison = comparison
        self._folder = index_folder(revision, part.folder)
        self._columns_folder = columns_folder(revision, part)
        self.columns: IndexColumns | None = None
        """Columns of its nodes, which filters read; None: there are none yet."""
        self.columns_problem = ""
        """Why they cannot be read; empty: they can, or there are none."""
        self._name = name
        self._open: OpenIndex | None = None
        self._looked_s = -_LOOK_EVERY_S
        self._thread: threading.Thread | None = None
        self.searches = 0
        """Searches so far; with their time kept by those who search."""
        self.search_seconds = 0.0
        self.on_opened: Callable[[], None] = lambda: None
        """Called, by any thread, when an index was opened."""
        self.problem: str | None = None
        """Why an index that is there cannot be used; None: it can, or there is none."""
        self.is_expected = False
        """Whether the service asks for an index, so that one that is missing is being made: as the routing table in
        effect says."""

    @property
    def opened(self) -> OpenIndex | None:
        """The index, if it is open."""
        return self._open

    def find(self) -> OpenIndex | None:
        """The index, if it is open. A newer one, or the first, is looked for beside the caller. Takes no time."""
        found = self._open
        every_s = _LOOK_EVERY_S if found is None else _RENEW_EVERY_S
        if time.monotonic() - self._looked_s >= every_s and not self._is_looking():
            self._looked_s = time.monotonic()
            self._thread = threading.Thread(target=self.look, name="index of embeddings", daemon=True)
            self._thread.start()
        return found

    def look(self) -> OpenIndex | None:
        """Open the index if there is one, and columns beside it. Takes as long as reading them."""
        self._look_for_columns()
        try:
            manifest = read_manifest(self._folder)
            if manifest is None or (self._open is not None and manifest == self._open.manifest):
                return self._open
            wanted = (self._name, self.part.first, self.part.nodes, self.part.metric)
            if (manifest.revision, manifest.first, manifest.nodes, manifest.metric) != wanted:
                self.problem = f"it is of revision {manifest.revision} with {manifest.nodes:,} nodes"
                return self._open
            self._open, self.problem = OpenIndex(manifest, open_index(self._folder, manifest)), None
            self.on_opened()
        except (GnnserveError, OSError, RuntimeError) as error:
            if self.problem is None:
                _log.warning("the index of embeddings cannot be used: %s", error)
            self.problem = str(error)
        return self._open

    def _look_for_columns(self) -> None:
        try:
            kept = read_columns(self._columns_folder)
            if kept is not None and (self.columns is None or self.columns.manifest != kept):
                self.columns = open_columns(self._columns_folder, kept)
            self.columns_problem = "" if kept is None else kept.problem
        except (GnnserveError, OSError, ValueError) as error:
            self.columns_problem = str(error)

    def _is_looking(self) -> bool:
        return self._thread is not None and self._thread.is_alive()
