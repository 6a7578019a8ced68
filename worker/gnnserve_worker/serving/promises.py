"""What the models that share a worker promise, and so how long a turn and a claim of each may be."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gnnserve_worker.scheduling.turns import longest_turn_ms, most_claimed_ms
from gnnserve_worker.serving.lane import Lane
from gnnserve_worker.serving.model import ServedModel


def longest_turn_of(models: Sequence[ServedModel], model: ServedModel) -> float:
    """How long the model's next batch may take, for the sake of the other services. Two revisions of one service do not
    shorten each other's: they have one objective, which their batches keep."""
    service = model.service
    if len(models) == 1:
        return math.inf
    return longest_turn_ms(
        [other.lane.objective.latency_ms for other in models if other.service != service and other.lane is not None]
    )


def most_claimed_of(models: Sequence[ServedModel], model: ServedModel, lane: Lane | None) -> float:
    """How much time the model may claim of what it left. `lane`: the one whose requests are next; None: it has no
    revision, and so no promise."""
    return most_claimed_ms(
        None if lane is None else lane.objective.latency_ms,
        [other.lane.objective.latency_ms for other in models if other is not model and other.lane is not None],
    )
