"""What a request for recommendations asks: the node whose embedding is computed, by which variant, and which index is
searched with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.recommend import RecommendRequest
from gnnserve_worker.asking.overlay import brings_nothing
from gnnserve_worker.asking.question import RECOMMEND_PATH, ErrorCode, RequestError, check_node_count, wishes_of_body
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.nearest.revision_index import OpenIndex, RevisionIndex
from gnnserve_worker.serving.http.codec import Arrange, Ask
from gnnserve_worker.serving.http.codecs.recommending.known import allowed_by, excluded_of, stored_of
from gnnserve_worker.serving.http.codecs.recommending.sought import Sought
from gnnserve_worker.tasks.recommending import FoldedNode

AnyRequest = RecommendRequest[Any]


@dataclass(frozen=True, slots=True)
class QueryNode:
    """The node of a request, as the one item that it asks about (`tasks/served.py: Items`)."""

    request: AnyRequest
    index: OpenIndex
    held: RevisionIndex
    revision: ServedRevision
    folded: FoldedNode | None = None
    """What its embedding is made of; None: it is its own."""

    def placed(self, error: RequestError) -> RequestError:
        return RequestError(error.code, "node", error.problem, error.remedy) if error.where == "nodes[0]" else error

    def joined(self, found: np.ndarray, overlay: Overlay | None) -> tuple[np.ndarray, Sought]:
        """The nodes whose embeddings are computed, and what is searched with them. Raises RequestError where the filter
        names what is not there."""
        request, revision, folded = self.request, self.revision, self.folded
        with_known, unread_by = request.exclude == "known", None
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
        filter_ = request.filter
        allowed = None if filter_ is None else allowed_by(filter_, self.held.part, revision)
        return nodes, Sought(self.index, self.held, request.count, excluded, allowed, unread_by, folded)


def ask_of(request: AnyRequest, revision: ServedRevision, max_nodes: int, limits: OverlayLimits) -> Ask:
    """Raises RequestError."""
    recommending, overlay = revision.task.recommending, request.overlay
    if overlay is not None and brings_nothing(overlay):
        overlay = None
    node_id: Any = None
    folded = recommending.fold(request.node, overlay, limits)
    if folded is None:
        node_id = recommending.called(request.node)
    else:
        check_node_count(len(folded.joined), max_nodes)
        overlay = None
    if not revision.compute.indexes:
        raise recommending.no_part(revision.manifest.revision)
    if folded is None:
        part = recommending.part_for(node_id, overlay, request.type)
    else:
        part = recommending.part_like(folded.like, request.node, request.type)
        # One of the nodes that are computed, so that there is a stored one to be found.
        first = int(folded.joined[0])
        (node_id,) = revision.graph.naming.shown(first, first + 1)
    held = next(index for index in revision.compute.indexes if index.part == part)
    index = _opened(held, revision)
    variant = _choose_variant(index, revision, request, brings=overlay is not None)
    given = (request.objective, request.strict, request.seed, variant, request.min_offset, None, None)
    ids = (node_id,)
    arrange: Arrange | None = None
    if overlay is not None:
        arrange = partial(revision.compute.overlays.arrange, ids, overlay, limits)
    items = QueryNode(request, index, held, revision, folded)
    return Ask(items, ids, (recommending.output,), wishes_of_body(given), arrange=arrange)


def _opened(held: RevisionIndex, revision: ServedRevision) -> OpenIndex:
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


def _choose_variant(index: OpenIndex, revision: ServedRevision, request: AnyRequest, *, brings: bool) -> str:
    """The variant that computes the node's embedding. Only variants with the network of the index are comparable: of
    these the most accurate one whose profile says that it is within the latency, or else the fastest. `brings`: whether
    it is computed over an overlay."""
    manifest, made, recommending = revision.manifest, index.manifest, revision.task.recommending
    gives_embeddings = recommending.output == "embeddings"
    needed = replace(revision.changes.needed, overlay=brings, embeddings=gives_embeddings)
    able = [
        variant.name
        for variant in manifest.variants
        if recommending.compares(manifest.files[variant.weights].sha256, made.weights)
        and revision.capabilities[variant.name].cover(needed)
    ]
    if not able:
        raise RequestError(
            ErrorCode.VARIANT_UNABLE,
            "overlay" if brings else RECOMMEND_PATH,
            f"the index has embeddings of variant {made.variant}, which cannot answer requests with "
            f"{needed.in_words() or 'a graph that changes'}",
            "name another one in spec.embeddings.variant",
        )
    latency_ms = None if request.objective is None else request.objective.latency_ms
    latencies = {name: manifest.profile.latency_curve(name).at(1) for name in able}
    accuracies = {variant.name: variant.validation_accuracy for variant in manifest.profile.variants}
    fitting = [name for name in able if latency_ms is None or latencies[name] <= latency_ms]
    if not fitting:
        return min(able, key=lambda name: latencies[name])
    return max(fitting, key=lambda name: (name == made.variant, accuracies[name]))
