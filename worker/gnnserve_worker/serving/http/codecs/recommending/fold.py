"""A node that LightGCN has not learnt, or that has been joined to more since: its embedding, of what it is joined to.

The final embedding of a node is the mean over hops of what it and its neighbours have learnt (`models/light_gcn.py`).
Of a new node nothing is learnt; what its neighbours' final embeddings add up to is the same mean without it, one hop
further. All have length 1, and so has the sum. What a request joins is said of one node, and changes no other.

Where embeddings are eigenvectors, the sum is weighted, and what it makes is what a stored node with the same neighbours
has (`models/folding.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnserve_api.links import EndManifest, LinksManifest
from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.protocol import TypedOverlay
from gnnserve_worker.asking.overlay import check_sizes
from gnnserve_worker.asking.question import ErrorCode, RequestError, shown_value
from gnnserve_worker.asking.type_ids import as_text
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.models.folding import Folding
from gnnserve_worker.nearest.search import unit
from gnnserve_worker.serving.http.codecs.recommending.known import reads_one_way

_JOIN_REMEDY = "give edges of {relation} that join it, as [source, relation, target]"


@dataclass(frozen=True, slots=True)
class Folded:
    """What a node's embedding is made of."""

    node: int | None
    """Its position; None: it is new."""
    is_first: bool
    """Whether it stands at the first end of links."""
    joined: np.ndarray
    """Positions of the nodes that it is joined to, int64, distinct."""
    weights: np.ndarray
    """float32: what the embedding of each of them is multiplied by, before they are added up."""
    has_length_1: bool
    """Whether embeddings of stored nodes at its end have length 1, so that its own is brought to it."""


def fold(
    node: Any, overlay: TypedOverlay, links: LinksManifest, revision: ServedRevision, limits: OverlayLimits
) -> Folded:
    """Read what a request joins its node to. Raises RequestError."""
    if not limits.max_nodes:
        raise RequestError(
            ErrorCode.NO_OVERLAYS, "overlay", "the service takes none",
            "leave it out, or set spec.endpoint.overlay.maxNodes above 0",
        )  # fmt: skip
    check_sizes(len(overlay.nodes), len(overlay.overrides), len(overlay.edges), 0, limits)
    if overlay.overrides:
        raise RequestError(
            ErrorCode.WRONG_FEATURES, "overlay.overrides", "nodes of this service have no features", "leave it out"
        )
    asked = as_text(node, "node", revision.graph.naming.shown(0, 1))
    new: set[str] = set()
    for place, one in enumerate(overlay.nodes):
        where = f"overlay.nodes[{place}]"
        id_ = as_text(one.id, f"{where}.id", revision.graph.naming.shown(0, 1))
        _check_new(id_, where, one.features is not None, asked, new, links, revision)
        new.add(id_)
    stored = _position(asked, revision)
    if stored is None and not new:
        raise RequestError(
            ErrorCode.UNKNOWN_NODE, "node", f"node {shown_value(node)} is not in the graph",
            "a new node goes into overlay.nodes",
        )  # fmt: skip
    end = _end_of(asked, stored, links)
    if end is None:
        raise _of_no_end("node", asked, links)
    is_first = end is links.first
    joined = [_other_end(edge, place, asked, end, links, revision) for place, edge in enumerate(overlay.edges)]
    known = np.zeros(0, np.int64) if stored is None else _joined_to(stored, revision)
    whole = np.union1d(known, np.array(joined, np.int64))
    if not len(whole):
        problem = f"{shown_value(asked)} is joined to no node, so that nothing is known of it"
        raise RequestError(
            ErrorCode.MISSING_FIELD, "overlay.edges", problem, _JOIN_REMEDY.format(relation=links.relation)
        )
    folding = _folding_of(revision)
    if folding is None:
        return Folded(stored, is_first, whole, np.ones(len(whole), np.float32), has_length_1=True)
    has_length_1 = is_first and links.first != links.second
    return Folded(stored, is_first, whole, folding.shares[whole], has_length_1)


def embedding_of(folded: Folded, embeddings: np.ndarray, revision: ServedRevision) -> np.ndarray:
    """The node's own, float32 [dimensions]. `embeddings`: of those that it is joined to, float32 [n, dimensions]."""
    folding, summed = _folding_of(revision), folded.weights @ embeddings
    own = summed if folding is None else folding.own_of(summed)
    return unit(own) if folded.has_length_1 else own


def _folding_of(revision: ServedRevision) -> Folding | None:
    return None if revision.task.links is None else revision.task.links.decoder.folding


