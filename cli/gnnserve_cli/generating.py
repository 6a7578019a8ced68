"""Generation as `run` and `generate` show it: its progress, its interruption, and how far to trust its profile.

It takes place in this process. `generation_process.py` has it done in another one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import typer

from gnnserve_api.advice import advice_on_changes, advice_on_profile, advice_on_training
from gnnserve_api.device import Device
from gnnserve_api.errors import GnnserveError
from gnnserve_api.files.profile import Profile
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_cli.embedding import publish_visibly
from gnnserve_cli.exits import ExitCode
from gnnserve_cli.local_log import log_uid
from gnnserve_cli.progress import showing_progress
from gnnserve_cli.render import count
from gnnserve_worker.compaction.answering import find_answering
from gnnserve_worker.generation import pipeline
from gnnserve_worker.pods import device
from gnnserve_worker.progress import PROFILE, Progress, ProgressListener
from gnnserve_worker.repository.history import keep_history
from gnnserve_worker.repository.paths import ServicePaths
from gnnserve_worker.repository.repository import Repository

BUSY_TAIL_RATIO = 8.0
"""p99 over median. On a quiet machine it is near 2."""


def find_published(service: GNNService, repository: Repository) -> RevisionManifest | None:
    """The revision that `publish` would find; None: there is something to compute. How far to trust it is said."""
    if service.spec.embeddings is not None:
        return None
    log = log_uid(service, repository)
    if service.spec.revision is not None:
        found = find_answering(service.spec, repository, log)
    else:
        found = pipeline.find(service, repository, graph_version=_graph_version(service, repository, log))
    if found is not None:
        advise(GenerationOutcome(found, is_measured=False), repository, service)
        keep_models(service, repository, found)
    return found


def _graph_version(service: GNNService, repository: Repository, log: str | None) -> str | None:
    return None if log is None else pipeline.newest_version(service.spec, repository, log)


def publish(
    service: GNNService, root: Path, uri_files: Sequence[Path], named: Device | None = None
) -> tuple[RevisionManifest, bool]:
    """Find the revision, or generate it, and make its embeddings. `root`: of the repository. `uri_files`: files with
    the addresses of its first sinks. `named`: the device of an option, in place of the manifest's. Returns also whether
    every sink with an address has the embeddings."""
    repository = Repository(root, service.metadata.namespace, service.metadata.name)
    published = _find_or_generate(service, repository, named)
    return published, publish_visibly(service, repository, published, uri_files)


def _find_or_generate(service: GNNService, repository: Repository, named: Device | None) -> RevisionManifest:
    # Generation begins with the newest graph that the log of changes is part of.
    log = log_uid(service, repository)
    if service.spec.revision is not None:
        # Imported here: most manifests name no revision.
        from gnnserve_worker.compaction.restoring import restore  # noqa: PLC0415

        with showing_progress() as listener:
            published = restore(service, service.spec.revision, repository, log, listener)
    else:
        version = _graph_version(service, repository, log)
        generate = partial(pipeline.generate, service, repository, graph_version=version)
        generated = generating_visibly(service, repository, named, generate)
        advise(generated, repository, service)
        published = generated.published
    keep_models(service, repository, published)
    return published


def keep_models(service: GNNService, repository: Repository, published: RevisionManifest) -> None:
    """Remove what is beyond spec.repository.history, and say so."""
    for removed in keep_history(
        repository, published, service.spec.repository.history, service.spec.routing.second_revision
    ):
        typer.echo(f"note: removed revision {removed}, by spec.repository.history", err=True)


@dataclass(frozen=True, slots=True)
class GenerationOutcome:
    """A published revision, and how it came."""

    published: RevisionManifest
    is_measured: bool
    """Whether its profile was measured now. False: it was published already, or carried over by a compaction."""


class Generates(Protocol):
    """Function that publishes a revision: `pipeline.generate` or `compact`, with all that they are about."""

    def __call__(self, *, progress: ProgressListener, use_gpu: bool) -> RevisionManifest: ...


def generating_visibly(
    service: GNNService, repository: Repository, named: Device | None, generate: Generates
) -> GenerationOutcome:
    use_gpu = _may_use_gpu(service, named) and device.why_no_gpu(os.environ, Path("/dev")) is None
    try:
        with showing_progress() as listener:
            stages = _Stages(listener)
            published = _generate(generate, stages, use_gpu=use_gpu)
        return GenerationOutcome(published, is_measured=PROFILE in stages.heard)
    except KeyboardInterrupt:
        kept = repository.count_kept_networks(service.spec.recipe())
        left = f"; {count(kept, 'network')} that it trained will not be trained again" if kept else ""
        typer.echo(f"interrupted; nothing was published{left}", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None


@dataclass(frozen=True, slots=True)
class _Stages:
    """A listener that hands on what it hears, and keeps the names of its stages."""

    listener: ProgressListener
    heard: set[str] = field(default_factory=set)

    def __call__(self, progress: Progress) -> None:
        self.heard.add(progress.stage)
        self.listener(progress)


def advise(generated: GenerationOutcome, repository: Repository, service: GNNService) -> None:
    """Say how far its training can be trusted, which variants answer nothing, and its profile once: when it was
    measured. Later nothing can be done about it but to train again, and of a revision that a compaction carried over
    that would give other networks."""
    published = generated.published
    for line in (*advice_on_training(published), *advice_on_changes(published, service.spec)):
        typer.echo(line, err=True)
    if not generated.is_measured:
        return
    for line in advice_on_profile(published):
        typer.echo(line, err=True)
    folder = ServicePaths(repository.folder).revision(published.revision)
    if (warning := warn_of_busy_machine(published.profile, folder)) is not None:
        typer.echo(f"warning: {warning}", err=True)


def _may_use_gpu(service: GNNService, named: Device | None) -> bool:
    spec = service.spec
    if named is not None:
        return named is not Device.CPU
    return spec.worker.device is not Device.CPU or spec.generation.gpu is not None


def _generate(generate: Generates, listener: ProgressListener, *, use_gpu: bool) -> RevisionManifest:
    """What the GPU has no room for, or is too old for, the CPU trains: from the start, since nothing was published."""
    try:
        return generate(progress=listener, use_gpu=use_gpu)
    except Exception as error:
        problem = _failure_of_gpu(error) if use_gpu else None
        if problem is None:
            raise
    print(f"note: training on the CPU, since the GPU failed: {problem}", file=sys.stderr)
    return generate(progress=listener, use_gpu=False)


def _failure_of_gpu(error: Exception) -> str | None:
    """What it was, in words; None: something else failed."""
    if isinstance(error, GnnserveError) or "torch" not in sys.modules:
        return None
    # Imported here: it needs torch, which a second start does without.
    from gnnserve_worker.gpu.device_errors import Consequence, consequence_of, describe  # noqa: PLC0415

    return None if consequence_of(error) is Consequence.UNPREPARED else describe(error)


def warn_of_busy_machine(profile: Profile, folder: Path) -> str | None:
    """A warning where the machine was busy while the profile was measured; None where it was not. The median over the
    variants counts, as in choosing: one stall says nothing."""
    sizes = profile.variants[0].latency
    ratios = {point.seeds: profile.tail_ratio(i) for i, point in enumerate(sizes)}
    seeds, ratio = max(ratios.items(), key=lambda item: item[1])
    if ratio <= BUSY_TAIL_RATIO:
        return None
    return (
        f"p99 is {ratio:.0f} times the median at {count(seeds, 'node')}: the machine was busy while profiling, or some "
        f"neighbourhoods are far larger than others, as full ones are; objectives count as harder to meet than they "
        f"mostly are; to measure again, delete {folder} and generate again"
    )
