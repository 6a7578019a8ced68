"""JSON between client and worker of services that score links: pairs of nodes, and embeddings of nodes. Of classes:
`protocol.py`."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gnnserve_api.http.protocol import MAX_OFFSET, MAX_SEED, Id, RequestOverlay, TypedOverlay
from gnnserve_api.objective import LOWEST_PRIORITY, Objective

PairOutput = Literal["scores", "probabilities", "embeddings"]


class PairsRequest(
    msgspec.Struct, Generic[Id], frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """Pairs of nodes to score, or nodes whose embeddings are wanted, and how well or fast. Other fields are those of
    `PredictRequest`."""

    pairs: Annotated[
        tuple[tuple[Id, Id], ...] | UnsetType,
        Meta(
            description="Pairs of node ids, the first and the second node of a link. They may repeat; the answer keeps "
            "their order.",
            extra_json_schema={"minItems": 1},
        ),
    ] = UNSET
    objective: Annotated[
        Objective | None, Meta(description="Replaces the service's objective as a whole; absent or empty: that holds.")
    ] = None
    strict: Annotated[
        bool | UnsetType,
        Meta(description="Refuse with 422, instead of answering by the nearest variant, what no variant can meet."),
    ] = UNSET
    outputs: Annotated[
        tuple[PairOutput, ...],
        Meta(
            description="What to return: of pairs scores, probabilities or both, of nodes embeddings.",
            extra_json_schema={"minItems": 1},
        ),
    ] = msgspec.field(name="return", default=("scores", "probabilities"))
    overlay: Annotated[
        RequestOverlay[Id] | None, Meta(description="New nodes, edges and new features, for this request alone.")
    ] = None
    seed: Annotated[
        int | None,
        Meta(
            description="The draws of neighbours depend on it alone. Absent: each request draws its own.",
            extra_json_schema={"minimum": 0, "maximum": MAX_SEED},
        ),
    ] = None
    variant: Annotated[
        str | None, Meta(description="The variant that is to answer, whatever routing and load call for.")
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
            description="Milliseconds from arrival after which a request that still waits is dropped, with 504.",
            extra_json_schema={"minimum": 0, "exclusiveMinimum": True, "maximum": 3_600_000},
        ),
    ] = None
    priority: Annotated[
        int | None,
        Meta(
            description="1 is the highest, 3 the lowest; absent or 0: 2.",
            extra_json_schema={"minimum": 0, "maximum": LOWEST_PRIORITY},
        ),
    ] = None
    nodes: Annotated[
        tuple[Id, ...] | UnsetType,
        Meta(
            description="In place of pairs, where embeddings are wanted: node ids. They may repeat; the answer keeps "
            "their order.",
            extra_json_schema={"minItems": 1},
        ),
    ] = UNSET


class TypedPairsRequest(PairsRequest[Any], frozen=True, rename="camel", forbid_unknown_fields=True):
    """Pairs of nodes of a graph of several types."""

    overlay: Annotated[
        TypedOverlay | None, Meta(description="New nodes, edges and new features, for this request alone.")
    ] = None  # type: ignore[assignment]


class PairsAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """One entry per pair, or per node, in the order asked; only what was asked for."""

    variant: Annotated[str, Meta(description="The variant that answered.")]
    revision: Annotated[str, Meta(description="The revision that it belongs to.")]
    objective_met: Annotated[
        bool, Meta(description="Whether the answer came within the latency that was asked for; true where none was.")
    ]
    tier_permille: Annotated[
        int | UnsetType, Meta(description="The accuracy tolerance from which on that variant answers.")
    ] = UNSET
    scores: Annotated[
        list[float] | UnsetType,
        Meta(description="What the decoder makes of the two embeddings: the higher, the likelier."),
    ] = UNSET
    probabilities: Annotated[
        list[float] | UnsetType,
        Meta(description="Calibrated probability of a link, among as many links as other pairs."),
    ] = UNSET
    embeddings: Annotated[
        list[list[float]] | UnsetType, Meta(description="Of each node the row that the decoder reads.")
    ] = UNSET
    offset: Annotated[
        int | UnsetType,
        Meta(description="The offset of the log of changes that the answer has seen; absent where the graph is fixed."),
    ] = UNSET
