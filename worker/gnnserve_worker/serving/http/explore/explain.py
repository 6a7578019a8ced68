"""`POST /v1/explain`: the influence of single edges on a node's answer, by occlusion.

The node is asked as a new one of an overlay: as it is stored and with all of its neighbours, then with one of them left
out in turn. So nothing but the edge differs between two answers, and the engine computes them as it does every
prediction, with the draws of one seed. Where a node has more neighbours than the variant draws, an edge counts as far
as it is drawn. Of a node that has no answer, its neighbours are told alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from gnnserve_api import decoding
from gnnserve_api.explain import MOST_EXPLAINED, ExplainAnswer, ExplainRequest, Neighbour, TypedExplainRequest
from gnnserve_api.families import Capabilities
from gnnserve_api.objective import NO_OBJECTIVE
from gnnserve_worker.asking.body_form import BodyForm, field_error
from gnnserve_worker.asking.question import ErrorCode, RequestError, shown_value
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.scheduling.refusal import Refusal
from gnnserve_worker.serving.http.explore.one_type import one_type_subject
from gnnserve_worker.serving.http.explore.subject import Lists, Subject, Without, label_of
from gnnserve_worker.serving.http.explore.typed import typed_subject
from gnnserve_worker.serving.http.question import check_variant
from gnnserve_worker.serving.lane import Lane
from gnnserve_worker.serving.model import ServedModel, monotonic_ms
from gnnserve_worker.serving.requests import Answer, Outcome

_SEED = 0
_ENTRIES_AT_ONCE = 100_000
"""Entries of the lists that are arranged in one go, while the event loop does nothing else."""
_FORM = BodyForm(
    {"": ("node", "count", "variant")},
    frozenset({"node"}),
    {
        "count": f"give a number from 1 to {MOST_EXPLAINED}",
        "variant": "give the name of a variant, or leave it out",
    },
    lambda revision: f'{{"node": {", ".join(map(shown_value, revision.graph.naming.shown(0, 1)))}}}',
)
_decoder = decoding.decoder(ExplainRequest[int])
_text_decoder = decoding.decoder(ExplainRequest[str])
_typed_decoder = decoding.decoder(TypedExplainRequest)


class _Edge(NamedTuple):
    """An edge that is left out."""

    place: int
    """The place of its list in `Subject.lists`."""
    neighbour: int


class _Influences(NamedTuple):
    """What a variant's answer rests on."""

    column: int
    """The column of the class that it gives the highest score for."""
    probability: float
    of_edges: list[float]


async def explain(body: bytes, lane: Lane, model: ServedModel) -> ExplainAnswer | Outcome:
    """The answer, or what became of the predictions that it is made of. Raises RequestError."""
    revision = lane.revision
    request = _read(body, revision)
    subject = (one_type_subject if revision.graph.typed is None else typed_subject)(request, revision)
    edges = list(islice(_in_turns(subject), request.count))
    if isinstance(subject.without, str):
        untold: list[float | UnsetType] = [UNSET] * len(edges)
        return _answer(subject, _neighbours(subject, edges, untold, revision), revision, unexplained=subject.without)
    variant = _variant_of(request, revision)
    found = await _influences(model, lane, variant, subject, subject.without, edges)
    if not isinstance(found, _Influences):
        return found
    order = sorted(range(len(edges)), key=lambda place: -abs(found.of_edges[place]))
    neighbours = _neighbours(
        subject, [edges[place] for place in order], [found.of_edges[place] for place in order], revision
    )
    return _answer(
        subject, neighbours, revision, class_=revision.task.classes[found.column], probability=found.probability,
        variant=variant,
    )  # fmt: skip


def _in_turns(subject: Subject) -> Iterator[_Edge]:
    """The edges of the lists, each once: the first of each list, then the second of each."""
    distinct = [np.unique(one.neighbours).tolist() for one in subject.lists]
    for round_ in zip_longest(*distinct):
        yield from (_Edge(place, neighbour) for place, neighbour in enumerate(round_) if neighbour is not None)


