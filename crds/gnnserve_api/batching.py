"""How a worker queues and groups requests; one type for the manifest's `spec.worker.batching` and the routing table."""

from __future__ import annotations

import msgspec


class Batching(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    max_seeds: int = 1024
    """Nodes computed together; larger requests are split."""
    max_queued_seeds: int = 65_536
    """Nodes that may wait; beyond it requests are refused with 429. Also the largest request."""


DEFAULT_BATCHING = Batching()
