"""What is explained: a node, the nodes that it reads, and the same node without one of them.

Nodes of any type may be looked at, so that people find their way from one to the next; only those that the task answers
about are explained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gnnserve_api.explain import ExplainRequest
from gnnserve_worker.asking.node_lists import ReadList
from gnnserve_worker.asking.overlay import StandIn
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.tasks.served import ExplainedScores


@dataclass(frozen=True, slots=True)
class Explained:
    """A node that can be asked about with other lists."""

    scores: ExplainedScores
    stand_in: StandIn


@dataclass(frozen=True, slots=True)
class Subject:
    """A node of the graph."""

    node: int
    """Its number."""
    lists: tuple[ReadList, ...]
    explained: Explained | str
    """A text: why it cannot be asked about."""

    @property
    def degree(self) -> int:
        return sum(len(one.neighbours) for one in self.lists)


def subject_of(request: ExplainRequest[Any], revision: ServedRevision) -> Subject:
    """Raises RequestError: there is no such node."""
    node = revision.graph.naming.find_any(request.node, "node")
    return Subject(node, revision.graph.lists.of(node), _explained(node, revision))


def _explained(node: int, revision: ServedRevision) -> Explained | str:
    scores = revision.task.explained(node)
    if isinstance(scores, str):
        return scores
    stand_in = revision.compute.overlays.stand_in(node)
    return stand_in if isinstance(stand_in, str) else Explained(scores, stand_in)
