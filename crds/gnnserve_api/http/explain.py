"""`POST /v1/explain` between client and worker: which neighbours of a node its answer rests on, or of either node of a
pair the pair's score."""

from __future__ import annotations

from typing import Annotated, Any, Generic

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gnnserve_api.http.protocol import Id, Label

MOST_EXPLAINED = 100
"""Largest `count` of a request: each edge takes one prediction."""


class ExplainRequest(
    msgspec.Struct, Generic[Id], frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    node: Annotated[Id | UnsetType, Meta(description="Id of a node of the graph.")] = UNSET
    count: Annotated[
        int,
        Meta(
            description="How many of its neighbours are left out in turn, the first ones of its list; in a graph of "
            "several types the first ones by each relation, and of a pair those of either node, in turns.",
            extra_json_schema={"minimum": 1, "maximum": MOST_EXPLAINED},
        ),
    ] = 25
    variant: Annotated[
        str | None,
        Meta(
            description="The variant that is explained, of a cascade its most accurate stage that reads edges; absent: "
            "the most accurate variant that can be."
        ),
    ] = None
    pair: Annotated[
        tuple[Id, Id] | UnsetType,
        Meta(description="In place of the node, where links are scored: ids of the first and the second node of one."),
    ] = UNSET


class TypedExplainRequest(ExplainRequest[Any], frozen=True, rename="camel", forbid_unknown_fields=True):
    """A request about a graph of several types, of a node of any of them."""


class Neighbour(msgspec.Struct, frozen=True, rename="camel"):
    id: Annotated[int | str, Meta(description='Its id; in a graph of several types with its type: "user/17".')]
    influence: Annotated[
        float | UnsetType,
        Meta(
            description="How much the probability of the node's class, or of the link, falls where the edge is left "
            "out; negative where it rises, and 0 within the rounding of scores. Absent where the answer has "
            "`unexplained`."
        ),
    ] = UNSET
    label: Annotated[
        Label | list[Label] | None, Meta(description="The label that the graph's source gives it; null: none.")
    ] = None
    relation: Annotated[
        str | UnsetType, Meta(description="The relation by which the node reads it, in a graph of several types.")
    ] = UNSET
    of: Annotated[
        int | str | UnsetType, Meta(description="The node of the pair that reads it, where a pair is asked about.")
    ] = UNSET


class ReadRelation(msgspec.Struct, frozen=True, rename="camel"):
    """A relation by which nodes of a type read others."""

    name: str
    type: Annotated[str, Meta(description="The type of the nodes that are read.")]
    degree: Annotated[int, Meta(description="How many the node reads.")]


class ExplainAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The node or the pair, and the neighbours: the one with the most influence first."""

    degree: Annotated[
        int, Meta(description="Length of the node's neighbour list, of all relations; of both of a pair.")
    ]
    neighbours: Annotated[tuple[Neighbour, ...], Meta(description="Those that were left out in turn.")]
    revision: str
    is_asked_about: Annotated[
        bool, Meta(description="Whether requests may name the node: answers may be about nodes of some types alone.")
    ]
    node: Annotated[
        int | str | UnsetType, Meta(description="Its id; in a graph of several types with its type. Absent of a pair.")
    ] = UNSET
    label: Annotated[
        Label | list[Label] | UnsetType | None, Meta(description="The label that the graph's source gives the node.")
    ] = UNSET
    pair: Annotated[
        tuple[int | str, int | str] | UnsetType, Meta(description="Ids of both nodes, where a pair is asked about.")
    ] = UNSET
    class_: Annotated[
        Label | UnsetType, Meta(description="The class that the variant gives the node the highest score for.")
    ] = msgspec.field(name="class", default=UNSET)
    probability: Annotated[
        float | UnsetType,
        Meta(
            description="Its probability, with every edge; of several labels, that of this one; of a pair, of a link."
        ),
    ] = UNSET
    score: Annotated[float | UnsetType, Meta(description="The score of the pair, with every edge.")] = UNSET
    variant: Annotated[str | UnsetType, Meta(description="The variant whose answer is explained.")] = UNSET
    relations: Annotated[
        tuple[ReadRelation, ...] | UnsetType,
        Meta(description="What nodes of its type read, in a graph of several types."),
    ] = UNSET
    unexplained: Annotated[
        str | UnsetType,
        Meta(description="Why neighbours are told without influence: no answer could rest on them."),
    ] = UNSET
