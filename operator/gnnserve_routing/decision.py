"""Which variant should answer, and are there enough workers? The slow loop's judgement, as a pure function.

Run by the operator at each interval with what Prometheus measured, and by servers outside of a cluster. The base
variant follows the *offered* load, which does not depend on the variant that answers; latency does, and a loop that
steps by it removes its own evidence. It steps to a faster variant at once, however many steps that takes, and back one
variant after two quiet ticks: being late is worse than being less accurate for half a minute. Silence changes nothing,
and neither do the same samples again.

All that is remembered between ticks is in `RoutingState`. What of it workers are told changes seldom: for a new base
variant or objective, for costs that differ noticeably (`costs.py`), and before costs expire. The words are in
`routing_words.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from gnnserve_api.objective import Objective
from gnnserve_api.routing import RoutingMode, RoutingTable, VariantRoute
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_routing import words
from gnnserve_routing.attainment import Attainment, judge_attainment
from gnnserve_routing.costs import (
    Costs,
    Measured,
    capacity_seeds_per_s,
    estimate_costs,
    publish_costs,
    remember,
)
from gnnserve_routing.signals import Signals, Silence
from gnnserve_routing.verdict import Verdict

TARGET_UTILISATION = 0.85
"""Above this share of a variant's capacity a faster one is wanted: queues grow long before they are full."""
RETURN_UTILISATION = 0.75
"""Below this share of a more accurate variant's capacity a tick is quiet. The gap is for the noise of a constant load
that lies just at the edge: some hundred requests in an interval vary by 5 %."""
QUIET_TICKS = 2

_ROUNDING_PERMILLE = 1e-6
"""As in the worker's choice: a tolerance is inclusive, and a difference of floats is not exact."""
_TTL_INTERVALS, _SHORTEST_TTL_S = 5, 60.0
_CHOOSING_MODES = frozenset({RoutingMode.ADAPTIVE, RoutingMode.METRICS})


class Advice(StrEnum):
    SUFFICIENT = "Sufficient"
    """The most accurate variant that is allowed answers, or the one that the spec names."""
    STEPPED_DOWN = "SteppedDown"
    """A less accurate one answers, because of the load."""
    SCALE_OUT = "ScaleOut"
    """None carries the load: more workers are needed."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a reason speaks of, besides figures."""

    mode: RoutingMode
    objective: Objective


@dataclass(frozen=True, slots=True)
class RoutingState:
    revision: str
    """Whose variants all of this is about."""
    base: str | None = None
    """None: not known yet, or not ours to choose."""
    quiet_ticks: int = 0
    """In a row, in which a more accurate variant would have carried the load; silent ones in between do not count."""
    silences: int = 0
    """In a row, until now."""
    newest_s: float = -math.inf
    """Unix time of the newest sample of the last tick that was counted."""
    is_scale_out: bool = False
    costs: Costs = field(default_factory=dict)
    """As published, where they are not the profile's."""
    measured: Measured = field(default_factory=Measured)
    attainment: Attainment = field(default_factory=Attainment)
    reason: str = ""
    """Why this base, in the sentence that is in the table."""
    asked: Asked | None = None
    """That the reason is about."""
    issued_at: str = ""
    """Of the table; empty: there is nothing in it but the spec's."""


@dataclass(frozen=True, slots=True)
class RoutingDecision:
    state: RoutingState
    metrics_available: Verdict
    objective_met: Verdict
    capacity_sufficient: Verdict
    is_measured: bool | None = None
    """Whether the last measurement brought anything; None: there was none."""
    advice: Advice | None = None
    """This and what follows: None and empty where nothing was measured this time."""
    wanted_workers: int | None = None
    """The fewest that carry the offered load with the fastest allowed variant; None: no number does."""
    offered_seeds_per_s: float | None = None
    """To all workers together; capacities likewise."""
    capacity_seeds_per_s: Mapping[str, float] = field(default_factory=dict)
    """By variant."""
    attained_ratio: float | None = None
    """Of the requests of the last interval that asked for a latency; None: there were none."""


def recover_state(revision: str, table: RoutingTable | None, objective_met: bool | None = None) -> RoutingState:
    """At the start, and when another revision is published: from the table that was published last, and from whether
    the objective was said to be met."""
    attainment = Attainment(objective_met)
    if table is None or table.revision != revision or not table.issued_at:
        return RoutingState(revision, attainment=attainment)
    return RoutingState(
        revision,
        base=table.base_variant if table.mode in _CHOOSING_MODES else None,
        costs=table.costs,
        measured=Measured(costs=table.costs),
        attainment=attainment,
        reason=table.reason,
        asked=Asked(table.mode, table.objective),
        issued_at=table.issued_at,
    )


def routed_table(declared: RoutingTable, state: RoutingState, interval_s: float) -> RoutingTable:
    """The spec's own table with what was measured; exactly the spec's, where nothing was."""
    if state.revision != declared.revision or not state.issued_at:
        return declared
    chosen = state.base if declared.mode in _CHOOSING_MODES else None
    if chosen is None and not state.costs:
        return declared
    return msgspec.structs.replace(
        declared,
        base_variant=chosen or declared.base_variant,
        costs=dict(state.costs),
        reason=state.reason if state.asked == Asked(declared.mode, declared.objective) else "",
        issued_at=state.issued_at,
        ttl_seconds=_ttl_s(interval_s) if state.costs else None,
    )


