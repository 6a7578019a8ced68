"""An older model over the graph as it is today: its weights, and tables that what has changed since is applied to.

Changes that were compacted since may be cut from the log. So the two graphs are compared, and what differs is applied
as a worker would apply it; then the tables are written over the newest version, as compaction carries them over.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnnserve_api.errors import InputError, RepositoryError
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.compaction import differences
from gnnserve_worker.compaction.answering import find_answering, newest_graph, require_named
from gnnserve_worker.compaction.carrying import carry_over
from gnnserve_worker.compaction.folding import FoldedGraph
from gnnserve_worker.compaction.source_features import features_of
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeRefusal
from gnnserve_worker.graph.store import Features, GraphData
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import Progress, ProgressListener, silent
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.repository import Repository

_STAGE = "apply what has changed since"
_TIMES = 4
"""Memory for changes as a multiple of what all of it takes: whole pages, lists that moved, and the places they left."""
_ENTRY_BYTES, _NODE_BYTES = 8, 64
"""Memory of an entry of both kinds of lists; of a node beside its rows."""


def restore(
    service: GNNService, revision: str, repository: Repository, log: str | None, progress: ProgressListener = silent
) -> RevisionManifest:
    """Find the revision to answer from where spec.revision names one; or publish one with its weights over the newest
    version of its graph. `log`: uid of the service whose log of changes is followed; None: none is. Raises InputError
    for what the user must fix, RepositoryError, and ResourceError where a later try may help."""
    found = find_answering(service.spec, repository, log)
    if found is not None:
        return found
    waiting = Progress("wait for another process that is generating", 0, 1)
    with repository.locked(on_wait=lambda: progress(waiting)):
        found = find_answering(service.spec, repository, log)
        return found or _restore(service, require_named(revision, repository), repository, log, progress)


def _restore(
    service: GNNService, named: RevisionManifest, repository: Repository, log: str | None, progress: ProgressListener
) -> RevisionManifest:
    graph = newest_graph(named, repository, log)
    taken = paths.revision_id(named.recipe, graph, named.checkpoint, named.given, named.expected)
    if repository.find_named(taken) is not None:
        raise InputError(
            "spec.revision",
            f"{named.revision} is of an earlier graph, and over the present one its recipe was trained anew",
            f"name revision {taken}, which that made",
        )
    features = features_of(service, repository, named, progress)
    target = repository.read_graph(graph)
    progress(Progress("load revision", 0, 1))
    room_bytes = _room_bytes(named, repository.graph_of(named).nodes, target)
    loaded = load_revision(repository, named.revision, room_bytes)
    progress(Progress("load revision", 1, 1))
    brought = bring(loaded, features, target, room_bytes, progress)
    return carry_over(named, loaded, brought, repository, progress)


def bring(
    loaded: LoadedRevision,
    features: Sequence[Features | None],
    target: GraphData,
    room_bytes: int,
    progress: ProgressListener,
) -> FoldedGraph:
    """Make a revision's graph, and all that its variants read, those of another graph of the same source. `loaded`:
    opened with that room. `features`: of each type of its graph, as in the source; None: it has none."""
    living = LivingRevision(loaded, room_bytes)

    def apply(batch: ChangeBatch) -> None:
        (said,) = living.apply(living.offset + 1, [batch])
        if isinstance(said, ChangeRefusal):
            raise RepositoryError(f"graph {target.digest}", f"{said.field}: {said.message}", said.remedy)

    progress(Progress(_STAGE, 0, 1))
    kept = differences.bring(living, [*loaded.ids.by_type.values()], features, loaded.new_nodes.features, target, apply)
    living.make_stored_rows_anew()
    progress(Progress(_STAGE, 1, 1, f"{living.changes_since_base:,} changes"))
    return FoldedGraph(target, kept, living)


def _room_bytes(named: RevisionManifest, nodes: int, target: GraphData) -> int:
    """Memory that changes may take, which is more than they can: every row of `nodes` nodes and of the target's, and
    every list. What is not used costs nothing."""
    rows = sum(entry.bytes for entry in named.files.values())
    growth = 1 + target.nodes // max(1, nodes)
    payloads = {id(one.payload): one.payload for one in target.relations if one.payload is not None}.values()
    payload = sum(one.features.nbytes + one.times.nbytes for one in payloads)
    return _TIMES * (rows * (1 + growth) + _ENTRY_BYTES * target.edges + payload + _NODE_BYTES * target.nodes)
