"""One tick of the slow loop as pure functions: from samples to signals, to a decision about the base variant and the
number of workers, to the workers' routing table.

The operator and `gnnserve run` call the same function, each with samples of its own source and its knowledge of the
workers: the operator asks Prometheus about pods that come and go, `gnnserve run` reads its own counters. The caller
decides when to ask, and delivers the table.

The base variant follows the *offered* load, which does not depend on the variant that answers; latency does, and a loop
that steps by it removes its own evidence. It steps to a faster variant at once, however many steps that takes, and back
one variant after two quiet ticks: being late is worse than being less accurate for half a minute. Silence changes
nothing, and neither do the same samples again.

Everything that is kept between ticks is in `RoutingState`. Its published part changes seldom: for a new base variant or
objective, for costs that differ noticeably (`costs.py`), and before costs expire. `words.py` has the messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import RoutingMode, RoutingTable, VariantRoute
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.status.verdict import Verdict
from gnnserve_routing import words
from gnnserve_routing.attainment import Attainment, judge_attainment
from gnnserve_routing.costs import (
    Costs,
    MeasuredCosts,
    capacity_seeds_per_s,
    estimate_costs,
    publish_costs,
    remember,
    share_of_time,
)
from gnnserve_routing.signals import QueryAnswer, Signals, Silence, read_signals

TARGET_UTILISATION = 0.85
"""Above this share of a variant's capacity a faster one is wanted: queues grow long before they are full."""
RETURN_UTILISATION = 0.75
"""Below this share of a more accurate variant's capacity a tick is quiet. The gap is for the noise of a constant load
that lies just at the edge: some hundred requests in an interval vary by 5 %."""
QUIET_TICKS = 2

_ROUNDING_PERMILLE = 1e-6
"""Slack for rounding, as in the worker's choice: a tolerance is inclusive, and a difference of floats is not exact."""
_TTL_INTERVALS, _SHORTEST_TTL_S = 5, 60.0
_CHOOSING_MODES = frozenset({RoutingMode.ADAPTIVE, RoutingMode.METRICS})


class Advice(StrEnum):
    SUFFICIENT = "Sufficient"
    """The most accurate variant that is allowed answers, or the one that the spec names."""
    STEPPED_DOWN = "SteppedDown"
    """A less accurate variant answers, because of the load."""
    SCALE_OUT = "ScaleOut"
    """No variant carries the load: more workers are needed."""


@dataclass(frozen=True, slots=True)
class RoutingObjective:
    """The mode and objective that a reason refers to."""

    mode: RoutingMode
    objective: Objective


@dataclass(frozen=True, slots=True)
class RoutingState:
    revision: str
    """The revision whose variants the state is about."""
    base: str | None = None
    """The base variant; None: not known yet, or fixed by the mode."""
    quiet_ticks: int = 0
    """Consecutive ticks in which a more accurate variant would have carried the load; ticks without measurements are
    skipped."""
    silences: int = 0
    """Consecutive ticks without a measurement."""
    newest_s: float = -math.inf
    """Unix time of the newest sample of the last tick that was counted."""
    is_scale_out: bool = False
    costs: Costs = field(default_factory=dict)
    """Published costs of variants whose cost is not the profile's."""
    measured: MeasuredCosts = field(default_factory=MeasuredCosts)
    attainment: Attainment = field(default_factory=Attainment)
    reason: str = ""
    """Why this base variant, as the sentence in the table."""
    asked: RoutingObjective | None = None
    """Mode and objective that the reason is about."""
    issued_at: str = ""
    """When the routing table was issued (RFC 3339); empty while it only repeats the spec."""


@dataclass(frozen=True, slots=True)
class RoutingDecision:
    state: RoutingState
    metrics_available: Verdict
    objective_met: Verdict
    capacity_sufficient: Verdict
    is_measured: bool | None = None
    """Whether the last measurement was usable; None: there was none."""
    advice: Advice | None = None
    """Advice. This and the following fields are None or empty where nothing was measured this time."""
    wanted_workers: int | None = None
    """Fewest workers that carry the offered load with the fastest allowed variant; None: no number does."""
    offered_seeds_per_s: float | None = None
    """Load offered to all workers together; capacities are totals too."""
    capacity_seeds_per_s: Mapping[str, float] = field(default_factory=dict)
    """Seeds/s that all workers carry, by variant."""
    attained_ratio: float | None = None
    """Share in time of the last interval's requests with a latency objective; None: there were none."""


