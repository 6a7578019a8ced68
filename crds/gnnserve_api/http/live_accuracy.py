"""Accuracy in service: truths that clients send later, and how often each variant was right by them.

Clients and workers exchange these as JSON, and the operator reads a worker's figures in `GET /v1/route`.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from gnnserve_api.files.profile import Count, Share

MOST_LABELS = 10_000
"""Most labels of one request: some milliseconds of work, during which the event loop answers nothing else."""
MOST_TOLD = 100
"""Most labels whose refusal an answer explains one by one."""


class LabelProblem(StrEnum):
    """Why a label was not taken; each is counted."""

    UNKNOWN_NODE = "UnknownNode"
    """The served graph has no such node, or links have none of its type at that end."""
    UNKNOWN_LABEL = "UnknownLabel"
    """The served graph has no such class, or one node has several labels where the graph has one."""
    FUTURE_TIME = "FutureTime"
    """Its time is later than the worker's clock by more than a minute."""
    REPEATED = "Repeated"
    """A label of that node, or pair, and that time was taken before."""
    KNOWN_LINK = "KnownLink"
    """The served graph has that link already, so that an answer knows it. Found as it is evaluated, and counted
    alone."""


class TypedNodeId(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A node of a graph of several types: `{"type": "user", "id": 17}`, which is `"user/17"`."""

    type: str
    id: int | str

    @property
    def text(self) -> str:
        """The id as one text."""
        return f"{self.type}/{self.id}"


class LabelsRequest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Labels that nodes turned out to have."""

    nodes: Annotated[
        tuple[int | str | TypedNodeId, ...],
        Meta(
            description="Node ids of the served graph, as predictions take them.",
            extra_json_schema={"minItems": 1, "maxItems": MOST_LABELS},
        ),
    ]
    labels: Annotated[
        tuple[int | str | tuple[int | str, ...], ...],
        Meta(description="The graph's own label per node; for multi-label graphs a list of labels per node."),
    ]
    times: Annotated[
        tuple[Annotated[datetime, Meta(tz=True)], ...] | None,
        Meta(
            description="When each node turned out to be that (RFC 3339). A label of the same node and time counts "
            "once, so that a request may be sent again. Absent: now; then a label that is sent again counts again."
        ),
    ] = None


class PairLabelsRequest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Which pairs came to be links, of a service that scores them."""

    pairs: Annotated[
        tuple[tuple[int | str | TypedNodeId, int | str | TypedNodeId], ...],
        Meta(
            description="Pairs of node ids of the served graph, as predictions take them.",
            extra_json_schema={"minItems": 1, "maxItems": MOST_LABELS},
        ),
    ]
    labels: Annotated[
        tuple[bool, ...], Meta(description="Whether each pair came to be a link; one that did not is false.")
    ]
    times: Annotated[
        tuple[Annotated[datetime, Meta(tz=True)], ...] | None,
        Meta(
            description="When each pair came to be, or turned out not to (RFC 3339). A label of the same pair and time "
            "counts once, so that a request may be sent again. Absent: now; then a label that is sent again counts "
            "again."
        ),
    ] = None


class RefusedLabel(msgspec.Struct, frozen=True, rename="camel"):
    """A label that was not taken."""

    index: Annotated[int, Meta(description="Its place in the request, from 0.")]
    reason: LabelProblem
    message: str


class LabelsAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Outcome of the labels of a request."""

    accepted: Annotated[int, Meta(description="Labels that were taken; each variant is evaluated on them.")]
    refused: Annotated[int, Meta(description="Labels that were not.")]
    problems: Annotated[
        tuple[RefusedLabel, ...], Meta(description=f"The first {MOST_TOLD} labels that were not taken, and why.")
    ]
    revision: Annotated[str, Meta(description="The revision whose nodes and classes they were checked against.")]


class ObservedShare(msgspec.Struct, frozen=True, rename="camel"):
    """A share of the last nodes, or pairs, with an interval that holds at every moment."""

    mean: Annotated[Share, Meta(description="The share.")]
    low: Annotated[Share, Meta(description="Lower end of its interval.")]
    high: Annotated[Share, Meta(description="Upper end of its interval.")]
    nodes: Annotated[
        Count, Meta(description="The last nodes that it is of: those in the window, or since accuracy fell.")
    ]


class VariantAccuracy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One variant in service, beside what its profile states."""

    name: str
    """Name of the variant."""
    promised: Annotated[
        float | None,
        Meta(
            description="Accuracy by the profile: on test nodes, or on validation nodes where there are none. Where "
            "the profile's metric is no mean over nodes: what the worker found on up to 2,000 of them. Where links are "
            "scored: the ROC-AUC of the profile."
        ),
    ] = None
    promised_nodes: Annotated[int, Meta(description="Nodes, or links, that the promised accuracy was counted on.")] = 0
    labels: Annotated[
        ObservedShare | None,
        Meta(
            description="Share of the last labelled nodes that it answers correctly, the same nodes for all variants; "
            "where links are scored, how often a link that came to be has a higher score than a pair that is drawn at "
            "random."
        ),
    ] = None
    agreement: Annotated[
        ObservedShare | None,
        Meta(
            description="Share of nodes on which its answers were those of the most accurate variant, each variant's "
            "of the nodes that it answered; where links are scored, how often both put a pair, or node, that is drawn "
            "at random on the same side."
        ),
    ] = None
    is_broken: Annotated[
        bool, Meta(description="It is significantly less accurate in service than its profile promised.")
    ] = False


class InputDrift(msgspec.Struct, frozen=True, rename="camel"):
    """A column of which requests bring other values than stored nodes have."""

    column: Annotated[str, Meta(description="Its name in the graph's source, or its number from 0.")]
    mean: Annotated[float, Meta(description="Its mean in what requests brought lately.")]
    expected: Annotated[float, Meta(description="Its mean over stored nodes.")]
    deviations: Annotated[float, Meta(description="How far it moved, in standard deviations over stored nodes.")]


class AccuracyAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Accuracy in service of the revision that answers, on this worker."""

    service: Annotated[str, Meta(description="Name of the service.")]
    revision: Annotated[str, Meta(description="The revision that answers.")]
    waiting: Annotated[int, Meta(description="Labels that some variant is still to be evaluated on.")]
    window: Annotated[
        int, Meta(description="Most labelled nodes, or links, that `labels` and `agreement` are of: the last.")
    ]
    reference: Annotated[
        str, Meta(description="The most accurate variant that answers, by the profile; it computes answers again.")
    ]
    variants: Annotated[tuple[VariantAccuracy, ...], Meta(description="The variants that answer.")]
    inputs: Annotated[
        tuple[InputDrift, ...],
        Meta(description="Columns of the features that requests bring whose means have moved, at most five."),
    ]
