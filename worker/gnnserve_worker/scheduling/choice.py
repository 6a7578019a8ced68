"""Choosing a variant: which ones an objective allows, and which one answers on an idle worker.

The two modes of Dynamic GNN inference as-a-service (a latency: section 4.2; a tolerance: section 4.3) and their
combination. Variants are indices here, the most accurate first; `costs.py` says what they cost, and `decision.py`
chooses under load.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import reduce
from typing import assert_never

import msgspec
from msgspec import UNSET

from gnnserve_api.families import STORED_GRAPH, Capabilities, point_of
from gnnserve_api.objective import Objective
from gnnserve_api.profile import Profile, VariantProfile
from gnnserve_api.routing import AffineCost, Route, RoutingMode, RoutingTable, VariantRoute
from gnnserve_worker.scheduling.cost_terms import BatchKind, kind_of
from gnnserve_worker.scheduling.costs import CostModel

_ROUNDING_PERMILLE = 1e-6
"""Far below one node in ten million, far above the rounding of a difference of floats: 50.44 - 48.44 is 2."""
NO_LOSSES: Mapping[str, float] = {}
_GOLDEN_RATIO = 0.6180339887498949
"""Its multiples modulo 1 are spread evenly, however many there are."""


class ChoiceReason(StrEnum):
    MOST_ACCURATE = "MostAccurate"
    """No objective is stated. State a latency or a tolerance to get a faster variant."""
    MOST_ACCURATE_WITHIN_LATENCY = "MostAccurateWithinLatency"
    """Allow more time for a more accurate variant."""
    FASTEST_WITHIN_TOLERANCE = "FastestWithinTolerance"
    """Tolerate more for a faster variant."""
    LATENCY_OUT_OF_REACH = "LatencyOutOfReach"
    """No variant meets the objective: allow more time, tolerate more, or send fewer nodes."""
    TOLERANCE_OUT_OF_REACH = "ToleranceOutOfReach"
    """No variant within the tolerance can give what the request needs, as with an overlay or embeddings: tolerate more,
    or leave that out."""


class Choice(msgspec.Struct, frozen=True):
    variant: str
    feasible: bool
    """Whether an idle worker can meet the objective; otherwise the variant is the nearest one."""
    reason: ChoiceReason
    expected_ms: float
    objective: Objective
    loss_permille: float
    """The variant's loss."""
    seeds: int
    needed: Capabilities

    @property
    def nodes(self) -> str:
        """What is asked for, for a message."""
        nodes = "1 node" if self.seeds == 1 else f"{self.seeds:,} nodes"
        extras = self.needed.in_words()
        return f"{nodes} with {extras}" if extras else nodes

    @property
    def message(self) -> str:
        nodes = self.nodes
        latency, tolerance = self.objective.latency_ms, self.objective.accuracy_tolerance_permille
        allowed = "" if tolerance is None else f" among those within {tolerance:g} permille of the most accurate"
        expected = f"{self.expected_ms:.3g} ms expected for {nodes}"
        match self.reason:
            case ChoiceReason.MOST_ACCURATE:
                return f"{self.variant} is the most accurate variant; no objective is stated ({expected})"
            case ChoiceReason.MOST_ACCURATE_WITHIN_LATENCY:
                return f"{self.variant} is the most accurate variant within {latency:.3g} ms{allowed} ({expected})"
            case ChoiceReason.FASTEST_WITHIN_TOLERANCE:
                return f"{self.variant} is the fastest variant{allowed} ({expected})"
            case ChoiceReason.LATENCY_OUT_OF_REACH:
                return (
                    f"no variant{allowed} answers {nodes} within {latency:.3g} ms; "
                    f"the fastest, {self.variant}, needs {self.expected_ms:.3g} ms"
                )
            case ChoiceReason.TOLERANCE_OUT_OF_REACH:
                return (
                    f"no variant{allowed} can answer requests with {self.needed.in_words()}; "
                    f"the nearest, {self.variant}, loses {self.loss_permille:.3g} permille"
                )
            case _:
                assert_never(self.reason)


