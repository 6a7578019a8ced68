"""A published revision that classifies nodes."""

from __future__ import annotations

from dataclasses import dataclass

from gnnserve_api.files.repository import RevisionManifest, VariantManifest
from gnnserve_worker.nearest.parts import INDEX_FOLDER, IndexPart
from gnnserve_worker.tasks.published import ExportedScores, NodeRange


@dataclass(frozen=True, slots=True)
class PublishedClasses:
    manifest: RevisionManifest

    def index_parts(self, type_: str, nodes: int) -> tuple[IndexPart, ...]:
        return (class_part(type_, nodes),)

    def ranges(self) -> tuple[NodeRange, ...]:
        return ()

    def exported_scores(self, variant: VariantManifest) -> ExportedScores:
        advice = [
            "Scores are those before softmax, or before sigmoid where nodes may have several labels. `classes` of "
            "`export.json` are those of their columns."
        ]
        if variant.thresholds is not None:
            advice.append("Before labels are decided, `thresholds` of `export.json` are taken from the scores.")
        return ExportedScores("Scores, before softmax or sigmoid.", tuple(advice))


def class_part(type_: str, nodes: int) -> IndexPart:
    """The nodes that are classified. `type_`: empty in a graph of one type."""
    return IndexPart(INDEX_FOLDER, type_, 0, nodes)
