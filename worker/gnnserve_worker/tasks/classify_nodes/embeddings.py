"""Embeddings of nodes that are classified: the last hidden layer, the one before the scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gnnserve_api.families import point_of
from gnnserve_api.files.repository import RevisionManifest, VariantManifest
from gnnserve_worker.nearest.comparison import ByCosine, Comparison
from gnnserve_worker.nearest.parts import IndexPart
from gnnserve_worker.tasks.embedded import AnyLayer, ComputedNodes


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

    def layers(self, layers: Sequence[AnyLayer]) -> Sequence[AnyLayer]:
        return layers[:-1]

    def taken(self, computed: ComputedNodes) -> np.ndarray | None:
        return computed.embeddings

    def comparison(self, part: IndexPart, folder: Path) -> Comparison:
        return ByCosine()
