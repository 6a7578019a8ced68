"""Until when the worker is occupied by batches that were closed."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Occupancy:
    running_until_ms: float = -math.inf
    """When the running batch is expected to end."""
    is_busy: bool = False

    @classmethod
    def until(cls, busy_until_ms: float) -> Occupancy:
        """`busy_until_ms`: -inf for an idle worker."""
        return cls(busy_until_ms, busy_until_ms > -math.inf)

    def rest_ms(self, now_ms: float) -> float:
        """Expected time until the running batch ends."""
        return max(0.0, self.running_until_ms - now_ms)

    def start(self, until_ms: float) -> None:
        self.running_until_ms = until_ms
        self.is_busy = True

    def finish(self) -> None:
        self.running_until_ms = -math.inf
        self.is_busy = False
