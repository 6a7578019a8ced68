"""Objective of a request or a service: a latency, an accuracy tolerance, both, or nothing.

One type for the manifest's `spec.objective`, a request's `objective` and the routing table, so that the three
cannot drift apart. Choosing a variant from it is the worker's `scheduling/choice.py`.
"""

from __future__ import annotations

import msgspec


class Objective(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A latency alone asks for the best accuracy within it; a tolerance alone for the lowest latency within it;
    both for the best accuracy within the latency, never below the tolerance
    (Dynamic GNN inference as-a-service, section 4.3)."""

    latency_ms: float | None = None
    """Milliseconds from arrival at the worker to the answer, above 0, at most 3,600,000; absent: no deadline."""
    accuracy_tolerance_permille: float | None = None
    """Permille of accuracy, absolute and inclusive, below the most accurate served variant's validation
    score, 0 to 1000; 10 is one point."""

    def is_empty(self) -> bool:
        return self.latency_ms is None and self.accuracy_tolerance_permille is None


NO_OBJECTIVE = Objective()


# Priorities of requests, numbered as Triton does (0 is the default, 1 the highest): they decide which requests go
# first, and which are refused first where not all can be answered.
HIGHEST_PRIORITY = 1
DEFAULT_PRIORITY = 2
LOWEST_PRIORITY = 3
