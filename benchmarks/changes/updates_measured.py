"""Measurements of the parts of `make bench-updates`, as the result file has them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gnnserve_api.families import POINTS, Family, NetworkAxis

WANTED_FAMILIES = frozenset(
    family
    for family, point in POINTS.items()
    if point.capabilities.changes and point.network is not NetworkAxis.CASCADE
)
"""A cascade is two variants, which are compared one by one."""

TOGETHER = 2048
"""Items that a follower of the log applies in one go."""


class ApplyRate(msgspec.Struct, frozen=True):
    batch: int
    """Changes of a batch."""
    stored: bool
    """Whether stored1 is kept exact; else there are x1 and projected alone."""
    by_degree: bool
    """Nodes are drawn as often as lists name them; else all alike."""
    at_first_per_s: int | None
    """Changes per second of a graph that was just opened: a row's first change copies its page, and its sum is made.
    None: it was not measured."""
    changes: int
    """Changes of the time that follows, once every row of the stored layer has been written."""
    changes_per_s: int
    shares: Mapping[str, float]
    """Share of the time by stage, after that. They are measured in a run of their own."""
    layers: int = 1
    """How many stored layers follow, where any does."""
    stale: bool = False
    """Whether rows of layers behind the first are marked as stale; else all are kept exact."""
    right_s: float | None = None
    """Seconds in which all rows are made right afterwards, turn by turn as the background does; None: they are."""
    together: int = TOGETHER
    """Changes that are applied in one go."""

    @property
    def right_changes_per_s(self) -> int:
        """Changes per second, if all rows are made right behind those that were measured."""
        return round(self.changes / (self.changes / self.changes_per_s + (self.right_s or 0.0)))


class Gathering(msgspec.Struct, frozen=True):
    """Batches of 1,024 seeds over a graph that has changed, beside the mapped revision."""

    variant: str
    changed_rows: float
    """Share of the nodes that got other features."""
    reached_rows: float
    """Share of the nodes whose stored layer was written."""
    mapped_ms: float
    """Median."""
    ratio: float
    low: float
    high: float
    pairs: int


class MemoryPoint(msgspec.Struct, frozen=True):
    changes: int
    delta_bytes: int
    """What the worker counts against `maxDelta`."""
    anonymous_bytes: int
    """How much more anonymous memory the process has than before the first change."""


class ExactSums(msgspec.Struct, frozen=True):
    changes: int
    passed: bool
    """Whether what rounding left of the sums that were kept is, to the bit, what it was at first, and nothing
    where they were made from lists since."""


class GraphFigures(msgspec.Struct, frozen=True):
    """Everything that is measured of a shape in process."""

    nodes: int
    edges: int
    variants: tuple[str, ...]
    rates: tuple[ApplyRate, ...]
    gathering: tuple[Gathering, ...]
    memory: tuple[MemoryPoint, ...]
    sums: ExactSums


class AnswerErrors(msgspec.Struct, frozen=True):
    """How far answers of one architecture are off, relative where they are above 1."""

    architecture: str
    changes: int
    nodes: int
    errors: dict[str, float]
    """Largest error, by variant."""
    families: tuple[Family, ...]
    """Families of these variants."""


class DurableRate(msgspec.Struct, frozen=True):
    batch: int
    at_first_per_s: int
    """Changes per second of a server that has just started."""
    changes_per_s: int
    """The same of the load that follows, as all that is below."""
    p50_ms: float
    """From sending a batch to its acknowledgement: durable, and applied by the worker that was asked."""
    p99_ms: float
    batches: int
    seconds: int


class Arrival(msgspec.Struct, frozen=True):
    """From the acknowledgement of a batch until another process has applied it."""

    offered_per_s: int
    """Changes per second that others send meanwhile."""
    p50_ms: float
    p99_ms: float
    batches: int


class PredictionCost(msgspec.Struct, frozen=True):
    """Predictions at 70 % of the capacity, in rounds with and without changes in turns."""

    changes_per_s: int
    share: float
    """Offered changes over the rate that clients of changes reach alone."""
    predictions_per_s: float
    p99_without_ms: float
    p99_with_ms: float
    ratio: float
    low: float
    high: float
    acknowledged_p99_ms: float
    predictions: int
    acknowledged_per_s: int | None = None
    """Changes per second that were acknowledged while predictions were sent: fewer than were offered where the worker
    leaves its time to predictions. None: it was not measured."""


class ServiceFigures(msgspec.Struct, frozen=True):
    variant: str
    """Answers the predictions."""
    rates: tuple[DurableRate, ...]
    arrivals: tuple[Arrival, ...]
    predictions: tuple[PredictionCost, ...]


class LinkErrors(msgspec.Struct, frozen=True):
    """How far scores of pairs of one kind of service are off, relative where they are above 1."""

    service: str
    changes: int
    pairs: int
    errors: dict[str, float]
    """Largest error, by variant."""


class RecommendingFigures(msgspec.Struct, frozen=True):
    """A service that recommends by links, whose graph changes."""

    variant: str
    """Variant that the index is of."""
    nodes: int
    edges: int
    """Entries of neighbour lists."""
    rates: tuple[DurableRate, ...]
    recommendations: tuple[PredictionCost, ...]


class ReplayedVariant(msgspec.Struct, frozen=True):
    variant: str
    changed: float
    """Accuracy on what arrived, as a fraction of 1."""
    rebuilt: float
    """The same, over the graph that was built anew."""


class Replay(msgspec.Struct, frozen=True):
    nodes: int
    arrived: int
    batches: int
    variants: tuple[ReplayedVariant, ...]


class Start(msgspec.Struct, frozen=True):
    """A start over a log of small batches."""

    nodes: int
    edges: int
    """Entries of neighbour lists."""
    records: int
    changes: int
    log_bytes: int
    load_s: float
    """From the revision on the disk to one that follows the log, median."""
    replay_s: float
    """From there to one that has applied the log, median."""
    replays_s: tuple[float, ...]
    """Each of them, in their order."""


class Compaction(msgspec.Struct, frozen=True):
    """A log of edges that come and go, made part of the graph."""

    nodes: int
    edges: int
    """Entries of neighbour lists."""
    changes: int
    log_bytes: int
    written_s: float
    """Time in which the log was written, in batches of 1,000 and groups of 64."""
    took_s: float
    stages_s: Mapping[str, float]
    """The same by stage."""
    start_with_log_s: float
    """From the revision on the disk to one that has applied the log."""
    start_after_s: float
    """From the revision that was made."""
    peak_bytes: int
    """Largest memory of the process, mapped files in it."""