def recover_state(revision: str, table: RoutingTable | None, objective_met: bool | None = None) -> RoutingState:
    """Recover the state at the start, and when another revision is published, from the last published table and from
    whether the objective was reported as met."""
    attainment = Attainment(objective_met)
    if table is None or table.revision != revision or not table.issued_at:
        return RoutingState(revision, attainment=attainment)
    return RoutingState(
        revision,
        base=table.base_variant if table.mode in _CHOOSING_MODES else None,
        costs=table.costs,
        measured=MeasuredCosts(costs=table.costs),
        attainment=attainment,
        reason=table.reason,
        asked=RoutingObjective(table.mode, table.objective),
        issued_at=table.issued_at,
    )


def routed_table(declared: RoutingTable, state: RoutingState, interval_s: float) -> RoutingTable:
    """The spec's own table with the measured values; exactly the spec's, where nothing was measured."""
    if state.revision != declared.revision or not state.issued_at:
        return declared
    chosen = state.base if declared.mode in _CHOOSING_MODES else None
    if chosen is None and not state.costs:
        return declared
    return msgspec.structs.replace(
        declared,
        base_variant=chosen or declared.base_variant,
        costs=dict(state.costs),
        reason=state.reason if state.asked == RoutingObjective(declared.mode, declared.objective) else "",
        issued_at=state.issued_at,
        ttl_seconds=_ttl_s(interval_s) if state.costs else None,
    )


def unknown_variants(spec: GNNServiceSpec, names: Sequence[str]) -> tuple[str, ...]:
    """Variants that spec.routing names and that are not among `names`."""
    return tuple(name for name in spec.routing.named_variants if name not in names)


def decide_routing(
    before: RoutingState,
    spec: GNNServiceSpec,
    candidates: Sequence[VariantRoute],
    workers: int,
    measured: Signals | Silence,
    now: datetime,
) -> RoutingDecision:
    """Decide. `candidates`: the revision's variants as a ready worker reports them, at least one; `workers`: number of
    ready workers, at least one."""
    if isinstance(measured, Silence):
        return RoutingDecision(
            replace(before, silences=before.silences + 1),
            words.silent(measured),
            words.NOT_MEASURED,
            words.NOT_MEASURED,
            is_measured=False,
        )
    latency_ms, max_seeds = spec.objective.latency_ms, spec.worker.batching.max_seeds
    profiled = {candidate.name: candidate.profiled for candidate in candidates}
    is_new = measured.is_newer_than(before.newest_s)
    remembered, attainment = before.measured, before.attainment
    if is_new:
        remembered = remember(remembered, profiled, measured.variants, max_seeds, spec.routing.interval_seconds)
        attainment = judge_attainment(attainment, measured.outcomes, spec.objective.percentile)
    costs = publish_costs(before.costs, estimate_costs(remembered, profiled), profiled, max_seeds)
    # Use the published costs: they are stable, and the decision can be checked against what is published.
    available = workers * share_of_time(remembered)
    capacity = {
        name: available * capacity_seeds_per_s(costs.get(name, cost), latency_ms, max_seeds)
        for name, cost in profiled.items()
    }
    allowed = _allowed(spec, candidates)
    nearest = min(allowed, key=lambda name: costs.get(name, profiled[name]).at(1))
    load = _decide_load(before, spec, _Choice(allowed, capacity, nearest), measured.offered_seeds_per_s, is_new=is_new)
    situation = words.RoutingSituation(spec, workers, capacity, measured.offered_seeds_per_s, load.limit, allowed)
    wanted_workers = _wanted_workers(measured.offered_seeds_per_s, load.limit / workers)
    state = replace(
        before,
        base=load.base,
        quiet_ticks=load.quiet_ticks,
        silences=0,
        newest_s=measured.newest_s if is_new else before.newest_s,
        is_scale_out=load.is_scale_out,
        costs=costs,
        measured=remembered,
        attainment=attainment,
    )
    return RoutingDecision(
        _issue(before, state, words.reason(situation, load.base, load.goal, load.is_scale_out), spec, now),
        words.MEASURED,
        words.objective_met(spec, attainment.holds),
        _capacity_verdict(situation, load),
        is_measured=True,
        advice=load.advice,
        wanted_workers=wanted_workers,
        offered_seeds_per_s=measured.offered_seeds_per_s,
        capacity_seeds_per_s=capacity,
        attained_ratio=measured.outcomes.met / measured.outcomes.bounded if measured.outcomes.bounded else None,
    )


