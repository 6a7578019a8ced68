"""A generation Job: a revision that is generated, found by its name, or made anew by compacting the log of
changes; then it is verified, and older models are removed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gnnserve_api.advice import advice_on_profile, advice_on_training
from gnnserve_api.errors import DamagedError, InputError
from gnnserve_api.families import CHANGED_GRAPH
from gnnserve_api.files.profile import Profile
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.manifest import parse_manifest
from gnnserve_api.pods.generation import GenerationResult, VariantSummary
from gnnserve_api.pods.interface import (
    COMPACT_VARIABLE,
    DATA_VARIABLE,
    MANIFEST_VARIABLE,
    REPOSITORY_VARIABLE,
    RETRAIN_VARIABLE,
    SERVICE_UID_VARIABLE,
    PodExit,
)
from gnnserve_api.spec.paths import DataVolume
from gnnserve_api.spec.service import GNNService
from gnnserve_api.tiers import points_of, stated_tiers
from gnnserve_worker.compaction.compact import compact
from gnnserve_worker.compaction.restoring import restore
from gnnserve_worker.generation import pipeline
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.pods.environment import required
from gnnserve_worker.pods.log_environment import read_updates
from gnnserve_worker.progress import LineListener, ProgressListener
from gnnserve_worker.repository.checks import read_graph_manifest
from gnnserve_worker.repository.files import make_folder
from gnnserve_worker.repository.history import keep_history
from gnnserve_worker.repository.memory_fault import exit_on_memory_fault
from gnnserve_worker.repository.paths import ServicePaths
from gnnserve_worker.repository.repository import Repository


def carry_out(environ: Mapping[str, str], say: Callable[[str], None]) -> GenerationResult:
    """Publish, find or compact the revision that the environment asks for. `say`: tells why the process ends, where a
    file that it reads is altered."""
    exit_on_memory_fault(say, PodExit.REPOSITORY)
    base = DataVolume(Path(environ[DATA_VARIABLE]) if environ.get(DATA_VARIABLE) else None)
    service = parse_manifest(required(environ, MANIFEST_VARIABLE), f"environment variable {MANIFEST_VARIABLE}", base)
    root = Path(required(environ, REPOSITORY_VARIABLE))
    repository = Repository(root, service.metadata.namespace, service.metadata.name)
    repository.require_writable()
    listener = LineListener(sys.stderr, time.monotonic)
    revision, named = environ.get(COMPACT_VARIABLE), service.spec.revision
    if revision is None and named is not None:
        manifest, offset = _named(service, named, repository, environ.get(SERVICE_UID_VARIABLE), listener)
    elif revision is None:
        manifest, offset = _published(service, repository, environ.get(SERVICE_UID_VARIABLE), listener)
    else:
        manifest, offset = _compacted(service, repository, revision, environ, listener)
    for removed in keep_history(
        repository, manifest, service.spec.repository.history, service.spec.routing.second_revision
    ):
        print(f"removed: revision {removed}, by spec.repository.history", file=sys.stderr, flush=True)
    # Workers may have to write in this folder, which they mount apart from the rest; the kubelet would make it as root.
    make_folder(ServicePaths(repository.folder).updates)
    for line in (*advice_on_training(manifest), *advice_on_profile(manifest)):
        print(line, file=sys.stderr, flush=True)
    print(f"published: revision {manifest.revision} of recipe {manifest.recipe}", file=sys.stderr, flush=True)
    return _summarize(manifest, offset, service.spec.recipe(), _size_bytes(repository, manifest))


def _size_bytes(repository: Repository, manifest: RevisionManifest) -> int:
    """Bytes of all files that serving a published revision reads: its own, and those of its graph."""
    graph = read_graph_manifest(ServicePaths(repository.folder).graph(manifest.graph))
    return sum(entry.bytes for of in (manifest.files, graph.files) for entry in of.values())


def _published(
    service: GNNService, repository: Repository, log: str | None, listener: ProgressListener
) -> tuple[RevisionManifest, int]:
    """Find the revision, or generate it; also the offset that its graph was made at. `log`: uid of the
    service where it has a log of changes."""
    version = None if log is None else pipeline.newest_version(service.spec, repository, log)

    def generate() -> tuple[RevisionManifest, int]:
        # A container sees a GPU only if its pod asked for one.
        found = pipeline.generate(service, repository, listener, use_gpu=True, graph_version=version)
        return found, _verify(found, repository)

    try:
        return generate()
    except DamagedError as error:
        # In a cluster only pods reach the volume, so advice to delete a folder would not help.
        identity = pipeline.identity_of(pipeline.fetched_spec(service.spec, repository), version)
        for graph in identity.graphs:
            kept = repository.set_aside(identity.recipe, graph, identity.checkpoint, identity.given, identity.expected)
        print(f"damaged, and kept in {kept}: {error}", file=sys.stderr, flush=True)
        version = None if log is None else pipeline.newest_version(service.spec, repository, log)
        return generate()


def _named(
    service: GNNService, revision: str, repository: Repository, log: str | None, listener: ProgressListener
) -> tuple[RevisionManifest, int]:
    """Find the revision that spec.revision names, or one of its model over the graph as it is now; also the offset that
    its graph was made at."""
    try:
        found = restore(service, revision, repository, log, listener)
        return found, _verify(found, repository)
    except DamagedError as error:
        # What it was generated from is not known: it cannot be made again.
        remedy = "name another one, or take the field away"
        raise InputError("spec.revision", f"{revision} cannot be answered from: {error}", remedy) from error


def _compacted(
    service: GNNService, repository: Repository, revision: str, environ: Mapping[str, str], listener: ProgressListener
) -> tuple[RevisionManifest, int]:
    """Fold the log of changes into the graph of a revision; also the offset up to which that is done."""
    updates = read_updates(environ)
    if updates is None:
        where = f"environment variable {COMPACT_VARIABLE}"
        raise InputError(where, "is set, and no log of changes is", "the operator sets both in a Job of compaction")
    retrain = environ.get(RETRAIN_VARIABLE) == "true"
    found = compact(service, repository, updates, revision, listener, retrain=retrain, use_gpu=True)
    return found, _verify(found, repository)


def _verify(manifest: RevisionManifest, repository: Repository) -> int:
    """Verify every checksum: workers are about to be told of it. Returns the offset that its graph was made at."""
    made_of = load_revision(repository, manifest.revision).origin.made_of
    return 0 if made_of is None else made_of.offset


def _summarize(manifest: RevisionManifest, offset: int, recipe: str, memory_bytes: int) -> GenerationResult:
    """`offset`: that of the log of changes that its graph was made at. `recipe`: what was asked for, which differs from
    what the revision was generated from where it was asked for by name. `memory_bytes`: of the files that serving it
    reads."""
    profile = manifest.profile
    # Nothing is generated where `spec.updates` is given or left out later.
    tiers, following = _tiers(profile), _tiers(profile.answering(CHANGED_GRAPH))
    return GenerationResult(
        revision=manifest.revision,
        recipe=recipe,
        graph=manifest.graph,
        variants=tuple(
            VariantSummary(
                name=variant.name,
                columns=variant.columns,
                accuracy_permille=round(variant.validation_accuracy * 1000, 1),
                latency_ms=round(profile.latency_curve(variant.name).at(1), 4),
                factor=variant.factor,
                size_bytes=variant.size_bytes,
                memory_bytes=variant.memory_bytes,
                tier_permille=tiers.get(variant.name),
            )
            for variant in profile.variants
        ),
        offset=offset,
        memory_bytes=memory_bytes,
        following_tiers=following if following != tiers else {},
    )


def _tiers(profile: Profile) -> dict[str, int]:
    """By variant, the accuracy tolerance from which on it answers; without those that never do."""
    found = stated_tiers(points_of(profile)) if profile.variants else {}
    return {within.point.name: permille for permille, within in found.items()}
