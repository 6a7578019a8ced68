"""`POST /v1/explain`: the influence of single edges on an answer about a node, or about a pair of them, by occlusion.

A node is asked as a new one of an overlay: as it is stored and with all of its neighbours, then with one of them left
out in turn. So nothing but the edge differs between two answers, and the engine computes them as it does every
prediction, with the draws of one seed. A draw is of places in a list, so that a list which is not read whole keeps its
length: the neighbour beside the one that is left out stands there, too, and one that is not drawn has no influence. In
a shorter list others would be drawn, and what they change be told of the edge. Of a pair each node is computed by
itself, and the score is made of both. Of a node that has no answer, its neighbours are told alone, and so they are
where the variant that is named reads no edges. A cascade answers by one stage or the other, as sure as the first is:
the stage that reads edges is explained in its place.

What is explained is one node or two, the nodes that each reads, and the same node without one of them
(`ExplainedNode`). Nodes of any type may be looked at, so that people find their way from one to the next; only those
that the task answers about are explained.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from gnnserve_api import decoding
from gnnserve_api.families import point_of
from gnnserve_api.files.profile import VariantProfile
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
class ExplainedNode:
    """A node of the graph."""

    node: int
    """Its number."""
    lists: tuple[ReadList, ...]

    @property
    def degree(self) -> int:
        return sum(len(one.neighbours) for one in self.lists)


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer about nodes that can be asked about with other lists."""

    scores: ExplainedScores
    stand_ins: tuple[StandIn, ...]
    """One for each of the nodes."""


def nodes_of(request: ExplainRequest[Any], revision: ServedRevision) -> tuple[ExplainedNode, ...]:
    """The node, or both of the pair, that a request names. Raises RequestError: there is no such node."""
    named: dict[str, Any] = {} if request.node is UNSET else {"node": request.node}
    if request.pair is not UNSET:
        if named:
            raise RequestError(ErrorCode.INVALID_VALUE, "pair", "node is given too", "give one of them")
        named = {f"pair[{place}]": id_ for place, id_ in enumerate(request.pair)}
    if not named:
        raise RequestError(
            ErrorCode.MISSING_FIELD, "node", "it is missing, and so is pair",
            f'{_FORM.body_remedy(revision)}, or where links are scored {{"pair": [first, second]}}',
        )  # fmt: skip
    numbers = [revision.graph.naming.find_any(id_, where) for where, id_ in named.items()]
    return tuple(ExplainedNode(node, revision.graph.lists.of(node)) for node in numbers)


def explanation_of(nodes: Sequence[ExplainedNode], revision: ServedRevision) -> Explanation | str:
    """A text: why there is none. Raises RequestError: nodes are no items of the task, by their number or types."""
    scores = revision.task.explained([one.node for one in nodes])
    if isinstance(scores, str):
        return scores
    stand_ins = list[StandIn]()
    for one in nodes:
        stand_in = revision.compute.overlays.stand_in(one.node)
        if isinstance(stand_in, str):
            return stand_in
        stand_ins.append(stand_in)
    return Explanation(scores, tuple(stand_ins))


