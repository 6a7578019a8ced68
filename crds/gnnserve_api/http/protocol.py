"""Messages over HTTP between a client and a worker, as JSON.

The worker parses requests and writes answers in `serving/http/codecs/json.py`; the command line does the opposite. A
request with an unknown field is refused, so that a typing error does not pass for a wish; in an answer it is
ignored, so that a client may be older than the server.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gnnserve_api.files.graph_schema import Classes
from gnnserve_api.files.links import LinksManifest
from gnnserve_api.files.profile import Profile
from gnnserve_api.files.provenance import Provenance
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_api.http.live_accuracy import VariantAccuracy
from gnnserve_api.objective import LOWEST_PRIORITY, Objective

MAX_SEED = 2**63 - 1
MAX_OFFSET = 2**63 - 1
"""Largest offset of a log of changes."""
Output = Literal["labels", "scores", "embeddings"]
Id = TypeVar("Id", int, str)
"""Id of a node: an integer, unless the graph's `nodeIds` are Strings."""
Label = int | str
"""The graph's own label of a class: integers, or texts."""


class NodeFeatures(msgspec.Struct, Generic[Id], frozen=True, rename="camel", forbid_unknown_fields=True):
    """A node and its features as the graph's source has them, before normalisation."""

    id: Annotated[Id, Meta(description="Id of the node, of the kind that `nodeIds` in `GET /v1/variants` says.")]
    features: Annotated[
        list[float] | dict[str, float | list[float]],
        Meta(
            description="All features in the order of the source's columns; or an object by the names of columns, in "
            "any order, with a list for a column of lists. What the object leaves out is filled in as the source's "
            "missing values were, or refused where these are. Where the source names no columns, an object has their "
            "numbers as names, from 0, and what it leaves out is 0."
        ),
    ]


EdgeFeatures = Annotated[
    tuple[list[float] | None, ...],
    Meta(
        description="Features of each of `edges`, in their order: a list in the order of the source's columns; null "
        "for an edge of a relation without. Needed where edges of the graph have features, and only there."
    ),
]
EdgeTimes = Annotated[
    tuple[int | None, ...],
    Meta(
        description="The time of each of `edges`, in their order: an integer as in the source; null for an edge of a "
        "relation without. Needed where edges of the graph have times, and only there."
    ),
]


