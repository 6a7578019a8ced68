"""A spec that is routed by the slow loop, and its candidates."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.support.operator.observed import make_service

from gnnserve_api.pods.routing import AffineCost, VariantRoute
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_routing.signals import Silence

START = datetime(2026, 1, 1, tzinfo=UTC)
STAMP = "2026-01-01T00:00:00Z"
REVISION = "rev-1"
LATENCY_MS = 100.0
COSTS = {"x1": AffineCost(8, 0.08), "x2": AffineCost(4, 0.04), "x4": AffineCost(2, 0.02), "x8": AffineCost(1, 0.01)}
LOSS_PERMILLE = {"x1": 0.0, "x2": 5.0, "x4": 20.0, "x8": 60.0}
CANDIDATES = tuple(VariantRoute(name, LOSS_PERMILLE[name], cost, cost) for name, cost in COSTS.items())
STALE = Silence(Reason.STALE, "Nothing new.")


def make_spec(latency_ms: float | None = LATENCY_MS, tolerance: int | None = None, **routing: Any) -> GNNServiceSpec:
    objective = {"latencyMs": latency_ms, "accuracyTolerancePermille": tolerance}
    batching = {"maxSeeds": 1000}
    return make_service(
        objective={name: value for name, value in objective.items() if value is not None},
        worker={"batching": batching},
        routing=routing,
    ).spec
