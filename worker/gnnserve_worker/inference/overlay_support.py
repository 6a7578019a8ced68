"""Support for what requests and changes bring to an opened revision: how that is read and arranged, or why it takes
none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np

from gnnserve_api.families import CHANGED_GRAPH, Capabilities, point_of
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_worker.asking import overlay_schemas
from gnnserve_worker.asking.changed_features import ChangedFeatures, KnownFeatures, UnknownFeatures
from gnnserve_worker.asking.edge_payload import EdgePayloads
from gnnserve_worker.asking.features import GivenFeatures, LearntFeatures, TypeFeatures
from gnnserve_worker.asking.naming import IdForm
from gnnserve_worker.asking.overlay import (
    GraphOverlays,
    NoOverlays,
    Overlays,
    OverlaySupport,
    StandIn,
)
from gnnserve_worker.asking.overlay_ids import IdsAlone, IdsWithTypes, OverlayIds
from gnnserve_worker.asking.overlay_schemas import OverlaySchemas
from gnnserve_worker.asking.served_graph import ServedGraph
from gnnserve_worker.asking.type_ids import QualifiedIds
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.overlay import EdgeRows, Overlay, OverlayPayload, overlay_arranger
from gnnserve_worker.graph.relation_lists import places_of
from gnnserve_worker.models.rows import FeaturesOf
from gnnserve_worker.opening.loaded import LoadedRevision, TypeRowRecipe

_NO_COLUMNS = FeatureColumns(0, ())
_OVERLAY = Capabilities(overlay=True)
_READ_FROM_ONE_END = (
    "edges of its graph go one way (graph.source.typed.reverse Disabled), so that lists of nodes do not tell what a "
    "node is joined to"
)


@dataclass(frozen=True, slots=True)
class _Form:
    """How what is brought is written, where ids have a certain form."""

    ids: Callable[[ServedGraph], OverlayIds]
    schemas: OverlaySchemas
    place_of: Callable[[QualifiedIds, Any], int]
    """The place of a node's type, by the node's id in a batch of changes, whatever that is; -1: there is none."""


_ALONE = _Form(lambda graph: IdsAlone(graph.naming), overlay_schemas.PLAIN, lambda _ids, _given: 0)
_WITH_TYPES = _Form(
    lambda graph: IdsWithTypes(graph.ids),
    overlay_schemas.OF_RELATIONS,
    lambda ids, given: ids.place_of(given.partition("/")[0]) if isinstance(given, str) else -1,
)
_FORMS: Mapping[IdForm, _Form] = {
    IdForm.INTEGERS: _ALONE,
    IdForm.TEXTS: _ALONE,
    IdForm.WITH_TYPES: _WITH_TYPES,
}


def overlays_of(loaded: LoadedRevision, manifest: RevisionManifest, graph: ServedGraph) -> Overlays:
    form = _FORMS[graph.naming.form]
    if why := _why_none(loaded, manifest, _OVERLAY):
        return NoOverlays(why, graph.described.no_overlay)
    makers = [variant.rows for variant in loaded.variants.values() if variant.rows is not None]
    if not makers:
        return NoOverlays(_READ_FROM_ONE_END, graph.described.no_overlay)
    widths = [one.features for one in loaded.new_nodes.types]
    features_of = next((kept for one in makers if (kept := one.kept_features(widths)) is not None), None)
    of_types = zip(loaded.graph.schema.types, loaded.new_nodes.types, strict=True)
    types = tuple(_features_of(kind.name, recipe, features_of) for kind, recipe in of_types)
    arranger = overlay_arranger(loaded.graph, places_of(loaded.graph.schema))
    payloads = EdgePayloads(loaded.graph.schema.relations, loaded.graph.schema.names)
    asked = loaded.new_nodes.types[0].columns or _NO_COLUMNS
    # Rows that requests bring of several types are not told apart, so that no means of theirs are compared.
    compared = _narrowed(features_of, asked) if len(types) == 1 else None
    support = OverlaySupport(asked, arranger.arrange, compared, payloads)

    reads_payload = any(one.reads_payload for one in loaded.variants.values())

    def stand_in(node: int) -> StandIn:
        bare = partial(arranger.stand_in, node, loaded.new_nodes.width)
        return _with_payload(bare, _stored_payloads(loaded, node), node) if reads_payload else bare

    return GraphOverlays(form.ids(graph), types, support, stand_in, form.schemas, graph.described.hint)


@dataclass(frozen=True, slots=True)
class _StoredPayload:
    """Features and times of the edges of one list of a node."""

    neighbours: np.ndarray
    """Nodes that the list names, ascending, int64"""
    rows: EdgeRows
    """A row for each of them."""

    def places_of(self, read: np.ndarray) -> np.ndarray:
        """The row for each of some of the neighbours, ascending, which may be named several times, int64: as often as
        the list names one, rows are others."""
        firsts = np.searchsorted(self.neighbours, read)
        counts = np.searchsorted(self.neighbours, read, side="right") - firsts
        again = np.arange(len(read)) - np.searchsorted(read, read)
        places: np.ndarray = firsts + np.minimum(again, counts - 1)
        return places


def _stored_payloads(loaded: LoadedRevision, node: int) -> list[_StoredPayload]:
    """Payload of each list of a stored node, as it is now."""
    graph, payloads = loaded.graph, loaded.reading.payloads
    columns = max((len(one.columns) for one in payloads if one is not None), default=0)
    found, first = [], graph.first_list_of(node)
    for slot, (relation, listed) in enumerate(graph.lists_by_relation(node)):
        payload, order = payloads[relation], np.argsort(listed, kind="stable")
        rows = EdgeRows(np.zeros((len(listed), columns), np.float32), np.zeros(len(listed), np.int64))
        if payload is not None:
            begin = int(graph.indptr[first + slot] if graph.indptr.ndim == 1 else graph.indptr[first + slot, 0])
            named = graph.payload_rows[begin : begin + len(listed)][order]
            rows.features[:, : len(payload.columns)] = payload.features[named]
            if payload.time_column:
                rows.times[:] = payload.times[named]
        found.append(_StoredPayload(listed[order].astype(np.int64), rows))
    return found


def _with_payload(stand_in: StandIn, stored: Sequence[_StoredPayload], node: int) -> StandIn:
    """The stand-in of a node whose edges have what those of the node have. Entries of its overlay stand list after
    list, edges of the node to itself behind the others of their list."""

    def with_payload(lists: Sequence[np.ndarray]) -> tuple[Overlay, np.ndarray]:
        overlay, seeds = stand_in(lists)
        places = [own.places_of(listed) for own, listed in zip(stored, lists, strict=True)]
        ordered = [
            np.concatenate((found[listed != node], found[listed == node]))
            for found, listed in zip(places, lists, strict=True)
        ]
        features = np.concatenate([own.rows.features[found] for own, found in zip(stored, ordered, strict=True)])
        times = np.concatenate([own.rows.times[found] for own, found in zip(stored, ordered, strict=True)])
        rows = np.arange(len(features), dtype=np.int64)
        payload = OverlayPayload(EdgeRows(features, times), rows, np.zeros((0, 3), np.int64))
        return msgspec.structs.replace(overlay, payload=payload), seeds

    return with_payload


def changed_features_of(loaded: LoadedRevision, manifest: RevisionManifest, graph: ServedGraph) -> ChangedFeatures:
    """Features that batches of changes bring."""
    if why := _why_none(loaded, manifest, CHANGED_GRAPH):
        return UnknownFeatures(why)
    form = _FORMS[graph.naming.form]
    return KnownFeatures(tuple(one.columns for one in loaded.new_nodes.types), partial(form.place_of, graph.ids))


def _features_of(name: str, recipe: TypeRowRecipe, features_of: FeaturesOf | None) -> TypeFeatures:
    if recipe.columns is not None:
        return GivenFeatures(recipe.columns, _narrowed(features_of, recipe.columns))
    assert recipe.default is not None  # noqa: S101  (nodes come with features, or with a default)
    return LearntFeatures(name, recipe.default)


def _narrowed(features_of: FeaturesOf | None, columns: FeatureColumns) -> FeaturesOf | None:
    """What reads features of nodes of a type alone, as many as these columns."""
    if features_of is None:
        return None
    return lambda nodes: features_of(nodes)[:, : columns.features]


def _why_none(loaded: LoadedRevision, manifest: RevisionManifest, needed: Capabilities) -> str:
    """Empty: something can be brought."""
    if not any(point_of(variant).capabilities.cover(needed) for variant in manifest.variants):
        return "its variants read rows that were propagated over the graph as it was generated"
    if not loaded.new_nodes.types:
        return "an earlier gnnserve generated its revision and kept nothing of how rows are made; generate it again"
    return ""