@dataclass(frozen=True, slots=True)
class _Choice:
    """The choice between the variants within the service's tolerance."""

    allowed: tuple[str, ...]
    """The most accurate first."""
    capacity: Mapping[str, float]
    """Seeds/s of all workers, by variant."""
    nearest: str
    """The variant that answers one node soonest."""

    def find_carrier(self, offered: float, utilisation: float) -> str:
        """The most accurate variant that carries the load; else the one that carries most of it."""
        for name in self.allowed:
            if self.capacity[name] > 0 and offered <= utilisation * self.capacity[name]:
                return name
        most = max(self.allowed, key=self.capacity.__getitem__)
        return most if self.capacity[most] > 0 else self.nearest


@dataclass(frozen=True, slots=True)
class _Load:
    base: str | None
    goal: str | None
    """The variant that the base is moving to, step by step."""
    quiet_ticks: int
    limit: float
    """Most seeds/s that all workers carry with any allowed variant."""
    is_scale_out: bool
    advice: Advice | None
    """How many workers help; None: no number does."""


def _decide_load(before: RoutingState, spec: GNNServiceSpec, choice: _Choice, offered: float, *, is_new: bool) -> _Load:
    base, goal, quiet_ticks, is_stepped = None, None, 0, False
    if spec.routing.mode not in _CHOOSING_MODES:
        limit = _declared_capacity(spec, choice.capacity)
    elif spec.objective.latency_ms is None:
        # The choice of an idle worker.
        is_fastest_wanted = spec.objective.accuracy_tolerance_permille is not None
        base = goal = choice.nearest if is_fastest_wanted else choice.allowed[0]
        limit = choice.capacity[base]
    else:
        is_stepped = True
        base, goal, quiet_ticks = _step(before, choice, offered, is_new=is_new)
        limit = max(choice.capacity[name] for name in choice.allowed)
    utilisation = RETURN_UTILISATION if before.is_scale_out else TARGET_UTILISATION
    is_scale_out = limit > 0 and offered > utilisation * limit
    advice: Advice | None = Advice.SUFFICIENT
    if limit <= 0:
        advice = None
    elif is_scale_out:
        advice = Advice.SCALE_OUT
    elif is_stepped and base != words.most_accurate(choice.allowed, choice.capacity):
        advice = Advice.STEPPED_DOWN
    return _Load(base, goal, quiet_ticks, limit, is_scale_out, advice)


def _allowed(spec: GNNServiceSpec, candidates: Sequence[VariantRoute]) -> tuple[str, ...]:
    """Allowed variants, the most accurate first; of equally accurate ones only the fastest: under load where there is a
    latency objective, else for one node, as an idle worker chooses."""
    seeds = 1 if spec.objective.latency_ms is None else spec.worker.batching.max_seeds
    tolerance = spec.objective.accuracy_tolerance_permille
    limit = math.inf if tolerance is None else tolerance + _ROUNDING_PERMILLE
    allowed = [candidate for candidate in candidates if candidate.loss_permille <= limit]
    allowed.sort(key=lambda c: (c.loss_permille, c.profiled.at(seeds), c.name))
    return tuple(candidate.name for candidate in allowed)