def unknown_variants(spec: GNNServiceSpec, names: Sequence[str]) -> tuple[str, ...]:
    """Those that spec.routing names and that are not among `names`."""
    return tuple(name for name in spec.routing.named_variants if name not in names)


def decide_routing(
    before: RoutingState,
    spec: GNNServiceSpec,
    candidates: Sequence[VariantRoute],
    workers: int,
    measured: Signals | Silence,
    now: datetime,
) -> RoutingDecision:
    """`candidates`: the variants of the revision, as a ready worker tells them, at least one; `workers`: how many are
    ready, at least one."""
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
    # By the costs as published: they keep still, and what is decided can be checked by what is published.
    capacity = {
        name: workers * capacity_seeds_per_s(costs.get(name, cost), latency_ms, max_seeds)
        for name, cost in profiled.items()
    }
    allowed = _allowed(spec, candidates)
    nearest = min(allowed, key=lambda name: costs.get(name, profiled[name]).at(1))
    load = _decide_load(before, spec, _Choice(allowed, capacity, nearest), measured.offered_seeds_per_s, is_new=is_new)
    situation = words.Situation(spec, workers, capacity, measured.offered_seeds_per_s, load.limit, allowed)
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
    """Between the variants within the service's tolerance."""

    allowed: tuple[str, ...]
    """The most accurate first."""
    capacity: Mapping[str, float]
    """Seeds/s of all workers, by variant."""
    nearest: str
    """Which answers one node soonest."""

    def find_carrier(self, offered: float, utilisation: float) -> str:
        """The most accurate that carries the load; else the one that carries most of it."""
        for name in self.allowed:
            if self.capacity[name] > 0 and offered <= utilisation * self.capacity[name]:
                return name
        most = max(self.allowed, key=self.capacity.__getitem__)
        return most if self.capacity[most] > 0 else self.nearest


@dataclass(frozen=True, slots=True)
class _Load:
    base: str | None
    goal: str | None
    """Where the base is on its way to."""
    quiet_ticks: int
    limit: float
    """Seeds/s that all workers carry at most, with whatever variant may answer."""
    is_scale_out: bool
    advice: Advice | None
    """None: no number of workers helps."""


def _decide_load(before: RoutingState, spec: GNNServiceSpec, choice: _Choice, offered: float, *, is_new: bool) -> _Load:
    base, goal, quiet_ticks, is_stepped = None, None, 0, False
    if spec.routing.mode not in _CHOOSING_MODES:
        limit = _declared_capacity(spec, choice.capacity)
    elif spec.objective.latency_ms is None:
        # As a worker chooses that has nothing else to do.
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
    """The most accurate first; of equally accurate ones the fastest, under load where a latency is asked for, else
    for one node, as an idle worker chooses."""
    seeds = 1 if spec.objective.latency_ms is None else spec.worker.batching.max_seeds
    tolerance = spec.objective.accuracy_tolerance_permille
    limit = math.inf if tolerance is None else tolerance + _ROUNDING_PERMILLE
    allowed = [candidate for candidate in candidates if candidate.loss_permille <= limit]
    allowed.sort(key=lambda c: (c.loss_permille, c.profiled.at(seeds), c.name))
    return tuple(candidate.name for candidate in allowed)


def _step(before: RoutingState, choice: _Choice, offered: float, *, is_new: bool) -> tuple[str, str, int]:
    """The base from now on, where it is on its way to, and for how many ticks it has been quiet."""
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
    """In modes Static and Weights; a variant that is not there carries nothing."""
    weights = spec.routing.weights or {spec.routing.variant or "": 1}
    shares = {name: weight for name, weight in weights.items() if weight > 0}
    if any(capacity.get(name, 0.0) <= 0 for name in shares):
        return 0.0
    return sum(shares.values()) / sum(weight / capacity[name] for name, weight in shares.items())


def _wanted_workers(offered: float, limit_of_one: float) -> int | None:
    if limit_of_one <= 0:
        return None
    return max(math.ceil(offered / TARGET_UTILISATION / limit_of_one), 1)


def _capacity_verdict(situation: words.Situation, load: _Load) -> Verdict:
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
    """Workers are told of another base, another reason or other costs, and of costs again before they expire."""
    stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    is_first = not before.issued_at and (state.base is not None or bool(state.costs))
    asked = Asked(spec.routing.mode, spec.objective.to_objective())
    if is_first or state.base != before.base or (before.issued_at and asked != before.asked):
        return replace(state, reason=reason, asked=asked, issued_at=stamp)
    # A stamp of the future is that of a clock that was set back since.
    is_fresh = 0 <= _age_s(before.issued_at, now) < _ttl_s(spec.routing.interval_seconds) / 2
    is_due = bool(state.costs) and not is_fresh
    return replace(state, issued_at=stamp) if is_due or state.costs != before.costs else state


def _ttl_s(interval_s: float) -> float:
    return max(_TTL_INTERVALS * interval_s, _SHORTEST_TTL_S)


def _age_s(stamp: str, now: datetime) -> float:
    try:
        return (now - datetime.fromisoformat(stamp)).total_seconds()
    except (ValueError, TypeError):  # somebody else's stamp: as good as none
        return math.inf
