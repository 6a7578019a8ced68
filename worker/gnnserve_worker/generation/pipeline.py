"""From a manifest to a published revision: import, train, rank, prune, profile, publish.

A published revision is found without importing torch, so that a second start takes no time; what trains is
`variants.py`.
"""

from __future__ import annotations

from gnnserve_api.gnnservice import GNNService, GNNServiceSpec
from gnnserve_api.repository import RevisionManifest
from gnnserve_api.variants import check_factors, columns_of
from gnnserve_worker.generation.progress import Progress, ProgressListener, silent
from gnnserve_worker.graph.sources.load import load_source, source_digest
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.graph.table import table_bytes
from gnnserve_worker.repository.repository import Repository


def generate(
    service: GNNService, repository: Repository, progress: ProgressListener = silent, *, use_gpu: bool = False
) -> RevisionManifest:
    """The revision of this manifest and this graph: the published one, or a new one.

    `use_gpu`: train on a GPU where torch sees one. Weights then differ in their last digits from one time to another.
    Raises InputError for what the user must fix, ResourceError when the disk is full; revisions that are already
    published stay as they are.
    """
    recipe = service.spec.recipe()
    digest = source_digest(service.spec.graph.source)
    if (published := repository.find(recipe, digest)) is not None:
        return published
    # What the user must fix shows here, before torch is loaded and before anything is written.
    graph = _import_graph(service.spec, repository, progress)
    waiting = Progress("wait for another process that is generating", 0, 1)
    with repository.locked(on_wait=lambda: progress(waiting)):
        if (published := repository.find(recipe, digest)) is not None:
            return published
        # Imported here: torch and torch_geometric take many seconds.
        progress(Progress("load torch", 0, 1))
        from gnnserve_worker.generation.device import training_device  # noqa: PLC0415
        from gnnserve_worker.generation.networks import CPU  # noqa: PLC0415
        from gnnserve_worker.generation.variants import generate_revision  # noqa: PLC0415

        device, which = training_device() if use_gpu else (CPU, "")
        progress(Progress("load torch", 1, 1, which))
        return generate_revision(service.spec, recipe, graph, repository, progress, device)


def _import_graph(spec: GNNServiceSpec, repository: Repository, progress: ProgressListener) -> GraphData:
    progress(Progress("import graph", 0, 1))
    graph = load_source(spec.graph.source)
    nodes, columns = graph.features.shape
    factors = spec.variants.pruning.factors
    check_factors(factors, columns)
    repository.require_free(table_bytes(nodes, columns_of(columns, min(factors))))
    progress(Progress("import graph", 1, 1, f"{nodes:,} nodes, {graph.graph.edges:,} edges"))
    return graph
