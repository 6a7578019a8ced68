"""`POST /v1/explain`: the influence of single edges on a node's answer, by occlusion.

The node is asked as a new one of an overlay: with its own features and all of its neighbours, then with one of them
left out in turn. So nothing but the edge differs between two answers, and the engine computes them as it does every
prediction, with the draws of one seed. Where a node has more neighbours than the variant draws, an edge counts as far
as it is drawn.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import numpy as np

from gnnserve_api.explain import MOST_EXPLAINED, ExplainAnswer, ExplainRequest, Neighbour
from gnnserve_api.families import Capabilities
from gnnserve_api.objective import NO_OBJECTIVE
from gnnserve_worker.inference.served import OverlaySupport, ServedRevision
from gnnserve_worker.scheduling.refusal import Refusal
from gnnserve_worker.serving.http.node_ids import find_listed, find_texts
from gnnserve_worker.serving.http.question import ErrorCode, RequestError, check_variant, shown_value
from gnnserve_worker.serving.lane import Lane
from gnnserve_worker.serving.model import ServedModel, monotonic_ms
from gnnserve_worker.serving.requests import Answer, Outcome

_SEED = 0
_REMEDY = 'send an object such as {"node": 3}, with a node id as predictions take it'
_decoder = msgspec.json.Decoder(ExplainRequest[int])
_text_decoder = msgspec.json.Decoder(ExplainRequest[str])


async def explain(body: bytes, lane: Lane, model: ServedModel) -> ExplainAnswer | Outcome:
    """The answer, or what became of the predictions that it is made of. Raises RequestError."""
    revision = lane.revision
    request = _read(body, revision)
    if revision.types is not None:
        problem = "the graph has several types of nodes, and influence is measured where it has one"
        raise RequestError(ErrorCode.NO_OVERLAYS, "node", problem, "ask a service of such a graph")
    node = _position_of(request, revision)
    support, features = _features_of(node, revision)
    variant = _variant_of(request, revision)
    assert revision.neighbours_of is not None  # noqa: S101  (a revision whose features are known has a graph)
    neighbours = np.unique(revision.neighbours_of(node)).astype(np.int64)
    tried = neighbours[: request.count]
    whole = await _ask(model, lane, variant, support, features, neighbours)
    if not isinstance(whole, Answer):
        return whole
    column = int(revision.decisive_scores(variant, whole.scores)[0].argmax())
    parts = await asyncio.gather(
        *(_ask(model, lane, variant, support, features, neighbours[neighbours != left_out]) for left_out in tried)
    )
    found = []
    probability = _probability(whole, column, revision)
    for left_out, part in zip(tried.tolist(), parts, strict=True):
        if not isinstance(part, Answer):
            return part
        influence = probability - _probability(part, column, revision)
        found.append(Neighbour(revision.shown_ids(left_out, left_out + 1)[0], influence, label_of(left_out, revision)))
    found.sort(key=lambda each: -abs(each.influence))
    return ExplainAnswer(
        node=revision.shown_ids(node, node + 1)[0],
        class_=revision.classes[column],
        probability=probability,
        label=label_of(node, revision),
        degree=len(revision.neighbours_of(node)),
        neighbours=tuple(found),
        variant=variant,
        revision=revision.manifest.revision,
    )


def label_of(position: int, revision: ServedRevision) -> Any:
    """The label of a node by the graph's source; None: it has none, or came later."""
    if revision.labels is None or position >= len(revision.labels):
        return None
    known = revision.labels[position]
    if revision.multi_label:
        return [revision.classes[column] for column in np.flatnonzero(known).tolist()]
    return None if known < 0 else revision.classes[int(known)]


async def _ask(
    model: ServedModel, lane: Lane, variant: str, support: OverlaySupport, features: np.ndarray, neighbours: np.ndarray
) -> Outcome:
    """The outcome about a new node with these features and neighbours."""
    new = np.array([lane.revision.nodes], np.int64)
    edges = np.stack([neighbours, np.broadcast_to(new, neighbours.shape)], axis=1)
    overlay, seeds = support.arrange(features, np.empty(0, np.int64), np.ascontiguousarray(edges), new)
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def deliver(given: Outcome) -> None:
        if not outcome.done():
            outcome.set_result(given)

    pending = model.submit(
        lane, seeds, NO_OBJECTIVE, False, False, monotonic_ms(), deliver, overlay, _SEED, variant
    )  # fmt: skip
    if isinstance(pending, Refusal):
        return pending
    try:
        return await outcome
    finally:
        if not outcome.done() or outcome.cancelled():
            model.cancel(pending)


def _probability(answer: Answer, column: int, revision: ServedRevision) -> float:
    scores = answer.scores[0].astype(np.float64)
    if revision.multi_label:
        return float(1 / (1 + np.exp(-scores[column])))
    shifted = np.exp(scores - scores.max())
    return float(shifted[column] / shifted.sum())


def _read(body: bytes, revision: ServedRevision) -> ExplainRequest[Any]:
    try:
        request: ExplainRequest[Any] = (_text_decoder if revision.has_text_ids else _decoder).decode(body)
    except msgspec.ValidationError as error:
        raise RequestError(ErrorCode.INVALID_TYPE, "body", str(error), _REMEDY) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"not JSON: {error}" if body.strip() else "it is empty"
        raise RequestError(ErrorCode.INVALID_JSON, "body", problem, _REMEDY) from None
    if not 1 <= request.count <= MOST_EXPLAINED:
        problem = f"{shown_value(request.count)} is out of range"
        raise RequestError(ErrorCode.INVALID_VALUE, "count", problem, f"give a number from 1 to {MOST_EXPLAINED}")
    return request


def _position_of(request: ExplainRequest[Any], revision: ServedRevision) -> int:
    try:
        ids = (request.node,)
        return int((find_texts(ids, revision) if revision.has_text_ids else find_listed(ids, revision, ""))[0])
    except RequestError as error:
        raise RequestError(error.code, "node", error.problem, error.remedy) from None


def _features_of(node: int, revision: ServedRevision) -> tuple[OverlaySupport, np.ndarray]:
    support = revision.overlays
    if support is None or revision.links is not None:
        raise RequestError(ErrorCode.NO_OVERLAYS, "node", revision.no_overlays or "no overlays are taken", "")
    if support.features_of is None or revision.neighbours_of is None:
        raise RequestError(
            ErrorCode.NO_OVERLAYS,
            "node",
            "the revision does not keep the features of its nodes as they were, which leaving out an edge needs",
            "store a variant as Float32 with all columns, without normalisation by rows",
        )
    return support, np.ascontiguousarray(support.features_of(np.array([node], np.int64)), np.float32)


def _variant_of(request: ExplainRequest[Any], revision: ServedRevision) -> str:
    if request.variant is not None:
        return check_variant(request.variant, (), True, revision, "variant")
    needed = Capabilities(overlay=True, changes=revision.replica is not None)
    able = [each for each in revision.manifest.profile.variants if revision.capabilities[each.name].cover(needed)]
    return max(able, key=lambda each: each.validation_accuracy).name
