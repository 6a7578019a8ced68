"""Turns a manifest into a published revision: finds it, or has it generated.

A published revision is found with little more than what serves it, so that a second start is fast. All others go
through the same steps (`steps.py`); which kind of networks is prepared for them is chosen here.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gnnserve_api.repository import RevisionManifest
from gnnserve_api.spec.heterogeneous_rules import reads_products
from gnnserve_api.spec.service import GNNService, GNNServiceSpec
from gnnserve_worker.generation.identity import find_published, identity_of
from gnnserve_worker.progress import PUBLISH, OverallProgress, Progress, ProgressListener, silent
from gnnserve_worker.repository.repository import Repository

if TYPE_CHECKING:
    from gnnserve_worker.generation.steps import Prepare


def find(service: GNNService, repository: Repository, *, graph_version: str | None = None) -> RevisionManifest | None:
    """The published revision that `generate` would find; None: it would generate one."""
    return find_published(repository, identity_of(service.spec, graph_version))


def generate(
    service: GNNService,
    repository: Repository,
    progress: ProgressListener = silent,
    *,
    use_gpu: bool = False,
    graph_version: str | None = None,
) -> RevisionManifest:
    """Find the published revision of this manifest, its graph and its given weights, or generate it.

    `use_gpu`: train on a GPU if torch finds one. Weights then differ in their last digits between runs.
    `graph_version`: digest of a graph in the repository that changes are part of, in place of the source's. Raises
    InputError for what the user must fix, ResourceError when the disk is full; revisions that are already published
    stay as they are, and networks that were trained before an interruption are kept for the next call.
    """
    spec = service.spec
    identity = identity_of(spec, graph_version)
    if (published := find_published(repository, identity)) is not None:
        return published
    # Imported from here on: a start that finds its revision needs none of it.
    from gnnserve_worker.generation.lessons import steps_from_import  # noqa: PLC0415
    from gnnserve_worker.generation.profile import profile_budget_s  # noqa: PLC0415
    from gnnserve_worker.generation.steps import Wanted, take_steps  # noqa: PLC0415
    from gnnserve_worker.tasks.generation import task_of  # noqa: PLC0415

    prepare, budget_s = _preparing(spec), profile_budget_s()
    overall = OverallProgress(progress, time.monotonic, steps_from_import(spec, budget_s))
    prepared = prepare(Wanted(spec, task_of(spec), identity, repository, overall, graph_version, budget_s))
    with repository.locked(on_wait=lambda: overall(Progress("wait for another process that is generating", 0, 1))):
        generated = find_published(repository, identity)  # it may have been published meanwhile
        if generated is None:
            generated = take_steps(prepared, use_gpu=use_gpu)
    overall.finish(PUBLISH, generated.revision)
    return generated


def _preparing(spec: GNNServiceSpec) -> Prepare:
    """How networks of the spec are prepared: programs, or networks by what they read, products of each relation or rows
    of nodes."""
    if spec.model.program is not None:
        from gnnserve_worker.generation.programs import prepared  # noqa: PLC0415

        return prepared.prepare
    if reads_products(spec):
        from gnnserve_worker.generation import relations  # noqa: PLC0415

        return relations.prepare
    from gnnserve_worker.generation import one_relation  # noqa: PLC0415

    return one_relation.prepare
