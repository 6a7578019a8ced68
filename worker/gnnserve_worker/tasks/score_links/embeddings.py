"""Embeddings of nodes at the ends of links: what the network ends in, which the decoder reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnnserve_api.families import point_of
from gnnserve_api.files.links import LinksManifest
from gnnserve_api.files.repository import RevisionManifest, VariantManifest
from gnnserve_worker.nearest.comparison import ByScore, Comparison
from gnnserve_worker.nearest.parts import IndexPart
from gnnserve_worker.tasks.embedded import AnyLayer, ComputedNodes, MissingEmbeddings
from gnnserve_worker.tasks.score_links.links import open_decoder

_BEHIND_STORED = MissingEmbeddings(
    "all variants read a stored layer", "have a variant that computes all layers, such as variants.pruning.factors [1]"
)


def ends_of_links(manifest: RevisionManifest) -> EndsOfLinks | None:
    return None if manifest.links is None else EndsOfLinks(manifest.links)


@dataclass(frozen=True, slots=True)
class EndsOfLinks:
    """An `EmbeddedTask`."""

    links: LinksManifest

    def gives(self, variant: VariantManifest) -> bool:
        """Whether its network ends in them; those behind a stored layer are left out, but for rows of embeddings."""
        if not any(variant.fanouts):
            return True
        is_program = variant.network.reads_features
        has_layers = is_program or variant.network.embedding_columns > 0
        return has_layers and point_of(variant).capabilities.embeddings

    def is_preferred(self, variant: VariantManifest) -> bool:
        """Where links join types, whether its rows are embeddings, of all neighbours: other variants of the model are
        of the same network, so that any of them computes new nodes. Of one type, where only the variant itself computes
        what is searched for, whether it takes new nodes."""
        if self.links.first.type:
            return not any(variant.fanouts) and point_of(variant).runs_whole_model
        return point_of(variant).capabilities.overlay

    def columns(self, variant: VariantManifest) -> int:
        return self.links.dimensions

    def missing(self, manifest: RevisionManifest) -> MissingEmbeddings:
        return _BEHIND_STORED

    def layers(self, layers: Sequence[AnyLayer]) -> Sequence[AnyLayer]:
        return layers

    def taken(self, computed: ComputedNodes) -> np.ndarray | None:
        return computed.scores

    def comparison(self, part: IndexPart, folder: Path) -> Comparison:
        return ByScore(open_decoder(folder, self.links), part.stand_first)
