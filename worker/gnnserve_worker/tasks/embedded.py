"""Embeddings that a published revision has, by its task: which variants give them, and where they are in an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from gnnserve_api.families import Capabilities, point_of
from gnnserve_api.files.repository import RevisionManifest, VariantManifest
from gnnserve_worker.nearest.comparison import Comparison
from gnnserve_worker.nearest.parts import IndexPart

AnyLayer = TypeVar("AnyLayer")
"""A layer, or its place in a network."""


@dataclass(frozen=True, slots=True)
class MissingEmbeddings:
    """Why no variant of a revision gives embeddings."""

    problem: str
    remedy: str
    """Advice by which the next revision gives embeddings."""


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
        """Whether it comes before all that are not, however accurate these are: not whether it follows changes, which
        counts next."""

    def columns(self, variant: VariantManifest) -> int:
        """Width of the embeddings that a variant's network has; 0: it has none."""

    def missing(self, manifest: RevisionManifest) -> MissingEmbeddings:
        """Why none of the variants gives them, where that is so."""

    def layers(self, layers: Sequence[AnyLayer]) -> Sequence[AnyLayer]:
        """Layers of a network up to the one that gives embeddings."""

    def taken(self, computed: ComputedNodes) -> np.ndarray | None:
        """The embeddings of what was computed, float32 [nodes, columns]; None: they are not there."""

    def comparison(self, part: IndexPart, folder: Path) -> Comparison:
        """How nodes of a part are compared. `folder`: the revision's. Raises DamagedError."""


def capabilities_of(task: EmbeddedTask, manifest: RevisionManifest) -> Mapping[str, Capabilities]:
    """What each variant can give that not every request needs, in the order of the profile."""
    bare = {variant.name for variant in manifest.variants if not task.columns(variant)}
    gives = {v.name: point_of(v).capabilities for v in manifest.profile.variants}
    return gives | {name: replace(gives[name], embeddings=False) for name in bare if name in gives}


def missing_embeddings(task: EmbeddedTask, manifest: RevisionManifest) -> MissingEmbeddings | None:
    """None: a variant gives embeddings."""
    if any(each.embeddings for each in capabilities_of(task, manifest).values()):
        return None
    return task.missing(manifest)
