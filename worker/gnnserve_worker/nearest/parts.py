"""Which indexes a revision has: one of the nodes that it answers about, or where links join nodes of two types, one of
the nodes at either end."""

from __future__ import annotations

from dataclasses import dataclass

from gnnserve_api.embeddings import IndexMetric
from gnnserve_api.links import EndManifest, LinksManifest
from gnnserve_api.spec.task import Decoder

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


def index_parts(links: LinksManifest | None, answered_type: str, answered_nodes: int) -> tuple[IndexPart, ...]:
    """`answered_type`, `answered_nodes`: type and number of the nodes that are classified, where `links` is None.
    Empty: pairs are scored by no product of two embeddings, so that no index finds the best ones."""
    if links is None:
        return (IndexPart(INDEX_FOLDER, answered_type, 0, answered_nodes),)
    if links.decoder == Decoder.MLP:
        return ()
    if links.first == links.second:
        return (_of_end(INDEX_FOLDER, links.first),)
    return _of_end(f"{INDEX_FOLDER}-first", links.first), _of_end(f"{INDEX_FOLDER}-second", links.second)


def _of_end(folder: str, end: EndManifest) -> IndexPart:
    return IndexPart(folder, end.type, end.start, end.end - end.start, IndexMetric.SCORE)
