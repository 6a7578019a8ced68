"""What a revision knows of overlays: how requests that bring nodes, edges and features along are read and arranged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from gnnserve_api.families import family_of
from gnnserve_api.repository import RevisionManifest
from gnnserve_api.typed import TypedGraphManifest
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.overlay import Overlay, arrange_overlay
from gnnserve_worker.graph.typed_overlay import arrange_stand_in, arrange_typed_overlay
from gnnserve_worker.models.rows import RowMaker, keeper_of
from gnnserve_worker.opening.loaded import LoadedRevision, TypeRowRecipe


class Arrange(Protocol):
    def __call__(
        self, features: np.ndarray, overridden: np.ndarray, edges: np.ndarray, seeds: np.ndarray
    ) -> tuple[Overlay, np.ndarray]: ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class OverlaySupport:
    """What is needed to read requests that bring nodes, edges and features along."""

    columns: FeatureColumns
    """Features of a node, as in the source."""
    arrange: Arrange
    """`arrange_overlay` of the revision's graph."""
    features_of: Callable[[np.ndarray], np.ndarray] | None = None
    """Features of stored nodes (positions, int64) as in the source, float32 [nodes, features]. None: the revision does
    not keep them, or not exactly."""


class ArrangeTyped(Protocol):
    def __call__(
        self,
        features: np.ndarray,
        new_types: np.ndarray,
        overridden: np.ndarray,
        edges: np.ndarray,
        seeds: np.ndarray,
    ) -> tuple[Overlay, np.ndarray]: ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class TypedOverlaySupport:
    """The same for a graph of several types."""

    graph: TypedGraphManifest
    types: tuple[TypeRowRecipe, ...]
    width: int
    """Columns of a row of features: those of the widest type, or of an embedding."""
    arrange: ArrangeTyped
    """`arrange_typed_overlay` of the revision's graph."""
    stand_in: Callable[[int, Sequence[np.ndarray]], tuple[Overlay, np.ndarray]]
    """`arrange_stand_in` of it: of a stored node (its number), and the lists that it is to have."""


def why_no_overlays(manifest: RevisionManifest, *, is_typed: bool) -> str:
    """Empty: at least one variant can answer such requests."""
    if is_typed:
        return "its graph has several types of nodes, and what requests bring to it is written in JSON"
    if not any(family_of(variant).capabilities.overlay for variant in manifest.variants):
        return "its variants read features that were propagated over the graph as it was generated"
    if manifest.row_source is None or manifest.edge_rules is None:
        return "an earlier gnnserve generated its revision and kept nothing of how rows are made; generate it again"
    return ""


def typed_support(loaded: LoadedRevision) -> TypedOverlaySupport | None:
    """None: the graph has one type, or nothing of how rows are made was kept."""
    if not loaded.type_rows:
        return None
    widths = [0 if one.columns is None else one.columns.features for one in loaded.type_rows]
    widths += [len(one.default) for one in loaded.type_rows if one.default is not None]
    graph, width = loaded.graph, max(widths)
    return TypedOverlaySupport(
        graph.schema,
        loaded.type_rows,
        width,
        partial(arrange_typed_overlay, graph),
        lambda node, lists: arrange_stand_in(graph, node, width, lists),
    )


def overlay_support(loaded: LoadedRevision, manifest: RevisionManifest) -> OverlaySupport | None:
    """None: nothing of how rows are made, or edges become lists, was kept."""
    if manifest.row_source is None or manifest.edge_rules is None:
        return None
    columns = FeatureColumns(loaded.features, manifest.row_source.columns)
    makers = [variant.rows for variant in loaded.variants.values() if isinstance(variant.rows, RowMaker)]
    keeper = keeper_of(makers, loaded.features)
    features_of = None if keeper is None else keeper.features_of
    return OverlaySupport(columns, partial(arrange_overlay, loaded.graph, manifest.edge_rules), features_of)
