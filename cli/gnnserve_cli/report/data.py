"""The report as data: what every form of it shows, and what `--json` prints.

Shares and accuracies are fractions of 1, `…Points` percentage points, `…Ms` milliseconds. Each part carries `says`:
what its figure means, in words with its own numbers."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from gnnserve_api.families import Family
from gnnserve_api.files.profile import (
    BY_LABELS,
    CascadeProfile,
    Compute,
    Metric,
    NodeScores,
    StaleLayerProfile,
    TaskFigures,
)
from gnnserve_api.files.provenance import Provenance
from gnnserve_api.files.stability import RankStability
from gnnserve_api.http.live_accuracy import ObservedShare
from gnnserve_api.variants import Storage


class Struct(msgspec.Struct, frozen=True, rename="camel"):
    """Read by scripts, so fields are only ever added."""


class Accuracy(Struct, frozen=True):
    """A share of nodes that were classified rightly, and where the true one lies at 95 % confidence."""

    share: float
    low: float
    high: float


class SizeRow(Struct, frozen=True):
    """One variant at one batch size; medians but for `meanMs` and `stdMs`."""

    seeds: int
    runs: int
    p50_ms: float
    p99_ms: float
    mean_ms: float
    std_ms: float
    sample_ms: float
    gather_ms: float
    compute_ms: float
    gathered_bytes: int
    window_ms: float
    """The paper's window: gather and compute."""
    window_std_ms: float
    gather_to_compute: float | None
    """The paper's comm/comp; None where computing took no measurable time."""


class NewNodesRow(Struct, frozen=True):
    """A batch of as many new nodes, which a request brings with features and edges."""

    seeds: int
    p50_ms: float


class VariantRow(Struct, frozen=True):
    name: str
    factor: int
    columns: int
    storage: Storage
    projected: bool
    compute: Compute
    on_frontier: bool
    """Whether, at the report's batch size, no other variant is as accurate and faster, or as fast and more accurate."""
    validation: Accuracy
    test: Accuracy | None
    in_service: ObservedShare | None
    """By labels that the server got, with an interval that holds at every moment; None: without labels, or of a
    repository."""
    loss_points: float
    """Below the most accurate variant, on validation nodes."""
    loss_may_be_chance: bool
    sizes: tuple[SizeRow, ...]
    new_nodes: tuple[NewNodesRow, ...]
    """Empty where the variant cannot answer requests with an overlay, or the profile does not say."""
    size_bytes: int
    memory_bytes: int
    family: Family
    cascade: CascadeProfile | None = None
    """None: it is a network of its own."""
    task_figures: TaskFigures | None = msgspec.field(default=None, name="links")
    """Figures of its task on the test split, or on the validation split where there is none; None: accuracies say
    all."""

    @property
    def judged(self) -> TaskFigures | NodeScores:
        """What it was judged by."""
        return self.task_figures or BY_LABELS


class ChosenVariant(Struct, frozen=True):
    """A variant that answers something, and what it costs and gives."""

    variant: str
    accuracy: float
    loss_points: float
    latency_ms: float
    relative_latency: float
    """Latency over that of the most accurate variant."""


class Summary(Struct, frozen=True):
    headline: str
    """One sentence: what the variants give."""
    says: str
    best: ChosenVariant
    within_one_point: ChosenVariant
    """The fastest that loses one point at most."""
    fastest: ChosenVariant


class ToleranceRow(Struct, frozen=True):
    tolerance_points: float
    answer: ChosenVariant


class Tier(Struct, frozen=True):
    tolerance_permille: int
    """The tolerance as a manifest or a request states it: rounded up, so that it reaches the variant."""
    answer: ChosenVariant


class Tolerances(Struct, frozen=True):
    says: str
    says_tiers: str
    rows: tuple[ToleranceRow, ...]
    tiers: tuple[Tier, ...]


class DriftVerdict(StrEnum):
    WITHIN_CHANCE = "WithinChance"
    """So many nodes would differ as much by chance."""
    SMALL = "Small"
    """The difference is more than chance, and less than half a point."""
    DRIFT = "Drift"
    """What was profiled on validation nodes does not hold on test nodes."""


class DriftRow(Struct, frozen=True):
    variant: str
    validation: float
    test: float
    difference_points: float
    """Test minus validation, and its interval: all variants' hold together at 95 % confidence."""
    low_points: float
    high_points: float
    verdict: DriftVerdict
    validation_ms: float | None
    """Median of the largest batch size on either split."""
    test_ms: float | None
    rows_ratio: float | None
    """Table rows read for test nodes over those for validation nodes: what a difference of degrees does, and of how
    often nodes repeat where a split has fewer than a batch."""


