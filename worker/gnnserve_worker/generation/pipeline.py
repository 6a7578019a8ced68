"""From a manifest to a published revision: import, train, rank, prune, profile, publish.

A published revision is found without importing torch, so that a second start takes no time; what trains is
`variants.py`.
"""

from __future__ import annotations

from gnnserve_api.gnnservice import GNNService
from gnnserve_api.repository import RevisionManifest
from gnnserve_worker.generation.progress import Progress, ProgressListener, silent
from gnnserve_worker.graph.sources.load import source_digest
from gnnserve_worker.repository.repository import Repository


def generate(service: GNNService, repository: Repository, progress: ProgressListener = silent) -> RevisionManifest:
    """The revision of this manifest and this graph: the published one, or a new one.

    Raises InputError for what the user must fix, ResourceError when the disk is full; revisions that are already
    published stay as they are.
    """
    recipe = service.spec.recipe()
    digest = source_digest(service.spec.graph.source)
    if (published := repository.find(recipe, digest)) is not None:
        return published
    waiting = Progress("wait for another process that is generating", 0, 1)
    with repository.locked(on_wait=lambda: progress(waiting)):
        if (published := repository.find(recipe, digest)) is not None:
            return published
        # Imported here: torch and torch_geometric take many seconds.
        progress(Progress("load torch", 0, 1))
        from gnnserve_worker.generation.variants import generate_revision  # noqa: PLC0415

        progress(Progress("load torch", 1, 1))
        return generate_revision(service.spec, recipe, repository, progress)
