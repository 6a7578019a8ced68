"""Description of a worker by itself: `GET /v1/variants` and `GET /v1/route`."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from gnnserve_api.files.graph_schema import RelationManifest
from gnnserve_api.http.protocol import (
    AccuracyTier,
    NodeTypeAnswer,
    RelationAnswer,
    StaleLayerAnswer,
    VariantsAnswer,
)
from gnnserve_api.pods.routing import CanaryRoute, CredentialState, Route
from gnnserve_api.tiers import points_of, stated_tiers
from gnnserve_worker.changes.report import state_of
from gnnserve_worker.changes.worker_log import Updates
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.accuracy.watch import AccuracyWatch
from gnnserve_worker.serving.engine.model import ServedModel
from gnnserve_worker.serving.metrics.state_metrics import program_state
from gnnserve_worker.serving.requests import Lane


class SecondRevision(Protocol):
    """The part of `serving/process/canary.py`'s ServedCanary that `/v1/route` tells of, and that labels go to."""

    @property
    def watch(self) -> AccuracyWatch | None: ...

    def route(self) -> CanaryRoute: ...

    async def stop_following(self) -> None: ...


def describe_variants(service: str, lane: Lane, watch: AccuracyWatch) -> VariantsAnswer:
    revision = lane.revision
    manifest = revision.manifest
    return VariantsAnswer(
        service=service,
        revision=manifest.revision,
        recipe=manifest.recipe,
        nodes=revision.graph.count(),
        node_ids=revision.graph.naming.kind,
        features=len(manifest.ranking.columns),
        profile=manifest.profile,
        provenance=revision.task.provenance,
        device=revision.compute.device_stats().device,
        tiers=tuple(
            AccuracyTier(permille, within.point.name, within.point.accuracy, within.relative_latency)
            for permille, within in stated_tiers(points_of(revision.answering)).items()
        ),
        accuracy=watch.observed() or msgspec.UNSET,
        types=_types(revision),
        relations=_relations(revision),
        stale=_stale(revision),
        standing=_standing(revision) or msgspec.UNSET,
        **_edges(revision),
        **revision.task.told(),
    )


def _types(revision: ServedRevision) -> tuple[NodeTypeAnswer, ...] | msgspec.UnsetType:
    graph = revision.graph
    told = tuple(
        NodeTypeAnswer(kind.name, graph.ids.nodes_of(kind), graph.ids.kind_of(kind), kind.features)
        for kind in graph.described.types
    )
    return told or msgspec.UNSET


def _relations(revision: ServedRevision) -> tuple[RelationAnswer, ...] | msgspec.UnsetType:
    described = {kind.name for kind in revision.graph.described.types}
    told = tuple(
        RelationAnswer(
            one.source,
            one.name,
            one.target,
            one.edges,
            one.both_ways,
            one.merges,
            one.reverse_of,
            **_payload(one) if one.reverse_of is None else {},
        )
        for one in revision.graph.types.relations
        if one.target in described
    )
    return told or msgspec.UNSET


def _stale(revision: ServedRevision) -> tuple[StaleLayerAnswer, ...] | msgspec.UnsetType:
    living = revision.changes.living
    if living is None or living.refreshing.budget is None:
        return msgspec.UNSET
    published = {one.name: one.validation_accuracy for one in revision.manifest.profile.variants}
    told = list[StaleLayerAnswer]()
    for layer in living.refreshing.layers:
        if names := living.variants_of(layer):
            loss = living.refreshing.expected_loss_permille(layer)
            now = {name: max(0.0, published[name] - loss / 1000) for name in names}
            rows, sensitivity = layer.rows, layer.sensitivity.bound
            told.append(StaleLayerAnswer(names, rows.count, rows.error, layer.read_error, sensitivity, loss, now))
    return tuple(told)


def _standing(revision: ServedRevision) -> tuple[str, ...]:
    answering = {variant.name for variant in revision.answering.variants}
    return tuple(one.name for one in revision.manifest.profile.variants if one.name not in answering)


def _edges(revision: ServedRevision) -> dict[str, Any]:
    """Members of `VariantsAnswer` about edges, of a graph whose relation has no name to tell them by."""
    graph = revision.graph
    told = [_payload(one) for one in graph.described.bare_relations(graph.types)]
    return told[0] if told else {}


def _payload(relation: RelationManifest) -> dict[str, Any]:
    """Members that tell what an edge of the relation has, as far as it has any."""
    found = relation.payload
    if found is msgspec.UNSET:
        return {}
    return {"edge_features": found.columns or msgspec.UNSET, "edge_time": found.time or msgspec.UNSET}


def describe_route(
    model: ServedModel, revision: ServedRevision, updates: Updates | None, *, needs_token: bool,
    credentials: tuple[CredentialState, ...], canary: CanaryRoute | None,
) -> Route:  # fmt: skip
    device, route, damage = revision.compute.device_stats(), model.route(), model.damage
    return msgspec.structs.replace(
        route,
        # Limits of what is refused whatever they are would promise it.
        overlay=route.overlay if revision.compute.overlays.takes_json else msgspec.UNSET,
        needs_token=needs_token,
        credentials=credentials,
        device=device.device,
        device_problem=msgspec.UNSET if device.problem is None else device.problem,
        accuracy=model.watch.observed() or msgspec.UNSET,
        inputs=model.watch.drifted_inputs() or msgspec.UNSET,
        program=program_state(revision.compute.programs(), model.table),
        damaged=msgspec.UNSET if damage is None else damage,
        updates=msgspec.UNSET if updates is None else state_of(updates),
        canary=msgspec.UNSET if canary is None else canary,
    )