class VariantChooser:
    """The variants of one revision, by accuracy and by what they cost now."""

    def __init__(
        self,
        profile: Profile,
        max_seeds: int,
        before: CostModel | None = None,
        losses_in_service: Mapping[str, float] = NO_LOSSES,
    ) -> None:
        """`before`: the cost model of the revision that was served until now. `losses_in_service`: losses in permille
        against the profile's most accurate variant, which take the place of the profile's."""
        best = max(variant.validation_accuracy for variant in profile.variants)
        losses = {v.name: (best - v.validation_accuracy) * 1000 for v in profile.variants} | dict(losses_in_service)
        # One that labels show to be better than the profile's best is the best.
        least = min(losses.values())
        losses = {name: loss - least for name, loss in losses.items()}
        ranked = sorted(profile.variants, key=lambda v: (losses[v.name], _full_ms(v)))
        self.names = tuple(variant.name for variant in ranked)
        self.indices = {name: index for index, name in enumerate(self.names)}
        self.loss_permille = tuple(losses[name] for name in self.names)
        """Validation accuracy below the most accurate served variant, or accuracy in service; ascending."""
        self.capabilities = tuple(point_of(variant).capabilities for variant in ranked)
        self._of_all = reduce(Capabilities.both, self.capabilities)
        """What every variant is capable of."""
        self.costs = CostModel(ranked, max_seeds, before)
        self.version = 0
        """Version of `frontiers`: it changes when values derived from them become stale."""
        self.frontiers: dict[BatchKind, tuple[int, ...]] = {}
        """For each kind of batch, the variants that no other one, at least as accurate and as capable, beats both with
        one seed and with a full batch."""
        self.refresh()

    def use(self, costs: Mapping[str, AffineCost]) -> None:
        """Use a routing table's costs. Costs of unknown variants are ignored."""
        self.costs.use({self.indices[name]: cost for name, cost in costs.items() if name in self.indices})
        self.refresh()

    def refresh(self) -> None:
        """Recompute the frontiers from today's costs. To be called now and then when they have changed."""
        frontiers = {kind: self._frontier(kind) for kind in BatchKind}
        if frontiers != self.frontiers:
            self.frontiers = frontiers
            self.version += 1

    def _frontier(self, kind: BatchKind) -> tuple[int, ...]:
        costs, full = self.costs, self.costs.max_seeds
        one_part, full_part = (1, full) if kind is BatchKind.OVERLAY else (0, 0)
        ends = [
            (costs.compute_ms(v, 1, one_part), costs.compute_ms(v, full, full_part)) for v in range(len(self.names))
        ]
        frontier: list[int] = []
        for variant, (one_ms, full_ms) in enumerate(ends):
            if not any(
                ends[kept][0] <= one_ms and ends[kept][1] <= full_ms and self._stands_in(kept, variant)
                for kept in frontier
            ):
                # Among equally accurate variants a later one may beat an earlier one.
                frontier = [kept for kept in frontier if not self._beats(variant, kept, ends)]
                frontier.append(variant)
        return tuple(frontier)

    def _beats(self, variant: int, kept: int, ends: list[tuple[float, float]]) -> bool:
        alike = self.loss_permille[variant] == self.loss_permille[kept]
        faster = ends[variant][0] <= ends[kept][0] and ends[variant][1] <= ends[kept][1]
        return alike and faster and self._stands_in(variant, kept)

    def _stands_in(self, variant: int, other: int) -> bool:
        """Whether it can answer whatever the other can."""
        return self.capabilities[variant].cover(self.capabilities[other])

    def count_within(self, tolerance_permille: float | None) -> int:
        """Number of variants, from the first, that the tolerance allows."""
        if tolerance_permille is None:
            return len(self.names)
        limit = tolerance_permille + _ROUNDING_PERMILLE
        return sum(loss <= limit for loss in self.loss_permille)

    def count_allowed(self, tolerance_permille: float | None, needed: Capabilities) -> int:
        """As `count_within`; where none of these can give what is `needed`, as many as include the nearest that can."""
        if self.can_keep(tolerance_permille, needed):
            return self.count_within(tolerance_permille)
        nearest = min(variant for variant, gives in enumerate(self.capabilities) if gives.cover(needed))
        return self.count_within(self.loss_permille[nearest])

    def can_keep(self, tolerance_permille: float | None, needed: Capabilities) -> bool:
        """Whether a variant that the tolerance allows can give what is `needed`."""
        if needed is STORED_GRAPH:
            return True
        return any(gives.cover(needed) for gives in self.capabilities[: self.count_within(tolerance_permille)])

    def restricting(self, needed: Capabilities) -> Capabilities:
        """`needed`, if there are variants that cannot give it: what all can give leaves every choice open."""
        return STORED_GRAPH if self._of_all.cover(needed) else needed

    def candidates(
        self, allowed: int, needed: Capabilities = STORED_GRAPH, kind: BatchKind = BatchKind.STORED
    ) -> tuple[int, ...]:
        """Variants worth choosing among the first `allowed`, the most accurate first, without those that cannot give
        what is `needed`. A variant that beats another is at least as accurate, so it is allowed wherever the other is.
        """
        return tuple(
            variant
            for variant in self.frontiers[kind]
            if variant < allowed and self.capabilities[variant].cover(needed)
        )

    def fastest(self, candidates: tuple[int, ...], seeds: float, kind: BatchKind = BatchKind.STORED) -> int:
        overlay = seeds if kind is BatchKind.OVERLAY else 0.0
        return min(candidates, key=lambda variant: self.costs.compute_ms(variant, seeds, overlay))

    def most_accurate(self, candidates: tuple[int, ...], seeds: float, kind: BatchKind = BatchKind.STORED) -> int:
        """The most accurate candidate; among equally accurate ones the fastest."""
        sole = self.sole_most_accurate(candidates)
        if sole is not None:
            return sole
        equals = tuple(v for v in candidates if self.loss_permille[v] == self.loss_permille[candidates[0]])
        return self.fastest(equals, seeds, kind)

    def sole_most_accurate(self, candidates: tuple[int, ...]) -> int | None:
        """The candidate that is more accurate than all others; None: there are several as accurate."""
        first = candidates[0]
        if len(candidates) == 1 or self.loss_permille[candidates[1]] > self.loss_permille[first]:
            return first
        return None

    def can_meet(self, candidates: tuple[int, ...], load: int, overlay: int, latency_ms: float) -> bool:
        """Whether an idle worker can meet the latency, by the shortest times that it ever proved."""
        for variant in reversed(candidates):  # noqa: SIM110 - a generator would cost more, for every request
            if self.costs.least_ms(variant, load, overlay) <= latency_ms:
                return True
        return False

    def choose(
        self, objective: Objective, seeds: int, needed: Capabilities = STORED_GRAPH, load: int | None = None,
        overlay: int = 0,
    ) -> Choice:  # fmt: skip
        """Choose for a single request on an idle worker. `load`: what it counts as (`cost_terms.py`); None: its seeds.
        `overlay`: the part of it that is of kind OVERLAY."""
        load = seeds if load is None else load
        kind = kind_of(needed)
        candidates = self.candidates(self.count_allowed(objective.accuracy_tolerance_permille, needed), needed, kind)
        latency_ms = objective.latency_ms
        feasible = True
        if not self.can_keep(objective.accuracy_tolerance_permille, needed):
            feasible = False
            reason, index = ChoiceReason.TOLERANCE_OUT_OF_REACH, self.fastest(candidates, load, kind)
        elif latency_ms is None:
            if objective.accuracy_tolerance_permille is None:
                reason, index = ChoiceReason.MOST_ACCURATE, self.most_accurate(candidates, load, kind)
            else:
                reason, index = ChoiceReason.FASTEST_WITHIN_TOLERANCE, self.fastest(candidates, load, kind)
        else:
            feasible = self.can_meet(candidates, load, overlay, latency_ms)
            reason = ChoiceReason.MOST_ACCURATE_WITHIN_LATENCY if feasible else ChoiceReason.LATENCY_OUT_OF_REACH
            growth = 1 + self.costs.margin
            fitting = tuple(v for v in candidates if growth * self.costs.batch_ms(v, load, 1, overlay) <= latency_ms)
            is_in_time = feasible and fitting
            index = self.most_accurate(fitting, load, kind) if is_in_time else self.fastest(candidates, load, kind)
        expected_ms = self.costs.batch_ms(index, load, 1, overlay)
        return Choice(
            self.names[index],
            feasible,
            reason,
            expected_ms,
            objective,
            self.loss_permille[index],
            seeds,
            needed,
        )


