"""Which variant answers: a pure function of the profile, an objective, the number of seeds and the time left.

Paper A's two modes (sections 4.2 and 4.4) and their combination. The profile is that of an idle worker; what
waiting costs is the batcher's business, which passes what is left of a deadline as `slack_ms`, and predictions
of its own where a queue comes first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from gnnserve_api.batching import Batching
from gnnserve_api.objective import Objective
from gnnserve_api.profile import LatencyCurve, Profile
from gnnserve_api.routing import Route

_ROUNDING_PERMILLE = 1e-6
"""Far below one node in ten million, far above the rounding of a difference of floats: 50.44 - 48.44 is 2."""
_REMEMBERED = 4096


class ChoiceReason(StrEnum):
    MOST_ACCURATE = "MostAccurate"
    """Nothing was asked for. State a latency or a tolerance to get a faster variant."""
    MOST_ACCURATE_WITHIN_LATENCY = "MostAccurateWithinLatency"
    """Allow more time for a more accurate variant."""
    FASTEST_WITHIN_TOLERANCE = "FastestWithinTolerance"
    """Tolerate more for a faster variant."""
    LATENCY_OUT_OF_REACH = "LatencyOutOfReach"
    """No variant meets the objective: allow more time, tolerate more, or send fewer nodes."""


class Choice(msgspec.Struct, frozen=True):
    # A msgspec struct, as all that is made per request: it costs a sixth of a frozen dataclass.
    variant: str
    feasible: bool
    """Whether the prediction for the variant meets the objective; otherwise it is the nearest there is."""
    reason: ChoiceReason
    predicted_ms: float
    budget_ms: float | None
    """What the prediction had to fit: the stated latency, or what was left of it."""
    objective: Objective
    seeds: int

    @property
    def message(self) -> str:
        nodes = "1 node" if self.seeds == 1 else f"{self.seeds:,} nodes"
        tolerance = self.objective.accuracy_tolerance_permille
        allowed = "" if tolerance is None else f" among those within {tolerance:g} permille of the most accurate"
        predicted = f"{self.predicted_ms:.3g} ms predicted for {nodes}"
        match self.reason:
            case ChoiceReason.MOST_ACCURATE:
                return f"{self.variant} is the most accurate variant; no objective is stated ({predicted})"
            case ChoiceReason.MOST_ACCURATE_WITHIN_LATENCY:
                return (
                    f"{self.variant} is the most accurate variant within {self.budget_ms:.3g} ms{allowed} ({predicted})"
                )
            case ChoiceReason.FASTEST_WITHIN_TOLERANCE:
                return f"{self.variant} is the fastest variant{allowed} ({predicted})"
            case ChoiceReason.LATENCY_OUT_OF_REACH:
                return (
                    f"no variant{allowed} answers {nodes} within {self.budget_ms:.3g} ms; "
                    f"the fastest, {self.variant}, needs {self.predicted_ms:.3g} ms"
                )


class VariantChooser:
    """Decides for one revision. Immutable but for what it remembers of its own arithmetic."""

    def __init__(self, profile: Profile, max_seeds: int) -> None:
        self._max_seeds = max_seeds
        """Larger requests run as several batches, and cost so."""
        self.names = tuple(variant.name for variant in profile.variants)
        self._curves = tuple(profile.latency_curve(name) for name in self.names)
        best = max(variant.validation_accuracy for variant in profile.variants)
        self._loss_permille = tuple((best - variant.validation_accuracy) * 1000 for variant in profile.variants)
        self._index = {name: i for i, name in enumerate(self.names)}
        # Bound to this instance, so that a replaced revision takes its memory with it.
        self.predictions_ms = functools.lru_cache(_REMEMBERED)(self._predictions_ms)
        self._within = functools.lru_cache(_REMEMBERED)(self._find_within)
        self._choose_idle = functools.lru_cache(_REMEMBERED)(self._choose_within)

    def _predictions_ms(self, seeds: int) -> tuple[float, ...]:
        """Milliseconds that each of `names` needs for `seeds` on an idle worker."""
        return tuple(_cost_ms(curve, seeds, self._max_seeds) for curve in self._curves)

    def latency_ms(self, variant: str, seeds: int) -> float:
        return self.predictions_ms(seeds)[self._index[variant]]

    def loss_permille(self, variant: str) -> float:
        """Validation accuracy below the most accurate served variant."""
        return self._loss_permille[self._index[variant]]

    def variants_within(self, tolerance_permille: float | None) -> tuple[str, ...]:
        return tuple(self.names[i] for i in sorted(self._within(tolerance_permille)))

    def choose(self, objective: Objective, seeds: int, slack_ms: float | None = None) -> Choice:
        """`slack_ms`: what is left of the stated latency, where waiting took a part of it."""
        if slack_ms is None:
            return self._choose_idle(objective, seeds)
        return self._choose_within(objective, seeds, slack_ms)

    def _choose_within(self, objective: Objective, seeds: int, slack_ms: float | None = None) -> Choice:
        return self.choose_from(objective, seeds, self.predictions_ms(seeds), slack_ms)

    def choose_from(
        self, objective: Objective, seeds: int, predictions_ms: Sequence[float], slack_ms: float | None = None
    ) -> Choice:
        """As `choose`, with a prediction per variant of `names` in place of the idle worker's."""
        tolerance = objective.accuracy_tolerance_permille
        allowed = self._within(tolerance)
        budget = objective.latency_ms if slack_ms is None else slack_ms
        if objective.latency_ms is None or budget is None:
            budget = None
            if tolerance is None:
                reason = ChoiceReason.MOST_ACCURATE
                index = self._find_most_accurate(allowed, predictions_ms, math.inf)
            else:
                reason = ChoiceReason.FASTEST_WITHIN_TOLERANCE
                index = min(allowed, key=predictions_ms.__getitem__)
        else:
            reason = ChoiceReason.MOST_ACCURATE_WITHIN_LATENCY
            index = self._find_most_accurate(allowed, predictions_ms, budget)
        if index is None:
            reason = ChoiceReason.LATENCY_OUT_OF_REACH
            index = min(allowed, key=predictions_ms.__getitem__)
        feasible = reason is not ChoiceReason.LATENCY_OUT_OF_REACH
        return Choice(self.names[index], feasible, reason, predictions_ms[index], budget, objective, seeds)

    def _find_most_accurate(
        self, allowed: tuple[int, ...], predictions_ms: Sequence[float], budget_ms: float
    ) -> int | None:
        """Of those within the budget; of equally accurate ones the fastest. Ends with the first that fits, mostly."""
        loss = self._loss_permille
        best: int | None = None
        for i in allowed:
            if best is not None and loss[i] > loss[best]:
                break
            if predictions_ms[i] <= budget_ms and (best is None or predictions_ms[i] < predictions_ms[best]):
                best = i
        return best

    def _find_within(self, tolerance_permille: float | None) -> tuple[int, ...]:
        """Indices of `names`, the most accurate first."""
        limit = math.inf if tolerance_permille is None else tolerance_permille + _ROUNDING_PERMILLE
        within = (i for i, loss in enumerate(self._loss_permille) if loss <= limit)
        return tuple(sorted(within, key=self._loss_permille.__getitem__))


def decide_route(
    chooser: VariantChooser, revision: str, objective: Objective, batching: Batching, problem: str | None = None
) -> Route:
    """What a one-node request gets that states nothing, on an idle worker."""
    choice = chooser.choose(objective, seeds=1)
    return Route(
        revision=revision,
        base_variant=choice.variant,
        reason=choice.message,
        allowed_variants=chooser.variants_within(objective.accuracy_tolerance_permille),
        objective=objective,
        batching=batching,
        problem=problem,
    )


def _cost_ms(curve: LatencyCurve, seeds: int, max_seeds: int) -> float:
    full_batches, rest = divmod(seeds, max_seeds)
    cost = full_batches * curve.at(max_seeds) if full_batches else 0.0
    return cost + curve.at(rest) if rest else cost
