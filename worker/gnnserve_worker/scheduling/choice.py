"""Which variant answers a lone request on an idle worker, and which ones a routing table binds requests to.

The two modes of Dynamic GNN inference as-a-service (a latency: section 4.2; a tolerance: section 4.3) and their
combination. `variants.py` says which there are and what they cost, and `decision.py` chooses under load.
"""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

import msgspec
from msgspec import UNSET

from gnnserve_api.families import STORED_GRAPH, Capabilities
from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import Route, RoutingMode, RoutingTable, VariantRoute
from gnnserve_worker.scheduling.cost_terms import kind_of
from gnnserve_worker.scheduling.variants import VariantChooser

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


def choose(
    chooser: VariantChooser, objective: Objective, seeds: int, needed: Capabilities = STORED_GRAPH,
    load: int | None = None, overlay: int = 0,
) -> Choice:  # fmt: skip
    """Choose for a single request on an idle worker. `load`: what it counts as (`cost_terms.py`); None: its seeds.
    `overlay`: the part of it that is of kind OVERLAY."""
    load = seeds if load is None else load
    kind = kind_of(needed)
    candidates = chooser.candidates(chooser.count_allowed(objective.accuracy_tolerance_permille, needed), needed, kind)
    latency_ms = objective.latency_ms
    feasible = True
    if not chooser.can_keep(objective.accuracy_tolerance_permille, needed):
        feasible = False
        reason, index = ChoiceReason.TOLERANCE_OUT_OF_REACH, chooser.fastest(candidates, load, kind)
    elif latency_ms is None:
        if objective.accuracy_tolerance_permille is None:
            reason, index = ChoiceReason.MOST_ACCURATE, chooser.most_accurate(candidates, load, kind)
        else:
            reason, index = ChoiceReason.FASTEST_WITHIN_TOLERANCE, chooser.fastest(candidates, load, kind)
    else:
        feasible = chooser.can_meet(candidates, load, overlay, latency_ms)
        reason = ChoiceReason.MOST_ACCURATE_WITHIN_LATENCY if feasible else ChoiceReason.LATENCY_OUT_OF_REACH
        growth = 1 + chooser.costs.margin
        fitting = tuple(v for v in candidates if growth * chooser.costs.batch_ms(v, load, 1, overlay) <= latency_ms)
        is_in_time = feasible and fitting
        index = chooser.most_accurate(fitting, load, kind) if is_in_time else chooser.fastest(candidates, load, kind)
    expected_ms = chooser.costs.batch_ms(index, load, 1, overlay)
    return Choice(
        chooser.names[index],
        feasible,
        reason,
        expected_ms,
        objective,
        chooser.loss_permille[index],
        seeds,
        needed,
    )


class Pins:
    """Modes that bind a request to a variant when it is admitted, whatever the load."""

    def __init__(self, chooser: VariantChooser, table: RoutingTable, drawn: float = 0.0) -> None:
        """A variant of the table that the chooser lacks, since it does not follow changes, binds nothing. `drawn`: the
        value of the previous pins, since a split that restarted with every renewed table would give small shares no
        request."""
        self.fixed: int | None = None
        """The variant of all requests, if one is fixed."""
        self.split: tuple[tuple[float, int | None], ...] = ()
        """Cumulative shares of the requests with their variants; None: the choice is free. Ends with 1."""
        self.drawn = drawn
        """Position of the last request in the split, in [0, 1)."""
        self._capabilities = chooser.capabilities
        match table.mode:
            case RoutingMode.ADAPTIVE:
                pass
            case RoutingMode.METRICS | RoutingMode.STATIC:
                if table.base_variant is not None:
                    self.fixed = chooser.indices.get(table.base_variant)
            case RoutingMode.WEIGHTS:
                total, share = sum(table.weights.values()), 0
                parts = []
                for name, weight in sorted(table.weights.items()):
                    share += weight
                    if weight:
                        parts.append((share / total, chooser.indices.get(name)))
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
    chooser: VariantChooser, revision: str, table: RoutingTable, problem: str | None, is_expired: bool
) -> Route:
    """Describe the routing that is in effect."""
    objective = table.objective
    allowed = chooser.count_within(objective.accuracy_tolerance_permille)
    choice = choose(chooser, objective, seeds=1)
    base_variant, reason = choice.variant, choice.message
    pins = Pins(chooser, table)
    pinned = pins.fixed
    weights = {name: weight for name, weight in table.weights.items() if name in chooser.indices}
    if table.mode is RoutingMode.WEIGHTS and weights:
        base_variant = max(weights, key=lambda name: (weights[name], name))
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
        refresh=UNSET if table.refresh is None else table.refresh,
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