async def _influences(
    model: ServedModel, lane: Lane, variant: str, subject: Subject, without: Without, edges: Sequence[_Edge]
) -> _Influences | Outcome:
    revision, lists = lane.revision, [one.neighbours for one in subject.lists]
    whole = await _ask(model, lane, variant, without, lists)
    if not isinstance(whole, Answer):
        return whole
    column = int(revision.task.decisive_scores(variant, whole.scores)[0].argmax())
    at_once, parts = max(1, _ENTRIES_AT_ONCE // max(1, subject.degree)), list[Outcome]()
    for start in range(0, len(edges), at_once):
        # Settings may have changed meanwhile; another revision may not.
        if (present := model.lane) is not None and present.revision is revision:
            lane = present
        asked = (_ask(model, lane, variant, without, _left_out(lists, edge)) for edge in edges[start : start + at_once])
        parts += await asyncio.gather(*asked)
    probability, found = _probability(whole, column, revision), []
    for part in parts:
        if not isinstance(part, Answer):
            return part
        found.append(probability - _probability(part, column, revision))
    return _Influences(column, probability, found)


def _left_out(lists: Lists, edge: _Edge) -> Lists:
    return [one[one != edge.neighbour] if place == edge.place else one for place, one in enumerate(lists)]


def _neighbours(
    subject: Subject, edges: Sequence[_Edge], influences: Sequence[float | UnsetType], revision: ServedRevision
) -> tuple[Neighbour, ...]:
    """Those that have not left meanwhile."""
    return tuple(
        Neighbour(shown, influence, label_of(edge.neighbour, revision), subject.lists[edge.place].name)
        for edge, influence in zip(edges, influences, strict=True)
        if (shown := subject.shown(edge.neighbour)) is not None
    )


def _answer(
    subject: Subject, neighbours: tuple[Neighbour, ...], revision: ServedRevision, **found: Any
) -> ExplainAnswer:
    relations = tuple(one.relation for one in subject.lists if one.relation is not None)
    return ExplainAnswer(
        node=subject.shown(subject.node),
        label=label_of(subject.node, revision),
        degree=subject.degree,
        neighbours=neighbours,
        revision=revision.manifest.revision,
        relations=UNSET if revision.graph.typed is None else relations,
        **found,
    )


async def _ask(model: ServedModel, lane: Lane, variant: str, without: Without, lists: Lists) -> Outcome:
    """The outcome about the node where it reads these nodes."""
    overlay, seeds = without(lists)
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
    if revision.task.multi_label:
        return float(1 / (1 + np.exp(-scores[column])))
    shifted = np.exp(scores - scores.max())
    return float(shifted[column] / shifted.sum())


def _read(body: bytes, revision: ServedRevision) -> ExplainRequest[Any]:
    try:
        request: ExplainRequest[Any] = _decoder_of(revision).decode(body)
    except msgspec.ValidationError as error:
        raise field_error(str(error), body, revision, _FORM) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"not JSON: {error}" if body.strip() else "it is empty"
        raise RequestError(ErrorCode.INVALID_JSON, "body", problem, _FORM.body_remedy(revision)) from None
    if not 1 <= request.count <= MOST_EXPLAINED:
        problem = f"{shown_value(request.count)} is out of range"
        raise RequestError(ErrorCode.INVALID_VALUE, "count", problem, f"give a number from 1 to {MOST_EXPLAINED}")
    return request


def _decoder_of(revision: ServedRevision) -> msgspec.json.Decoder[Any]:
    if revision.graph.typed is not None or revision.graph.joins_types:
        return _typed_decoder
    return _text_decoder if revision.graph.naming.are_texts else _decoder


def _variant_of(request: ExplainRequest[Any], revision: ServedRevision) -> str:
    if request.variant is not None:
        return check_variant(request.variant, (), True, revision, "variant")
    needed = Capabilities(overlay=True, changes=revision.changes.replica is not None)
    able = [each for each in revision.manifest.profile.variants if revision.capabilities[each.name].cover(needed)]
    return max(able, key=lambda each: each.validation_accuracy).name
