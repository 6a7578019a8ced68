"""The nodes of an index: those that a revision answers about, or where links join nodes of two types, those at one end.
Which of them a revision has is for its task to say (`tasks/`)."""

from __future__ import annotations

from dataclasses import dataclass

from gnnserve_api.embeddings import IndexMetric

INDEX_FOLDER = "index"


@dataclass(frozen=True, slots=True)
class IndexPart:
    """The nodes of one index."""

    folder: str
    """Its name, in the folder of the revision."""
    type: str
    """Type of the nodes; empty in a graph of one type."""
    first: int
    """Position of the first node; the others follow it."""
    nodes: int
    metric: IndexMetric = IndexMetric.COSINE

    @property
    def end(self) -> int:
        """Position behind the last node."""
        return self.first + self.nodes

    def has(self, position: int) -> bool:
        return self.first <= position < self.end
