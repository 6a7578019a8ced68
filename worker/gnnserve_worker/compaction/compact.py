"""Compaction of one service's log of changes: a new version of its graph, a revision over it, and a shorter log.

    revision over graph version N   +   log from N to M   ->   graph version M, revision over it; log cut up to N

Nothing that is published changes, and a process that ends anywhere leaves what was there. The two newest versions are
kept, since workers may still load the one before; the log is kept from the older of them on, and while
`spec.routing.canary` names a revision of an earlier one, from that on.
"""

from __future__ import annotations

from msgspec import UNSET

from gnnserve_api.errors import RepositoryError
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService, GNNServiceSpec
from gnnserve_worker.changes.log import ChangeLog
from gnnserve_worker.changes.options import UpdatesOptions
from gnnserve_worker.changes.registry import opened_log
from gnnserve_worker.compaction.answering import find_answering, has_same_model
from gnnserve_worker.compaction.carrying import carry_over
from gnnserve_worker.compaction.folding import FoldedGraph, fold
from gnnserve_worker.compaction.source_features import features_of
from gnnserve_worker.generation import pipeline
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import Progress, ProgressListener, silent
from gnnserve_worker.repository.history import models_of
from gnnserve_worker.repository.repository import Repository

_KEPT_VERSIONS = 2
_ROOM = 2
"""Memory for changes as a multiple of what workers have: one of these is full, and the log goes on a little."""


def compact(
    service: GNNService,
    repository: Repository,
    updates: UpdatesOptions,
    revision: str | None = None,
    progress: ProgressListener = silent,
    *,
    retrain: bool = False,
    use_gpu: bool = False,
) -> RevisionManifest:
    """Fold the log into the graph of a published revision, and publish one over the new version.

    `revision`: the one to begin with; where there is one already that has more of the log, that one is returned. None:
    the one that has most of it. `retrain`: train its networks anew on the new version, unless spec.revision names a
    model. Returns the revision as it was where the log has nothing beyond it. Raises InputError for what the user must
    fix, RepositoryError, and ResourceError where a later try may help; what is published then stays.
    """
    with opened_log(updates.log, updates.uid) as log:
        waiting = Progress("wait for another process that is generating", 0, 1)
        with repository.locked(on_wait=lambda: progress(waiting)):
            base = _begin_with(service, repository, updates.uid, revision)
            if revision is not None and base.revision != revision:
                found = base
            else:
                found = _compact(service, repository, updates, base, log, progress, retrain=retrain, use_gpu=use_gpu)
            _tidy(repository, log, updates.uid, service.spec, progress)
            return found


def _begin_with(service: GNNService, repository: Repository, log_uid: str, revision: str | None) -> RevisionManifest:
    newest = find_answering(service.spec, repository, log_uid)
    if newest is None:
        raise RepositoryError(
            repository.folder,
            f"holds no published revision with recipe {service.spec.recipe()}, into whose graph changes could go",
            "generate it first",
        )
    if revision in (None, newest.revision):
        return newest
    asked = next((one for one in repository.revisions() if one.revision == revision), None)
    if asked is None or asked.recipe != newest.recipe:
        return newest
    before, now = repository.made_of(asked), repository.made_of(newest)
    is_newer = now is not None and (before is None or now.offset > before.offset)
    return newest if is_newer else asked


def _compact(
    service: GNNService,
    repository: Repository,
    updates: UpdatesOptions,
    base: RevisionManifest,
    log: ChangeLog,
    progress: ProgressListener,
    *,
    retrain: bool,
    use_gpu: bool,
) -> RevisionManifest:
    features = features_of(service, repository, base, progress)
    room_bytes = _ROOM * updates.max_delta_bytes
    progress(Progress("load revision", 0, 1))
    loaded = load_revision(repository, base.revision, room_bytes)
    progress(Progress("load revision", 1, 1))
    folded = fold(loaded, features, log, updates.uid, room_bytes, progress)
    if folded is None:
        progress(Progress("nothing to compact", 1, 1, "the revision has all that the log has"))
        return base
    progress(Progress("write graph", 0, 1))
    repository.put_graph(folded.data)
    progress(Progress("write graph", 1, 1, _sizes(folded)))
    if not retrain or service.spec.revision is not None:
        return carry_over(base, loaded, folded, repository, progress)
    graph = folded.data.digest
    del loaded, folded
    return pipeline.generate(service, repository, progress, use_gpu=use_gpu, graph_version=graph)


def _sizes(folded: FoldedGraph) -> str:
    made_of, data = folded.data.made_of, folded.data
    assert made_of is not None  # noqa: S101
    return f"{data.nodes:,} nodes, {data.edges:,} edges as of offset {made_of.offset:,}"


def _tidy(
    repository: Repository, log: ChangeLog, log_uid: str, spec: GNNServiceSpec, progress: ProgressListener
) -> None:
    """Remove what no worker loads any more, and what is not to be gone back to."""
    published = {manifest.graph for manifest in repository.revisions()}
    versions = repository.graph_versions(log_uid)
    kept = [version for version in versions if version.digest in published][:_KEPT_VERSIONS]
    digests = {version.digest for version in kept} | _named_graphs(repository, spec)
    repository.remove_versions([version.digest for version in versions if version.digest not in digests])
    # With one version, workers may still load the graph of the source.
    if len(kept) == _KEPT_VERSIONS and (oldest := kept[-1].version) is not UNSET:
        through = _followed_from(repository, spec, oldest.made_of.offset)
        log.cut(through)
        progress(Progress("log of changes", 1, 1, f"kept from offset {through + 1:,} on"))


def _followed_from(repository: Repository, spec: GNNServiceSpec, newest: int) -> int:
    """The offset that the second revision follows the log from, but not behind `newest`."""
    second = _find(repository, spec.routing.second_revision)
    if second is None:
        return newest
    made_of = repository.made_of(second)
    return 0 if made_of is None else min(made_of.offset, newest)


def _find(repository: Repository, named: str | None) -> RevisionManifest | None:
    return None if named is None else repository.find_named(named)


def _named_graphs(repository: Repository, spec: GNNServiceSpec) -> set[str]:
    """Graphs of the revisions that spec.revision and spec.routing.canary name, and, where their number is stated, of
    models that are kept over no graph of a source: of each the newest."""
    found = (_find(repository, named) for named in (spec.revision, spec.routing.second_revision))
    graphs = {one.graph for one in found if one is not None}
    if spec.repository.history is not None:
        for newest, *older in models_of(repository).values():
            if not any(repository.made_of(one) is None and has_same_model(one, newest) for one in older):
                graphs.add(newest.graph)
    return graphs
