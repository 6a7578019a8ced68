"""Embeddings that a published revision has, by its task: which variants give them, and where they are in an answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from gnnserve_api.files.repository import VariantManifest
from gnnserve_worker.nearest.comparison import Comparison
from gnnserve_worker.nearest.parts import IndexPart

AnyLayer = TypeVar("AnyLayer")
"""A layer, or its place in a network."""


class ComputedNodes(Protocol):
    """Outputs that a variant has computed of some nodes, as `inference.batch.Inference`."""

    @property
    def scores(self) -> np.ndarray:
        """float32 [nodes, outputs]"""

    @property
    def embeddings(self) -> np.ndarray | None:
        """float32 [nodes, hidden]; None: there is no hidden layer, or it was not asked for."""


class EmbeddedTask(Protocol):
    def gives(self, variant: VariantManifest) -> bool:
        """Whether a variant has embeddings."""

    def is_preferred(self, variant: VariantManifest) -> bool:
        """Whether it comes before all that are not, however accurate these are."""

    def columns(self, variant: VariantManifest) -> int: ...

    def layers(self, layers: Sequence[AnyLayer]) -> Sequence[AnyLayer]:
        """Layers of a network up to the one that gives embeddings."""

    def taken(self, computed: ComputedNodes) -> np.ndarray | None:
        """The embeddings of what was computed, float32 [nodes, columns]; None: they are not there."""

    def comparison(self, part: IndexPart, folder: Path) -> Comparison:
        """How nodes of a part are compared. `folder`: the revision's. Raises DamagedError."""
