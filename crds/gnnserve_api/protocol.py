"""What travels over HTTP between a client and a worker, as JSON.

The worker parses requests and writes answers in `serving/protocol_json.py`; the command line does the opposite. A
request with an unknown field is refused, so that a typing error does not pass for a wish; in an answer it is
ignored, so that a client may be older than the server.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gnnserve_api.objective import Objective
from gnnserve_api.profile import Profile

Output = Literal["labels", "scores", "embeddings"]


class PredictRequest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Nodes to classify, and how well or fast."""

    nodes: Annotated[
        tuple[int, ...],
        Meta(
            description="Node ids of the served graph, from 0. They may repeat; the answer keeps their order.",
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


class PredictAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """One entry per node, in the order asked; only what was asked for."""

    variant: Annotated[str, Meta(description="The variant that answered.")]
    revision: Annotated[str, Meta(description="The revision that it belongs to.")]
    objective_met: Annotated[
        bool, Meta(description="Whether the answer came within the latency that was asked for; true where none was.")
    ]
    labels: Annotated[
        list[int | list[int]] | UnsetType,
        Meta(description="The graph's own integer per node; for multi-label graphs a list: classes with score > 0."),
    ] = UNSET
    scores: Annotated[
        list[list[float]] | UnsetType,
        Meta(description="Raw outputs of the network per class, ascending: before softmax (or sigmoid: multi-label)."),
    ] = UNSET
    embeddings: Annotated[list[list[float]] | UnsetType, Meta(description="The node's last hidden layer.")] = UNSET


class VariantsAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """What is served, and what each variant costs and gives."""

    service: str
    revision: str
    recipe: str
    nodes: Annotated[int, Meta(description="Valid node ids are 0 to nodes - 1.")]
    features: Annotated[int, Meta(description="Feature columns of the graph, before pruning.")]
    classes: Annotated[tuple[int, ...], Meta(description="The graph's own label of each score column.")]
    multi_label: bool
    profile: Profile


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    message: str
    field: str | None = None


class ErrorAnswer(msgspec.Struct, frozen=True):
    error: ErrorDetail
