"""Messages over HTTP about changes of the graph, as JSON.

A batch of changes is applied as a whole or refused as a whole. Within it the order is: new nodes, overrides, labels,
new edges, removed edges, removed nodes. `POST /v1/changes` takes a batch, `GET /v1/changes` lists those of the log.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gnnserve_api.http.protocol import EdgeFeatures, EdgeTimes, Id, Label, NodeFeatures, TypedEdge, TypedNodeFeatures

CLIENT_HEADER = "gnnserve-client"
SEQUENCE_HEADER = "gnnserve-sequence"
"""Client and sequence of a batch: one that is sent again under the same two is applied once."""
OFFSET_HEADER = "gnnserve-offset"
"""Header of an answer in binary: the offset that it was computed at."""
MIN_OFFSET_HEADER = "gnnserve-min-offset"
"""Header of a request in binary: `minOffset`."""
CHANGES_TYPE = "application/vnd.gnnserve.changes"
"""Media type of a batch in its binary form."""
MOST_CLIENT_CHARACTERS = 128
MOST_PAGE_RECORDS = 1000
"""Most records of one page."""
MOST_WAIT_S = 30
"""Longest time for which a page waits for its first record."""


class NewNode(NodeFeatures[Id], Generic[Id], frozen=True, rename="camel", forbid_unknown_fields=True):
    """A node that the graph gains."""

    label: Annotated[
        Label | list[Label] | None,
        Meta(description="The node's label, or a list of them where nodes may have several; for training later on."),
    ] = None


class NodeLabel(msgspec.Struct, Generic[Id], frozen=True, rename="camel", forbid_unknown_fields=True):
    """A node and its label."""

    id: Annotated[Id, Meta(description="Id of the node.")]
    label: Annotated[
        Label | list[Label] | None,
        Meta(description="The label, or a list of them where nodes may have several; null: it has none any more."),
    ]


class ChangesRequest(
    msgspec.Struct, Generic[Id], frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """Changes that last, applied in the order of these fields, all or none."""

    nodes: Annotated[tuple[NewNode[Id], ...], Meta(description="New nodes. Their ids are none of the graph's.")] = ()
    overrides: Annotated[
        tuple[NodeFeatures[Id], ...],
        Meta(description="Nodes of the graph with other features; columns that are not named stay as they are."),
    ] = ()
    labels: Annotated[tuple[NodeLabel[Id], ...], Meta(description="Labels of nodes of the graph.")] = ()
    edges: Annotated[
        tuple[tuple[Id, Id], ...],
        Meta(
            description="New edges, each a source and a target as in the graph's source, whose rules for direction, "
            "duplicates and self-loops hold: where edges go both ways, name one, since [a, b] and [b, a] are two edges "
            "unless duplicates are merged. Merged ones that are there change nothing but features and time."
        ),
    ] = ()
    edge_features: EdgeFeatures = ()
    edge_times: EdgeTimes = ()
    removed_edges: Annotated[
        tuple[tuple[Id, Id], ...],
        Meta(
            description="Edges that are no more. Each takes one edge between its two nodes: one that the graph has "
            "several times is there as often less one, and one that it does not have changes nothing. Where edges go "
            "both ways, [a, b] and [b, a] are one."
        ),
    ] = ()
    removed_nodes: Annotated[
        tuple[Id, ...], Meta(description="Nodes that are no more, and with them all of their edges.")
    ] = ()


class TypedNewNode(TypedNodeFeatures, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A node that a graph of several types gains."""

    label: Annotated[
        Label | list[Label] | None,
        Meta(description="The label of a node of the type that is classified, as of `NewNode`."),
    ] = None


class TypedChangesRequest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Changes of a graph of several types that last, applied in the order of these fields, all or none."""

    nodes: Annotated[
        tuple[TypedNewNode, ...], Meta(description="New nodes. Their ids are none of the graph's of their type.")
    ] = ()
    overrides: Annotated[
        tuple[TypedNodeFeatures, ...], Meta(description="Nodes of the graph with other features, all of them given.")
    ] = ()
    labels: Annotated[
        tuple[NodeLabel[Any], ...], Meta(description="Labels of nodes of the type that is classified.")
    ] = ()
    edges: Annotated[
        tuple[TypedEdge, ...],
        Meta(
            description="New edges: source, relation and target as in the graph's source. Reverse relations that were "
            "added gain them too. Where the relation counts an edge once, one that is there already changes nothing, "
            "but for its features and time, where its edges have some."
        ),
    ] = ()
    edge_features: EdgeFeatures = ()
    edge_times: EdgeTimes = ()
    removed_edges: Annotated[
        tuple[TypedEdge, ...],
        Meta(
            description="Edges that are no more, and of the reverse relation theirs. Each takes one edge of the "
            "relation between its two nodes: one that the graph has several times is there as often less one, and one "
            "that it does not have changes nothing."
        ),
    ] = ()
    removed_nodes: Annotated[
        tuple[Any, ...], Meta(description="Nodes that are no more, and with them all of their edges.")
    ] = ()


class ChangesContent(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The changes of a record, as `POST /v1/changes` takes them: an edge is a list of source and target, with its
    relation between them where there are several."""

    nodes: tuple[TypedNewNode, ...] = ()
    overrides: tuple[TypedNodeFeatures, ...] = ()
    labels: tuple[NodeLabel[Any], ...] = ()
    edges: tuple[tuple[Any, ...], ...] = ()
    edge_features: EdgeFeatures = ()
    edge_times: EdgeTimes = ()
    removed_edges: tuple[tuple[Any, ...], ...] = ()
    removed_nodes: tuple[Any, ...] = ()


class ChangesAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """A batch that lasts: it is in the log, and this worker has applied it."""

    offset: Annotated[int, Meta(description="Its offset in the log: 1, 2, 3, …, without gaps.")]
    changes: Annotated[int, Meta(description="How many items the batch has.")]
    unchanged: Annotated[int, Meta(description="How many of its edges changed nothing: they were there, or were not.")]
    repeated: Annotated[
        bool, Meta(description="Whether it had been sent before, under the same client and sequence; it counts once.")
    ] = False
    both_ways: Annotated[
        int | UnsetType,
        Meta(
            description="How many of its new edges are in it the other way too, and count twice, since edges of the "
            "graph go both ways and repeated ones are kept. Absent: none."
        ),
    ] = UNSET


class ChangeRecord(msgspec.Struct, frozen=True, rename="camel"):
    """A batch of the log."""

    offset: int
    """Its offset in the log."""
    client: str
    """Who wrote it."""
    sequence: int
    """Its number among the batches of this client."""
    time_ms: Annotated[int, Meta(description="When it became durable: Unix time in milliseconds.")]
    changes: Annotated[int, Meta(description="How many items it has.")]
    content: Annotated[
        ChangesContent | UnsetType,
        Meta(description="The changes, with ids of the graph's kind; with `content=true`."),
    ] = UNSET
    refused: Annotated[str | UnsetType, Meta(description="Why no worker applied it; absent where it was applied.")] = (
        UNSET
    )


class ChangesPage(msgspec.Struct, frozen=True, rename="camel"):
    """Batches of the log, in order."""

    records: list[ChangeRecord]
    """The batches, those of earlier offsets first."""
    first: Annotated[int, Meta(description="The first offset that the log still has; earlier ones are compacted.")]
    last: Annotated[int, Meta(description="The log's last offset.")]
    applied: Annotated[int, Meta(description="The offset that this worker has applied.")]
