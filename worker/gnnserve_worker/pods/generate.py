"""A generation Job's program: a manifest from the environment becomes a published revision.

Its result, or the one sentence why there is none, is the container's termination message, which the operator reads;
progress is plain lines on standard error, for `kubectl logs`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from gnnserve_api.domination import says_dominated
from gnnserve_api.errors import DamagedError, GnnserveError, InputError, lack_of_memory, words_in_cluster
from gnnserve_api.extras import lack_of_package
from gnnserve_api.files.given_weights import says_misfits
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.files.training import says_rising, says_unlearnt
from gnnserve_api.pods.generation import MAX_TERMINATION_MESSAGE_BYTES, GenerationResult, VariantSummary, encode_message
from gnnserve_api.pods.interface import (
    COMPACT_VARIABLE,
    DATA_VARIABLE,
    MANIFEST_VARIABLE,
    REPOSITORY_VARIABLE,
    RETRAIN_VARIABLE,
    SERVICE_UID_VARIABLE,
    TERMINATION_MESSAGE_PATH,
    PodExit,
)
from gnnserve_api.spec.paths import DataVolume
from gnnserve_api.tiers import points_of, stated_tiers
from gnnserve_worker.pods.environment import exit_of, required
from gnnserve_worker.pods.log_environment import read_updates

if TYPE_CHECKING:
    from gnnserve_api.spec.service import GNNService
    from gnnserve_worker.progress import ProgressListener
    from gnnserve_worker.repository.repository import Repository

TERMINATION_MESSAGE_VARIABLE = "GNNSERVE_TERMINATION_MESSAGE"
"""Variable that names another file for the message, for use outside a container."""
TERMINATED = 143


def main(environ: Mapping[str, str] = os.environ) -> int:
    # The first process of a container has no default handler for it, and an orderly exit removes what is half-written.
    signal.signal(signal.SIGTERM, stop_in_order)
    try:
        code, message = PodExit.OK, encode_message(_generate(environ))
    except Exception as error:  # noqa: BLE001  (whatever it was, the operator must be told)
        code, message = exit_of(error), sentence_of(error)
        if not isinstance(error, GnnserveError) and lack_of_memory(error) is None:
            traceback.print_exc()
        print(f"error: {message}", file=sys.stderr, flush=True)
    if not leave_message(environ, message):
        # Without the message the operator does not learn of the revision; another attempt finds it published.
        return code or PodExit.RESOURCE
    return code


def leave_message(environ: Mapping[str, str], message: str) -> bool:
    path = Path(environ.get(TERMINATION_MESSAGE_VARIABLE, TERMINATION_MESSAGE_PATH))
    try:
        path.write_bytes(cut(message))
    except OSError as error:
        print(f"error: {path}: the termination message cannot be written: {error}", file=sys.stderr, flush=True)
        return False
    return True


def summarize(
    manifest: RevisionManifest, offset: int = 0, recipe: str | None = None, memory_bytes: int = 0
) -> GenerationResult:
    """`offset`: that of the log of changes that its graph was made at. `recipe`: what was asked for; None: what the
    revision was generated from. They differ where it was asked for by name. `memory_bytes`: of the files that serving
    it reads."""
    profile = manifest.profile
    tiers = {within.point.name: permille for permille, within in stated_tiers(points_of(profile)).items()}
    return GenerationResult(
        revision=manifest.revision,
        recipe=manifest.recipe if recipe is None else recipe,
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
    )


def cut(message: str) -> bytes:
    """The message, cut to as many whole characters as Kubernetes keeps."""
    encoded = message.encode(errors="backslashreplace")
    if len(encoded) <= MAX_TERMINATION_MESSAGE_BYTES:
        return encoded
    mark = "…".encode()
    kept = encoded[: MAX_TERMINATION_MESSAGE_BYTES - len(mark)]
    return kept.decode(errors="ignore").encode() + mark


def _generate(environ: Mapping[str, str]) -> GenerationResult:
    # Imported here: they take seconds, and a signal must find its handler before.
    from gnnserve_api.manifest import parse_manifest  # noqa: PLC0415
    from gnnserve_worker.progress import LineListener  # noqa: PLC0415
    from gnnserve_worker.repository.files import make_folder  # noqa: PLC0415
    from gnnserve_worker.repository.history import keep_history  # noqa: PLC0415
    from gnnserve_worker.repository.memory_fault import exit_on_memory_fault  # noqa: PLC0415
    from gnnserve_worker.repository.paths import ServicePaths  # noqa: PLC0415
    from gnnserve_worker.repository.repository import Repository  # noqa: PLC0415

    def say(words: str) -> None:
        print(f"error: {words}", file=sys.stderr, flush=True)
        leave_message(environ, words)

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
    if (warning := says_misfits(manifest.label_misfits)) is not None:
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    if (advice := says_unlearnt(manifest.training)) is not None:
        print(f"warning: {advice}", file=sys.stderr, flush=True)
    if (advice := says_rising(manifest.training)) is not None:
        print(f"warning: {advice}", file=sys.stderr, flush=True)
    ranking = manifest.ranking
    if (advice := says_dominated(manifest.profile, len(ranking.columns), is_chosen=ranking.is_chosen)) is not None:
        print(f"note: {advice}", file=sys.stderr, flush=True)
    print(f"published: revision {manifest.revision} of recipe {manifest.recipe}", file=sys.stderr, flush=True)
    return summarize(manifest, offset, service.spec.recipe(), _size_bytes(repository, manifest))


def _size_bytes(repository: Repository, manifest: RevisionManifest) -> int:
    """Bytes of all files that serving a published revision reads: its own, and those of its graph."""
    from gnnserve_worker.repository.checks import read_graph_manifest  # noqa: PLC0415
    from gnnserve_worker.repository.paths import ServicePaths  # noqa: PLC0415

    graph = read_graph_manifest(ServicePaths(repository.folder).graph(manifest.graph))
    return sum(entry.bytes for of in (manifest.files, graph.files) for entry in of.values())


def _published(
    service: GNNService, repository: Repository, log: str | None, listener: ProgressListener
) -> tuple[RevisionManifest, int]:
    """Find the revision, or generate it; also the offset that its graph was made at. `log`: uid of the
    service where it has a log of changes."""
    from gnnserve_worker.generation import pipeline  # noqa: PLC0415

    version = None if log is None else pipeline.newest_version(service.spec, repository, log)

    def generate() -> tuple[RevisionManifest, int]:
        # A container sees a GPU only if its pod asked for one.
        found = pipeline.generate(service, repository, listener, use_gpu=True, graph_version=version)
        return found, _verify(found, repository)

    try:
        return generate()
    except DamagedError as error:
        # In a cluster only pods reach the volume, so advice to delete a folder would not help.
        identity = pipeline.identity_of(service.spec, version)
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
    from gnnserve_worker.compaction.restoring import restore  # noqa: PLC0415

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
    from gnnserve_worker.compaction.compact import compact  # noqa: PLC0415

    updates = read_updates(environ)
    if updates is None:
        where = f"environment variable {COMPACT_VARIABLE}"
        raise InputError(where, "is set, and no log of changes is", "the operator sets both in a Job of compaction")
    retrain = environ.get(RETRAIN_VARIABLE) == "true"
    found = compact(service, repository, updates, revision, listener, retrain=retrain, use_gpu=True)
    return found, _verify(found, repository)


def _verify(manifest: RevisionManifest, repository: Repository) -> int:
    """Verify every checksum: workers are about to be told of it. Returns the offset that its graph was made at."""
    from gnnserve_worker.opening.revision import load_revision  # noqa: PLC0415

    made_of = load_revision(repository, manifest.revision).origin.made_of
    return 0 if made_of is None else made_of.offset


def sentence_of(error: Exception) -> str:
    if isinstance(error, GnnserveError):
        return words_in_cluster(error)
    if (found := lack_of_memory(error)) is not None:
        return (
            f"generation needs more memory than it has ({found}); raise spec.generation.resources.limits.memory, lower "
            "spec.model.training.batchSize (over several types with batches: Sampled beside it), or leave out "
            "spec.variants.channels, if it is given: finding them keeps the hidden rows of all nodes"
        )
    if (package := lack_of_package(error)) is not None:
        return f"generation needs {package}"
    if isinstance(error, OSError):
        return f"the pod lacks something: {error}; its log has the details"
    return f"unexpected {type(error).__name__}: {error}; the pod's log has the details"


def stop_in_order(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the cleaning up
    print("stopped by SIGTERM: nothing was published", file=sys.stderr, flush=True)
    sys.exit(TERMINATED)


if __name__ == "__main__":
    sys.exit(main())
