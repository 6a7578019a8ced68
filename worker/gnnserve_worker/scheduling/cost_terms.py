"""Terms of the cost model (`variants.py`): what a request counts as, how times follow sizes, and what comes on top.

A request about the stored graph counts as its seeds: that is its load. One with an overlay counts as more: each batch
that it takes part in arranges its nodes and edges, and makes rows of those new features that its seeds draw. So the
seeds of queues, groups and batches are loads wherever a time or a limit is derived from them. How heavy overlays are
kept from starving others: `decision.py` and `batcher.py`.

How many rows a request will draw is not known beforehand, but how many it may draw at most, and the share of that which
overlays took before. What a batch has counted as is known afterwards, by the time that its overlays took: costs are
corrected by what the profile says of that time, metrics count it as stored seeds that take as long.

What the part of a batch that came with overlays costs is the kind OVERLAY. A variant that is fast for stored nodes may
be slow for new ones, whose rows it has to make. So this kind has curves of its own, through the medians that the
profile has of batches of new nodes, and corrections of its own. The expected time of an overlay part of k seeds by
variant v, as if it were a batch, is

    machine · alike · own[v] · curve[v](k)     where the profile has such medians
    own[v] · what k stored nodes take          where it has none: the first guess

- `machine`: as in `variants.py`. New nodes never correct it: requests bring other features and edges than those that
  were profiled, which says nothing about the machine.
- `alike`: how what requests bring compares with what was profiled, for all variants whose curve was measured.
- `own`: the variant's own correction beyond that; it returns to 1 while the variant is not used, as in `variants.py`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

import msgspec

from gnnserve_api.families import Capabilities
from gnnserve_api.files.profile import NewNodesLatency, VariantProfile
from gnnserve_api.pods.routing import AffineCost

# Measured with projected variants, whose rows are dearest to make: GraphSAGE, 256 hidden columns, fan-outs 25 and 10,
# float32, processor time of two threads. In full batches a seed took 35 to 43 µs; a drawn row with 16, 128 and 602
# features 0.13, 0.16 and 0.5 to 0.6 seeds, of which the first is uncertain. A node and an entry that are not drawn took
# 17 ns and 1 to 2.6 ns: 1,024 nodes with 16,384 entries 2 to 4 seeds, whatever the variant. For pruned variants a drawn
# row takes 0.01 to 0.1 seeds, less than it counts.
SEEDS_PER_NODE = 1 / 1024
"""Load of an overlay node."""
SEEDS_PER_EDGE = 1 / 8192
"""Load of an entry that a neighbour list gains."""
SEEDS_PER_ROW = 1 / 16
"""Load of new features that are drawn, whatever their size."""
SEEDS_PER_KIB = 1 / 5
"""Load of a KiB of them as float32: normalised, then put in the order of columns or multiplied by the first layer."""


class BatchKind(StrEnum):
    """Kind of requests, by which a variant costs one thing or another. A batch may hold both kinds: the part of
    its load that is of kind OVERLAY is given with the load wherever a time is asked for."""

    STORED = "stored"
    """Stored nodes only, as the graph is stored."""
    OVERLAY = "overlay"
    """With an overlay: new nodes, other features, or more edges."""


def kind_of(needed: Capabilities) -> BatchKind:
    """The kind of a request that needs this."""
    return BatchKind.OVERLAY if needed.overlay else BatchKind.STORED


def overlay_load(nodes: int, edges: int, rows: int, feature_bytes: int, most_drawn: float, share: float = 1.0) -> int:
    """Load of an overlay, rounded to seeds. `edges`: entries that neighbour lists gain; `rows`: nodes with features of
    their own, of `feature_bytes` together; `most_drawn`: rows that the request's seeds may draw; `share`: the share of
    these that is expected."""
    fixed, of_rows = overlay_parts(nodes, edges, rows, feature_bytes, most_drawn)
    return round_load(fixed + share * of_rows)


def overlay_parts(nodes: int, edges: int, rows: int, feature_bytes: int, most_drawn: float) -> tuple[float, float]:
    """What an overlay's nodes and edges count, and what its new features do if as many are drawn as may be; as
    `overlay_load` takes them."""
    fixed = nodes * SEEDS_PER_NODE + edges * SEEDS_PER_EDGE
    if not rows:
        return fixed, 0.0
    drawn = min(1.0, most_drawn / rows)
    return fixed, drawn * (rows * SEEDS_PER_ROW + feature_bytes / 1024 * SEEDS_PER_KIB)


def round_load(load: float) -> int:
    return int(load + 0.5)


def load_of(seeds: int, overlay_load: int, max_seeds: int) -> int:
    """Load of a request with this many seeds left. A request beyond `max_seeds` takes several batches, and its overlay
    counts in each."""
    return seeds + overlay_load * -(-seeds // max_seeds)


def overlay_part(load: int, seeds: int, changed_seeds: int) -> int:
    """The part of kind OVERLAY of a request's load: what its overlay adds, and the seeds that are nodes of it."""
    return load - seeds + min(seeds, changed_seeds)


