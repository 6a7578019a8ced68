"""The nodes of an index: those that a revision answers about, or where links join nodes of two types, those at one end.
Which of them a revision has is for its task to say (`tasks/`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gnnserve_api.files.embeddings import IndexMetric
from gnnserve_api.files.graph_schema import GraphSchema

INDEX_FOLDER = "index"


@dataclass(frozen=True, slots=True)
class IndexPart:
    """The nodes of one index."""

    folder: str
    """Its name, in the folder of the revision."""
    type: str
    """Type of the nodes; empty in a graph of one type."""
    first: int
    """Position of the first node in the graph as it was published; the others follow it."""
    nodes: int
    metric: IndexMetric = IndexMetric.COSINE
    stand_first: bool = False
    """Whether its nodes are the first ones of pairs that are scored."""
    moved: int = 0
    """How much further behind the first node stands in the graph as it is served: types before it have room there."""
    room: int = 0
    """Room for new nodes behind those of the index."""

    @property
    def columns_folder(self) -> str:
        """Name of the folder with the columns of its nodes, beside that of the index."""
        return f"columns{self.folder.removeprefix(INDEX_FOLDER)}"

    @property
    def start(self) -> int:
        """Position of the first node in the graph as it is served."""
        return self.first + self.moved

    @property
    def indexed_end(self) -> int:
        """Position behind the last node of the index."""
        return self.start + self.nodes

    @property
    def end(self) -> int:
        """Position behind the last node that may ever be recommended."""
        return self.indexed_end + self.room

    def standing(self, published: GraphSchema, served: GraphSchema) -> IndexPart:
        """The part where its nodes stand in a graph that has room for new ones behind those of each type."""
        places = [place for place, kind in enumerate(published.types) if kind.name == self.type]
        if not places:  # one type has the nodes of several, in one numbering
            return self
        (place,) = places
        moved = served.first_nodes[place] - published.first_nodes[place]
        return replace(self, moved=moved, room=served.types[place].nodes - published.types[place].nodes)
