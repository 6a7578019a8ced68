"""Limits of what clients of a gRPC listener may do at once, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from gnnserve_worker.serving.http.wire.limits import DEFAULT_PATIENCE


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    connections: int = 512
    """More are closed at once."""
    calls: int = 4096
    """Calls of one message under way."""
    streams: int = 1024
    """Calls of many messages; they may stay for as long as they like."""
    message_s: float = DEFAULT_PATIENCE.request_s
    """Time from a call to its message."""
    handshake_s: float = 10.0
    """Time from a connection to its first call."""
    silent_s: float = 60.0
    """Time until a client that says nothing is asked whether it is there."""
    idle_s: float = 300.0
    """Time without calls after which a connection is closed; clients connect anew by themselves."""


DEFAULT_GRPC_LIMITS = GrpcLimits()
