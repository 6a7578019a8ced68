"""The variants of one revision: which of them an objective allows, what each can give, and what batches by it cost.

It is pure: durations and times are arguments. Variants are indices, the most accurate first (`VariantChooser`). What
they cost (`CostModel`) is the profile, or the operator's measurement, corrected by measured batches.

The expected time of a batch of s seeds from n requests by variant v, about stored nodes only, is

    machine / anchor[v] · own[v] · curve[v](s)  +  overhead(n)

- `curve`: the profile's medians, linear between the measured sizes. A routing table's affine cost takes its place.
- `machine`: how much slower this machine is than that of the profile. Every batch of stored nodes corrects it, for all
  variants.
- `own`: the variant's own correction beyond that. It returns to 1 while the variant is not used: otherwise an error
  would keep the variant unused, and so never be corrected.
- `anchor`: `machine` as it was when the table's cost came, which was measured on this machine; 1 for a profile.
- `overhead`: reading requests and writing answers, which no profile contains. A table's cost contains it already.

Where other models share the worker, what waits has to wait for their turns as well (`waits_ms`): once for each turn
that it takes, by the mean of recent turns. No cost contains such waits, a table's neither: they are not in what is
observed, nor in what is exported.

Where the load of a batch has a part of kind OVERLAY (`cost_terms.py`), that part costs what `OverlayCosts` says, in
place of what as many stored nodes cost. By how many of its seeds overlays may have changed, a batch corrects one kind
or the other.

`margin` is added to predictions that a promise depends on: it follows the deviation of batches from their expectation.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from statistics import median

from gnnserve_api.families import STORED_GRAPH, Capabilities, point_of
from gnnserve_api.files.profile import Profile, VariantProfile
from gnnserve_api.pods.routing import AffineCost
from gnnserve_worker.scheduling.cost_terms import (
    LARGEST_STEP,
    LEAST_MS,
    NO_OVERLAYS,
    PROVEN_BATCHES,
    BatchKind,
    Curve,
    Overhead,
    OverlayCosts,
    OverlayWork,
    at,
    fit,
    hurry,
    profiled_curve,
    stretch,
)


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses in permille by variant, beside those of the profile."""

    in_service: Mapping[str, float] = field(default_factory=dict)
    """Against the profile's most accurate variant, as labels show them: they take the place of the profile's."""
    stale: Mapping[str, float] = field(default_factory=dict)
    """What stale rows of stored layers add at present, of the variants that read rows that may be stale."""


PROFILED = Losses()
"""Nothing is known beside the profile."""
_ROUNDING_PERMILLE = 1e-6
"""Far below one node in ten million, far above the rounding of a difference of floats: 50.44 - 48.44 is 2."""
LEAST_MARGIN = 0.08
"""Smallest margin, found by simulation: enough for noise of 5 %."""
_MOST_MARGIN = 0.5
_MARGIN_PER_DEVIATION = 1.75
"""Margin per mean absolute deviation: covers nine of ten batches if deviations are normal."""
_DEVIATION_MEMORY_MS = 2000.0
"""Memory of the deviation, in working time and not in batches: under load the long batches matter, and small ones,
whose times vary more, would outnumber them."""
_MOST_DEVIATION_GAIN = 0.1
_MACHINE_GAIN = 0.08
_OWN_GAIN = 0.04
_FORGET_MS = 30_000.0
_FORGET_EVERY_MS = 250.0
_WAIT_GAIN = 0.05
"""Weight of the last turn in the mean wait for one."""
_TELLING_MS = 0.25
"""Shortest batch, by the profile, that tells how fast the machine is. A shorter one's excess is rather the fixed cost
of every batch: threads that wake up, caches that the profile found warm. One that takes less than half of what is
expected tells that a slow spell is over (`_ends_slow_spell`)."""
_SILENT_MS = 10_000.0
"""Time without a batch that tells after which short ones may."""


