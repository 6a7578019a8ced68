"""What the part of a batch that came with overlays costs each variant: the kind OVERLAY of `costs.py`.

A variant that is fast for stored nodes may be slow for new ones, whose rows it has to make. So this kind has curves of
its own, through the medians that the profile has of batches of new nodes, and corrections of its own. The expected time
of an overlay part of k seeds by variant v, as if it were a batch, is

    machine · alike · own[v] · curve[v](k)     where the profile has such medians
    own[v] · what k stored nodes take          where it has none: the first guess

- `machine`: as in `costs.py`. New nodes never correct it: requests bring other features and edges than those that were
  profiled, which says nothing about the machine.
- `alike`: how what requests bring compares with what was profiled, for all variants whose curve was measured.
- `own`: the variant's own correction beyond that; it returns to 1 while the variant is not used, as in `costs.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from gnnserve_api.profile import NewNodesLatency, VariantProfile
from gnnserve_worker.scheduling.curves import LARGEST_STEP, PROVEN_BATCHES, Curve, at, curve_through, hurry
from gnnserve_worker.scheduling.load import overlay_load

_ALIKE_GAIN = 0.08
_OWN_GAIN = 0.04
_SHARE_GAIN = 0.05
"""Share of a batch in what overlays are expected to count, where it takes that down. Up it goes at once, since a batch
that takes longer than expected makes others late."""


class OverlayWork(msgspec.Struct, frozen=True):
    """What the overlays of a batch added to it."""

    changed_seeds: int = 0
    """Seeds of the batch that are nodes of theirs."""
    fixed: float = 0.0
    """What they count as beside these, in seeds, whichever rows were drawn."""
    rows: float = 0.0
    """What drawn rows may have added to that, at most."""
    took_ms: float = 0.0
    """The time in which they were joined and rows were made of what was drawn of them."""


NO_OVERLAYS = OverlayWork()


class OverlayCosts:
    """Costs of kind OVERLAY of one revision's variants. Belongs to the cost model."""

    def __init__(self, variants: Sequence[VariantProfile], least_machine: float) -> None:
        self.share = 1.0
        """What overlays count as, as a share of the most that they may (`load.py`)."""
        self.factors = [1.0] * len(variants)
        """Current factor of each variant's curve, or of the first guess."""
        self._curves: list[Curve | None] = [
            curve_through([(_load_of(point), point.p50_ms) for point in variant.new_nodes])
            if variant.new_nodes
            else None
            for variant in variants
        ]
        self._ms_per_load = [_ms_per_load(variant) for variant in variants]
        self._load_per_node = [_load_per_node(variant) for variant in variants]
        self._machine = 1.0
        self._alike = 1.0
        self._own = [1.0] * len(variants)
        self._lowest = [1.0 if curve is None else least_machine for curve in self._curves]
        """The smallest of `factors` ever proven; at most 1."""
        self._batches = [0] * len(variants)
        self._all_batches = 0

    def part_ms(self, variant: int, overlay: float, stored_ms: float) -> float:
        """Expected time of an overlay part of this load, as if it were a batch. `stored_ms`: that of stored nodes."""
        curve = self._curves[variant]
        return self.factors[variant] * (stored_ms if curve is None else at(curve, overlay))

    def least_part_ms(self, variant: int, overlay: float, stored_ms: float) -> float:
        """As `part_ms`, both at the best speed ever proven here."""
        curve = self._curves[variant]
        return self._lowest[variant] * (stored_ms if curve is None else at(curve, overlay))

    def knows(self, variant: int) -> bool:
        """Whether the profile or a batch has shown what new nodes cost."""
        return self._curves[variant] is not None or self._batches[variant] > 0

    def load_per_node(self, variant: int) -> float:
        """What a new node counts as, where such batches were profiled; 1 elsewhere."""
        return self._load_per_node[variant]

    def follow(self, machine: float) -> None:
        """Take over how much slower this machine is than the profile's."""
        self._machine = machine
        profiled = machine * self._alike
        self.factors = [
            own if curve is None else profiled * own for own, curve in zip(self._own, self._curves, strict=True)
        ]

    def count(self, variant: int, work: OverlayWork, seed_ms: float) -> float:
        """What the overlays of a batch counted as beside their seeds, by the time that they took; no more than the most
        that they may. `seed_ms`: time of a seed more, for variants that were not profiled."""
        counted = work.took_ms / (self._machine * self._ms_per_load[variant] or seed_ms)
        if work.rows:
            found = min(max(0.0, (counted - work.fixed) / work.rows), 1.0)
            self.share = max(found, self.share + _SHARE_GAIN * (found - self.share))
        return min(counted, work.fixed + work.rows)

    def correct(self, variant: int, part_ms: float, expected_ms: float, excess_ms: float) -> None:
        """Correct the variant by a batch that was expected to take `expected_ms` in all, `part_ms` of it for its
        overlay part, and that took `excess_ms` more."""
        step = min(max(1 + excess_ms / part_ms, 1 / LARGEST_STEP), LARGEST_STEP) - 1
        step *= min(1.0, part_ms / expected_ms)
        own_gain = _OWN_GAIN
        if self._curves[variant] is not None:
            self._alike *= 1 + _ALIKE_GAIN * hurry(self._all_batches) * step
            self._all_batches += 1
        else:
            own_gain += _ALIKE_GAIN
        self._own[variant] *= 1 + own_gain * hurry(self._batches[variant]) * step
        self._batches[variant] += 1
        self.follow(self._machine)
        if self._batches[variant] >= PROVEN_BATCHES:
            self._lowest[variant] = min(self._lowest[variant], self.factors[variant])

    def forget(self, keep: float) -> None:
        """Return each variant's own correction to 1, but for the share `keep`."""
        self._own = [1 + keep * (own - 1) for own in self._own]


def _load_of(point: NewNodesLatency) -> int:
    """What such a batch counts as, every row being drawn."""
    return point.seeds + overlay_load(point.seeds, point.edges, point.seeds, point.feature_bytes, math.inf)


def _ms_per_load(variant: VariantProfile) -> float:
    """Time that overlays take for each seed that they count as, in the largest batch; 0: it is not known."""
    if not variant.new_nodes:
        return 0.0
    largest = variant.new_nodes[-1]
    counted = _load_of(largest) - largest.seeds
    return largest.overlay_ms / counted if counted else 0.0


def _load_per_node(variant: VariantProfile) -> float:
    if not variant.new_nodes:
        return 1.0
    largest = variant.new_nodes[-1]
    return _load_of(largest) / largest.seeds
