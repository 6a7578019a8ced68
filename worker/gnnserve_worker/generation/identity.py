"""The identity of a revision: digests of all that it is made from. Equal ones need no new generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.checkpoint import checkpoint_digest
from gnnserve_worker.generation.given_variants import given_digests
from gnnserve_worker.graph.sources.load import source_digest


@dataclass(frozen=True, slots=True)
class RevisionIdentity:
    recipe: str
    graph: str
    """Digest of the graph's content."""
    checkpoint: str | None
    """SHA-256 of the file of spec.model.checkpoint; None: there is none."""
    given: Mapping[str, str]
    """SHA-256 of the file of each of spec.variants.given, by its name."""


def identity_of(spec: GNNServiceSpec) -> RevisionIdentity:
    """Read the files that the manifest names. InputError: one is missing, or is not the pinned one."""
    return RevisionIdentity(
        spec.recipe(), source_digest(spec.graph.source), checkpoint_digest(spec.model), given_digests(spec.variants)
    )