class CostModel:
    """The costs of one revision's variants. Belongs to one thread."""

    def __init__(self, variants: Sequence[VariantProfile], max_seeds: int, before: CostModel | None = None) -> None:
        """`max_seeds`: larger requests run, and cost, as several batches. `before`: the model of the revision that this
        machine served until now."""
        self.max_seeds = max_seeds
        self.margin: float = LEAST_MARGIN if before is None else before.margin
        self.overhead: Overhead = Overhead() if before is None else before.overhead
        self.longest_turn_ms = math.inf
        """The longest turn while other models share the worker, but for what every batch costs (`turn_ms`)."""
        self.wait_ms: float = 0.0 if before is None else before.wait_ms
        """Mean wait before a turn, for turns of other models; 0 where no other model shares the worker."""
        self.factors = [1.0] * len(variants)
        """Current factor of each variant's curve."""
        self._profiled = [profiled_curve(variant) for variant in variants]
        self._fitted = [fit(variant) for variant in variants]
        self._measured: list[AffineCost | None] = [None] * len(variants)
        self._curves: list[Curve] = []
        self._stretched: list[Curve] = []
        """Curves up to a full batch, extended beyond it with the average slope of a full batch."""
        self._full_ms: list[float] = []
        """Time of a full batch of each variant, uncorrected."""
        self._machine: float = 1.0 if before is None else before._machine
        self._least_machine: float = 1.0 if before is None else before._least_machine
        """The smallest `machine` ever proven; at most 1."""
        self.overlays = OverlayCosts(variants, self._least_machine)
        self._own = [1.0] * len(variants)
        self._anchors = [1.0] * len(variants)
        self._lowest = [self._least_machine] * len(variants)
        """The smallest factor of each profile curve ever proven, by batches or tables; at most 1."""
        self._batches = [0] * len(variants)
        self._all_batches: int = 0 if before is None else before._all_batches
        self._deviation: float = LEAST_MARGIN / _MARGIN_PER_DEVIATION if before is None else before._deviation
        self._told_ms: float = -math.inf if before is None else before._told_ms
        """When the last batch came that told how fast the machine is."""
        self._forgot_ms = -math.inf
        self._use_curves()
        self._profiled_full_ms = list(self._full_ms)

    # Predictions

    def base_ms(self, variant: int, seeds: float) -> float:
        """Time of a batch, uncorrected and without the overhead of requests."""
        if seeds > self.max_seeds:
            full_batches, rest = divmod(seeds, self.max_seeds)
            full_ms = full_batches * self._full_ms[variant]
            return full_ms + self.base_ms(variant, rest) if rest else full_ms
        for end, low_seeds, low_ms, slope in self._curves[variant]:
            if seeds <= end:
                return low_ms + slope * (seeds - low_seeds)
        raise AssertionError(f"{seeds} seeds are beyond the curve of variant {variant}")

    def compute_ms(self, variant: int, seeds: float, overlay: float = 0.0) -> float:
        """Expected time of a batch without the overhead of requests, which only a table's cost includes. `overlay`: the
        part of `seeds` that is of kind OVERLAY."""
        if seeds > self.max_seeds:
            base_ms = self.base_ms(variant, seeds)
        else:  # what `base_ms` would give; a decision asks often
            for end, low_seeds, low_ms, slope in self._curves[variant]:
                if seeds <= end:
                    base_ms = low_ms + slope * (seeds - low_seeds)
                    break
        compute_ms = self.factors[variant] * base_ms
        if overlay:
            stored_ms = self._stored_part_ms(variant, overlay)
            compute_ms += self.overlays.part_ms(variant, overlay, stored_ms) - stored_ms
        return compute_ms

    def _stored_part_ms(self, variant: int, overlay: float) -> float:
        """The part of `compute_ms` that `overlay` of the seeds have, as if they were stored. What a table's cost has
        for every batch is left out: reading requests and writing answers, which all batches need, is in it."""
        cost = self._measured[variant]
        return self.factors[variant] * (self.base_ms(variant, overlay) if cost is None else cost.per_seed_ms * overlay)

    def batch_ms(self, variant: int, seeds: float, requests: float, overlay: float = 0.0) -> float:
        """Expected time of a batch that does not wait, from reading its first request to writing its last answer."""
        if overlay:
            return self.compute_ms(variant, seeds, overlay) + self.overhead_ms(variant, requests)
        if seeds > self.max_seeds:
            base_ms = self.base_ms(variant, seeds)
        else:  # as in `compute_ms`
            for end, low_seeds, low_ms, slope in self._curves[variant]:
                if seeds <= end:
                    base_ms = low_ms + slope * (seeds - low_seeds)
                    break
        batch_ms = self.factors[variant] * base_ms
        if self._measured[variant] is None:
            overhead = self.overhead
            batch_ms += overhead.fixed_ms + overhead.per_request_ms * requests
        return batch_ms

    def expect(self, variant: int, seeds: float, requests: float, overlay: float) -> tuple[float, float]:
        """Expected times of a batch that is closed: of its computation alone (`computing_ms`), and in all
        (`batch_ms`)."""
        if self._measured[variant] is not None:
            computing_ms = self.computing_ms(variant, seeds, overlay)
            return computing_ms, self.batch_ms(variant, seeds, requests, overlay)
        computing_ms, overhead = self.compute_ms(variant, seeds, overlay), self.overhead
        return computing_ms, computing_ms + (overhead.fixed_ms + overhead.per_request_ms * requests)

    def overhead_ms(self, variant: int, requests: float) -> float:
        """Expected overhead that `compute_ms` does not include."""
        return 0.0 if self._measured[variant] is not None else self.overhead.at(requests)

    def turns(self, variant: int, seeds: float, compute_ms: float) -> float:
        """How many turns it takes to compute so many seeds for so long, where other models share the worker."""
        if not self.wait_ms:
            return 0.0
        return max(compute_ms / self.turn_ms(variant), seeds / self.max_seeds)

    def waits_ms(self, turns: float, has_turn: bool = False) -> float:
        """Expected time in which other models have their turns before and between so many turns. `has_turn`: the first
        of them is now."""
        return self.wait_ms * max(0, math.ceil(turns) - has_turn)

    def stretched_ms(self, variant: int, seeds: float, overlay: float = 0.0) -> float:
        """As `compute_ms`, as if one batch could hold all seeds: how the rest will be batched is not known yet."""
        if overlay:
            is_measured = self._measured[variant] is not None
            stored_ms = self._stored_part_ms(variant, overlay) if is_measured else self.stretched_ms(variant, overlay)
            return self.stretched_ms(variant, seeds) + self.overlays.part_ms(variant, overlay, stored_ms) - stored_ms
        for end, low_seeds, low_ms, slope in self._stretched[variant]:
            if seeds <= end:
                return self.factors[variant] * (low_ms + slope * (seeds - low_seeds))
        raise AssertionError(f"{seeds} seeds are beyond the curve of variant {variant}")

    def seeds_within(
        self, variant: int, time_ms: float, requests_per_seed: float, overlay_per_seed: float = 0.0
    ) -> int:
        """Most seeds, up to a full batch, that take at most `time_ms`; 0 where even one takes longer."""
        low, high = 0, self.max_seeds
        while low < high:
            middle = (low + high + 1) // 2
            if self.batch_ms(variant, middle, middle * requests_per_seed, middle * overlay_per_seed) <= time_ms:
                low = middle
            else:
                high = middle - 1
        return low

    def seeds_computed_within(self, variant: int, time_ms: float) -> int:
        """Most stored seeds, up to a full batch, whose computation alone takes at most `time_ms`; 0 where even one
        takes longer."""
        return bisect_right(range(1, self.max_seeds + 1), time_ms, key=lambda seeds: self.computing_ms(variant, seeds))

    def turn_ms(self, variant: int) -> float:
        """How long a turn of this variant may compute: as long as a turn may last, but twice what every batch costs, so
        that no turn is for a seed or two alone. Where a batch of one seed is longer than a turn, that is not doubled:
        others wait for one turn more at most."""
        longest_ms = self.longest_turn_ms
        if longest_ms == math.inf:
            return math.inf
        one_ms = self.computing_ms(variant, 1)
        return max(longest_ms, one_ms + min(one_ms, longest_ms))

    def seeds_of_turn(self, variant: int) -> int:
        """Most stored seeds of a turn, at least one."""
        if self.longest_turn_ms == math.inf:
            return self.max_seeds
        return max(1, self.seeds_computed_within(variant, self.turn_ms(variant)))

    def pieces_ms(self, variant: int, seeds: float, overlay: float = 0.0) -> float:
        """Expected time to compute a request in pieces, of which the first is now, with the turns of other models
        between them."""
        compute_ms = self.compute_ms(variant, seeds, overlay)
        return compute_ms + self.waits_ms(self.turns(variant, seeds, compute_ms), has_turn=True)

    def least_ms(self, variant: int, seeds: int, overlay: int = 0) -> float:
        """Time of one request on an idle worker, at the best speed ever proven here.

        It only ever falls, so that a slow spell does not make an objective look infeasible for good.
        """
        least_ms = self._least_compute_ms(variant, seeds) + self.overhead.least_ms
        if overlay:
            stored_ms = self._least_compute_ms(variant, overlay)
            least_ms += self.overlays.least_part_ms(variant, overlay, stored_ms) - stored_ms
        return least_ms

    def _least_compute_ms(self, variant: int, seeds: int) -> float:
        profiled_ms = 0.0
        if seeds > self.max_seeds:
            full_batches, seeds = divmod(seeds, self.max_seeds)
            profiled_ms = full_batches * self._profiled_full_ms[variant]
        if seeds:
            profiled_ms += at(self._profiled[variant], seeds)
        return self._lowest[variant] * profiled_ms

    def computing_ms(self, variant: int, seeds: float, overlay: float = 0.0) -> float:
        """Expected time of the computation alone, even where a table's cost includes more."""
        if self._measured[variant] is None:
            return self.compute_ms(variant, seeds, overlay)
        computing_ms = self._machine * at(self._profiled[variant], seeds)
        if overlay:
            stored_ms = self._machine * at(self._profiled[variant], overlay)
            computing_ms += self.overlays.part_ms(variant, overlay, stored_ms) - stored_ms
        return computing_ms

    def seed_ms(self, variant: int) -> float:
        """Expected time of one seed more, over the sizes of batches."""
        factor, more = self.factors[variant], max(1, self.max_seeds - 1)
        return max(LEAST_MS, factor * (self._full_ms[variant] - self.base_ms(variant, 1)) / more)

    def profiled(self, variant: int) -> AffineCost:
        return self._fitted[variant]

    def expected(self, variant: int) -> AffineCost:
        """The profile's cost, or the table's, corrected by measured batches."""
        cost = self._measured[variant] or self._fitted[variant]
        factor = self.factors[variant]
        return AffineCost(fixed_ms=factor * cost.fixed_ms, per_seed_ms=factor * cost.per_seed_ms)

    def expected_new_nodes(self, variant: int) -> AffineCost | None:
        """The cost of batches of new nodes, a line through one and a full batch of them; None: it is not known."""
        if not self.overlays.knows(variant):
            return None
        each = self.overlays.load_per_node(variant)
        one_ms, full_ms = (self.compute_ms(variant, seeds * each, seeds * each) for seeds in (1, self.max_seeds))
        per_seed_ms = max(0.0, (full_ms - one_ms) / max(1, self.max_seeds - 1))
        return AffineCost(fixed_ms=max(0.0, one_ms - per_seed_ms), per_seed_ms=per_seed_ms)

    # Corrections

    def keep(self, before: CostModel, places: Sequence[int]) -> None:
        """Take over what was learnt of these same variants in another order. `places`: where each stood."""
        self.overhead, self.margin = before.overhead, before.margin
        self._measured = [before._measured[place] for place in places]
        self._own = [before._own[place] for place in places]
        self._anchors = [before._anchors[place] for place in places]
        self._lowest = [before._lowest[place] for place in places]
        self._batches = [before._batches[place] for place in places]
        self._forgot_ms = before._forgot_ms
        self.overlays.keep(before.overlays, places)
        self._use_curves()

    def use(self, costs: Mapping[int, AffineCost]) -> None:
        """Use a routing table's costs, by variant. A new cost resets the variant's own correction."""
        if len(costs) == len(self._measured) and not self._all_batches:
            # Should the table expire, this is all that is known about the machine.
            self._machine = median(
                cost.at(self.max_seeds) / self._profiled_full_ms[variant] for variant, cost in costs.items()
            )
        for variant in range(len(self._measured)):
            cost = costs.get(variant)
            if cost != self._measured[variant]:
                self._measured[variant] = cost
                self._own[variant] = 1.0
                self._anchors[variant] = 1.0 if cost is None else self._machine
                self._batches[variant] = 0
                self._lowest[variant] = min(self._lowest[variant], self._over_profile(variant))
        self._use_curves()

    def observe(
        self, variant: int, seeds: int, requests: int, compute_ms: float, total_ms: float, now_ms: float,
        work: OverlayWork = NO_OVERLAYS, waited_ms: float = 0.0,
    ) -> None:  # fmt: skip
        """Record what a batch took: its computation, and in all, from when it could have begun, but for turns of other
        models, to its last answer; with `work`, which is the part of both that its overlays took. `waited_ms`: how long
        it waited before for turns of other models."""
        measured = self._measured[variant] is not None
        self.wait_ms += _WAIT_GAIN * (waited_ms - self.wait_ms)
        took_ms = total_ms if measured else compute_ms
        if now_ms - self._forgot_ms > _FORGET_EVERY_MS:
            self._forget(now_ms)
        counted = self.overlays.count(variant, work, self.seed_ms(variant)) if work.fixed or work.rows else 0.0
        overlay = work.changed_seeds + counted
        expected_ms = self.compute_ms(variant, seeds + counted, overlay)
        ratio = took_ms / expected_ms
        if measured or max(self.base_ms(variant, seeds), work.took_ms) >= _TELLING_MS:
            self._told_ms = now_ms
            if overlay:
                self._correct_overlays(variant, overlay, expected_ms, took_ms - expected_ms)
                ratio = (took_ms - work.took_ms) / self.compute_ms(variant, seeds)
            if work.changed_seeds < seeds:
                step = min(max(ratio, 1 / LARGEST_STEP), LARGEST_STEP) - 1
                self._correct(variant, step * (1 - work.changed_seeds / seeds))
            overhead_ms = total_ms - compute_ms
        else:
            if ratio < 1 / LARGEST_STEP and not overlay and self._ends_slow_spell(now_ms):
                self._correct(variant, 1 / LARGEST_STEP - 1)
            overhead_ms = total_ms - expected_ms
        if measured:
            deviation = abs(took_ms / expected_ms - 1)
        else:
            overhead = self.overhead
            deviation = abs(total_ms / (expected_ms + (overhead.fixed_ms + overhead.per_request_ms * requests)) - 1)
            overhead.observe(requests, overhead_ms)
        gain = min(total_ms / _DEVIATION_MEMORY_MS, _MOST_DEVIATION_GAIN)
        self._deviation += gain * (min(deviation, 1.0) - self._deviation)
        self.margin = min(max(LEAST_MARGIN, _MARGIN_PER_DEVIATION * self._deviation), _MOST_MARGIN)

    def _ends_slow_spell(self, now_ms: float) -> bool:
        """Whether a batch too short to tell how slow the machine is, and that took less than half of what was expected,
        tells that it is not as slow as it counts. Else a service whose batches are all short would expect for good what
        batches took in one slow spell. Where longer batches come, they tell it better: what slows them need not slow
        short ones. That the machine is faster than the profile's, no short batch tells."""
        return self._machine > 1 and now_ms - self._told_ms > _SILENT_MS

    def _correct_overlays(self, variant: int, overlay: float, expected_ms: float, excess_ms: float) -> None:
        part_ms = self.overlays.part_ms(variant, overlay, self._stored_part_ms(variant, overlay))
        self.overlays.correct(variant, part_ms, expected_ms, excess_ms)

    def _correct(self, variant: int, step: float) -> None:
        self._machine *= 1 + _MACHINE_GAIN * hurry(self._all_batches) * step
        self._own[variant] *= 1 + _OWN_GAIN * hurry(self._batches[variant]) * step
        self._all_batches += 1
        self._batches[variant] += 1
        machine = self._machine
        self._use_own()
        self.overlays.follow(machine)
        if self._all_batches >= PROVEN_BATCHES:
            self._least_machine = min(self._least_machine, machine)
        if self._batches[variant] >= PROVEN_BATCHES:
            proven = self.factors[variant] * self._over_profile(variant)
            self._lowest[variant] = min(self._lowest[variant], proven)

    def _over_profile(self, variant: int) -> float:
        """A table's cost as a factor of the profile's curve; the largest, where it depends on the size."""
        cost = self._measured[variant]
        if cost is None:
            return 1.0
        one_ms, full_ms = at(self._profiled[variant], 1), self._profiled_full_ms[variant]
        return max(cost.at(1) / one_ms, cost.at(self.max_seeds) / full_ms)

    def _forget(self, now_ms: float) -> None:
        if self._forgot_ms > -math.inf:
            keep = math.exp((self._forgot_ms - now_ms) / _FORGET_MS)
            self._own = [1 + keep * (own - 1) for own in self._own]
            self._use_own()
            self.overlays.forget(keep)
        self._forgot_ms = now_ms

    def _use_curves(self) -> None:
        self._curves = [
            profiled if measured is None else ((math.inf, 0.0, measured.fixed_ms, measured.per_seed_ms),)
            for profiled, measured in zip(self._profiled, self._measured, strict=True)
        ]
        self._full_ms = [self.base_ms(variant, self.max_seeds) for variant in range(len(self._curves))]
        self._stretched = [
            stretch(curve, self.max_seeds, full_ms) for curve, full_ms in zip(self._curves, self._full_ms, strict=True)
        ]
        self._use_own()
        self.overlays.follow(self._machine)

    def _use_own(self) -> None:
        machine = self._machine
        self.factors = [machine / anchor * own for anchor, own in zip(self._anchors, self._own, strict=True)]