def _step(before: RoutingState, choice: _Choice, offered: float, *, is_new: bool) -> tuple[str, str, int]:
    """The next base variant, the variant that it is moving to, and the number of quiet ticks."""
    allowed, capacity = choice.allowed, choice.capacity
    wanted = choice.find_carrier(offered, TARGET_UTILISATION)
    if before.base is None or before.base not in allowed or allowed.index(wanted) > allowed.index(before.base):
        return wanted, wanted, 0
    at = allowed.index(before.base)
    goal = choice.find_carrier(offered, RETURN_UTILISATION)
    if allowed.index(goal) >= at:
        return before.base, before.base, 0
    quiet_ticks = before.quiet_ticks + is_new
    if quiet_ticks < QUIET_TICKS:
        return before.base, goal, quiet_ticks
    # The next one; a variant that is no faster than a more accurate one is no step on the way.
    steps = [n for i, n in enumerate(allowed[:at]) if all(capacity[n] > capacity[other] for other in allowed[:i])]
    return next((name for name in reversed(steps) if allowed.index(name) >= allowed.index(goal)), goal), goal, 0


def _declared_capacity(spec: GNNServiceSpec, capacity: Mapping[str, float]) -> float:
    """Capacity in modes Static and Weights; an unknown variant carries nothing."""
    weights = spec.routing.weights or {spec.routing.variant or "": 1}
    shares = {name: weight for name, weight in weights.items() if weight > 0}
    if any(capacity.get(name, 0.0) <= 0 for name in shares):
        return 0.0
    return sum(shares.values()) / sum(weight / capacity[name] for name, weight in shares.items())


def _wanted_workers(offered: float, limit_of_one: float) -> int | None:
    if limit_of_one <= 0:
        return None
    return max(math.ceil(offered / TARGET_UTILISATION / limit_of_one), 1)


def _capacity_verdict(situation: words.RoutingSituation, load: _Load) -> Verdict:
    match load.advice:
        case None:
            return words.out_of_reach(situation)
        case Advice.SCALE_OUT:
            return words.scale_out(situation, load.base)
        case Advice.STEPPED_DOWN:
            return words.stepped_down(situation, load.base)
        case Advice.SUFFICIENT:
            return words.sufficient(situation, load.base)


def _issue(before: RoutingState, state: RoutingState, reason: str, spec: GNNServiceSpec, now: datetime) -> RoutingState:
    """Issue the table again for another base, reason or costs, and before costs expire."""
    stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    is_first = not before.issued_at and (state.base is not None or bool(state.costs))
    asked = RoutingObjective(spec.routing.mode, spec.objective.to_objective())
    if is_first or state.base != before.base or (before.issued_at and asked != before.asked):
        return replace(state, reason=reason, asked=asked, issued_at=stamp)
    # A stamp in the future comes from a clock that was set back since.
    is_fresh = 0 <= _age_s(before.issued_at, now) < _ttl_s(spec.routing.interval_seconds) / 2
    is_due = bool(state.costs) and not is_fresh
    return replace(state, issued_at=stamp) if is_due or state.costs != before.costs else state


def _ttl_s(interval_s: float) -> float:
    return max(_TTL_INTERVALS * interval_s, _SHORTEST_TTL_S)


def _age_s(stamp: str, now: datetime) -> float:
    try:
        return (now - datetime.fromisoformat(stamp)).total_seconds()
    except (ValueError, TypeError):  # not a stamp of the operator: treated as none
        return math.inf


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


def undecided(state: RoutingState, why: Verdict = words.NOT_MEASURED) -> RoutingDecision:
    """The decision before anything was measured, or while nothing can be."""
    unknown = Verdict(None, why.reason, words.NOT_MEASURED.message)
    return RoutingDecision(state, why, unknown, unknown)


def next_due_s(due_s: float, interval_s: float, now_s: float) -> float:
    """When the tick after the one that was due at `due_s` is due: by the clock and not by the answers, so that it does
    not drift. Ticks that were missed are not made up for."""
    return max(due_s + interval_s, now_s)