class Drift(Struct, frozen=True):
    says: str
    verdict: DriftVerdict
    latency_seeds: int
    rows: tuple[DriftRow, ...]


class Stability(Struct, frozen=True):
    says: str
    measured: RankStability | None


class LatencyPrediction(Struct, frozen=True):
    variant: str
    columns: int
    projected: bool
    calibrated_with: bool
    """One of the two that the model's rates come from: it agrees by construction, unless `problems` say that a stage
    did not fit."""
    measured_ms: float
    corrected_ms: float | None
    """By the performance model, which corrects a published one; None: it could not be calibrated."""
    corrected_error_percent: float | None
    family: Family


class ModelFit(Struct, frozen=True):
    """The performance model, calibrated for one storage."""

    says: str
    storage: Storage
    gather_gigabytes_per_s: float | None
    gather_fixed_ms: float | None
    compute_gigaoperations_per_s: float | None
    compute_fixed_ms: float | None
    rows_per_seed: float
    predictions: tuple[LatencyPrediction, ...]
    problems: tuple[str, ...]


class WidthAnswer(Struct, frozen=True):
    storage: Storage
    columns: int | None
    """The most that the curve through the measured medians allows; None: not even one."""
    factor: int | None
    """k of the widest variant with no more columns; None where `capped`."""
    extrapolated: bool
    """Whether it is fewer columns than any measured variant reads: nothing was measured there."""
    model_columns: int | None
    """Columns by the performance model; None: not even one fits, or the model could not be calibrated."""
    capped: bool
    """Whether the answer is as wide as was measured, though the graph has more columns: more may fit."""
    model_capped: bool
    """The same of `modelColumns`."""


class LatencyAnswer(Struct, frozen=True):
    """The variants, and the number of columns, that meet a latency at the report's batch size."""

    latency_ms: float
    says: str
    by_median: str | None
    """The most accurate measured variant whose median is within it."""
    by_p99: str | None
    """The same by p99, which is what serving promises by: a median times `Latencies.tailRatio`."""
    widths: tuple[WidthAnswer, ...]


class StaleLayer(Struct, frozen=True):
    """A stored layer whose rows may be stale."""

    says: str
    pays: bool
    """Whether it is worth making a part of the stale rows anew before requests are answered."""
    measured: StaleLayerProfile


class Curve(Struct, frozen=True):
    """How near to linear latency is in columns, for one storage."""

    storage: Storage
    fixed_ms: float
    per_column_us: float
    worst_left_out_percent: float | None
    """The largest error when a measured variant is predicted from the others; None below three variants."""


class Latencies(Struct, frozen=True):
    says: str
    tail_ratio: float
    """The typical p99 over median, which routing takes for every variant's."""
    curves: tuple[Curve, ...]
    answers: tuple[LatencyAnswer, ...]


class Says(Struct, frozen=True):
    """Sentences of the parts without figures of their own: they use those of the variants."""

    frontier: str
    stages: str
    window: str
    costs: str
    models: str


class Report(Struct, frozen=True):
    service: str
    """Namespace and name."""
    revision: str
    recipe: str
    metric: Metric
    machine: str
    threads: int
    validation_nodes: int
    """Nodes whose batches are profiled."""
    test_nodes: int
    validation_items: int
    """Nodes, or links, that validation accuracies are of."""
    test_items: int
    nodes: int
    features: int
    classes: int
    multi_label: bool
    seeds: int
    """Batch size of every latency that does not name its own."""
    cautions: tuple[str, ...]
    """What could mislead in this very report."""
    summary: Summary
    variants: tuple[VariantRow, ...]
    """Rows in the order of the profile."""
    tolerances: Tolerances
    drift: Drift | None
    """How accuracy and latency differ on test nodes; None where the graph has none."""
    stability: Stability
    models: tuple[ModelFit, ...]
    """One for each storage with two widths or more."""
    latencies: Latencies
    says: Says
    provenance: Provenance
    written_by: str
    device: str | None = None
    """The device that the server computes on; None: it does not say, or this is a repository."""
    search: tuple[str, ...] = ()
    """A line for each variant that a search looked at, kept (+) or not (-), and why; empty where the manifest lists the
    variants."""
    stale_layers: tuple[StaleLayer, ...] = ()
    """Empty: no stored layer may be stale, or an earlier gnnserve made the profile."""

    def variant(self, name: str) -> VariantRow:
        return next(row for row in self.variants if row.name == name)


def at_size(row: VariantRow, seeds: int) -> SizeRow:
    return next(size for size in row.sizes if size.seeds == seeds)
