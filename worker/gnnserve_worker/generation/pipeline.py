"""From a manifest to its published revision: which digests make it, whether it is there, or else its generation.

A published revision is found with little more than what serves it, so that a second start is fast. All others go
through the same steps (`steps.py`); which kind of networks is prepared for them is chosen here.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import UNSET

from gnnserve_api.extras import GENERATE
from gnnserve_api.files.edges import Direction
from gnnserve_api.files.repository import GraphManifest, RevisionManifest
from gnnserve_api.spec.heterogeneous_rules import reads_products
from gnnserve_api.spec.paths import paths_of
from gnnserve_api.spec.service import GNNService, GNNServiceSpec
from gnnserve_worker.generation.checkpoint import checkpoint_digest
from gnnserve_worker.generation.expected.listed import expected_digests
from gnnserve_worker.generation.given_variants import given_digests
from gnnserve_worker.generation.hub.weights import with_fetched_files, with_kept_files
from gnnserve_worker.graph.sources.load import require_all, source_digest, undecided_digest
from gnnserve_worker.progress import PUBLISH, OverallProgress, Progress, ProgressListener, silent
from gnnserve_worker.repository.paths import RevisionIdentity
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.generation import task_of

if TYPE_CHECKING:
    from gnnserve_worker.generation.steps import Prepare


def find(service: GNNService, repository: Repository, *, graph_version: str | None = None) -> RevisionManifest | None:
    """The published revision that `generate` would find; None: it would generate one."""
    spec = with_kept_files(service.spec, repository.downloads)
    return None if spec is None else find_published(repository, identity_of(spec, graph_version))


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
    spec = fetched_spec(service.spec, repository, progress)
    identity = identity_of(spec, graph_version)
    if (published := find_published(repository, identity)) is not None:
        return published
    # Imported from here on: a start that finds its revision needs none of it.
    from gnnserve_worker.generation.lessons import steps_from_import  # noqa: PLC0415
    from gnnserve_worker.generation.profile import profile_budget_s  # noqa: PLC0415
    from gnnserve_worker.generation.steps import RequestedRevision, take_steps  # noqa: PLC0415

    if spec.trains_networks:
        # Before the graph is imported, which may take minutes.
        GENERATE.require("training", "torch", "torch_geometric")
    prepare, budget_s = _preparing(spec), profile_budget_s()
    overall = OverallProgress(progress, time.monotonic, steps_from_import(spec, budget_s))
    prepared = prepare(RequestedRevision(spec, task_of(spec), identity, repository, overall, graph_version, budget_s))
    with repository.locked(on_wait=lambda: overall(Progress("wait for another process that is generating", 0, 1))):
        generated = find_published(repository, identity)  # it may have been published meanwhile
        if generated is None:
            generated = take_steps(prepared, use_gpu=use_gpu)
    overall.finish(PUBLISH, generated.revision)
    return generated


def _preparing(spec: GNNServiceSpec) -> Prepare:
    """How networks of the spec are prepared: programs, or networks by what they read, products of each relation or rows
    of nodes."""
    if spec.model.is_program:
        from gnnserve_worker.generation.programs import prepared  # noqa: PLC0415

        return prepared.prepare
    if reads_products(spec):
        from gnnserve_worker.generation import relations  # noqa: PLC0415

        return relations.prepare
    from gnnserve_worker.generation import one_relation  # noqa: PLC0415

    return one_relation.prepare


# --- which revision it is


def fetched_spec(
    spec: GNNServiceSpec, repository: Repository, progress: ProgressListener = silent
) -> GNNServiceSpec:  # fmt: skip
    """The spec with files in place of what it names on the Hugging Face Hub, fetched where they are not there. Raises
    as `with_fetched_files` does."""
    return with_fetched_files(spec, repository.downloads, progress)


def identity_of(spec: GNNServiceSpec, graph_version: str | None = None) -> RevisionIdentity:
    """Read the files that the manifest names, none of which is still to be fetched. `graph_version`: digest of the
    graph that is taken in place of the source's. InputError: a file is missing, or is not the pinned one."""
    weights = (*paths_of(spec.model, "spec.model"), *paths_of(spec.variants, "spec.variants"))
    require_all(weights if graph_version is not None else paths_of(spec))
    graph, earlier = graph_version, None
    if graph is None:
        source, task = source_digest(spec.graph.source), task_of(spec)
        graph, earlier = task.graph_digest(source), task.earlier_digest(source)
    model, given = _weights_digests(spec)
    return RevisionIdentity(
        spec.recipe(),
        graph,
        model,
        given,
        expected_digests(spec) if spec.model.expected is not None or spec.variants.given else {},
        earlier,
    )


def find_published(repository: Repository, identity: RevisionIdentity) -> RevisionManifest | None:
    """The published revision of that identity; None: there is none."""
    found = (
        repository.find(identity.recipe, graph, identity.checkpoint, identity.given, identity.expected)
        for graph in identity.graphs
    )
    return next((one for one in found if one is not None), None)


def _weights_digests(spec: GNNServiceSpec) -> tuple[str | None, dict[str, str]]:
    """Digest of what the model's weights come from (None: they are trained), and those of given variants, by name."""
    if spec.model.program is not None:
        # Imported here: a start that serves another model needs none of it.
        from gnnserve_worker.generation.given_program import read_programs  # noqa: PLC0415

        model, *given = read_programs(spec)
        return model.digest, {one.weights: one.digest for one in given}
    digest = None if spec.model.checkpoint is None else checkpoint_digest(spec.model)
    return digest, given_digests(spec.variants) if spec.variants.given else {}


def _graph_digest(spec: GNNServiceSpec, source: str) -> str:
    """Digest of what the task takes of a source's graph, which versions of it go back to. `source`: digest of the
    source."""
    return task_of(spec).graph_digest(source)


def newest_version(spec: GNNServiceSpec, repository: Repository, log: str) -> str | None:
    """Digest of the newest graph that changes of a service's log are part of: of those that a revision of the spec is
    published over, or else of all. None: there is none, and the source's graph is the newest. `log`: uid of the
    service."""
    versions = _versions(spec, repository, log)
    recipe = spec.recipe()
    published = {manifest.graph for manifest in repository.revisions() if manifest.recipe == recipe}
    over = [version for version in versions if version.digest in published]
    return next((version.digest for version in (*over, *versions)), None)


def _versions(spec: GNNServiceSpec, repository: Repository, log: str) -> list[GraphManifest]:
    """`Repository.graph_versions` of a source's graph."""
    source = spec.graph.source
    versions = repository.graph_versions(log, _graph_digest(spec, source_digest(source)))
    if versions or source.npz is None or source.npz.direction is None or not repository.graph_versions(log):
        return versions
    undecided = undecided_digest(source)
    assert undecided is not None  # noqa: S101  (the direction is stated)
    # To write down the direction that was decided must not lose what was compacted before: the graph is that one.
    stated, before = Direction(source.npz.direction), repository.graph_versions(log, _graph_digest(spec, undecided))
    rules = [None if one.version is UNSET else one.version.edge_rules for one in before]
    return [one for one, its in zip(before, rules, strict=True) if its is not None and its.direction is stated]
