"""Features of a published revision's graph, as in its source: what tables of another graph are made of."""

from __future__ import annotations

from collections.abc import Sequence

from gnnserve_api.errors import InputError
from gnnserve_api.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.graph.sources.load import source_digest
from gnnserve_worker.graph.store import Features
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.generation import task_of


def features_of(
    service: GNNService, repository: Repository, base: RevisionManifest, progress: ProgressListener
) -> Sequence[Features | None]:
    """Features of each type of the revision's graph, as in its source; None: it has none."""
    made_of = repository.made_of(base)
    source = service.spec.graph.source
    if made_of is not None:
        return [kind.features for kind in repository.read_graph(base.graph).types]
    task = task_of(service.spec)
    if task.graph_digest(source_digest(source)) != base.graph:
        raise InputError(
            "spec.graph.source",
            f"holds another graph than the one that revision {base.revision} was made of",
            "put back the files that were there: what changes do not touch is read from them",
        )
    progress(Progress("import graph", 0, 1))
    # The task is asked, since the order of types depends on which one it asks about.
    types = task.load(repository.downloads, progress).types
    progress(Progress("import graph", 1, 1))
    # The graph may keep less than its source has.
    kept = repository.graph_of(base).schema.types
    return [None if own.features is None else kind.features for own, kind in zip(kept, types, strict=True)]
