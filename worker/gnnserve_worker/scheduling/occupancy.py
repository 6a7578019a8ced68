"""Until when the worker is occupied by batches that were closed."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Occupancy:
    running_until_ms: float = -math.inf
    """When the running batch is expected to end; -inf for an idle worker."""

    @property
    def is_busy(self) -> bool:
        return self.running_until_ms > -math.inf

    def rest_ms(self, now_ms: float) -> float:
        """Expected time until the running batch ends."""
        return max(0.0, self.running_until_ms - now_ms)

    def finish(self) -> None:
        self.running_until_ms = -math.inf
