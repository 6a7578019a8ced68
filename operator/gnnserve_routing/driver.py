"""One tick of the slow loop: from samples to signals, to a decision, to the workers' routing table.

The operator and `gnnserve run` call the same function, each with samples of its own source and its knowledge of the
workers: the operator asks Prometheus about pods that come and go, `gnnserve run` reads its own counters. The caller
decides when to ask, and delivers the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from gnnserve_api.pods.routing import RoutingTable, VariantRoute
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_routing.decision import RoutingDecision, RoutingState, decide_routing, routed_table
from gnnserve_routing.signals import QueryAnswer, Signals, Silence, read_signals
from gnnserve_routing.verdict import Verdict
from gnnserve_routing.words import NOT_MEASURED


@dataclass(frozen=True, slots=True)
class TickContext:
    """Facts that the caller knows about the service of a tick."""

    spec: GNNServiceSpec
    declared: RoutingTable
    """The spec's own table over the revision that is answered from."""
    candidates: tuple[VariantRoute, ...]
    """The variants of that revision, as a ready worker reports them; empty: none has yet."""
    workers: int | None = None
    """Number of ready workers, at least one. None: as many as there are samples of, at least one."""
    ready_since_s: Mapping[str, float] = field(default_factory=dict)
    """Unix time since when each pod is ready; empty where workers are not pods."""


@dataclass(frozen=True, slots=True)
class Tick:
    decision: RoutingDecision
    """The decision; its `state` is passed to the next tick."""
    table: RoutingTable
    """The table for the workers."""
    measured: Signals | Silence | None
    """The signals from the samples; None: nothing new was asked."""


def run_tick(known: RoutingDecision, context: TickContext, said: QueryAnswer | Silence | None, now: datetime) -> Tick:
    """`known`: the last decision about this revision, or `undecided`; `said`: what the source answered since, None:
    nothing."""
    interval_s = float(context.spec.routing.interval_seconds)
    measured: Signals | Silence | None
    match said:
        case QueryAnswer():
            known_workers = context.workers or 1
            measured = read_signals(
                said, interval_s=interval_s, workers=known_workers, ready_since_s=context.ready_since_s
            )
        case Silence() | None:
            measured = said
    decision = known
    if isinstance(measured, Silence) or (isinstance(measured, Signals) and context.candidates):
        seen = measured.workers_seen if isinstance(measured, Signals) else 1
        workers = context.workers or max(seen, 1)
        decision = decide_routing(known.state, context.spec, context.candidates, workers, measured, now)
        if known.is_measured and decision.state.silences == 1:
            # One question without an answer is no news: conditions and metrics stay until the next one.
            decision = replace(known, state=decision.state)
    return Tick(decision, routed_table(context.declared, decision.state, interval_s), measured)


def undecided(state: RoutingState, why: Verdict = NOT_MEASURED) -> RoutingDecision:
    """The decision before anything was measured, or while nothing can be."""
    unknown = Verdict(None, why.reason, NOT_MEASURED.message)
    return RoutingDecision(state, why, unknown, unknown)


def next_due_s(due_s: float, interval_s: float, now_s: float) -> float:
    """When the tick after the one that was due at `due_s` is due: by the clock and not by the answers, so that it does
    not drift. Ticks that were missed are not made up for."""
    return max(due_s + interval_s, now_s)