LEAST_MS = 1e-6
"""Smallest expected time of a batch, so that no expectation is 0."""
LARGEST_STEP = 2.0
"""A batch that took more than twice, or less than half, of what was expected counts as that: a stall is no drift."""
PROVEN_BATCHES = 20
"""Batches whose mean is reliable enough to base a promise on."""
LEAST_GAIN = 0.05
_FIRST_BATCHES = 8
"""The first batches, which correct by more."""

Segment = tuple[float, float, float, float]
"""A segment of a curve: its largest number of seeds, then its start (seeds, ms) and its slope in ms per seed."""
Curve = tuple[Segment, ...]


def profiled_curve(variant: VariantProfile) -> Curve:
    """The curve through the medians of the measured sizes."""
    return curve_through([(float(point.seeds), point.p50_ms) for point in variant.latency])


def curve_through(measured: Sequence[tuple[float, float]]) -> Curve:
    """The curve through points (seeds, ms) that ascend in seeds, extended beyond the last; constant below the
    smallest."""
    points = [(seeds, max(p50_ms, LEAST_MS)) for seeds, p50_ms in measured]
    segments: list[Segment] = [(points[0][0], points[0][0], points[0][1], 0.0)]
    for (low_seeds, low_ms), (high_seeds, high_ms) in pairwise(points):
        # Noise may make a larger batch look cheaper; an expectation must not fall with size.
        slope = max(0.0, (high_ms - low_ms) / (high_seeds - low_seeds))
        segments.append((high_seeds, low_seeds, segments[-1][2] if slope == 0 else low_ms, slope))
    last = segments[-1]
    segments[-1] = (math.inf, *last[1:])
    return tuple(segments)


def at(curve: Curve, seeds: float) -> float:
    for end, low_seeds, low_ms, slope in curve:
        if seeds <= end:
            return low_ms + slope * (seeds - low_seeds)
    raise AssertionError(f"{seeds} seeds are beyond the curve")


def stretch(curve: Curve, most: int, full_ms: float) -> Curve:
    """The curve up to a full batch of `most` seeds, extended beyond it with the average slope of a full batch."""
    below = [(min(end, most), low_seeds, low_ms, slope) for end, low_seeds, low_ms, slope in curve if low_seeds < most]
    return (*below, (math.inf, most, full_ms, (full_ms - curve[0][2]) / most))


def fit(variant: VariantProfile) -> AffineCost:
    """An affine fit by least squares of relative errors, since the times span orders of magnitude; no negative
    parts."""
    points = [(point.seeds, point.p50_ms) for point in variant.latency if point.p50_ms > 0]
    if not points:
        return AffineCost(fixed_ms=0.0, per_seed_ms=0.0)
    weights = [1 / (ms * ms) for _, ms in points]
    total = sum(weights)
    mean_seeds = sum(w * s for w, (s, _) in zip(weights, points, strict=True)) / total
    mean_ms = sum(w * ms for w, (_, ms) in zip(weights, points, strict=True)) / total
    spread = sum(w * (s - mean_seeds) ** 2 for w, (s, _) in zip(weights, points, strict=True))
    product = sum(w * (s - mean_seeds) * ms for w, (s, ms) in zip(weights, points, strict=True))
    per_seed_ms = max(0.0, product / spread) if spread else 0.0
    if per_seed_ms * mean_seeds > mean_ms:
        per_seed_ms = mean_ms / mean_seeds
    return AffineCost(fixed_ms=mean_ms - per_seed_ms * mean_seeds, per_seed_ms=per_seed_ms)


def hurry(batches: int) -> float:
    """Factor of what the next batch corrects, after so many."""
    return max(1.0, _FIRST_BATCHES / (batches + 2))


