"""Embeddings of the tasks that there are, by a revision's manifest. A new task has an entry here."""

from __future__ import annotations

from gnnserve_api.repository import RevisionManifest
from gnnserve_worker.tasks.classify_nodes.embeddings import hidden_layer
from gnnserve_worker.tasks.embedded import EmbeddedTask
from gnnserve_worker.tasks.score_links.embeddings import ends_of_links

_KNOWN = [ends_of_links, hidden_layer]
"""Each returns None for a manifest of another task."""


def embedded_task(manifest: RevisionManifest) -> EmbeddedTask:
    return next(found for known in _KNOWN if (found := known(manifest)) is not None)
