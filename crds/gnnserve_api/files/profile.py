"""The profile: what each variant costs and gives, measured before it serves.

Published as static profiling in Dynamic GNN inference as-a-service, section 4.4.

Written by generation, stored in the revision, read by routing and by people.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gnnserve_api.families import PROJECTED, PRUNED, Capabilities, Family, point_of
from gnnserve_api.files.search import SearchRecord
from gnnserve_api.variants import Storage

Metric = Annotated[str, Meta(pattern="^[A-Za-z][A-Za-z0-9]{0,39}$")]
"""A task's name for what it calls accuracy, as `f1Micro`."""
Compute = Literal["float32", "bfloat16"]
# What a reader may rely on, of a file or of a server: reports divide by these, and draw them. No float loses a count.
Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Share = Annotated[float, Meta(ge=0, le=1)]
Duration = Annotated[float, Meta(ge=0, le=1e9)]
PositiveDuration = Annotated[float, Meta(ge=1e-6, le=1e9)]


class LatencyProfile(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Times of one batch size, sampling included, queueing and HTTP excluded."""

    seeds: Positive
    """Nodes of the batch."""
    runs: Positive
    """Batches that were timed."""
    p50_ms: PositiveDuration
    """Median of a batch."""
    p99_ms: PositiveDuration
    """99th percentile of a batch."""
    mean_ms: Duration
    """Mean of a batch."""
    std_ms: Duration
    """Standard deviation of a batch."""
    sample_ms: Duration
    """Median of the stage; the three stage medians need not add up to `p50_ms`."""
    gather_ms: Duration
    """Median of reading and aggregating rows."""
    compute_ms: Duration
    """Median of the network."""
    gathered_bytes: Count
    """Bytes of the table read per batch, mean over the runs: rows times columns times bytes per number."""
    window_p50_ms: Duration
    """Median of gather plus compute: the window of Dynamic GNN inference as-a-service, section 4.2 (from the start of
    the feature transfer to the end of computing), which leaves sampling out. Here rows are copied to no device:
    gathering is the transfer."""
    window_mean_ms: Duration
    """Mean of the same window."""
    window_std_ms: Duration
    """Standard deviation of the same window."""


class CascadeProfile(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Parts of a variant that is a cascade."""

    first: str
    """Variant that answers first."""
    then: str
    """Variant that answers what the first one passes on."""
    passed_on: Share
    """Share of the validation nodes that `first` passed on to `then`."""


class NewNodesLatency(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Times of one batch size, where all seeds are new nodes: a request brings each with its features and its edges.
    Sampling included, queueing and HTTP excluded."""

    seeds: Positive
    """New nodes of the batch."""
    edges: Count
    """Entries that the neighbour lists of a batch gained, mean over the runs: each new node read those of a validation
    node."""
    feature_bytes: Count
    """Bytes of the features that a batch brought, as float32."""
    runs: Positive
    """Batches that were timed."""
    p50_ms: PositiveDuration
    """Median of a batch."""
    p99_ms: PositiveDuration
    """99th percentile of a batch."""
    overlay_ms: Duration
    """Median of the time in which the overlay was joined and rows were made of the new features; `p50_ms` includes
    it."""


class LinkScores(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How well a variant tells links from other pairs, as fractions of 1."""

    links: Count
    """Held-out links that it was judged by; as many pairs without a link stood beside them."""
    roc_auc: Share
    """How often a link has a higher score than another pair."""
    average_precision: Share
    """How far up links come among both."""
    sources: Count
    """First nodes of these links whose pairs were ranked: all of them, or a sample."""
    candidates: Count
    """Second nodes that each was paired with: all that may be one, or a sample and those of its links."""
    mrr: Share
    """Mean of 1 / rank of a link among all pairs of its first node that are no links."""
    recall_at_k: Share
    """Share of a node's held-out links among its `k` best unknown pairs."""
    ndcg_at_k: Share
    """The same with a weight for each place."""
    k: Positive
    """`spec.task.links.recallAt`."""

    def figures_beside(self, metric: Metric) -> Mapping[str, float]:
        """Figures that the metric is not, by the names that reports give them."""
        named: Mapping[Metric, tuple[str, float]] = {
            "rocAuc": ("ROC-AUC", self.roc_auc),
            "averagePrecision": ("Average precision", self.average_precision),
            "mrr": ("MRR", self.mrr),
            "recallAtK": (f"Recall@{self.k}", self.recall_at_k),
        }
        return dict(figure for one, figure in named.items() if one != metric)

    def count_items(self, nodes: int) -> int:
        """How many items accuracies are of, where so many nodes are profiled."""
        return self.links

    @property
    def item(self) -> str:
        """Name of what is judged."""
        return "link"

    def name_nodes(self, split: str) -> str:
        """Name of the nodes that are profiled, of one split."""
        return f"nodes of {split} links"

    def describe_outputs(self, classes: int, *, multi_label: bool) -> str:
        """Sentence part about what networks answer."""
        return "links to score"

    @property
    def unseen(self) -> str:
        """Sentence part about what training did not see of the test split."""
        return "test links, which training did not see"


@dataclass(frozen=True, slots=True)
class NodeScores:
    """Judgement of a variant by labels of nodes, where accuracies say all."""

    def figures_beside(self, metric: Metric) -> Mapping[str, float]:
        return {}

    def count_items(self, nodes: int) -> int:
        return nodes

    @property
    def item(self) -> str:
        return "node"

    def name_nodes(self, split: str) -> str:
        return f"{split} nodes"

    def describe_outputs(self, classes: int, *, multi_label: bool) -> str:
        return f"{classes:,} classes, several per node" if multi_label else f"{classes:,} classes"

    @property
    def unseen(self) -> str:
        """Empty: it depends on how the networks were trained."""
        return ""


BY_LABELS = NodeScores()

TaskFigures: TypeAlias = LinkScores
"""Figures that profiles have of a task beside its accuracies. Those of a further task stand beside, told apart by a
tag."""


class StalePoint(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Requests for one item each, which make a share of the stale rows that they read anew before they answer."""

    recomputed: Share
    """Share of the stale rows that are read which is made anew, the largest estimated errors first."""
    rows: Duration
    """Rows that a request made, mean."""
    p50_ms: PositiveDuration
    """Median of a request, making rows included."""
    differing: Share
    """Share of the answers that are others than those of exact rows."""
    accuracy: Share | None
    """Share of right answers, as labels tell; None: pairs are scored."""


StaleKind = Literal["edges", "newNodes", "overlays"]
"""Edges drawn at random come; or all edges of the nodes that are asked about, which had none before; or requests bring
these nodes with their edges, one by one."""


class StaleChanges(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Changes of the graph which leave rows stale, and what answers are then."""

    kind: StaleKind
    """What came: `edges` drawn at random, with `newNodes` all edges of the nodes that are asked about, or with
    `overlays` requests that bring such nodes. Of these the own row is always made, and counts as no row."""
    edges: Count
    """Edges that came."""
    share: Share
    """Share of the graph's edges that they are: less than was wanted where the time for them was over."""
    answers: Positive
    """Answers that were compared."""
    read_error: Share
    """Mean estimated error of the rows that these read, with none made anew."""
    exact_accuracy: Share | None
    """Share of right answers of exact rows; None: pairs are scored."""
    points: Annotated[tuple[StalePoint, ...], Meta(min_length=1)]
    """By the share of stale rows that is made anew, ascending; the first makes none."""

    @property
    def differing(self) -> float:
        """Share of the answers that differ where no row is made anew."""
        return self.points[0].differing


class WholeNeighbours(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Requests for one item each over all neighbours within the model's hops, which nothing is stored of."""

    variant: str
    """Variant that was asked, with all neighbours in place of those that it draws."""
    p50_ms: PositiveDuration
    """Median of a request."""


class StaleLayerProfile(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Stored layer whose rows may be stale (`spec.updates.refresh`): what reading them so costs, and what making them
    anew. Changes were played on a copy of the revision, with edges of its own that had been taken out before."""

    layer: Positive
    """The first layer is 1; it is never stale."""
    variant: str
    """Variant that was asked: the first that reads the layer."""
    variants: tuple[str, ...]
    """All variants that read it, by way of a cascade too."""
    exact_p50_ms: PositiveDuration
    """Median of a request where no row is stale."""
    whole: WholeNeighbours | None
    """The same over whole neighbourhoods; None: no variant computes all layers of the model."""
    changes: Annotated[tuple[StaleChanges, ...], Meta(min_length=1)]
    """Changes that were played, one after the other, each on rows that were right before."""


class VariantProfile(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One variant. Accuracies are fractions of 1 under `Profile.metric`."""

    name: str
    """Name of the variant, such as `x4` or `x4-int8`."""
    factor: Positive
    """1 for projected variants: they lose nothing but rounding."""
    table: str
    """Key of the revision's `tables`."""
    columns: Positive
    """Leading columns of the table that are read per row."""
    storage: Storage
    """How the numbers of its table are stored."""
    projected: bool
    """Whether its rows are products of the first layer."""
    compute: Compute
    """What the matrix products run in where the processor has it; float32 elsewhere."""
    validation_accuracy: Share
    """Accuracy on validation nodes, by which routing goes."""
    test_accuracy: Share | None
    """Accuracy on test nodes; None where the graph has no test split."""
    latency: Annotated[tuple[LatencyProfile, ...], Meta(min_length=1)]
    """Latencies ascending in `seeds`, the same sizes for every variant; never empty. On validation nodes."""
    test_latency: LatencyProfile | None
    """Latency on test nodes at the largest batch size: what was profiled on validation nodes may not hold for others
    (Dynamic GNN inference as-a-service, section 4.4). None where the graph has no test split."""
    size_bytes: Count
    """The serialised weights."""
    memory_bytes: Count
    """Weights and the columns of its table that this variant reads."""
    family: Family = PRUNED.family
    """What it saves."""
    fanouts: tuple[int, ...] = ()
    """Neighbours that are sampled per layer, the seed's draw first; empty where an earlier gnnserve says nothing, and
    for cascades, whose stages have their own."""
    cascade: CascadeProfile | None = None
    """None: it is a network of its own. Table, columns and storage of a cascade are those of its first stage; its
    weights and memory are those of both."""
    validation_figures: TaskFigures | None = msgspec.field(default=None, name="validationLinks")
    """Figures of the task on the validation split, of which the metric names the one that is the accuracy; None:
    accuracies say all. Files call them as the first task did that has any, so that earlier releases read them."""
    test_figures: TaskFigures | None = msgspec.field(default=None, name="testLinks")
    """Figures on the test split; None where there is none too."""
    new_nodes: tuple[NewNodesLatency, ...] = ()
    """Latencies of batches of new nodes, ascending in `seeds`. Empty where the variant cannot answer requests with an
    overlay, and of a profile that an earlier gnnserve wrote."""

    @property
    def judged(self) -> TaskFigures | NodeScores:
        """Measure that it was judged by: on the test split where there is one, else on the validation split."""
        return self.test_figures or self.validation_figures or BY_LABELS

    def __post_init__(self) -> None:
        if self.projected and self.family == PRUNED.family:
            # An earlier gnnserve wrote the profile, which named no families and knew these two.
            msgspec.structs.force_setattr(self, "family", PROJECTED.family)


@dataclass(frozen=True, slots=True)
class LatencyCurve:
    """Predictions of one variant, worked out once: the data path asks for every batch that it considers."""

    seeds: tuple[int, ...]
    """Seeds of the points, ascending."""
    latency_ms: tuple[float, ...]

    def at(self, seeds: int) -> float:
        """Linear between the measured sizes and beyond the last; below the smallest its figure holds."""
        if seeds <= self.seeds[0] or len(self.seeds) == 1:
            return self.latency_ms[0]
        upper = next((i for i, measured in enumerate(self.seeds) if seeds <= measured), len(self.seeds) - 1)
        low_seeds, low_ms = self.seeds[upper - 1], self.latency_ms[upper - 1]
        # Noise may make a bigger batch look cheaper; a prediction must not go down with size.
        slope = max(0.0, (self.latency_ms[upper] - low_ms) / (self.seeds[upper] - low_seeds))
        return low_ms + slope * (seeds - low_seeds)


class Profile(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """All variants of a revision: pruned ones ascending in factor, projected ones, then those with other fan-outs."""

    metric: Metric
    """A fraction of 1, by which the task judges."""
    machine: str
    """Processor and thread count of the measurement: a profile from elsewhere is only a hint."""
    threads: Count
    """Threads that computed."""
    validation_nodes: Count
    """Nodes that are profiled, of which validation accuracies are, or of links that they have."""
    test_nodes: Count
    """As `validation_nodes`, of the test split."""
    variants: tuple[VariantProfile, ...]
    """The variants, by ascending factor."""
    search: SearchRecord | None = None
    """Why these variants are kept, and others are not; None: the manifest lists the variants."""
    stale: tuple[StaleLayerProfile, ...] | UnsetType = msgspec.field(default=UNSET, name="staleLayers")
    """Stored layers behind the first that follow changes, and so may be stale; absent: there are none, or an earlier
    gnnserve wrote the profile."""

    @property
    def judged(self) -> TaskFigures | NodeScores:
        """What all variants were judged by."""
        return self.variants[0].judged

    def answering(self, needed: Capabilities) -> Profile:
        """The profile of the variants that answer at all, where each must be capable of what is needed: of a graph that
        changes, of those that follow (`CHANGED_GRAPH`). Their most accurate one is what losses, tolerances and tiers
        count from."""
        able = tuple(one for one in self.variants if point_of(one).capabilities.cover(needed))
        return msgspec.structs.replace(self, variants=able)

    @property
    def validation_items(self) -> int:
        """How many nodes, or links, validation accuracies are of."""
        return (self.variants[0].validation_figures or BY_LABELS).count_items(self.validation_nodes)

    @property
    def test_items(self) -> int:
        """As `validation_items`, of test accuracies."""
        return (self.variants[0].test_figures or BY_LABELS).count_items(self.test_nodes)

    def variant(self, name: str) -> VariantProfile:
        return next(v for v in self.variants if v.name == name)

    def latency_curve(self, name: str) -> LatencyCurve:
        """Predicted p99 of the variant at the measured sizes.

        The p99, because an objective is a promise. Stalls belong to the machine and not to the variant that happened
        to run, so the distance from median to p99 is shared: the median over the variants of their p99/p50.
        """
        points = self.variant(name).latency
        return LatencyCurve(
            seeds=tuple(point.seeds for point in points),
            latency_ms=tuple(point.p50_ms * self.tail_ratio(i) for i, point in enumerate(points)),
        )

    def tail_ratio(self, size: int) -> float:
        """p99 over median at measured size number `size`: near 2 on a quiet machine, and no variant's own."""
        points = [variant.latency[size] for variant in self.variants]
        return statistics.median(point.p99_ms / point.p50_ms for point in points)