class Overhead:
    """Overhead of a batch beyond its computation: a fixed part, and a part for each request.

    It is a line through recent batches. While all batches have the same number of requests, the requests explain all of
    it.
    """

    __slots__ = (
        "_mean_ms", "_mean_product", "_mean_requests", "_mean_squared", "_recent", "_single_ms", "_singles", "_weight",
        "fixed_ms", "least_ms", "per_request_ms",
    )  # fmt: skip

    _MEMORY_BATCHES = 200.0
    _RECENT_BATCHES = 8
    _REPEATED = 3
    """An overhead that this many recent batches reached is not an outlier, and counts in full."""
    _ORDINARY_MS = 0.05
    """An overhead up to twice this is never an outlier; until the first batch nothing else is known."""
    _TOWARDS_MEAN = 0.25
    """Weight, in requests², of the assumption that requests explain all."""

    def __init__(self) -> None:
        self.fixed_ms = 0.0
        self.per_request_ms = 0.0
        self.least_ms = 0.0
        """Smallest overhead of a single request; 0 until it is known."""
        self._recent: deque[tuple[int, float]] = deque(maxlen=self._RECENT_BATCHES)
        """Requests and overhead (ms, not limited) of the recent batches."""
        self._weight = 0.0
        self._mean_requests = 0.0
        self._mean_ms = 0.0
        self._mean_squared = 0.0
        self._mean_product = 0.0
        self._single_ms = 0.0
        self._singles = 0

    def at(self, requests: float) -> float:
        return self.fixed_ms + self.per_request_ms * requests

    def observe(self, requests: int, took_ms: float) -> None:
        took_ms = max(0.0, took_ms)
        self._recent.append((requests, took_ms))
        expected_ms = max(self.fixed_ms + self.per_request_ms * requests, self._ORDINARY_MS)
        if took_ms > LARGEST_STEP * expected_ms:
            took_ms = min(took_ms, LARGEST_STEP * self._repeated_ms(expected_ms))
        self._weight = min(self._weight + 1, self._MEMORY_BATCHES)
        gain = 1 / self._weight
        self._mean_requests += gain * (requests - self._mean_requests)
        self._mean_ms += gain * (took_ms - self._mean_ms)
        self._mean_squared += gain * (requests * requests - self._mean_squared)
        self._mean_product += gain * (requests * took_ms - self._mean_product)
        mean = self._mean_requests
        ratio = self._mean_ms / mean
        slope = (self._mean_product - mean * self._mean_ms + self._TOWARDS_MEAN * ratio) / (
            self._mean_squared - mean * mean + self._TOWARDS_MEAN
        )
        self.per_request_ms = min(max(0.0, slope), ratio)
        self.fixed_ms = self._mean_ms - self.per_request_ms * mean
        if requests == 1:
            self._observe_single(took_ms)

    def _repeated_ms(self, expected_ms: float) -> float:
        """What is expected of a batch that took far longer than `expected_ms`: an outlier counts as at most twice that;
        an overhead that repeats itself is the new one."""
        if len(self._recent) < self._REPEATED:
            return expected_ms
        alike = []
        for requests, recent_ms in self._recent:
            of_recent_ms = max(self.fixed_ms + self.per_request_ms * requests, self._ORDINARY_MS)
            alike.append(recent_ms * expected_ms / of_recent_ms)
        return max(expected_ms, sorted(alike)[-self._REPEATED])

    def _observe_single(self, took_ms: float) -> None:
        self._singles += 1
        self._single_ms += max(LEAST_GAIN, 1 / self._singles) * (took_ms - self._single_ms)
        if self._singles == PROVEN_BATCHES:
            self.least_ms = self._single_ms
        elif self._singles > PROVEN_BATCHES:
            self.least_ms = min(self.least_ms, self._single_ms)


_ALIKE_GAIN = 0.08
_OWN_GAIN = 0.04
_SHARE_GAIN = 0.05
"""Share of a batch in what overlays are expected to count, where it takes that down. Up it goes at once, since a batch
that takes longer than expected makes others late."""


class OverlayWork(msgspec.Struct, frozen=True):
    """Work that the overlays of a batch added to it."""

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
        """What overlays count as, as a share of the most that they may."""
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

    def keep(self, before: OverlayCosts, places: Sequence[int]) -> None:
        """Take over what was learnt of these same variants in another order. `places`: where each stood."""
        self.share, self._alike, self._all_batches = before.share, before._alike, before._all_batches
        self._own = [before._own[place] for place in places]
        self._lowest = [before._lowest[place] for place in places]
        self._batches = [before._batches[place] for place in places]
        self.follow(before._machine)

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
