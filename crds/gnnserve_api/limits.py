"""Limits of requests, of batches and of making stale rows anew; one type each for the manifest
(`spec.endpoint.overlay`, `spec.worker.batching`, `spec.updates.refresh`) and the routing table."""

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


class RefreshBudget(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Budget for making stale rows of stored layers anew."""

    rows: int = 256
    """Stale rows that a request makes anew; 0: none."""
    microseconds: int = 500
    """Time that a request spends on it."""
    background_permille: int = 100
    """Share of a core that is spent on it between requests; 0: none."""


MOST_BACKGROUND_PERMILLE = 100
"""Rows are made anew between requests for half a millisecond at a time, 5 ms apart."""
