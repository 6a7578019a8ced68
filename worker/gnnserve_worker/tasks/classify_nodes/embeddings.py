"""Embeddings of nodes that are classified: the last hidden layer, the one before the scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gnnserve_api.families import point_of
from gnnserve_api.files.repository import NetworkKind, RevisionManifest, VariantManifest
from gnnserve_worker.nearest.comparison import ByCosine, Comparison
from gnnserve_worker.nearest.parts import IndexPart
from gnnserve_worker.tasks.embedded import AnyLayer, ComputedNodes, MissingEmbeddings

_MISSING = {
    NetworkKind.PROGRAM: MissingEmbeddings(
        "the program gives scores alone", "describe a module whose forward returns (scores, embeddings)"
    ),
    NetworkKind.LISTED: MissingEmbeddings(
        "the only layer gives the scores", "list two layers or more, or a head behind them, whose rows they are"
    ),
    NetworkKind.LAYERS: MissingEmbeddings(
        "no variant has a hidden layer to return: their networks have one layer, or the others are stored",
        "give model.fanouts two layers or more, and have a variant that computes them",
    ),
}
"""By kind of network; of a revision that has several, the first one here counts: one-row variants are of layers."""


def hidden_layer(manifest: RevisionManifest) -> HiddenLayer | None:
    return HiddenLayer() if manifest.links is None else None


class HiddenLayer:
    """An `EmbeddedTask`."""

    def gives(self, variant: VariantManifest) -> bool:
        return variant.network.embedding_columns > 0 and point_of(variant).capabilities.embeddings

    def is_preferred(self, variant: VariantManifest) -> bool:
        return False

    def columns(self, variant: VariantManifest) -> int:
        return variant.network.embedding_columns

    def missing(self, manifest: RevisionManifest) -> MissingEmbeddings:
        kinds = {variant.network.kind for variant in manifest.variants}
        return next(missing for kind, missing in _MISSING.items() if kind in kinds)

    def layers(self, layers: Sequence[AnyLayer]) -> Sequence[AnyLayer]:
        return layers[:-1]

    def taken(self, computed: ComputedNodes) -> np.ndarray | None:
        return computed.embeddings

    def comparison(self, part: IndexPart, folder: Path) -> Comparison:
        return ByCosine()