class VariantChooser:
    """The variants of one revision, by accuracy and by what they cost now."""

    def __init__(
        self,
        profile: Profile,
        max_seeds: int,
        before: CostModel | None = None,
        known: Losses = PROFILED,
        same: VariantChooser | None = None,
    ) -> None:
        """`before`: the cost model of the revision that was served until now. `same`: the chooser of this same profile
        until now, whose costs are kept. `known`: what is known of losses beside the profile."""
        best = max(variant.validation_accuracy for variant in profile.variants)
        fresh = {v.name: (best - v.validation_accuracy) * 1000 for v in profile.variants} | dict(known.in_service)
        # One that labels show to be better than the profile's best is the best; but one that is stale now is no better
        # than the best of those that are exact: who tolerates nothing is to get that.
        least = min([loss for name, loss in fresh.items() if not known.stale.get(name)] or fresh.values())
        fresh = {name: max(0.0, loss - least) for name, loss in fresh.items()}
        losses = {name: loss + known.stale.get(name, 0.0) for name, loss in fresh.items()}
        if least := min(losses.values()):
            losses = {name: loss - least for name, loss in losses.items()}
        ranked = sorted(profile.variants, key=lambda v: (losses[v.name], _full_ms(v)))
        self.names = tuple(variant.name for variant in ranked)
        self.indices = {name: index for index, name in enumerate(self.names)}
        self.loss_permille = tuple(losses[name] for name in self.names)
        """Validation accuracy below the most accurate served variant, or accuracy in service, with what stale rows add;
        ascending."""
        self.stale_permille = known.stale
        """As of `Losses`."""
        self._fresh_permille = fresh
        self.capabilities = tuple(point_of(variant).capabilities for variant in ranked)
        self._of_all = reduce(Capabilities.both, self.capabilities)
        """What every variant is capable of."""
        self.costs = CostModel(ranked, max_seeds, before)
        if same is not None:
            self.costs.keep(same.costs, [same.indices[name] for name in self.names])
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

    def bearable_permille(self, variant: str, tolerance_permille: float) -> float:
        """What stale rows may add to the loss of a variant within the tolerance; 0 or less: nothing."""
        return tolerance_permille - self._fresh_permille[variant]

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


def _full_ms(variant: VariantProfile) -> float:
    return variant.latency[-1].p50_ms
