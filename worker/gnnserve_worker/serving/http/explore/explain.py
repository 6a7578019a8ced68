"""`POST /v1/explain`: the influence of single edges on a node's answer, by occlusion.

The node is asked as a new one of an overlay: as it is stored and with all of its neighbours, then with one of them left
out in turn. So nothing but the edge differs between two answers, and the engine computes them as it does every
prediction, with the draws of one seed. Where a node has more neighbours than the variant draws, an edge counts as far
as it is drawn. Of a node that has no answer, its neighbours are told alone.

What is explained is a node, the nodes that it reads, and the same node without one of them (`ExplainedNode`). Nodes of
any type may be looked at, so that people find their way from one to the next; only those that the task answers about
are explained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from gnnserve_api import decoding
from gnnserve_api.http.explain import MOST_EXPLAINED, ExplainAnswer, ExplainRequest, Neighbour, TypedExplainRequest
from gnnserve_worker.asking.body_form import BodyForm, decode_body
from gnnserve_worker.asking.naming import IdForm
from gnnserve_worker.asking.node_lists import ReadList
from gnnserve_worker.asking.overlay import StandIn
from gnnserve_worker.asking.question import ErrorCode, RequestError, Wishes, shown_value
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.scheduling.refusal import Refusal
from gnnserve_worker.serving.engine.model import ServedModel, monotonic_ms
from gnnserve_worker.serving.http.predict import check_variant
from gnnserve_worker.serving.requests import Answer, Lane, Outcome, Question
from gnnserve_worker.tasks.served import ExplainedScores


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """A node that can be asked about with other lists."""

    scores: ExplainedScores
    stand_in: StandIn


@dataclass(frozen=True, slots=True)
class ExplainedNode:
    """A node of the graph."""

    node: int
    """Its number."""
    lists: tuple[ReadList, ...]
    explained: NodeExplanation | str
    """A text: why it cannot be asked about."""

    @property
    def degree(self) -> int:
        return sum(len(one.neighbours) for one in self.lists)


def subject_of(request: ExplainRequest[Any], revision: ServedRevision) -> ExplainedNode:
    """Raises RequestError: there is no such node."""
    node = revision.graph.naming.find_any(request.node, "node")
    return ExplainedNode(node, revision.graph.lists.of(node), _explained(node, revision))


def _explained(node: int, revision: ServedRevision) -> NodeExplanation | str:
    scores = revision.task.explained(node)
    if isinstance(scores, str):
        return scores
    stand_in = revision.compute.overlays.stand_in(node)
    return stand_in if isinstance(stand_in, str) else NodeExplanation(scores, stand_in)


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
_DECODERS: Mapping[IdForm, msgspec.json.Decoder[Any]] = {
    IdForm.INTEGERS: decoding.decoder(ExplainRequest[int]),
    IdForm.TEXTS: decoding.decoder(ExplainRequest[str]),
    IdForm.WITH_TYPES: decoding.decoder(TypedExplainRequest),
}

_Lists = Sequence[np.ndarray]
"""Numbers of the nodes that a node reads, int64, ascending: one array for each of `ExplainedNode.lists`."""


class _Edge(NamedTuple):
    """An edge that is left out."""

    place: int
    """The place of its list in `ExplainedNode.lists`."""
    neighbour: int


class _Influences(NamedTuple):
    """Nodes and edges that a variant's answer rests on."""

    column: int
    """The column of the class that it gives the highest score for."""
    probability: float
    of_edges: list[float]


async def explain(body: bytes, lane: Lane, model: ServedModel) -> ExplainAnswer | Outcome:
    """The answer, or what became of the predictions that it is made of. Raises RequestError."""
    revision = lane.revision
    request = _read(body, revision)
    subject = subject_of(request, revision)
    explained = subject.explained
    edges = list(islice(_in_turns(subject), request.count))
    if isinstance(explained, str):
        untold: list[float | UnsetType] = [UNSET] * len(edges)
        return _answer(subject, _neighbours(subject, edges, untold, revision), revision, unexplained=explained)
    variant = _variant_of(request, revision)
    found = await _influences(model, lane, variant, subject, explained, edges)
    if not isinstance(found, _Influences):
        return found
    order = sorted(range(len(edges)), key=lambda place: -abs(found.of_edges[place]))
    neighbours = _neighbours(
        subject, [edges[place] for place in order], [found.of_edges[place] for place in order], revision
    )
    return _answer(
        subject, neighbours, revision, class_=explained.scores.class_of(found.column), probability=found.probability,
        variant=variant,
    )  # fmt: skip