class Pins:
    """Modes that bind a request to a variant when it is admitted, whatever the load."""

    def __init__(self, chooser: VariantChooser, table: RoutingTable, drawn: float = 0.0) -> None:
        """The table's variants are the chooser's. `drawn`: the value of the previous pins, since a split that restarted
        with every renewed table would give small shares no request."""
        self.fixed: int | None = None
        """The variant of all requests, if one is fixed."""
        self.split: tuple[tuple[float, int], ...] = ()
        """Cumulative shares of the requests with their variants; ends with 1."""
        self.drawn = drawn
        """Position of the last request in the split, in [0, 1)."""
        self._capabilities = chooser.capabilities
        match table.mode:
            case RoutingMode.ADAPTIVE:
                pass
            case RoutingMode.METRICS | RoutingMode.STATIC:
                if table.base_variant is not None:
                    self.fixed = chooser.indices[table.base_variant]
            case RoutingMode.WEIGHTS:
                total, share = sum(table.weights.values()), 0
                parts = []
                for name, weight in sorted(table.weights.items()):
                    share += weight
                    if weight:
                        parts.append((share / total, chooser.indices[name]))
                self.split = tuple(parts)
            case _:
                assert_never(table.mode)
        self.binds = self.fixed is not None or bool(self.split)
        """Whether requests are bound to variants at all; where not, there is nothing to draw."""

    def draw(self, needed: Capabilities = STORED_GRAPH) -> int | None:
        """The variant of the next request; None where the choice is free, or where the variant that it is bound to
        cannot give what is `needed`. Shares hold after few requests already, not only on average."""
        variant = self.fixed
        if self.split:
            self.drawn = (self.drawn + _GOLDEN_RATIO) % 1.0
            variant = next(variant for share, variant in self.split if self.drawn <= share)
        return variant if variant is None or self._capabilities[variant].cover(needed) else None


