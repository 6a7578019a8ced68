"""`POST /v1/explain` between client and worker: which neighbours of a node its answer rests on."""

from __future__ import annotations

from typing import Annotated, Generic

import msgspec
from msgspec import Meta

from gnnserve_api.protocol import Id, Label

MOST_EXPLAINED = 100
"""Largest `count` of a request: each edge takes one prediction."""


class ExplainRequest(
    msgspec.Struct, Generic[Id], frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    node: Annotated[Id, Meta(description="Id of a node of the graph.")]
    count: Annotated[
        int,
        Meta(
            description="How many of its neighbours are left out in turn, the first ones of its list.",
            extra_json_schema={"minimum": 1, "maximum": MOST_EXPLAINED},
        ),
    ] = 25
    variant: Annotated[
        str | None, Meta(description="The variant that is explained; absent: the most accurate one that can be.")
    ] = None


class Neighbour(msgspec.Struct, frozen=True, rename="camel"):
    id: int | str
    influence: Annotated[
        float,
        Meta(
            description="How much the probability of the node's class falls where the edge is left out; negative where "
            "it rises."
        ),
    ]
    label: Annotated[
        Label | list[Label] | None, Meta(description="The label that the graph's source gives it; null: none.")
    ] = None


class ExplainAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The node, and its neighbours: the one with the most influence first."""

    node: int | str
    class_: Annotated[Label, Meta(description="The class that the variant gives the node the highest score for.")] = (
        msgspec.field(name="class")
    )
    probability: Annotated[
        float, Meta(description="Its probability, with every edge. Of several labels, that of this one alone.")
    ]
    label: Annotated[Label | list[Label] | None, Meta(description="The label that the graph's source gives the node.")]
    degree: Annotated[int, Meta(description="Length of the node's neighbour list.")]
    neighbours: Annotated[tuple[Neighbour, ...], Meta(description="Those that were left out in turn.")]
    variant: str
    revision: str