def _joined_to(node: int, revision: ServedRevision) -> np.ndarray:
    """What a stored node is joined to by any relation, whichever of the two reads the other: int64. Embeddings are
    propagated both ways."""
    lists = [np.zeros(0, np.int64)]
    if revision.graph.neighbours_of is not None:
        lists.append(revision.graph.neighbours_of(node).astype(np.int64))
    if reads_one_way(revision) and revision.graph.readers_of is not None:
        lists.append(revision.graph.readers_of(node))
    return np.unique(np.concatenate(lists))


def _check_new(
    id_: str, where: str, has_features: bool, asked: str, before: set[str], links: LinksManifest,
    revision: ServedRevision,
) -> None:  # fmt: skip
    if _position(id_, revision) is not None:
        raise RequestError(
            ErrorCode.STORED_NODE, f"{where}.id", f"{shown_value(id_)} is a node of the graph",
            "leave it out: edges may name it",
        )  # fmt: skip
    if id_ in before:
        raise RequestError(ErrorCode.REPEATED_NODE, f"{where}.id", f"{shown_value(id_)} is there twice", "give it once")
    if has_features:
        raise RequestError(
            ErrorCode.WRONG_FEATURES, f"{where}.features", "nodes of this service have no features", "leave them out"
        )
    if id_ != asked:
        problem = f"{shown_value(id_)} is new and not the node that is asked for, whose embedding it would not change"
        raise RequestError(ErrorCode.INVALID_VALUE, f"{where}.id", problem, "leave it out")
    if _end_of(id_, None, links) is None:
        raise _of_no_end(f"{where}.id", id_, links)


def _other_end(
    edge: Sequence[Any], place: int, asked: str, end: EndManifest, links: LinksManifest, revision: ServedRevision
) -> int:
    """The position of the node that an edge joins the asked one to."""
    where = f"overlay.edges[{place}]"
    relation = links.relation.split(" ")[1] if links.relation.count(" ") == 2 else links.relation
    if edge[1] not in {relation, links.relation}:
        raise RequestError(
            ErrorCode.INVALID_VALUE, f"{where}[1]", f"{shown_value(edge[1])} is not the relation that is scored",
            f"give {relation}",
        )  # fmt: skip
    ids = [
        as_text(edge[0], f"{where}[0]", revision.graph.naming.shown(0, 1)),
        as_text(edge[2], f"{where}[2]", revision.graph.naming.shown(0, 1)),
    ]
    mine = 0 if end is links.first else 1
    if links.first == links.second and ids[1] == asked:
        mine = 1
    if ids[mine] != asked:
        raise RequestError(
            ErrorCode.INVALID_VALUE, f"{where}[{2 * mine}]",
            f"is {shown_value(ids[mine])}, and what the request brings is about {shown_value(asked)} alone",
            "give edges of that node",
        )  # fmt: skip
    other, which = ids[1 - mine], 2 * (1 - mine)
    position, at = _position(other, revision), links.second if mine == 0 else links.first
    if position is None:
        raise RequestError(
            ErrorCode.UNKNOWN_NODE, f"{where}[{which}]", f"node {shown_value(other)} is not in the graph",
            "GET /v1/nodes lists its node ids",
        )  # fmt: skip
    if not at.start <= position < at.end:
        raise RequestError(
            ErrorCode.WRONG_NODE_TYPE, f"{where}[{which}]",
            f"node {shown_value(other)} is not of type {at.type}", f"links of {links.relation} join it there",
        )  # fmt: skip
    return position


def _end_of(id_: str, position: int | None, links: LinksManifest) -> EndManifest | None:
    """The end that a node may stand at; None: at none."""
    for end in (links.first, links.second):
        if position is None and id_.startswith(f"{end.type}/"):
            return end
        if position is not None and end.start <= position < end.end:
            return end
    return None


def _of_no_end(where: str, id_: str, links: LinksManifest) -> RequestError:
    return RequestError(
        ErrorCode.WRONG_NODE_TYPE, where,
        f"node {shown_value(id_)} is neither of type {links.first.type} nor of type {links.second.type}, which "
        f"{links.relation} joins",
        "name a node of one of them",
    )  # fmt: skip


def _position(id_: str, revision: ServedRevision) -> int | None:
    assert revision.graph.node_ids is not None  # noqa: S101  (nodes of several types have texts)
    found = int(revision.graph.node_ids.find_texts([id_])[0])
    return None if found < 0 else found
