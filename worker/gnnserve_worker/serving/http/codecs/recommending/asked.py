"""What a request for recommendations asks: the node whose embedding is computed, by which variant, and which index is
searched with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.protocol import PredictRequest
from gnnserve_api.recommend import RecommendRequest
from gnnserve_worker.asking.overlay import brings_nothing
from gnnserve_worker.asking.question import RECOMMEND_PATH, ErrorCode, Question, RequestError, check_node_count
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.nearest.parts import IndexPart
from gnnserve_worker.nearest.revision_index import OpenIndex, RevisionIndex
from gnnserve_worker.serving.http.codecs.json import question_of
from gnnserve_worker.serving.http.codecs.recommending.known import excluded_of, stored_of
from gnnserve_worker.serving.http.codecs.recommending.sought import Sought
from gnnserve_worker.serving.http.wishes import Wishes
from gnnserve_worker.tasks.node_items import NodeItems
from gnnserve_worker.tasks.recommending import FoldedNode

AnyRequest = RecommendRequest[Any]
_NODE = NodeItems()


class Asked(msgspec.Struct, frozen=True):
    question: Question
    sought: Sought

    @property
    def part(self) -> IndexPart:
        """The nodes that may be recommended."""
        return self.sought.held.part


def read_asked(
    request: AnyRequest, wishes: Wishes, revision: ServedRevision, max_nodes: int, limits: OverlayLimits
) -> Asked:
    """Raises RequestError and BehindError, as `Codec.parse_question`. Filters are left to the caller."""
    recommending, overlay = revision.task.recommending, request.overlay
    if overlay is not None and brings_nothing(overlay):
        request, overlay = msgspec.structs.replace(request, overlay=None), None
    folded = recommending.fold(request.node, overlay, limits)
    if folded is not None:
        return _of_folded(request, folded, wishes, revision, max_nodes, limits)
    node_id = recommending.called(request.node)
    if not revision.compute.indexes:
        raise recommending.no_part(revision.manifest.revision)
    held = _held_of(recommending.part_for(node_id, overlay, request.type), revision)
    index = _opened(held, revision)
    variant = _choose_variant(index, revision, request, brings=overlay is not None)
    question = _question(request, node_id, variant, wishes, revision, max_nodes, limits)
    node = int(question.nodes[0])
    stored = stored_of(node, question.overlay, revision)
    with_known = request.exclude == "known"
    excluded = excluded_of(node, question.overlay, revision, with_known=with_known)
    unread_by = recommending.unread_by(stored) if with_known and stored is not None else None
    return Asked(question, Sought(index, held, request.count, excluded, None, unread_by))


def _of_folded(
    request: AnyRequest, folded: FoldedNode, wishes: Wishes, revision: ServedRevision, max_nodes: int,
    limits: OverlayLimits,
) -> Asked:  # fmt: skip
    recommending = revision.task.recommending
    check_node_count(len(folded.joined), max_nodes)
    if not revision.compute.indexes:
        raise recommending.no_part(revision.manifest.revision)
    held = _held_of(recommending.part_like(folded.like, request.node, request.type), revision)
    index = _opened(held, revision)
    plain = msgspec.structs.replace(request, overlay=None)
    variant = _choose_variant(index, revision, plain, brings=False)
    first = int(folded.joined[0])
    (shown,) = revision.graph.naming.shown(first, first + 1)
    question = _question(plain, shown, variant, wishes, revision, max_nodes, limits)
    excluded = folded.joined if request.exclude == "known" else np.zeros(0, np.int64)
    if folded.node is not None:
        excluded = np.append(excluded, folded.node)
    question = msgspec.structs.replace(question, nodes=folded.joined)
    return Asked(question, Sought(index, held, request.count, excluded, None, folded=folded))


def _question(
    request: AnyRequest, node: Any, variant: str, wishes: Wishes, revision: ServedRevision, max_nodes: int,
    limits: OverlayLimits,
) -> Question:  # fmt: skip
    asked: PredictRequest[Any] = PredictRequest(
        nodes=(node,), objective=request.objective, strict=request.strict,
        outputs=(revision.task.recommending.output,), overlay=request.overlay, seed=request.seed, variant=variant,
        min_offset=request.min_offset,
    )  # fmt: skip
    try:
        return question_of(asked, _NODE, wishes, revision, max_nodes, limits)
    except RequestError as error:
        if error.where == "nodes[0]":
            raise RequestError(error.code, "node", error.problem, error.remedy) from None
        raise


def _held_of(part: IndexPart, revision: ServedRevision) -> RevisionIndex:
    return next(index for index in revision.compute.indexes if index.part == part)


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
