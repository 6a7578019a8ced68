"""`POST /v1/recommend` as a codec: the embedding of one node is asked of the engine, the index is searched with it.

So admission, objectives, deadlines, offsets and overlays are those of every prediction. The search runs where answers
are encoded; it takes a millisecond or two, and counts as part of the request's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from gnnserve_api.families import Capabilities
from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.protocol import ErrorDetail, PredictRequest
from gnnserve_api.recommend import (
    MOST_RECOMMENDED,
    RecommendAnswer,
    RecommendedNode,
    RecommendFilter,
    RecommendRequest,
)
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.nearest.recent import merged
from gnnserve_worker.nearest.revision_index import OpenIndex
from gnnserve_worker.nearest.search import Found
from gnnserve_worker.serving.http.codecs.codec import Encoded
from gnnserve_worker.serving.http.codecs.json import JSON_HEAD, encode_json_error, question_of
from gnnserve_worker.serving.http.codecs.json_mistakes import PREDICTION, BodyForm, field_error
from gnnserve_worker.serving.http.codecs.large_json import may_have_field
from gnnserve_worker.serving.http.node_ids import find_listed, find_texts
from gnnserve_worker.serving.http.question import ErrorCode, Question, RequestError, cut, shown_value
from gnnserve_worker.serving.http.wishes import Wishes
from gnnserve_worker.serving.requests import Answer

RECOMMEND_PATH = "/v1/recommend"
_FIELDS = ("node", "count", "exclude", "filter", "objective", "strict", "overlay", "seed", "minOffset")
_decoder = msgspec.json.Decoder(RecommendRequest[int])
_text_decoder = msgspec.json.Decoder(RecommendRequest[str])
_encoder = msgspec.json.Encoder()
_REFERENCE = "#/components/schemas/{name}"
_COUNT_REMEDY = f"give a whole number from 1 to {MOST_RECOMMENDED:,}"

_FORM = BodyForm(
    {**PREDICTION.members, "": _FIELDS, "filter": ("labels", "nodes")},
    PREDICTION.ids | {"node", "filter.nodes[]"},
    {
        **PREDICTION.remedies,
        "count": _COUNT_REMEDY,
        "exclude": "give known or nothing",
        "filter": "give an object with labels, nodes, or both",
        "filter.labels": "give a list of labels, as the graph's source has them",
        "filter.labels[]": "give a label, as the graph's source has it",
        "filter.nodes": "give a list of node ids",
    },
    lambda revision: f'{{"node": {", ".join(map(shown_value, revision.shown_ids(0, 1)))}, "count": 10}}',
)


class Sought(msgspec.Struct, frozen=True):
    """The part of a request that is needed once its embedding is computed."""

    index: OpenIndex
    count: int
    excluded: np.ndarray
    """Positions that are not recommended, int64."""
    allowed: np.ndarray | None
    """bool [positions of the graph]; None: all nodes."""


class RecommendCodec:
    model = None
    path = RECOMMEND_PATH
    content_type = "application/json"

    def check_query(self, query: bytes) -> None:
        raise RequestError(
            ErrorCode.UNKNOWN_FIELD, cut(query.decode("latin-1")), "there is no such parameter",
            f"all fields are in the body: {', '.join(_FIELDS)}",
        )  # fmt: skip

    def estimate_seeds(self, body: bytes, *, are_texts: bool) -> int:
        return 1

    def may_choose(self, body: bytes) -> bool:
        return may_have_field(body, b"objective")

    def may_have_overlay(self, body: bytes) -> bool:
        return may_have_field(body, b"overlay")

    def parse_question(
        self,
        body: bytes,
        query: bytes,
        wishes: Wishes,
        revision: ServedRevision,
        max_nodes: int,
        limits: OverlayLimits,
    ) -> Question:
        request = _decode(body, revision)
        if not 1 <= request.count <= MOST_RECOMMENDED:
            raise RequestError(
                ErrorCode.INVALID_VALUE, "count", f"{shown_value(request.count)} is out of range", _COUNT_REMEDY
            )
        index = _index_of(revision)
        variant = _choose_variant(index, revision, request)
        asked = PredictRequest(
            nodes=(request.node,), objective=request.objective, strict=request.strict, outputs=("embeddings",),
            overlay=request.overlay, seed=request.seed, variant=variant, min_offset=request.min_offset,
        )  # fmt: skip
        try:
            question = question_of(asked, wishes, revision, max_nodes, limits)
        except RequestError as error:
            if error.where == "nodes[0]":
                raise RequestError(error.code, "node", error.problem, error.remedy) from None
            raise
        excluded = _excluded(question, request, revision)
        allowed = None if request.filter is None else _allowed(request.filter, revision)
        return msgspec.structs.replace(question, form=Sought(index, request.count, excluded, allowed))

    def encode_answer(
        self,
        answer: Answer,
        question: Question,
        revision: ServedRevision,
        objective_met: Callable[[], bool],
        *,
        in_pieces: bool,
    ) -> Encoded:
        sought: Sought = question.form
        assert answer.embeddings is not None  # noqa: S101  (it was asked for)
        query, follower, items = answer.embeddings[0], revision.index_follower, []
        if query.any():  # an embedding of zeros has no direction: nothing is near it
            begun_s = time.perf_counter()
            found = _find(query, sought, revision)
            if revision.index is not None:
                revision.index.searches += 1
                revision.index.search_seconds += time.perf_counter() - begun_s
            ids = [revision.shown_ids(place, place + 1)[0] for place in found.positions.tolist()]
            items = [
                RecommendedNode(id_, round(cosine, 6)) for id_, cosine in zip(ids, found.cosines.tolist(), strict=True)
            ]
        told = RecommendAnswer(
            items=items,
            variant=answer.variant,
            revision=revision.manifest.revision,
            objective_met=objective_met(),
            index=sought.index.state if follower is None else follower.state(sought.index),
            offset=UNSET if answer.offset is None else answer.offset,
        )
        return Encoded(JSON_HEAD, _encoder.encode(told) + b"\n")

    def encode_error(self, detail: ErrorDetail) -> Encoded:
        return encode_json_error(detail)

    def describe_request(self, revision: ServedRevision | None, example: Any) -> dict[str, Any]:
        return {"schema": {"$ref": _REFERENCE.format(name=RecommendRequest.__name__)}, "example": example}

    def describe_answer(self, revision: ServedRevision | None, example: Any) -> dict[str, Any]:
        schema = {"schema": {"$ref": _REFERENCE.format(name=RecommendAnswer.__name__)}}
        return schema if example is None else {**schema, "example": example}


def _find(query: np.ndarray, sought: Sought, revision: ServedRevision) -> Found:
    """The nearest nodes of the index, and of what was computed beside it; of those that are there now."""
    indexed, allowed, excluded = sought.index.manifest.nodes, sought.allowed, sought.excluded
    if revision.is_gone is not None and revision.is_gone.any():
        allowed = ~revision.is_gone if allowed is None else allowed & ~revision.is_gone
    follower = revision.index_follower
    recent = None if follower is None else follower.recent(sought.index)
    of_index = None if allowed is None else allowed[:indexed]
    if recent is not None and recent.count:
        left = recent.left_to_index[:indexed]
        of_index = left if of_index is None else of_index & left
    found = sought.index.search.search(query, sought.count, excluded[excluded < indexed], of_index)
    if recent is None or not recent.count:
        return found
    return merged(found, recent.search(query, sought.count, excluded, allowed), sought.count)


def _index_of(revision: ServedRevision) -> OpenIndex:
    if revision.links is not None or revision.types is not None:
        what = "scores links" if revision.links is not None else "is of a graph of several types of nodes"
        raise RequestError(
            ErrorCode.NO_RECOMMENDATIONS,
            RECOMMEND_PATH,
            f"the service {what}, and nodes are recommended where nodes of one type are classified",
            "score pairs by POST /v1/predict" if revision.links is not None else "leave it out",
        )
    held = revision.index
    found = None if held is None else held.find()
    if found is not None:
        return found
    why = "has no index of embeddings yet" if held is None or held.problem is None else f"cannot use it: {held.problem}"
    raise RequestError(
        ErrorCode.NO_INDEX,
        RECOMMEND_PATH,
        f"revision {revision.manifest.revision} {why}",
        "it is made where the manifest has spec.embeddings; if it does, send this again in a moment",
    )


def _choose_variant(index: OpenIndex, revision: ServedRevision, request: RecommendRequest[Any]) -> str:
    """The variant that computes the node's embedding. Only variants with the network of the index are comparable: of
    these the most accurate one whose profile says that it is within the latency, or else the fastest."""
    manifest, made = revision.manifest, index.manifest
    overlay = request.overlay
    brings = overlay is not None and bool(overlay.nodes or overlay.edges or overlay.overrides)
    needed = Capabilities(overlay=brings, embeddings=True, changes=revision.replica is not None)
    able = [
        variant.name
        for variant in manifest.variants
        if manifest.files[variant.weights].sha256 == made.weights and revision.capabilities[variant.name].cover(needed)
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


def _excluded(question: Question, request: RecommendRequest[Any], revision: ServedRevision) -> np.ndarray:
    node = int(question.nodes[0])
    parts = [np.array([node], np.int64)]
    overlay = question.overlay
    if overlay is not None and node >= revision.nodes:
        origin = int(overlay.origins[node - revision.nodes])
        if origin >= 0:
            parts.append(np.array([origin], np.int64))
    if request.exclude == "known":
        stored = node if node < revision.nodes else int(parts[-1][0]) if len(parts) > 1 else -1
        if stored >= 0 and revision.neighbours_of is not None:
            parts.append(revision.neighbours_of(stored).astype(np.int64))
        if overlay is not None and node >= revision.nodes:
            place = node - revision.nodes
            gained = overlay.neighbours[overlay.starts[place] : overlay.starts[place + 1]]
            behind = gained >= revision.nodes
            parts.append(np.where(behind, overlay.origins[np.where(behind, gained - revision.nodes, 0)], gained))
    joined = np.unique(np.concatenate(parts))
    return joined[(joined >= 0) & (joined < revision.nodes)]


def _allowed(filter_: RecommendFilter[Any], revision: ServedRevision) -> np.ndarray:
    """bool [positions]"""
    allowed = np.ones(revision.nodes, bool)
    if filter_.labels is not None:
        labelled = _labelled(filter_.labels, revision)
        allowed[: len(labelled)] &= labelled
        allowed[len(labelled) :] = False
    if filter_.nodes is not None:
        listed = np.zeros(revision.nodes, bool)
        listed[_positions(filter_.nodes, revision)] = True
        allowed &= listed
    return allowed


def _labelled(labels: Sequence[Any], revision: ServedRevision) -> np.ndarray:
    """bool [nodes as they were published]"""
    if revision.labels is None:
        raise RequestError(
            ErrorCode.INVALID_VALUE, "filter.labels", "the labels of this graph are not kept", "leave it out"
        )
    places = {label: place for place, label in enumerate(revision.classes)}
    for i, label in enumerate(labels):
        if label not in places:
            raise RequestError(
                ErrorCode.UNKNOWN_LABEL, f"filter.labels[{i}]", f"{shown_value(label)} is none of the graph's classes",
                "GET /v1/variants lists them",
            )  # fmt: skip
    wanted = np.array([places[label] for label in labels], np.int64)
    known = revision.labels
    if known.ndim == 2:
        return np.asarray(known[:, wanted].any(axis=1)) if len(wanted) else np.zeros(len(known), bool)
    return np.isin(known, wanted)


def _positions(ids: tuple[Any, ...], revision: ServedRevision) -> np.ndarray:
    if not ids:
        return np.empty(0, np.int64)
    try:
        return find_texts(ids, revision) if revision.has_text_ids else find_listed(ids, revision, "")
    except RequestError as error:
        raise RequestError(error.code, f"filter.{error.where}", error.problem, error.remedy) from None


def _decode(body: bytes, revision: ServedRevision) -> RecommendRequest[Any]:
    try:
        return (_text_decoder if revision.has_text_ids else _decoder).decode(body)
    except msgspec.ValidationError as error:
        raise field_error(str(error), body, revision, _FORM) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"not JSON: {error}" if body.strip() else "it is empty"
        raise RequestError(ErrorCode.INVALID_JSON, "body", problem, _FORM.body_remedy(revision)) from None
