"""Opening a revision, of whichever kind of graph."""

from __future__ import annotations

from gnnserve_worker.repository.loaded import LoadedRevision, NetworkBuilder, open_one_type
from gnnserve_worker.repository.revision_files import RevisionFiles
from gnnserve_worker.repository.typed_revision import open_typed_revision


def open_revision(revision: RevisionFiles, build: NetworkBuilder) -> LoadedRevision:
    """`build`: makes the networks of graphs of one type."""
    return open_typed_revision(revision) if revision.graph.typed else open_one_type(revision, build)
