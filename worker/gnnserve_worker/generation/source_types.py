"""Nodes of a published revision's graph with their features as in its source, which the revision keeps in the form of
tables alone."""

from __future__ import annotations

from collections.abc import Sequence

from gnnserve_api.errors import InputError
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.graph.sources.load import source_digest
from gnnserve_worker.graph.store import NodeType
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.generation import task_of


def source_types(
    service: GNNService, repository: Repository, base: RevisionManifest, progress: ProgressListener
) -> Sequence[NodeType]:
    """Types of the revision's nodes: of a graph that a log of changes is part of as it is kept, else with all that the
    source has, whether the model reads it or not. Raises InputError where the source holds another graph."""
    if repository.made_of(base) is not None:
        return repository.read_graph(base.graph).types
    # The task is asked, since the order of types depends on which one it asks about.
    task = task_of(service.spec)
    if task.graph_digest(source_digest(service.spec.graph.source)) != base.graph:
        raise InputError(
            "spec.graph.source",
            f"holds another graph than the one that revision {base.revision} was made of",
            "put back the files that were there: what changes do not touch is read from them",
        )
    progress(Progress("import graph", 0, 1))
    types = task.load(repository.downloads, progress).types
    progress(Progress("import graph", 1, 1))
    return types
