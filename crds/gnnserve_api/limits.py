"""Limits of requests and of batches; one type each for the manifest (`spec.endpoint.overlay`, `spec.worker.batching`)
and the routing table."""

from __future__ import annotations

import msgspec


class OverlayLimits(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    max_nodes: int = 1024
    """New nodes and overrides of one request; 0: no request may have an overlay."""
    max_edges: int = 16_384
    """Edges of one request."""


DEFAULT_OVERLAY_LIMITS = OverlayLimits()


class Batching(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    max_seeds: int = 1024
    """Nodes computed together; larger requests are split."""
    max_queued_seeds: int = 65_536
    """Nodes that may wait; beyond it requests are refused with 429. Also the largest request."""


DEFAULT_BATCHING = Batching()
