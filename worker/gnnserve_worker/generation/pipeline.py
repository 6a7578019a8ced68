"""Turns a manifest into a published revision: finds it, or has it generated.

A published revision is found with little more than what serves it, so that a second start is fast. Generation over
graphs of one type is `one_type.py`, over relations `relations.py`.
"""

from __future__ import annotations

import time

from gnnserve_api.repository import RevisionManifest
from gnnserve_api.spec.heterogeneous_rules import reads_products
from gnnserve_api.spec.service import GNNService, GNNServiceSpec
from gnnserve_worker.generation.identity import RevisionIdentity, find_published, identity_of
from gnnserve_worker.progress import OverallProgress, ProgressListener, silent
from gnnserve_worker.repository.repository import Repository


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
    from gnnserve_worker.generation.profile import profile_budget_s  # noqa: PLC0415
    from gnnserve_worker.generation.steps import PUBLISH, steps_from_import  # noqa: PLC0415

    overall = OverallProgress(progress, time.monotonic, steps_from_import(spec, profile_budget_s()))
    generated = _generate(spec, identity, repository, overall, use_gpu=use_gpu, graph_version=graph_version)
    overall.finish(PUBLISH, generated.revision)
    return generated


def _generate(
    spec: GNNServiceSpec,
    identity: RevisionIdentity,
    repository: Repository,
    progress: ProgressListener,
    *,
    use_gpu: bool,
    graph_version: str | None,
) -> RevisionManifest:
    """Generate the revision by the pipeline of its kind of graph."""
    if reads_products(spec):
        from gnnserve_worker.generation.relations import generate_over_relations  # noqa: PLC0415

        return generate_over_relations(
            spec, identity, repository, progress, use_gpu=use_gpu, graph_version=graph_version
        )
    from gnnserve_worker.generation.one_type import generate_one_type  # noqa: PLC0415

    return generate_one_type(spec, identity, repository, progress, use_gpu=use_gpu, graph_version=graph_version)