def _in_turns(subject: ExplainedNode) -> Iterator[_Edge]:
    """The edges of the lists, each once: the first of each list, then the second of each."""
    distinct = [np.unique(one.neighbours).tolist() for one in subject.lists]
    for round_ in zip_longest(*distinct):
        yield from (_Edge(place, neighbour) for place, neighbour in enumerate(round_) if neighbour is not None)


async def _influences(
    model: ServedModel,
    lane: Lane,
    variant: str,
    subject: ExplainedNode,
    explained: NodeExplanation,
    edges: Sequence[_Edge],
) -> _Influences | Outcome:
    revision, lists = lane.revision, [one.neighbours for one in subject.lists]
    whole = await _ask(model, lane, variant, explained, lists)
    if not isinstance(whole, Answer):
        return whole
    column = explained.scores.column_of(whole)
    at_once, parts = max(1, _ENTRIES_AT_ONCE // max(1, subject.degree)), list[Outcome]()
    for start in range(0, len(edges), at_once):
        # Settings may have changed meanwhile; another revision may not.
        if (present := model.lane) is not None and present.revision is revision:
            lane = present
        asked = (
            _ask(model, lane, variant, explained, _left_out(lists, edge)) for edge in edges[start : start + at_once]
        )
        parts += await asyncio.gather(*asked)
    probability, found = explained.scores.probability(whole, column), []
    for part in parts:
        if not isinstance(part, Answer):
            return part
        found.append(probability - explained.scores.probability(part, column))
    return _Influences(column, probability, found)


def _left_out(lists: _Lists, edge: _Edge) -> _Lists:
    return [one[one != edge.neighbour] if place == edge.place else one for place, one in enumerate(lists)]


def _neighbours(
    subject: ExplainedNode, edges: Sequence[_Edge], influences: Sequence[float | UnsetType], revision: ServedRevision
) -> tuple[Neighbour, ...]:
    """Those that have not left meanwhile."""
    labels, naming = revision.task.labels, revision.graph.naming
    return tuple(
        Neighbour(shown, influence, labels.of_node(edge.neighbour), subject.lists[edge.place].name)
        for edge, influence in zip(edges, influences, strict=True)
        if (shown := naming.shown_any(edge.neighbour)) is not None
    )


def _answer(
    subject: ExplainedNode, neighbours: tuple[Neighbour, ...], revision: ServedRevision, **found: Any
) -> ExplainAnswer:
    shown: Any = revision.graph.naming.shown_any(subject.node)
    return ExplainAnswer(
        node=shown,
        label=revision.task.labels.of_node(subject.node),
        degree=subject.degree,
        neighbours=neighbours,
        revision=revision.manifest.revision,
        is_asked_about=subject.node < revision.graph.nodes,
        relations=revision.graph.lists.relations_of(subject.lists),
        **found,
    )


async def _ask(model: ServedModel, lane: Lane, variant: str, explained: NodeExplanation, lists: _Lists) -> Outcome:
    """The outcome about the node where it reads these nodes."""
    overlay, seeds = explained.stand_in(lists)
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def deliver(given: Outcome) -> None:
        if not outcome.done():
            outcome.set_result(given)

    question = Question(lane, seeds, (), Wishes(seed=_SEED, variant=variant), overlay)
    pending = model.submit(question, monotonic_ms(), deliver)
    if isinstance(pending, Refusal):
        return pending
    try:
        return await outcome
    finally:
        if not outcome.done() or outcome.cancelled():
            model.cancel(pending)


def _read(body: bytes, revision: ServedRevision) -> ExplainRequest[Any]:
    request: ExplainRequest[Any] = decode_body(_DECODERS[revision.graph.naming.form], body, revision, _FORM)
    if not 1 <= request.count <= MOST_EXPLAINED:
        problem = f"{shown_value(request.count)} is out of range"
        raise RequestError(ErrorCode.INVALID_VALUE, "count", problem, f"give a number from 1 to {MOST_EXPLAINED}")
    return request


def _variant_of(request: ExplainRequest[Any], revision: ServedRevision) -> str:
    if request.variant is not None:
        return check_variant(request.variant, (), True, revision, "variant")
    needed = replace(revision.changes.needed, overlay=True)
    able = [each for each in revision.manifest.profile.variants if revision.capabilities[each.name].cover(needed)]
    return max(able, key=lambda each: each.validation_accuracy).name