_SEED = 0
_ENTRIES_AT_ONCE = 100_000
"""Entries of the lists that are arranged in one go, while the event loop does nothing else."""
_FORM = BodyForm(
    {"": ("node", "pair", "count", "variant")},
    frozenset({"node", "pair[]"}),
    {
        "count": f"give a number from 1 to {MOST_EXPLAINED}",
        "variant": "give the name of a variant, or leave it out",
        "pair": "give the ids of two nodes: [first, second]",
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

    end: int
    """The place of the node that reads it."""
    place: int
    """The place of its list in `ExplainedNode.lists`."""
    neighbour: int


class _Influences(NamedTuple):
    """Nodes and edges that a variant's answer rests on."""

    told: Mapping[str, Any]
    """Members of the answer about what is explained."""
    of_edges: list[float]


async def explain(body: bytes, lane: Lane, model: ServedModel) -> ExplainAnswer | Outcome:
    """The answer, or what became of the predictions that it is made of. Raises RequestError."""
    revision = lane.revision
    request = _read(body, revision)
    nodes = nodes_of(request, revision)
    explained = explanation_of(nodes, revision)
    edges = list(islice(_in_turns(nodes), request.count))
    variant = explained if isinstance(explained, str) else _variant_of(request, explained.scores.outputs, revision)
    if isinstance(explained, str) or isinstance(variant, str):
        untold: list[float | UnsetType] = [UNSET] * len(edges)
        return _answer(nodes, _neighbours(nodes, edges, untold, revision), revision, unexplained=variant)
    found = await _influences(model, lane, variant.name, nodes, explained, edges)
    if not isinstance(found, _Influences):
        return found
    order = sorted(range(len(edges)), key=lambda place: -abs(found.of_edges[place]))
    neighbours = _neighbours(
        nodes, [edges[place] for place in order], [found.of_edges[place] for place in order], revision
    )
    return _answer(nodes, neighbours, revision, variant=variant.name, **found.told)


def _in_turns(nodes: Sequence[ExplainedNode]) -> Iterator[_Edge]:
    """The edges of all lists, each once: the first of each list, then the second of each."""
    lists = [(end, place, listed) for end, node in enumerate(nodes) for place, listed in enumerate(node.lists)]
    distinct = [np.unique(listed.neighbours).tolist() for _, _, listed in lists]
    for round_ in zip_longest(*distinct):
        yield from (
            _Edge(end, place, neighbour)
            for (end, place, _), neighbour in zip(lists, round_, strict=True)
            if neighbour is not None
        )


async def _influences(
    model: ServedModel,
    lane: Lane,
    variant: str,
    nodes: Sequence[ExplainedNode],
    explained: Explanation,
    edges: Sequence[_Edge],
) -> _Influences | Outcome:
    revision, scores = lane.revision, explained.scores
    drawn = _most_drawn(variant, revision)
    lists = [[one.neighbours for one in node.lists] for node in nodes]

    async def ask(end: int, read: _Lists) -> Outcome:
        return await _ask(model, lane, variant, explained.stand_ins[end], scores.outputs, read)

    whole = list[Answer]()
    for outcome in await asyncio.gather(*(ask(end, read) for end, read in enumerate(lists))):
        if not isinstance(outcome, Answer):
            return outcome
        whole.append(outcome)
    column = scores.column_of(whole)
    at_once, parts = max(1, _ENTRIES_AT_ONCE // max(1, *(one.degree for one in nodes))), list[Outcome]()
    for start in range(0, len(edges), at_once):
        # Settings may have changed meanwhile; another revision may not.
        if (present := model.lane) is not None and present.revision is revision:
            lane = present
        asked = (ask(edge.end, _left_out(lists[edge.end], edge, drawn)) for edge in edges[start : start + at_once])
        parts += await asyncio.gather(*asked)
    probability, rounding, found = scores.probability(whole, column), scores.rounding(whole), list[float]()
    for edge, part in zip(edges, parts, strict=True):
        if not isinstance(part, Answer):
            return part
        without = [part if end == edge.end else one for end, one in enumerate(whole)]
        influence = probability - scores.probability(without, column)
        found.append(influence if abs(influence) > rounding else 0.0)
    return _Influences({"probability": probability, **scores.told(whole, column)}, found)


def _most_drawn(variant: str, revision: ServedRevision) -> float:
    """Most neighbours that a variant draws of a list of the node that is asked about; infinite where it reads lists
    whole, or none."""
    read = [one for one in revision.manifest.variants if one.name == variant]
    by_hop = [fanouts for one in read for fanouts in (one.relation_fanouts or (one.fanouts,))]
    return min((fanouts[0] for fanouts in by_hop if fanouts and fanouts[0] > 0), default=math.inf)


def _left_out(lists: _Lists, edge: _Edge, drawn: float) -> _Lists:
    """The lists without the edge, however often it is there. `drawn`: most neighbours that are drawn of a list."""
    listed = lists[edge.place]
    is_left = listed == edge.neighbour
    without = listed[~is_left]
    if len(listed) > drawn and len(without):
        behind = int(is_left.nonzero()[0][-1]) + 1
        without = np.where(is_left, listed[behind] if behind < len(listed) else without[-1], listed)
    return [without if place == edge.place else one for place, one in enumerate(lists)]


def _neighbours(
    nodes: Sequence[ExplainedNode],
    edges: Sequence[_Edge],
    influences: Sequence[float | UnsetType],
    revision: ServedRevision,
) -> tuple[Neighbour, ...]:
    """Neighbours at these edges that have not left meanwhile."""
    labels, naming = revision.task.labels, revision.graph.naming
    readers: list[Any] = [naming.shown_any(one.node) if len(nodes) > 1 else UNSET for one in nodes]
    return tuple(
        Neighbour(
            shown, influence, labels.of_node(edge.neighbour), nodes[edge.end].lists[edge.place].name, readers[edge.end]
        )
        for edge, influence in zip(edges, influences, strict=True)
        if (shown := naming.shown_any(edge.neighbour)) is not None
    )


def _answer(
    nodes: Sequence[ExplainedNode], neighbours: tuple[Neighbour, ...], revision: ServedRevision, **found: Any
) -> ExplainAnswer:
    shown: list[Any] = [revision.graph.naming.shown_any(one.node) for one in nodes]
    of_one = {"node": shown[0], "label": revision.task.labels.of_node(nodes[0].node)}
    return ExplainAnswer(
        degree=sum(one.degree for one in nodes),
        neighbours=neighbours,
        revision=revision.manifest.revision,
        is_asked_about=all(one.node < revision.graph.nodes for one in nodes),
        relations=revision.graph.lists.relations_of([listed for one in nodes for listed in one.lists]),
        **(of_one if len(nodes) == 1 else {"pair": tuple(shown)}),
        **found,
    )


async def _ask(
    model: ServedModel, lane: Lane, variant: str, stand_in: StandIn, outputs: tuple[str, ...], lists: _Lists
) -> Outcome:
    """The outcome about a node where it reads these nodes."""
    overlay, seeds = stand_in(lists)
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def deliver(given: Outcome) -> None:
        if not outcome.done():
            outcome.set_result(given)

    question = Question(lane, seeds, outputs, Wishes(seed=_SEED, variant=variant), overlay)
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


def _variant_of(
    request: ExplainRequest[Any], outputs: tuple[str, ...], revision: ServedRevision
) -> VariantProfile | str:
    """The most accurate variant that reads edges, of those that can be asked about a node with other lists; a text: why
    there is none. Raises RequestError: the request names one that does not exist, or cannot be asked so."""
    needed = replace(revision.changes.needed, overlay=True, embeddings="embeddings" in outputs)
    able = [each for each in revision.manifest.profile.variants if revision.capabilities[each.name].cover(needed)]
    if request.variant is not None:
        stages = {one.name: (one.first, one.then) for one in revision.manifest.cascades}
        named = stages.get(request.variant, (request.variant,))
        if not any(each.name in named for each in able):
            check_variant(request.variant, (), False, revision, "variant")
            raise RequestError(
                ErrorCode.VARIANT_UNABLE,
                "variant",
                f"variant {request.variant} cannot be explained: influences take requests with {needed.in_words()}",
                f"choose from {', '.join(each.name for each in able)}, or leave it out" if able else "leave it out",
            )
        able = [each for each in able if each.name in named]
    if reading := [each for each in able if point_of(each).reads_edges]:
        return max(reading, key=lambda each: each.validation_accuracy)
    if request.variant is not None:
        return f"variant {request.variant} reads no edges: name another one, or none"
    return f"no variant that reads edges answers requests with {needed.in_words()}, which influences take"
