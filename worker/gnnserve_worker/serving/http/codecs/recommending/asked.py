"""Query of a request for recommendations, whatever it is written in: the node whose embedding is computed, by which
variant, and which index is searched with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np

from gnnserve_api.http.recommend import MOST_RECOMMENDED, Exclude
from gnnserve_api.limits import OverlayLimits
from gnnserve_worker.asking.overlay import brings_nothing
from gnnserve_worker.asking.overlay_ids import EDGES_IN_JSON, EdgeFields
from gnnserve_worker.asking.question import (
    IN_BODY,
    RECOMMEND_PATH,
    VARIANT,
    ErrorCode,
    RequestError,
    Wishes,
    check_node_count,
    shown_value,
)
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.nearest.revision_index import OpenIndex, RevisionIndex
from gnnserve_worker.serving.http.codecs.recommending.filters import NodeFilter
from gnnserve_worker.serving.http.codecs.recommending.index_query import IndexQuery
from gnnserve_worker.serving.http.codecs.recommending.known import allowed_by, excluded_of, stored_of
from gnnserve_worker.serving.requests import Arrange, Ask
from gnnserve_worker.tasks.recommending import FoldedNode

COUNT_REMEDY = f"give a whole number from 1 to {MOST_RECOMMENDED:,}"


class NodeSearch(msgspec.Struct, frozen=True):
    """A request for recommendations as its protocol has it. Nothing of it is looked up."""

    node: Any
    """Id of the node, as JSON has it."""
    wishes: Wishes
    count: int = 10
    type: str | None = None
    exclude: Exclude = "known"
    filter: NodeFilter | None = None
    overlay: Any = None
    """What it brings, as JSON has it; None where `arrange` has it, or nothing is brought."""
    edge_fields: EdgeFields = EDGES_IN_JSON
    """Where it has the edges of `overlay`."""
    arrange: Arrange | None = None
    """As of an `Ask`."""
    places: Mapping[str, str] = IN_BODY
    """Where it has each wish, by its field."""
    answer_form: Any = None
    """As of an `Ask`."""


def check_count(count: int, where: str) -> None:
    """`where`: the field that it stands in."""
    if not 1 <= count <= MOST_RECOMMENDED:
        problem = f"{shown_value(count)} is out of range"
        raise RequestError(ErrorCode.INVALID_VALUE, where, problem, COUNT_REMEDY)


@dataclass(frozen=True, slots=True)
class QueryNode:
    """The node of a request, as the one item that it asks about (`tasks/served.py: Items`)."""

    search: NodeSearch
    index: OpenIndex
    held: RevisionIndex
    revision: ServedRevision
    folded: FoldedNode | None = None
    """What its embedding is made of; None: it is its own."""

    def placed(self, error: RequestError) -> RequestError:
        return RequestError(error.code, "node", error.problem, error.remedy) if error.where == "nodes[0]" else error

    def joined(self, found: np.ndarray, overlay: Overlay | None) -> tuple[np.ndarray, IndexQuery]:
        """The nodes whose embeddings are computed, and what is searched with them. Raises RequestError where the filter
        names what is not there."""
        search, revision, folded = self.search, self.revision, self.folded
        with_known, unread_by = search.exclude == "known", None
        if folded is None:
            nodes, node = found, int(found[0])
            stored = stored_of(node, overlay, revision)
            excluded = excluded_of(node, overlay, revision, with_known=with_known)
            if with_known and stored is not None:
                unread_by = revision.task.recommending.unread_by(stored)
        else:
            nodes = folded.joined
            excluded = nodes if with_known else np.zeros(0, np.int64)
            if folded.node is not None:
                excluded = np.append(excluded, folded.node)
        filter_ = search.filter
        allowed = None if filter_ is None else allowed_by(filter_, self.held, revision)
        return nodes, IndexQuery(self.index, self.held, search.count, excluded, allowed, unread_by, folded)


def ask_of(search: NodeSearch, revision: ServedRevision, max_nodes: int, limits: OverlayLimits) -> Ask:
    """Raises RequestError."""
    recommending, overlay, arrange = revision.task.recommending, search.overlay, search.arrange
    if overlay is not None and brings_nothing(overlay):
        overlay = None
    node_id: Any = None
    folded: FoldedNode | None = None
    if overlay is not None and recommending.folder is not None:
        folded = recommending.folder.fold(search.node, overlay, limits, search.edge_fields)
    if folded is None:
        node_id = recommending.called(search.node)
    else:
        check_node_count(len(folded.joined), max_nodes)
        overlay = None
    if not revision.compute.indexes:
        raise recommending.no_part(revision.manifest.revision)
    if folded is None:
        may_be_new = overlay is not None or arrange is not None
        part = recommending.part_for(node_id, search.type, may_be_new=may_be_new)
    else:
        part = recommending.part_like(folded.like, search.node, search.type)
        # One of the nodes that are computed, so that there is a stored one to be found.
        first = int(folded.joined[0])
        (node_id,) = revision.graph.naming.shown(first, first + 1)
    held = next(index for index in revision.compute.indexes if index.part == part)
    index = opened(held, revision)
    ids = (node_id,)
    if overlay is not None:
        arrange = partial(revision.compute.overlays.arrange, ids, overlay, limits)
    variant = _choose_variant(index, revision, search, brings=arrange is not None)
    wishes = msgspec.structs.replace(search.wishes, variant=variant)
    items = QueryNode(search, index, held, revision, folded)
    return Ask(items, ids, (recommending.output,), wishes, search.places, arrange, search.answer_form)


def opened(held: RevisionIndex, revision: ServedRevision) -> OpenIndex:
    """Raises RequestError: `NO_INDEX` where asking again may help, `NO_RECOMMENDATIONS` where the service has to be
    changed first."""
    found = held.find()
    if found is not None:
        return found
    name = revision.manifest.revision
    if held.problem is not None:
        raise RequestError(
            ErrorCode.NO_INDEX, RECOMMEND_PATH,
            f"the index of revision {name} cannot be used: {held.problem}",
            "delete it, and have it made again by `gnnserve generate` or by the Job of embeddings",
        )  # fmt: skip
    revision.task.recommending.check_computed(name)
    if not held.is_expected:
        raise RequestError(
            ErrorCode.NO_RECOMMENDATIONS, RECOMMEND_PATH,
            f"revision {name} has no index of embeddings, and the service asks for none",
            "`spec.embeddings: {}` in the manifest has it made, where index is not false",
        )  # fmt: skip
    raise RequestError(
        ErrorCode.NO_INDEX, RECOMMEND_PATH,
        f"revision {name} has no index of embeddings yet",
        "the service asks for one by spec.embeddings: send this again in a moment",
    )  # fmt: skip


def not_comparable(named: str, index: OpenIndex, able: Sequence[str], where: str) -> RequestError:
    """Error for a request that names a variant whose embeddings the index cannot be searched with."""
    return RequestError(
        ErrorCode.VARIANT_UNABLE, where,
        f"the index has embeddings of variant {index.manifest.variant}, which those of variant {named} cannot be "
        "compared with",
        f"choose from {', '.join(able)}, or leave it out",
    )  # fmt: skip


def _choose_variant(index: OpenIndex, revision: ServedRevision, search: NodeSearch, *, brings: bool) -> str:
    """The variant that computes the node's embedding: of those that can be compared with the index the one that is
    named, or the most accurate one whose profile says that it is within the latency, or else the fastest. `brings`:
    whether it is computed over an overlay."""
    manifest, made, named = revision.manifest, index.manifest, search.wishes.variant
    able = revision.comparable_variants(made.weights, brings=brings)
    if not able:
        raise RequestError(
            ErrorCode.VARIANT_UNABLE,
            "overlay" if brings else RECOMMEND_PATH,
            f"the index has embeddings of variant {made.variant}, which cannot answer requests with "
            f"{revision.needed_beside_index(brings=brings).in_words() or 'a graph that changes'}",
            "name another one in spec.embeddings.variant",
        )
    if named is not None:
        if named in able or named not in revision.capabilities:
            return named  # where there is none of that name, the question is refused for it
        raise not_comparable(named, index, able, search.places[VARIANT.field])
    latency_ms = search.wishes.objective.latency_ms
    latencies = {name: manifest.profile.latency_curve(name).at(1) for name in able}
    accuracies = {variant.name: variant.validation_accuracy for variant in manifest.profile.variants}
    fitting = [name for name in able if latency_ms is None or latencies[name] <= latency_ms]
    if not fitting:
        return min(able, key=lambda name: latencies[name])
    return max(fitting, key=lambda name: (name == made.variant, accuracies[name]))
