"""What a request for recommendations asks: the node whose embedding is computed, by which variant, and which index is
searched with it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from gnnserve_api.families import Capabilities
from gnnserve_api.links import EndManifest, LinksManifest
from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.protocol import Output, PredictRequest, TypedOverlay
from gnnserve_api.recommend import RecommendRequest
from gnnserve_api.spec.task import Decoder
from gnnserve_worker.asking.overlay import BRING_IT
from gnnserve_worker.asking.question import (
    RECOMMEND_PATH,
    ErrorCode,
    Question,
    RequestError,
    check_node_count,
    shown_value,
)
from gnnserve_worker.asking.type_ids import as_text
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.nearest.parts import IndexPart
from gnnserve_worker.nearest.revision_index import OpenIndex, RevisionIndex
from gnnserve_worker.serving.http.codecs.json import question_of
from gnnserve_worker.serving.http.codecs.recommending.fold import Folded, fold
from gnnserve_worker.serving.http.codecs.recommending.known import excluded_of, reads_one_way, stored_of
from gnnserve_worker.serving.http.codecs.recommending.sought import Sought
from gnnserve_worker.serving.http.wishes import Wishes
from gnnserve_worker.tasks.node_items import NodeItems

AnyRequest = RecommendRequest[Any]


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
    overlay = request.overlay
    if overlay is not None and not (overlay.nodes or overlay.edges or overlay.overrides):
        request, overlay = msgspec.structs.replace(request, overlay=None), None
    if (
        revision.task.links is not None
        and isinstance(overlay, TypedOverlay)
        and revision.compute.overlays.typed is None
    ):
        _check_folds(revision.task.links.manifest)
        folded = fold(request.node, overlay, revision.task.links.manifest, revision, limits)
        return _of_folded(request, folded, revision.task.links.manifest, wishes, revision, max_nodes, limits)
    if revision.graph.joins_types:
        request = msgspec.structs.replace(
            request, node=as_text(request.node, "node", revision.graph.naming.shown(0, 1))
        )
    held = _held_for(request, revision)
    index = _opened(held, revision)
    variant = _choose_variant(index, revision, request, brings=overlay is not None)
    question = _question(request, request.node, variant, wishes, revision, max_nodes, limits)
    node = int(question.nodes[0])
    stored = stored_of(node, question.overlay, revision)
    with_known = request.exclude == "known"
    excluded = excluded_of(node, question.overlay, revision, with_known=with_known)
    unread_by = stored if with_known and revision.task.links is not None and reads_one_way(revision) else None
    return Asked(question, Sought(index, held, request.count, excluded, None, unread_by))


def _check_folds(links: LinksManifest) -> None:
    """Rows that an earlier gnnserve stored of a network over several types do not add up to that of a new node."""
    if isinstance(links.embeddings_of, str):
        raise RequestError(
            ErrorCode.NO_OVERLAYS, "overlay",
            f"an earlier gnnserve made the revision, and kept {links.embeddings_of}'s embeddings of stored nodes alone",
            "ask about a stored node, or generate again",
        )  # fmt: skip


def _of_folded(
    request: AnyRequest, folded: Folded, links: LinksManifest, wishes: Wishes, revision: ServedRevision,
    max_nodes: int, limits: OverlayLimits,
) -> Asked:  # fmt: skip
    check_node_count(len(folded.joined), max_nodes)
    # The first of both ends searches the second, as a stored node would.
    like = links.first if folded.is_first else links.second
    held = _held_of(like.start, request.node, request.type, revision)
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
    # Networks that score links end in embeddings.
    wanted: Output = "embeddings" if revision.task.links is None else "scores"
    asked: PredictRequest[Any] = PredictRequest(
        nodes=(node,), objective=request.objective, strict=request.strict, outputs=(wanted,),
        overlay=request.overlay, seed=request.seed, variant=variant, min_offset=request.min_offset,
    )  # fmt: skip
    try:
        return question_of(asked, NodeItems(), wishes, revision, max_nodes, limits)
    except RequestError as error:
        if error.where == "nodes[0]":
            raise RequestError(error.code, "node", error.problem, error.remedy) from None
        raise


def _held_for(request: AnyRequest, revision: ServedRevision) -> RevisionIndex:
    """The index of the nodes that are recommended for the node that the request names."""
    if not revision.compute.indexes:
        raise _without_indexes(revision)
    if revision.graph.joins_types:
        return _held_of(_like_stored(request, revision), request.node, request.type, revision)
    (held,) = revision.compute.indexes
    kind, named = held.part.type, request.type
    if named is None or named == kind:
        return held
    problem = f"nodes of type {kind} are recommended" if kind else "nodes of this graph have no types"
    raise RequestError(ErrorCode.INVALID_VALUE, "type", f"{problem}, got {shown_value(named)}", "leave it out")


def _like_stored(request: AnyRequest, revision: ServedRevision) -> int:
    """The position of the node, or where it is new that of the first one of its type."""
    graph = revision.graph.numbered
    if isinstance(request.overlay, TypedOverlay):
        id_ = revision.graph.ids.read_named(request.node, "node")
        number = revision.graph.ids.number(id_)
        return graph.first_nodes[graph.place_of(id_.type)] if number < 0 else number
    otherwise = "" if revision.compute.overlays.typed is None else BRING_IT
    return revision.graph.naming.find_one(request.node, "node", otherwise)


def _held_of(position: int, asked: Any, named: str | None, revision: ServedRevision) -> RevisionIndex:
    """The index of the nodes at the other end of links. `position`: of a node of the type of `asked`, as the request
    names it. `named`: the type that the request names."""
    assert revision.task.links is not None  # noqa: S101
    links = revision.task.links.manifest
    if not revision.compute.indexes:
        raise _without_indexes(revision)
    own, other = _ends_for(position, asked, links)
    if named is not None and named != other.type:
        raise RequestError(
            ErrorCode.INVALID_VALUE, "type",
            f"{links.relation} joins nodes of type {own.type} to nodes of type {other.type}, got {shown_value(named)}",
            f"give {other.type}, or leave it out",
        )  # fmt: skip
    return next(index for index in revision.compute.indexes if index.part.type == other.type)


def _ends_for(position: int, asked: Any, links: LinksManifest) -> tuple[EndManifest, EndManifest]:
    """The end that the node stands at, and the other one."""
    first, second = links.first, links.second
    if first.start <= position < first.end:
        return first, second
    if second.start <= position < second.end:
        return second, first
    raise RequestError(
        ErrorCode.WRONG_NODE_TYPE, "node",
        f"node {shown_value(asked)} is neither of type {first.type} nor of type {second.type}, which "
        f"{links.relation} joins",
        "name a node of one of them",
    )  # fmt: skip


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
    if revision.task.links is None and not revision.has_embeddings:
        raise RequestError(
            ErrorCode.NO_RECOMMENDATIONS, RECOMMEND_PATH,
            f"no variant of revision {name} computes embeddings, by which nodes are recommended",
            "give model.fanouts two layers or more, and have a variant that computes them",
        )  # fmt: skip
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


def _without_indexes(revision: ServedRevision) -> RequestError:
    """The revision has no place for an index."""
    links = revision.task.links
    if links is not None and links.manifest.decoder == Decoder.MLP:
        return RequestError(
            ErrorCode.NO_RECOMMENDATIONS, RECOMMEND_PATH,
            f"pairs are scored by decoder {links.manifest.decoder}, a perceptron over both embeddings, so that no "
            "index finds the best ones",
            "score pairs by POST /v1/predict",
        )  # fmt: skip
    return RequestError(
        ErrorCode.NO_RECOMMENDATIONS, RECOMMEND_PATH,
        f"revision {revision.manifest.revision} lies in no folder that could have an index of embeddings",
        "publish it in a repository",
    )  # fmt: skip


def _choose_variant(index: OpenIndex, revision: ServedRevision, request: AnyRequest, *, brings: bool) -> str:
    """The variant that computes the node's embedding. Only variants with the network of the index are comparable: of
    these the most accurate one whose profile says that it is within the latency, or else the fastest. `brings`: whether
    it is computed over an overlay."""
    manifest, made = revision.manifest, index.manifest
    # Over several types links are scored by one network, whatever of it is stored.
    is_one_network = revision.graph.joins_types and revision.compute.overlays.typed is not None
    needed = Capabilities(
        overlay=brings, embeddings=revision.task.links is None, changes=revision.changes.replica is not None
    )
    able = [
        variant.name
        for variant in manifest.variants
        if (is_one_network or manifest.files[variant.weights].sha256 == made.weights)
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
