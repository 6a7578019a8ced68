"""The tasks that can be served, and which of them a revision has. Nothing outside this folder names a task."""

from __future__ import annotations

from gnnserve_api.repository import RevisionManifest
from gnnserve_worker.tasks.classify_nodes import serving as classify_nodes
from gnnserve_worker.tasks.classify_nodes.description import UNSERVED as NODES_UNSERVED
from gnnserve_worker.tasks.description import TaskDescription
from gnnserve_worker.tasks.opening import TaskOpener
from gnnserve_worker.tasks.published import PublishedTask
from gnnserve_worker.tasks.score_links import serving as score_links

UNSERVED: TaskDescription = NODES_UNSERVED
"""What OpenAPI says where no revision is served yet."""
OPENERS: list[TaskOpener] = [classify_nodes.OPENER, score_links.OPENER]
"""The first one that a manifest is of opens it."""


def opener_of(manifest: RevisionManifest) -> TaskOpener:
    return next(one for one in OPENERS if one.is_of(manifest))


def published_task(manifest: RevisionManifest) -> PublishedTask:
    return opener_of(manifest).published(manifest)
