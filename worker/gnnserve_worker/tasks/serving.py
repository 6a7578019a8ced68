"""The tasks that can be served, and which of them a revision has. Nothing outside this folder names a task."""

from __future__ import annotations

from collections.abc import Callable

from gnnserve_api.files.repository import RevisionManifest
from gnnserve_worker.tasks.classify_nodes.description import UNSERVED as NODES_UNSERVED
from gnnserve_worker.tasks.description import TaskDescription
from gnnserve_worker.tasks.opening import TaskOpener
from gnnserve_worker.tasks.published import PublishedTask

UNSERVED: TaskDescription = NODES_UNSERVED
"""What OpenAPI says where no revision is served yet."""


def _classify_nodes() -> TaskOpener:
    from gnnserve_worker.tasks.classify_nodes.serving import OPENER  # noqa: PLC0415

    return OPENER


def _score_links() -> TaskOpener:
    from gnnserve_worker.tasks.score_links.serving import OPENER  # noqa: PLC0415

    return OPENER


OPENERS: list[Callable[[], TaskOpener]] = [_classify_nodes, _score_links]
"""The first one that a manifest is of opens it; those behind it are not imported, since a start would pay for them."""


def opener_of(manifest: RevisionManifest) -> TaskOpener:
    return next(opener for one in OPENERS if (opener := one()).is_of(manifest))


def published_task(manifest: RevisionManifest) -> PublishedTask:
    return opener_of(manifest).published(manifest)
