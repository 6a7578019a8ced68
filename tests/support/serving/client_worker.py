"""A fake worker with all that a client can ask of one: overlays, changes, labels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tests.support.changes.fake_updates import FakeUpdates
from tests.support.graphs.graphs import graph_of
from tests.support.overlays.overlays import arrange_overlay
from tests.support.serving.serving import NODES, FakeWorker

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.repository import SourceColumn
from gnnserve_worker.asking.edge_payload import BARE_EDGES, EdgePayloads
from gnnserve_worker.asking.overlay import OverlaySupport
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.overlay import Overlay

FEATURES = 64
_GRAPH = graph_of([[]] * NODES)
COLUMNS = tuple(SourceColumn(f"pixel{i}", 1, (0.0,)) for i in range(FEATURES))


@dataclass(slots=True)
class Brought:
    """The overlays that the worker was asked to arrange."""

    overlays: list[dict[str, Any]] = field(default_factory=list)

    def arrange(
        self, features: np.ndarray, overridden: np.ndarray, edges: np.ndarray, seeds: np.ndarray, *others: Any
    ) -> tuple[Overlay, np.ndarray]:
        parts = {"features": features, "overridden": overridden, "edges": edges, "seeds": seeds}
        if (payload := others[-1]) is not None:
            parts |= {"edge_features": payload.features, "edge_times": payload.times}
        self.overlays.append({name: part.tolist() for name, part in parts.items()})
        return arrange_overlay(_GRAPH, EdgeRules(Direction.DIRECTED), features, overridden, edges, seeds)


def client_worker(brought: Brought, payloads: EdgePayloads = BARE_EDGES, **options: Any) -> FakeWorker:
    """A worker whose graph changes, and that keeps what requests bring; `options` are those of FakeWorker."""
    support = OverlaySupport(
        FeatureColumns(FEATURES, COLUMNS),
        brought.arrange,
        lambda of: np.zeros((len(of), FEATURES), np.float32),
        payloads,
    )
    return FakeWorker(overlays=support, updates=FakeUpdates(), **options)
