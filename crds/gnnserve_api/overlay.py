"""Limits of a request's overlay: the nodes, edges and features that it brings for itself alone; one type for the
manifest's `spec.endpoint.overlay` and the routing table."""

from __future__ import annotations

import msgspec


class OverlayLimits(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    max_nodes: int = 1024
    """New nodes and overrides of one request; 0: no request may have an overlay."""
    max_edges: int = 16_384
    """Edges of one request."""


DEFAULT_OVERLAY_LIMITS = OverlayLimits()
