"""A lane: one revision with its routing and its queue, from a switch to it until its last request is answered."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gnnserve_api.batching import Batching
from gnnserve_api.objective import Objective
from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.routing import RoutingTable
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.inference.served_changes import STILL, ServedChanges
from gnnserve_worker.scheduling.batcher import Batcher
from gnnserve_worker.scheduling.choice import NO_LOSSES, VariantChooser


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """A revision with its routing and its queue."""

    revision: ServedRevision
    objective: Objective
    """The service's own objective, for requests that state none."""
    batching: Batching
    overlay_limits: OverlayLimits
    changes: ServedChanges | None
    """Those of the revision's graph; None: it stays as it is."""
    chooser: VariantChooser
    batcher: Batcher
    seeds: np.ndarray
    """int64 [max_seeds]: seeds of the running batch, copied from its requests."""


def open_lane(
    revision: ServedRevision,
    table: RoutingTable,
    chooser: VariantChooser | None,
    before: Lane | None,
    now_ms: float,
    losses_in_service: Mapping[str, float] = NO_LOSSES,
) -> Lane:
    """Open the lane that follows `before`. `chooser` keeps what was learnt about this same revision; for another one,
    or with other losses, only the machine's part is kept. `losses_in_service`: as `VariantChooser` takes them."""
    batching, busy_until_ms, costs_before = table.batching, -math.inf, None
    if before is not None:
        busy_until_ms = before.batcher.busy_until_ms(now_ms)
        costs_before = before.chooser.costs
    if chooser is None:
        chooser = VariantChooser(revision.manifest.profile, batching.max_seeds, costs_before, losses_in_service)
    # A random start: replicas with equal starts would go through their weights in step.
    drawn = secrets.randbelow(1 << 20) / (1 << 20)
    batcher = Batcher(chooser, table, batching.max_queued_seeds, busy_until_ms, drawn)
    changes = None if revision.changes is STILL else revision.changes
    seeds = np.empty(batching.max_seeds, np.int64)
    return Lane(revision, table.objective, batching, table.overlay, changes, chooser, batcher, seeds)
