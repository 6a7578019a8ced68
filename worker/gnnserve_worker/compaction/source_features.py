"""Features of a published revision's graph, as in its source: what tables of another graph are made of."""

from __future__ import annotations

from collections.abc import Sequence

from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.source_types import source_types
from gnnserve_worker.graph.store import Features
from gnnserve_worker.progress import ProgressListener
from gnnserve_worker.repository.repository import Repository


def features_of(
    service: GNNService, repository: Repository, base: RevisionManifest, progress: ProgressListener
) -> Sequence[Features | None]:
    """Features of each type of the revision's graph, as in its source; None: it has none."""
    types = source_types(service, repository, base, progress)
    # The graph may keep less than its source has.
    kept = repository.graph_of(base).schema.types
    return [None if own.features is None else kind.features for own, kind in zip(kept, types, strict=True)]