class RequestOverlay(
    msgspec.Struct, Generic[Id], frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """Nodes and edges that a request brings beside the graph. It holds for this request alone; the graph is not
    changed."""

    nodes: Annotated[
        tuple[NodeFeatures[Id], ...],
        Meta(description="New nodes. Their ids are none of the graph's, and may be asked for in `nodes`."),
    ] = ()
    edges: Annotated[
        tuple[tuple[Id, Id], ...],
        Meta(
            description="Edges between new and stored nodes in any mixture, each a source and a target as in the "
            "graph's source, whose rules for direction, duplicates and self-loops hold."
        ),
    ] = ()
    edge_features: EdgeFeatures = ()
    edge_times: EdgeTimes = ()
    overrides: Annotated[
        tuple[NodeFeatures[Id], ...],
        Meta(description="Nodes of the graph with other features; columns that are not named stay as they are."),
    ] = ()


class PredictRequest(
    msgspec.Struct, Generic[Id], frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """Nodes to classify, and how well or fast."""

    nodes: Annotated[
        tuple[Id, ...],
        Meta(
            description="Node ids of the served graph, of the kind that `nodeIds` in `GET /v1/variants` says. They may "
            "repeat; the answer keeps their order.",
            extra_json_schema={"minItems": 1},
        ),
    ]
    objective: Annotated[
        Objective | None, Meta(description="Replaces the service's objective as a whole; absent or empty: that holds.")
    ] = None
    strict: Annotated[
        bool | UnsetType,
        Meta(description="Refuse with 422, instead of answering by the nearest variant, what no variant can meet."),
    ] = UNSET
    outputs: Annotated[tuple[Output, ...], Meta(description="What to return.", extra_json_schema={"minItems": 1})] = (
        msgspec.field(name="return", default=("labels",))
    )
    overlay: Annotated[
        RequestOverlay[Id] | None, Meta(description="New nodes, edges and new features, for this request alone.")
    ] = None
    seed: Annotated[
        int | None,
        Meta(
            description="The draws of neighbours depend on it alone: the same request gets the same answer from every "
            "worker with this revision, up to rounding, if the same variant answers. Absent: each request draws its "
            "own.",
            extra_json_schema={"minimum": 0, "maximum": MAX_SEED},
        ),
    ] = None
    variant: Annotated[
        str | None,
        Meta(
            description="The variant that is to answer, whatever routing and load call for; one of "
            "`GET /v1/variants`. An accuracy tolerance does not count then, unless the request is strict."
        ),
    ] = None
    min_offset: Annotated[
        int | None,
        Meta(
            description="Answer from a graph that has this offset of the log of changes, or a later one: the request "
            "waits for it until its deadline, one second without one.",
            extra_json_schema={"minimum": 0, "maximum": MAX_OFFSET},
        ),
    ] = None
    timeout_ms: Annotated[
        float | None,
        Meta(
            description="Milliseconds from arrival after which the client wants no answer any more: a request that "
            "still waits is dropped then, with 504. It chooses no variant.",
            extra_json_schema={"minimum": 0, "exclusiveMinimum": True, "maximum": 3_600_000},
        ),
    ] = None
    priority: Annotated[
        int | None,
        Meta(
            description="1 is the highest, 3 the lowest; absent or 0: 2. Requests of a higher priority go first, and "
            "are refused last where not all can be answered; a level is worth a second of waiting.",
            extra_json_schema={"minimum": 0, "maximum": LOWEST_PRIORITY},
        ),
    ] = None


class TypedNodeFeatures(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A node of a graph of several types, and its features as the graph's source has them."""

    id: Annotated[Any, Meta(description='Its id with its type: "paper/17", or {"type": "paper", "id": 17}.')]
    features: Annotated[
        list[float] | dict[str, float | list[float]] | None,
        Meta(
            description="All features in the order of the source's columns, or an object by the names of columns; "
            "absent for a type without features, whose new nodes begin with the mean of its embeddings."
        ),
    ] = None


TypedEdge = tuple[Any, str, Any]


class TypedOverlay(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Nodes and edges that a request brings beside a graph of several types. It holds for this request alone."""

    nodes: Annotated[
        tuple[TypedNodeFeatures, ...], Meta(description="New nodes. Their ids are none of the graph's of their type.")
    ] = ()
    edges: Annotated[
        tuple[TypedEdge, ...],
        Meta(
            description="Edges between new and stored nodes: source, relation and target as in the graph's source. "
            "Reverse relations that were added gain them too."
        ),
    ] = ()
    edge_features: EdgeFeatures = ()
    edge_times: EdgeTimes = ()
    overrides: Annotated[
        tuple[TypedNodeFeatures, ...], Meta(description="Nodes of the graph with other features, all of them given.")
    ] = ()


class TypedPredictRequest(PredictRequest[Any], frozen=True, rename="camel", forbid_unknown_fields=True):
    """A request about a graph of several types."""

    overlay: Annotated[
        TypedOverlay | None, Meta(description="New nodes, edges and new features, for this request alone.")
    ] = None  # type: ignore[assignment]


class PredictAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """One entry per node, in the order asked; only what was asked for."""

    variant: Annotated[str, Meta(description="The variant that answered.")]
    revision: Annotated[str, Meta(description="The revision that it belongs to.")]
    objective_met: Annotated[
        bool, Meta(description="Whether the answer came within the latency that was asked for; true where none was.")
    ]
    tier_permille: Annotated[
        int | UnsetType,
        Meta(
            description="The accuracy tolerance from which on that variant answers, as `tiers` of `GET /v1/variants` "
            "has it; absent where none makes it the fastest."
        ),
    ] = UNSET
    labels: Annotated[
        list[Label | list[Label]] | UnsetType,
        Meta(
            description="The graph's own label per node; for multi-label graphs a list: classes whose "
            "score is above 0. With `spec.variants.thresholds: PerClass` each class has a threshold of its own "
            "(`thresholds` of `provenance`); of two exclusive classes the second must lead by it."
        ),
    ] = UNSET
    scores: Annotated[
        list[list[float]] | UnsetType,
        Meta(description="Raw outputs of the network per class, ascending: before softmax (or sigmoid: multi-label)."),
    ] = UNSET
    embeddings: Annotated[
        list[list[float]] | UnsetType,
        Meta(
            description="Per node its last hidden layer: `spec.model.hidden` numbers, or "
            "`spec.model.program.embeddings.columns`."
        ),
    ] = UNSET
    offset: Annotated[
        int | UnsetType,
        Meta(description="The offset of the log of changes that the answer has seen; absent where the graph is fixed."),
    ] = UNSET


class AccuracyTier(msgspec.Struct, frozen=True, rename="camel"):
    """A tolerance from which on another variant answers."""

    tolerance_permille: Annotated[int, Meta(description="As `objective.accuracyTolerancePermille` states it.")]
    variant: Annotated[str, Meta(description="The fastest variant within the tolerance.")]
    accuracy: Annotated[float, Meta(description="Its validation accuracy, as a fraction of 1.")]
    relative_latency: Annotated[float, Meta(description="Its latency over that of the most accurate variant.")]


EdgeFeatureNames = Annotated[
    tuple[str, ...] | UnsetType,
    Meta(
        description="Features that edges have, in the order in which `edgeFeatures` of changes and overlays gives "
        "them; absent where they have none. Of several types each relation says its own."
    ),
]
EdgeTimeName = Annotated[
    str | UnsetType,
    Meta(
        description="What the graph's source calls the time of edges, which `edgeTimes` of changes and overlays gives; "
        "absent where they have none. Of several types each relation says its own."
    ),
]


class VariantsAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Variants that are served, and what each costs and gives."""

    service: str
    """`metadata.name` of the manifest."""
    revision: str
    """The revision that answers."""
    recipe: str
    """Digest of the part of the spec that it was generated from."""
    nodes: Annotated[int, Meta(description="How many nodes the graph has.")]
    node_ids: Annotated[
        NodeIdKind,
        Meta(
            description="What requests call nodes by. Positions: 0 to nodes - 1; Integers and Strings: the ids of the "
            "graph's source, which `GET /v1/nodes` lists."
        ),
    ]
    features: Annotated[int, Meta(description="Feature columns of the graph, before pruning.")]
    classes: Annotated[Classes, Meta(description="The graph's own label of each score column.")]
    multi_label: bool
    """Whether a node may have several labels."""
    profile: Profile
    """Accuracies and latencies that were measured before the revision was served."""
    provenance: Provenance
    """Where the revision comes from, and how it was made."""
    device: Annotated[
        str | UnsetType,
        Meta(
            description="On what batches are computed now: CPU, or the GPU's name. Where the profile was measured on "
            "another machine, as it was before a GPU was lost, /v1/route has what variants are expected to cost."
        ),
    ] = UNSET
    tiers: Annotated[
        tuple[AccuracyTier, ...],
        Meta(
            description="The tolerances at which the answer changes, the strictest first, by the profile's largest "
            "batches: between two of them a larger tolerance changes nothing."
        ),
    ] = ()
    links: Annotated[
        LinksManifest | UnsetType,
        Meta(description="What pairs are scored by; absent where nodes are classified. Then there are no classes."),
    ] = UNSET
    accuracy: Annotated[
        tuple[VariantAccuracy, ...] | UnsetType,
        Meta(description="The variants in service, as `GET /v1/accuracy` has them; absent before the first label."),
    ] = UNSET
    types: Annotated[
        tuple[NodeTypeAnswer, ...] | UnsetType,
        Meta(
            description="Types of nodes, the one that is classified first; absent where nodes are of one type. "
            "`nodes` and `nodeIds` are of the first, or of all where links are scored."
        ),
    ] = UNSET
    relations: Annotated[
        tuple[RelationAnswer, ...] | UnsetType,
        Meta(description="What nodes read, relation by relation; absent where nodes are of one type."),
    ] = UNSET
    edge_features: EdgeFeatureNames = UNSET
    edge_time: EdgeTimeName = UNSET
    stale: Annotated[
        tuple[StaleLayerAnswer, ...] | UnsetType,
        Meta(description="Stored layers that changes leave stale (`spec.updates.refresh`); absent without any."),
    ] = UNSET
    standing: Annotated[
        tuple[str, ...] | UnsetType,
        Meta(
            description="Variants of the profile that answer nothing: the graph changes (`spec.updates`), and they do "
            "not follow; absent without any."
        ),
    ] = UNSET


class StaleLayerAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """A stored layer, some of whose rows are not what the graph as it is now would give."""

    variants: Annotated[tuple[str, ...], Meta(description="Variants that read it.")]
    rows: Annotated[int, Meta(description="Rows that changes have moved, and that are not made anew yet.")]
    error_estimate: Annotated[
        float,
        Meta(
            description="Sum of the estimated errors of these rows: 1 of one that has nothing in common with what it "
            "should be."
        ),
    ]
    read_error_estimate: Annotated[
        float,
        Meta(description="Expected mean of the estimated errors of all rows that a batch reads."),
    ]
    sensitivity: Annotated[
        float,
        Meta(
            description="Most of the answers, as a share, that are expected to differ for each unit of that mean: as "
            "far as it was measured, by changes of this graph."
        ),
    ]
    loss_permille: Annotated[
        float,
        Meta(
            description="Expected answers in permille that differ from those of exact rows: an upper bound of what the "
            "variants' accuracy loses, which tolerances count."
        ),
    ]
    accuracy_now: Annotated[
        dict[str, float],
        Meta(description="Validation accuracy of each of these variants, as the profile has it, less that loss."),
    ]


class NodeTypeAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """A type of nodes."""

    name: Annotated[str, Meta(description="What ids of its nodes have before a slash: `paper/17`.")]
    nodes: int
    """How many nodes of the type the graph has."""
    node_ids: NodeIdKind
    """What requests call them by, behind the type."""
    features: Annotated[int | None, Meta(description="Features of a node; null: embeddings of its nodes were learned.")]


class RelationAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Edges of one kind, from nodes of one type to nodes of one type, which read them."""

    source: str
    """Type of the nodes that are read."""
    name: str
    """Name of the relation."""
    target: str
    """Type of the nodes that read them."""
    edges: int
    """How many edges it has."""
    both_ways: Annotated[
        bool | UnsetType, Meta(description="Whether an edge between two nodes of one type lets either read the other.")
    ] = UNSET
    merges: Annotated[bool | UnsetType, Meta(description="Whether edges between the same two nodes count once.")] = (
        UNSET
    )
    reverse_of: Annotated[
        str | UnsetType | None,
        Meta(
            description="The relation that it is the reverse of, which importing added: it gains and loses edges with "
            "it, and is not written itself. null: it is the source's."
        ),
    ] = UNSET
    edge_features: EdgeFeatureNames = UNSET
    edge_time: EdgeTimeName = UNSET


class NodesAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Some of the graph's node ids."""

    nodes: Annotated[list[int | str], Meta(description="Ids, in the graph's order; empty past its end.")]
    start: Annotated[int, Meta(description="Position of the first of them.")]
    total: Annotated[int, Meta(description="How many nodes the graph has.")]
    node_ids: Annotated[NodeIdKind, Meta(description="What kind of ids these are.")]
    type: Annotated[str | UnsetType, Meta(description="Their type; absent where nodes are of one type.")] = UNSET
    next: Annotated[
        int | UnsetType,
        Meta(description="`start` of the next page; absent once all were seen. Positions of removed nodes are passed."),
    ] = UNSET


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    message: str
    field: str | None = None


class ErrorAnswer(msgspec.Struct, frozen=True):
    error: ErrorDetail
