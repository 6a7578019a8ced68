"""Opening a revision, of whichever kind of graph."""

from __future__ import annotations

from gnnserve_worker.models.build import build_network
from gnnserve_worker.opening.loaded import LoadedRevision, NetworkBuilder, open_one_type
from gnnserve_worker.opening.typed_revision import open_typed_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.repository.revision_files import RevisionFiles


def load_revision(
    repository: Repository, revision: str, max_delta_bytes: int | None = None, build: NetworkBuilder = build_network
) -> LoadedRevision:
    """Open a published revision: verified by checksum, arrays memory-mapped, files watched from before the first byte
    was read. `max_delta_bytes`: it is opened for changes, which take so much memory at most. `build`: as of
    `open_revision`."""
    with repository.reading(revision, max_delta_bytes) as files:
        return open_revision(files, build)


def open_revision(revision: RevisionFiles, build: NetworkBuilder = build_network) -> LoadedRevision:
    """Open a revision, published or staged. `build`: makes the networks of graphs of one type."""
    return open_typed_revision(revision) if revision.graph.schema.has_names else open_one_type(revision, build)
