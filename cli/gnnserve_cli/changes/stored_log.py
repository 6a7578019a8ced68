"""The log of changes of a service in a repository: made part of its graph, or removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gnnserve_api.device import Device
from gnnserve_api.errors import InputError
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.manifest import load_manifest
from gnnserve_api.spec.service import GNNService
from gnnserve_cli.embedding import check_sinks, publish_visibly
from gnnserve_cli.generating import advise, generating_visibly, keep_models
from gnnserve_cli.local_log import check_address, forget_uid, updates_of
from gnnserve_cli.render import count
from gnnserve_worker.changes.options import SqliteFile, UpdatesOptions
from gnnserve_worker.changes.registry import opened_log
from gnnserve_worker.compaction.compact import compact
from gnnserve_worker.repository.paths import ServicePaths
from gnnserve_worker.repository.repository import Repository


@dataclass(frozen=True, slots=True)
class CompactedLog:
    published: RevisionManifest
    offset: int
    """Offset of the log that the graph is made at."""
    is_written: bool
    """Whether every sink with an address has the embeddings of the revision."""


def compact_log(
    manifest: Path, root: Path, uri_file: Path | None, sinks: Sequence[Path], device: Device | None, *, retrain: bool
) -> CompactedLog:
    """Make the log part of the graph of a new revision. `root`: of the repository. `uri_file`, `sinks`: files with the
    addresses of the log's database, and of those that embeddings are written to. Raises InputError where `retrain`
    trained nothing; what the log had is then part of the graph all the same."""
    service = load_manifest(manifest)
    if retrain and service.spec.revision is not None:
        raise InputError(
            "--retrain",
            f"beside spec.revision {service.spec.revision}, whose model is kept as it was trained",
            "leave one of them out",
        )
    check_address(service, uri_file)
    check_sinks([service], sinks)
    stored, updates = _log_of(service, root, uri_file)
    before = {one.revision for one in stored.revisions()} if retrain else set()
    generated = generating_visibly(service, stored, device, partial(compact, service, stored, updates, retrain=retrain))
    published = generated.published
    if published.revision in before:
        raise _trained_nothing(stored, published.revision)
    keep_models(service, stored, published)
    if retrain:
        advise(generated, stored, service)
    # Before the result is shown: it is of a revision that answers whatever the one before it did.
    is_written = publish_visibly(service, stored, published, sinks)
    made_of = stored.made_of(published)
    return CompactedLog(published, 0 if made_of is None else made_of.offset, is_written)


def _trained_nothing(stored: Repository, revision: str) -> InputError:
    return InputError(
        "--retrain",
        f"trained nothing: the log has no change that revision {revision} lacks, and one recipe over one graph is one "
        "revision",
        f"to train it anew delete the folder {ServicePaths(stored.folder).revisions / revision} and run gnnserve "
        "generate, which begins with the newest graph; or retrain once there are changes",
    )


@dataclass(frozen=True, slots=True)
class PurgedLog:
    uid: str
    batches: int
    changes: int
    graphs: int = 0
    """Graphs that it was part of, which are removed with it."""

    def __str__(self) -> str:
        batches = f"{self.batches:,} {'batch' if self.batches == 1 else 'batches'}"
        return f"the log of {self.uid}: {batches}, {count(self.changes, 'change')}"


def purge_log(
    manifest: Path, root: Path, uid: str | None, uri_file: Path | None, confirm: Callable[[str], bool]
) -> PurgedLog | None:
    """Remove a log, and graphs that it is part of. `uid`: of the service that it belongs to; None: the log of servers
    without a cluster. `confirm`: asked with the log in words. Returns what was removed; None: it was not confirmed."""
    service = load_manifest(manifest)
    check_address(service, uri_file)
    stored, updates = _log_of(service, root, uri_file)
    if uid is not None:
        in_file = isinstance(updates.log, SqliteFile)
        log = SqliteFile(ServicePaths(stored.folder).log(uid)) if in_file else updates.log
        updates = replace(updates, uid=uid, log=log)
    if isinstance(updates.log, SqliteFile) and not updates.log.path.exists():
        raise InputError(f"{updates.log.path}", "there is no such log", "see --uid and --repository")
    with opened_log(updates.log, updates.uid) as opened:
        at = opened.position()
        purged = PurgedLog(updates.uid, at.last, at.total_changes)
        if not confirm(str(purged)):
            return None
        opened.drop()
    with stored.locked():
        versions = [one.digest for one in stored.graph_versions(updates.uid)]
        stored.remove_versions(versions)
    if uid is None and service.spec.updates is not None and service.spec.updates.adopt is None:
        forget_uid(stored)
    return replace(purged, graphs=len(versions))


def _log_of(service: GNNService, root: Path, uri_file: Path | None) -> tuple[Repository, UpdatesOptions]:
    """The service's folder, and its log; raises InputError where the manifest names none."""
    stored = Repository(root, service.metadata.namespace, service.metadata.name)
    if (updates := updates_of(service, stored, uri_file)) is None:
        raise InputError("spec.updates", "is not set", "name a log, as in examples/digits-updates.yaml")
    return stored, updates
