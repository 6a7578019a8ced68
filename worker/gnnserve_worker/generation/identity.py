"""The identity of a revision: digests of all that it is made from. Equal ones need no new generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import UNSET

from gnnserve_api.edges import Direction
from gnnserve_api.repository import GraphManifest, RevisionManifest
from gnnserve_api.spec.paths import paths_of
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.checkpoint import checkpoint_digest
from gnnserve_worker.generation.expected.listed import expected_digests
from gnnserve_worker.generation.given_variants import given_digests
from gnnserve_worker.graph.sources.files import require_all
from gnnserve_worker.graph.sources.load import source_digest, undecided_digest
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.generation import task_of


@dataclass(frozen=True, slots=True)
class RevisionIdentity:
    recipe: str
    graph: str
    """Digest of the graph's content."""
    checkpoint: str | None
    """SHA-256 of the file of spec.model.checkpoint, or digest of the files of spec.model.program; None: there is
    neither."""
    given: Mapping[str, str]
    """SHA-256 of the file of each of spec.variants.given, by its name."""
    expected: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each file of expected scores, by the weights that they are of, as `ComparedScores` names them."""
    earlier_graph: str | None = None
    """Digest of the same as an earlier gnnserve kept it, whose revisions are found too; None: it kept as much."""

    @property
    def graphs(self) -> tuple[str, ...]:
        """Digests of the graphs that its revision may be over."""
        return (self.graph,) if self.earlier_graph is None else (self.graph, self.earlier_graph)


def identity_of(spec: GNNServiceSpec, graph_version: str | None = None) -> RevisionIdentity:
    """Read the files that the manifest names. `graph_version`: digest of the graph that is taken in place of the
    source's. InputError: a file is missing, or is not the pinned one."""
    weights = (*paths_of(spec.model, "spec.model"), *paths_of(spec.variants, "spec.variants"))
    require_all(weights if graph_version is not None else paths_of(spec))
    graph, earlier = graph_version, None
    if graph is None:
        source, task = source_digest(spec.graph.source), task_of(spec)
        graph, earlier = task.graph_digest(source), task.earlier_digest(source)
    return RevisionIdentity(
        spec.recipe(),
        graph,
        _weights_digest(spec),
        given_digests(spec.variants) if spec.variants.given else {},
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


def _weights_digest(spec: GNNServiceSpec) -> str | None:
    """Digest of what the given weights come from; None: they are trained."""
    if spec.model.program is not None:
        # Imported here: a start that serves another model needs none of it.
        from gnnserve_worker.generation.given_program import program_digest  # noqa: PLC0415

        return program_digest(spec.model.program)
    return None if spec.model.checkpoint is None else checkpoint_digest(spec.model)


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
