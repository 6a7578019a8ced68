"""The tasks that generation knows, by what a spec asks for. A new one is a folder beside this file and a row here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import Links, NodeClasses

if TYPE_CHECKING:
    from gnnserve_worker.tasks.generated import GenerationTask


def _classify_nodes(spec: GNNServiceSpec) -> GenerationTask:
    from gnnserve_worker.tasks.classify_nodes.labels import NodeGenerationTask  # noqa: PLC0415

    return NodeGenerationTask(spec)


def _score_links(spec: GNNServiceSpec) -> GenerationTask:
    from gnnserve_worker.tasks.score_links.generation import LinkGenerationTask  # noqa: PLC0415

    return LinkGenerationTask(spec)


# Each imports its task late: a start that finds its revision pays for no other.
TASKS: dict[type, Callable[[GNNServiceSpec], GenerationTask]] = {NodeClasses: _classify_nodes, Links: _score_links}


def task_of(spec: GNNServiceSpec) -> GenerationTask:
    return TASKS[type(spec.task.asked())](spec)