def decide_route(
    chooser: VariantChooser, revision: str, table: RoutingTable, problem: str | None, is_expired: bool,
    needed: Capabilities = STORED_GRAPH,
) -> Route:  # fmt: skip
    """Describe the routing that is in effect. `needed`: what every request needs."""
    objective = table.objective
    allowed = chooser.count_within(objective.accuracy_tolerance_permille)
    choice = chooser.choose(objective, seeds=1, needed=needed)
    base_variant, reason = choice.variant, choice.message
    pins = Pins(chooser, table)
    pinned = pins.fixed
    if table.mode is RoutingMode.WEIGHTS:
        base_variant = max(table.weights, key=lambda name: (table.weights[name], name))
        shares = ", ".join(f"{name} {weight}" for name, weight in sorted(table.weights.items()))
        reason = f"requests are split by weights: {shares}"
    elif pinned is not None:
        base_variant = chooser.names[pinned if pinned < allowed else chooser.fastest(chooser.candidates(allowed), 1)]
        reason = f"mode {table.mode} names {table.base_variant}"
        if pinned >= allowed:
            reason += f", which the tolerance excludes; {base_variant} is the fastest within it"
        elif table.reason:
            reason = table.reason
    return Route(
        revision=revision,
        base_variant=base_variant,
        reason=reason,
        allowed_variants=chooser.names[:allowed],
        objective=objective,
        batching=table.batching,
        overlay=table.overlay,
        problem=problem,
        mode=table.mode,
        issued_at=table.issued_at,
        is_expired=is_expired,
        variants=tuple(
            VariantRoute(
                name=name,
                loss_permille=round(chooser.loss_permille[index], 6),
                profiled=chooser.costs.profiled(index),
                expected=chooser.costs.expected(index),
                expected_new_nodes=chooser.costs.expected_new_nodes(index) or UNSET,
            )
            for index, name in enumerate(chooser.names)
        ),
    )


def _full_ms(variant: VariantProfile) -> float:
    return variant.latency[-1].p50_ms
