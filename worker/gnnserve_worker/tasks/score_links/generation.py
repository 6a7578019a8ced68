"""Scoring of links, as generation sees it: links that are held out, and the graph without them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gnnserve_api.errors import InputError
from gnnserve_api.files.training import Source
from gnnserve_api.spec.heterogeneous_rules import keeps_types_of_rows, reads_relations
from gnnserve_api.spec.model import Scope
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import ComparedWith, Links
from gnnserve_worker.graph.links import GraphOfLinks, links_digest
from gnnserve_worker.graph.sources.load import load_source, source_digest
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.progress import ProgressListener

if TYPE_CHECKING:
    from gnnserve_worker.tasks.generated import DecoderTensors, GivenDecoder, ImportedGraph


class LinkGenerationTask:
    """The `GenerationTask` of a spec that asks for links."""

    needs_master = True
    """The decoder of all variants is learnt with it."""
    why_not_modelled = "those of classes of nodes alone are"

    def __init__(self, spec: GNNServiceSpec) -> None:
        links = spec.task.asked()
        if not isinstance(links, Links):
            raise TypeError("the spec asks for no links")
        self._spec, self._links = spec, links

    @property
    def compared_with(self) -> ComparedWith:
        return self._links.compared_with

    def one_row_sources(self, hops: int) -> tuple[Source, ...]:
        """Rows of propagated features tell which nodes are joined: links that these hold are not learnt from."""
        return ("scores",) if hops else ("links", "scores", "both")

    def graph_digest(self, source: str) -> str:
        spec = self._spec
        chosen = (
            (spec.is_all_given, GraphOfLinks.WHOLE),
            (reads_relations(spec), GraphOfLinks.TYPES),
            (keeps_types_of_rows(spec), GraphOfLinks.BARE_TYPES),
        )
        kept = next((kept for is_kept, kept in chosen if is_kept), GraphOfLinks.LISTS)
        return links_digest(source, self._links, kept)

    def earlier_digest(self, source: str) -> str | None:
        """Digest of embeddings that were stored over one list of each node."""
        return links_digest(source, self._links) if keeps_types_of_rows(self._spec) else None

    def settled(self, spec: GNNServiceSpec) -> GNNServiceSpec:
        """The spec with transductive training: held-out links are not in the graph, so that training may see all that
        is left of it."""
        training = spec.model.training.model_copy(update={"scope": Scope.TRANSDUCTIVE})
        return spec.model_copy(update={"model": spec.model.model_copy(update={"training": training})})

    def check_given(self, columns: int, graph: GraphData) -> None:
        if columns != self._links.dimensions:
            raise InputError(
                "spec.task.links.dimensions",
                f"is {self._links.dimensions}, and the model gives rows of {columns} columns", f"set it to {columns}",
            )  # fmt: skip

    def given_decoder(self, weights: DecoderTensors) -> GivenDecoder:
        # Imported here: a start that finds its revision reads no weights.
        from gnnserve_worker.tasks.score_links.given_decoder import read_decoder  # noqa: PLC0415

        return read_decoder(self._links, weights)

    def load(self, downloads: Path, progress: ProgressListener) -> GraphData:
        return load_source(self._spec.graph.source, downloads, progress, learns_labels=False)

    def says_unlabelled(self) -> tuple[str, str]:
        relation = self._links.relation
        return "scored", f"links of relation {relation}" if relation else "links"

    def import_graph(self, downloads: Path, progress: ProgressListener) -> ImportedGraph:
        return self.pose(self.load(downloads, progress))

    def pose(self, graph: GraphData) -> ImportedGraph:
        # Imported here: a start that finds its revision holds out nothing.
        from gnnserve_worker.tasks.score_links.held_out import hold_out_links  # noqa: PLC0415

        return hold_out_links(self._spec, self._links, graph)

    def pose_version(self, version: GraphData, downloads: Path, progress: ProgressListener) -> ImportedGraph:
        if self._spec.is_all_given:
            return self.pose(version)
        # Imported here: as above.
        from gnnserve_worker.tasks.score_links.held_out import hold_out_links  # noqa: PLC0415

        source, made_of = self._spec.graph.source, version.made_of
        if made_of is not None and self.graph_digest(source_digest(source)) != made_of.source:
            raise InputError(
                "spec.graph.source",
                f"holds another graph than the one that version {version.digest} was made of, and which links are held "
                "out is decided by that",
                "put back the files that were there",
            )
        return hold_out_links(self._spec, self._links, self.load(downloads, progress), version)
