"""What a revision is made from: equal identities need no new generation."""

from __future__ import annotations

from dataclasses import dataclass

from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.checkpoint import checkpoint_digest
from gnnserve_worker.graph.sources.load import source_digest


@dataclass(frozen=True, slots=True)
class RevisionIdentity:
    recipe: str
    graph: str
    """Digest of the graph's content."""
    checkpoint: str | None
    """SHA-256 of the file of given weights; None: they are trained."""


def identity_of(spec: GNNServiceSpec) -> RevisionIdentity:
    """Reads the files that the manifest names. InputError: one is missing, or not the pinned one."""
    return RevisionIdentity(spec.recipe(), source_digest(spec.graph.source), checkpoint_digest(spec.model))
