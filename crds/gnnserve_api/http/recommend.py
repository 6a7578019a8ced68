"""`POST /v1/recommend` between client and worker, as JSON: nodes whose embeddings are nearest to a node's."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gnnserve_api.files.embeddings import IndexState
from gnnserve_api.http.protocol import MAX_OFFSET, MAX_SEED, Id, RequestOverlay, TypedOverlay
from gnnserve_api.objective import Objective

MOST_RECOMMENDED = 1000
"""Largest `count` of a request."""
Exclude = Literal["known", "nothing"]


class ColumnCondition(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Condition on the number of a node in a column: all that is given has to hold."""

    below: Annotated[float | None, Meta(description="Less than this.")] = None
    above: Annotated[float | None, Meta(description="More than this.")] = None
    at_least: Annotated[float | None, Meta(description="This or more.")] = None
    at_most: Annotated[float | None, Meta(description="This or less.")] = None
    between: Annotated[tuple[float, float] | None, Meta(description="From the first to the second, both included.")] = (
        None
    )
    equals: Annotated[float | bool | None, Meta(description="This; true is 1, and false 0.")] = None
    one_of: Annotated[tuple[float | bool, ...] | None, Meta(description="One of these.")] = None


_EITHER = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
_List = Annotated[tuple[Any, ...], Meta(extra_json_schema={"items": {}})]
# Lists are those of the names below alone: of a column there are conditions.
_ByName = Annotated[_List | ColumnCondition, Meta(extra_json_schema={"not": {"type": "array"}})]
Filter = Annotated[
    dict[str, _ByName],
    Meta(
        description="Which nodes may be recommended: `labels` and `nodes`, which are lists, and conditions by the name "
        "of a column of the graph's source that is a feature. A node has to pass all that is given.",
        extra_json_schema={
            "properties": {
                "labels": {
                    "type": "array",
                    "items": _EITHER,
                    "description": "Nodes that the graph's source labels with one of these; unlabelled ones do not "
                    "pass.",
                },
                "nodes": {"type": "array", "items": {}, "description": "These nodes."},
            }
        },
    ),
]


class RecommendRequest(
    msgspec.Struct, Generic[Id], frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """A node, and how many nodes to recommend for it."""

    node: Annotated[
        Id, Meta(description="Id of a node of the graph, or of a new one in `overlay`. Its embedding is computed now.")
    ]
    count: Annotated[
        int,
        Meta(description="How many nodes, at most.", extra_json_schema={"minimum": 1, "maximum": MOST_RECOMMENDED}),
    ] = 10
    type: Annotated[
        str | None,
        Meta(
            description="Type of the nodes to recommend, in a graph of several types. Absent: where links are scored, "
            "that of the other end; otherwise the type that is classified."
        ),
    ] = None
    exclude: Annotated[
        Exclude,
        Meta(
            description="known: nodes that are in the node's neighbour list, or joined to it in `overlay`, are not "
            "recommended. nothing: they may be. The node itself never is."
        ),
    ] = "known"
    filter: Filter | None = None
    objective: Annotated[
        Objective | None, Meta(description="Replaces the service's objective as a whole; absent or empty: that holds.")
    ] = None
    strict: Annotated[bool | UnsetType, Meta(description="Refuse with 422 what no variant can meet.")] = UNSET
    overlay: Annotated[
        RequestOverlay[Id] | None, Meta(description="New nodes, edges and new features, for this request alone.")
    ] = None
    seed: Annotated[
        int | None,
        Meta(
            description="The draws of neighbours depend on it alone.",
            extra_json_schema={"minimum": 0, "maximum": MAX_SEED},
        ),
    ] = None
    min_offset: Annotated[
        int | None,
        Meta(
            description="Compute the node's embedding on a graph that has this offset of the log of changes.",
            extra_json_schema={"minimum": 0, "maximum": MAX_OFFSET},
        ),
    ] = None


class TypedRecommendRequest(RecommendRequest[Any], frozen=True, rename="camel", forbid_unknown_fields=True):
    """A request about a graph of several types."""

    overlay: Annotated[
        TypedOverlay | None, Meta(description="New nodes, edges and new features, for this request alone.")
    ] = None  # type: ignore[assignment]


class RecommendedNode(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A node, and how near it is: by its cosine, or where the service scores links, by the score of the pair."""

    id: int | str
    cosine: Annotated[
        float | UnsetType,
        Meta(description="Cosine of the angle between both embeddings: 1 is the same direction."),
    ] = UNSET
    score: Annotated[float | UnsetType, Meta(description="Score of the pair of both nodes.")] = UNSET
    probability: Annotated[float | UnsetType, Meta(description="Calibrated probability of a link of both nodes.")] = (
        UNSET
    )


class RecommendAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The nodes, the nearest first; fewer than asked for where not as many may be recommended."""

    items: list[RecommendedNode]
    """Each with its `id`, and `cosine` or for links `score` and `probability`, the nearest first; none where the node's
    embedding is all zeros."""
    variant: Annotated[str, Meta(description="The variant that computed the node's embedding.")]
    revision: Annotated[str, Meta(description="The revision that it belongs to.")]
    objective_met: Annotated[bool, Meta(description="Whether the answer came within the latency; true without one.")]
    index: Annotated[IndexState, Meta(description="What the nodes were found in.")]
    offset: Annotated[
        int | UnsetType,
        Meta(
            description="The offset of the log of changes that the node's embedding has seen. What the index has "
            "seen is told in `index`. Absent where the graph is fixed."
        ),
    ] = UNSET
