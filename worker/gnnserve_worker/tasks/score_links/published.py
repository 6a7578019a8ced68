"""A published revision that scores links."""

from __future__ import annotations

from dataclasses import dataclass

from gnnserve_api.files.embeddings import IndexMetric
from gnnserve_api.files.links import EndManifest, LinksManifest
from gnnserve_api.files.repository import RevisionManifest, VariantManifest
from gnnserve_worker.nearest.parts import INDEX_FOLDER, IndexPart
from gnnserve_worker.tasks.published import ExportedScores, NodeRange
from gnnserve_worker.tasks.score_links.exported import exported_rows


@dataclass(frozen=True, slots=True)
class PublishedLinks:
    manifest: RevisionManifest

    @property
    def links(self) -> LinksManifest:
        assert self.manifest.links is not None  # noqa: S101  (so this task was chosen)
        return self.manifest.links

    def index_parts(self, type_: str, nodes: int) -> tuple[IndexPart, ...]:
        return link_parts(self.links)

    def ranges(self) -> tuple[NodeRange, ...]:
        ends = {end.type: end for end in (self.links.first, self.links.second) if end.type}
        return tuple(NodeRange(end.type, end.start, end.end) for end in ends.values())

    def exported_scores(self, variant: VariantManifest) -> ExportedScores:
        return exported_rows(self.links, variant)


def link_parts(links: LinksManifest) -> tuple[IndexPart, ...]:
    """One part where both ends are of one type, whose nodes are second ones for each of them, else one of either
    end."""
    if links.first == links.second:
        return (_of_end(INDEX_FOLDER, links.second, stand_first=False),)
    return (
        _of_end(f"{INDEX_FOLDER}-first", links.first, stand_first=True),
        _of_end(f"{INDEX_FOLDER}-second", links.second, stand_first=False),
    )


def _of_end(folder: str, end: EndManifest, *, stand_first: bool) -> IndexPart:
    return IndexPart(folder, end.type, end.start, end.end - end.start, IndexMetric.SCORE, stand_first)
