"""Hooks: what looks at a request before it is read, and at its reply before its client gets it.

Most requests have none. Those that have some go through them in the order in which `Predict.hooks` names them, each
around the next: a trace (`TracingHook`), and the share of a second revision (`canary.py`). A request that gives its
answer a time has `Timeout` inside of both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from gnnserve_worker.serving.engine.model import monotonic_ms
from gnnserve_worker.serving.http.waiting_request import WaitingRequest
from gnnserve_worker.serving.requests import Arrival, PendingRequest, Reply
from gnnserve_worker.serving.tracing.tracer import Tracer

Respond = Callable[[Reply], None]
"""Takes the reply of a request, once."""
Begun = PendingRequest | WaitingRequest | Reply
"""A request that was begun: its reply comes later, unless it is here."""
Begin = Callable[[Arrival, Respond], Begun]


class Hook(Protocol):
    def begin(self, arrival: Arrival, respond: Respond, go_on: Begin) -> Begun:
        """Begin the request by `go_on`, or in another way. `respond` is called later, unless there is a reply at once
        or the request is cancelled."""


class TracingHook:
    """Traces a request from its arrival to its reply."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def begin(self, arrival: Arrival, respond: Respond, go_on: Begin) -> Begun:
        tracer = self._tracer
        trace = tracer.begin(arrival.parent, arrival.path, arrival.arrived_ms)
        if trace is None:
            return go_on(arrival, respond)
        arrival = msgspec.structs.replace(arrival, trace=trace)

        def respond_and_end(reply: Reply) -> None:
            respond(reply)
            tracer.end(trace, monotonic_ms(), reply.status, reply.code)

        begun = go_on(arrival, respond_and_end)
        if isinstance(begun, Reply):
            tracer.end(trace, monotonic_ms(), begun.status, begun.code)
        return begun


class Timeout:
    """Drops a request, wherever it is, once its time has passed."""

    def __init__(self, respond: Respond, give_up: Callable[[PendingRequest], Reply | None]) -> None:
        """`give_up` drops the request, and returns the reply in its place; None: it is answered already."""
        self._respond = respond
        self._give_up = give_up
        self._timer: asyncio.TimerHandle | None = None

    def start(self, pending: PendingRequest, left_ms: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(max(0.0, left_ms) / 1000, self._end, pending)

    def respond(self, reply: Reply) -> None:
        """Takes the place of the request's own."""
        if self._timer is not None:
            self._timer.cancel()
        self._respond(reply)

    def _end(self, pending: PendingRequest) -> None:
        reply = self._give_up(pending)
        if reply is not None:
            self._respond(reply)
