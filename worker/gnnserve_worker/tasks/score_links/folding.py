"""A node that LightGCN has not learnt, or that has been joined to more since: its embedding, of what it is joined to.

The final embedding of a node is the mean over hops of what it and its neighbours have learnt (`models/light_gcn.py`).
Of a new node nothing is learnt; what its neighbours' final embeddings add up to is the same mean without it, one hop
further. All have length 1, and so has the sum. What a request joins is said of one node, and changes no other.

Where embeddings are eigenvectors, the sum is weighted, and what it makes is what a stored node with the same neighbours
has (`models/folding.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnnserve_api.files.links import EndManifest, LinksManifest
from gnnserve_api.http.protocol import TypedOverlay
from gnnserve_api.limits import OverlayLimits
from gnnserve_worker.asking.overlay_checks import check_sizes
from gnnserve_worker.asking.overlay_ids import EdgeFields
from gnnserve_worker.asking.question import ErrorCode, RequestError, shown_value
from gnnserve_worker.asking.served_graph import ServedGraph
from gnnserve_worker.asking.type_ids import as_text
from gnnserve_worker.models.folding import Folding
from gnnserve_worker.nearest.search import unit
from gnnserve_worker.opening.folded_nodes import read_from_one_end
from gnnserve_worker.tasks.recommending import FoldedNode

_JOIN_REMEDY = "give edges of {relation} that join it, as [source, relation, target]"


@dataclass(frozen=True, slots=True)
class Folder:
    """Reads what requests join one node to."""

    links: LinksManifest
    graph: ServedGraph
    folding: Folding | None
    """How embeddings are made that are eigenvectors; None: they are learnt."""
    reads_one_way: bool = field(init=False)
    """Whether a node may be joined to one that is not in its own lists: edges of a relation are read from one end."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads_one_way", read_from_one_end(self.graph.types))

    def fold(self, node: Any, overlay: TypedOverlay, limits: OverlayLimits, fields: EdgeFields) -> FoldedNode:
        """A `NodeFolder`."""
        links = self.links
        _check_folds(links)
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
        if overlay.edge_features or overlay.edge_times:
            raise RequestError(
                ErrorCode.WRONG_FEATURES, "overlay.edgeFeatures" if overlay.edge_features else "overlay.edgeTimes",
                "what a node is joined to is read without features and times of edges", "leave it out",
            )  # fmt: skip
        asked = self._text(node, "node")
        new: set[str] = set()
        for place, one in enumerate(overlay.nodes):
            where = f"overlay.nodes[{place}]"
            id_ = self._text(one.id, f"{where}.id")
            self._check_new(id_, where, asked, new, has_features=one.features is not None)
            new.add(id_)
        stored = self._position(asked)
        if stored is None and not new:
            raise RequestError(
                ErrorCode.UNKNOWN_NODE, "node", f"node {shown_value(node)} is not in the graph",
                "a new node goes into overlay.nodes",
            )  # fmt: skip
        end = _end_of(asked, stored, links)
        if end is None:
            raise of_no_end("node", asked, links)
        joined = [
            self._other_end(edge, EdgeFields(*(field.format(place) for field in fields)), asked, end)
            for place, edge in enumerate(overlay.edges)
        ]
        known = np.zeros(0, np.int64) if stored is None else self._joined_to(stored)
        whole = np.union1d(known, np.array(joined, np.int64))
        if not len(whole):
            problem = f"{shown_value(asked)} is joined to no node, so that nothing is known of it"
            remedy = _JOIN_REMEDY.format(relation=links.relation)
            raise RequestError(ErrorCode.MISSING_FIELD, "overlay.edges", problem, remedy)
        if self.folding is None:
            return FoldedNode(stored, end.start, whole, np.ones(len(whole), np.float32), has_length_1=True)
        has_length_1 = end is links.first and links.first != links.second
        return FoldedNode(stored, end.start, whole, self.folding.shares[whole], has_length_1)

    def embedding_of(self, folded: FoldedNode, embeddings: np.ndarray) -> np.ndarray:
        """Embedding of the node, float32 [dimensions]. `embeddings`: of those that it is joined to, float32 [n,
        dimensions]."""
        summed = folded.weights @ embeddings
        own = summed if self.folding is None else self.folding.own_of(summed)
        return unit(own) if folded.has_length_1 else own

    def _joined_to(self, node: int) -> np.ndarray:
        """What a stored node is joined to by any relation, whichever of the two reads the other: int64. Embeddings are
        propagated both ways."""
        lists = [self.graph.neighbours_of(node).astype(np.int64)]
        if self.reads_one_way:
            lists.append(self.graph.readers_of(node))
        return np.unique(np.concatenate(lists))

    def _check_new(self, id_: str, where: str, asked: str, before: set[str], *, has_features: bool) -> None:
        if self._position(id_) is not None:
            raise RequestError(
                ErrorCode.STORED_NODE, f"{where}.id", f"{shown_value(id_)} is a node of the graph",
                "leave it out: edges may name it",
            )  # fmt: skip
        if id_ in before:
            problem = f"{shown_value(id_)} is there twice"
            raise RequestError(ErrorCode.REPEATED_NODE, f"{where}.id", problem, "give it once")
        if has_features:
            raise RequestError(
                ErrorCode.WRONG_FEATURES, f"{where}.features", "nodes of this service have no features",
                "leave them out",
            )  # fmt: skip
        if id_ != asked:
            problem = (
                f"{shown_value(id_)} is new and not the node that is asked for, whose embedding it would not change"
            )
            raise RequestError(ErrorCode.INVALID_VALUE, f"{where}.id", problem, "leave it out")
        if _end_of(id_, None, self.links) is None:
            raise of_no_end(f"{where}.id", id_, self.links)

    def _other_end(self, edge: Sequence[Any], fields: EdgeFields, asked: str, end: EndManifest) -> int:
        """The position of the node that an edge joins the asked one to. `fields`: those of this edge."""
        links, of_ends = self.links, (fields.source, fields.target)
        relation = links.relation.split(" ")[1] if links.relation.count(" ") == 2 else links.relation
        if edge[1] not in {relation, links.relation}:
            raise RequestError(
                ErrorCode.INVALID_VALUE, fields.relation, f"{shown_value(edge[1])} is not the relation that is scored",
                f"give {relation}",
            )  # fmt: skip
        ids = [self._text(id_, where) for id_, where in zip((edge[0], edge[2]), of_ends, strict=True)]
        mine = 0 if end is links.first else 1
        if links.first == links.second and ids[1] == asked:
            mine = 1
        if ids[mine] != asked:
            raise RequestError(
                ErrorCode.INVALID_VALUE, of_ends[mine],
                f"is {shown_value(ids[mine])}, and what the request brings is about {shown_value(asked)} alone",
                "give edges of that node",
            )  # fmt: skip
        other, where = ids[1 - mine], of_ends[1 - mine]
        position, at = self._position(other), links.second if mine == 0 else links.first
        if position is None:
            raise RequestError(
                ErrorCode.UNKNOWN_NODE, where, f"node {shown_value(other)} is not in the graph",
                "GET /v1/nodes lists its node ids",
            )  # fmt: skip
        if not at.start <= position < at.end:
            raise RequestError(
                ErrorCode.WRONG_NODE_TYPE, where,
                f"node {shown_value(other)} is not of type {at.type}", f"links of {links.relation} join it there",
            )  # fmt: skip
        return position

    def _text(self, given: Any, where: str) -> str:
        return as_text(given, where, self.graph.naming.shown(0, 1))

    def _position(self, id_: str) -> int | None:
        (found,) = self.graph.naming.place([id_])
        return None if found < 0 else found


def _check_folds(links: LinksManifest) -> None:
    """Rows that an earlier gnnserve stored of a network over several types do not add up to that of a new node."""
    if isinstance(links.embeddings_of, str):
        raise RequestError(
            ErrorCode.NO_OVERLAYS, "overlay",
            f"an earlier gnnserve made the revision, and kept {links.embeddings_of}'s embeddings of stored nodes alone",
            "ask about a stored node, or generate again",
        )  # fmt: skip


def _end_of(id_: str, position: int | None, links: LinksManifest) -> EndManifest | None:
    """The end that a node may stand at; None: at none."""
    for end in (links.first, links.second):
        if position is None and id_.startswith(f"{end.type}/"):
            return end
        if position is not None and end.start <= position < end.end:
            return end
    return None


def of_no_end(where: str, id_: Any, links: LinksManifest) -> RequestError:
    return RequestError(
        ErrorCode.WRONG_NODE_TYPE, where,
        f"node {shown_value(id_)} is neither of type {links.first.type} nor of type {links.second.type}, which "
        f"{links.relation} joins",
        "name a node of one of them",
    )  # fmt: skip
