"""Embeddings of the tasks that there are, by a revision's manifest. A new task has an entry here."""

from __future__ import annotations

from gnnserve_api.files.repository import RevisionManifest
from gnnserve_worker.tasks.embedded import EmbeddedTask


def _classify_nodes(manifest: RevisionManifest) -> EmbeddedTask | None:
    from gnnserve_worker.tasks.classify_nodes.embeddings import hidden_layer  # noqa: PLC0415

    return hidden_layer(manifest)


def _score_links(manifest: RevisionManifest) -> EmbeddedTask | None:
    from gnnserve_worker.tasks.score_links.embeddings import ends_of_links  # noqa: PLC0415

    return ends_of_links(manifest)


_KNOWN = [_classify_nodes, _score_links]
"""Each returns None for a manifest of another task; those behind the one that does not are not imported."""


def embedded_task(manifest: RevisionManifest) -> EmbeddedTask:
    return next(found for known in _KNOWN if (found := known(manifest)) is not None)
