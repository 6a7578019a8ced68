"""What requests may bring to an opened revision: how that is read and arranged, or why it takes none."""

from __future__ import annotations

from gnnserve_api.families import family_of
from gnnserve_api.repository import RevisionManifest
from gnnserve_worker.asking import overlay_schemas
from gnnserve_worker.asking.overlay import (
    BRING_IT,
    NoOverlays,
    Overlays,
    OverlaySupport,
    PlainOverlays,
    RelationOverlays,
    TypedOverlaySupport,
)
from gnnserve_worker.asking.served_graph import ServedGraph
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.overlay import overlay_arranger
from gnnserve_worker.models.rows import RowMaker, keeper_of
from gnnserve_worker.opening.loaded import LoadedRevision

_IN_JSON = "its graph has several types of nodes, and what requests bring to it is written in JSON"
_NOTHING_KEPT = "an earlier gnnserve generated the revision and kept nothing of how rows are made: generate it again"


def overlays_of(loaded: LoadedRevision, manifest: RevisionManifest, graph: ServedGraph) -> Overlays:
    if loaded.graph.schema.has_names:
        return _of_relations(loaded, graph)
    if not any(family_of(variant).capabilities.overlay for variant in manifest.variants):
        return NoOverlays("its variants read features that were propagated over the graph as it was generated")
    if manifest.row_source is None or manifest.edge_rules is None:
        return NoOverlays(
            "an earlier gnnserve generated its revision and kept nothing of how rows are made; generate it again"
        )
    columns = FeatureColumns(loaded.features, manifest.row_source.columns)
    makers = [variant.rows for variant in loaded.variants.values() if isinstance(variant.rows, RowMaker)]
    keeper = keeper_of(makers, loaded.features)
    features_of = None if keeper is None else keeper.features_of
    arrange = overlay_arranger(loaded.graph, loaded.places).arrange
    return PlainOverlays(graph.naming, OverlaySupport(columns, arrange, features_of))


def _of_relations(loaded: LoadedRevision, graph: ServedGraph) -> Overlays:
    if not loaded.type_rows:
        schemas = overlay_schemas.NONE if graph.described else overlay_schemas.FOLDED
        return NoOverlays(_IN_JSON, _NOTHING_KEPT, schemas)
    arranger, width = overlay_arranger(loaded.graph, loaded.places), loaded.input_width
    support = TypedOverlaySupport(
        loaded.graph.schema,
        loaded.type_rows,
        width,
        arranger.arrange,
        lambda node, own: arranger.stand_in(node, width, own),
    )
    # An id without a type is one of the stored nodes, whose own message says enough.
    return RelationOverlays(graph.ids, support, "" if graph.described else BRING_IT, _IN_JSON)
