"""Scores of links, as they are served: pairs of nodes are asked about, and answered by what the decoder makes of their
embeddings, and by probabilities; or nodes, and answered by these embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import orjson
from msgspec import UNSET

from gnnserve_api import decoding
from gnnserve_api.families import FOLDED, point_of
from gnnserve_api.files.edges import Direction
from gnnserve_api.files.graph_schema import Classes
from gnnserve_api.files.links import LinksManifest
from gnnserve_api.files.provenance import Provenance
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.http.pairs import PairsAnswer, PairsRequest, TypedPairsRequest
from gnnserve_worker.asking.asked_nodes import ALL_NODES, TARGET_NODES, AskedNodes
from gnnserve_worker.asking.body_form import BodyForm
from gnnserve_worker.asking.id_list import IdList
from gnnserve_worker.asking.json_arrays import ARRAYS, encode_rows
from gnnserve_worker.asking.naming import IdForm
from gnnserve_worker.asking.question import ErrorCode, RequestError
from gnnserve_worker.asking.served_graph import ServedGraph
from gnnserve_worker.asking.tensors import Datatype
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.tasks.deciding import Decides
from gnnserve_worker.tasks.description import TaskDescription
from gnnserve_worker.tasks.embedded import missing_embeddings
from gnnserve_worker.tasks.opening import TaskOpener, TaskParts
from gnnserve_worker.tasks.score_links.description import EMBEDDINGS, OUTPUTS, describe_pairs
from gnnserve_worker.tasks.score_links.embeddings import EndsOfLinks
from gnnserve_worker.tasks.score_links.ends import PairEnds
from gnnserve_worker.tasks.score_links.folding import Folder
from gnnserve_worker.tasks.score_links.form import FORM
from gnnserve_worker.tasks.score_links.links import ServedLinks, served_links
from gnnserve_worker.tasks.score_links.nodes import EndNodes
from gnnserve_worker.tasks.score_links.pairs import PairForm, check_pair_count, form_pairs, told_of_pair
from gnnserve_worker.tasks.score_links.published import PublishedLinks, link_parts
from gnnserve_worker.tasks.score_links.recommending import BestPairs, BestPairsOfTypes
from gnnserve_worker.tasks.score_links.served_labels import LinkLabels, NoNodeLabels
from gnnserve_worker.tasks.score_links.tensors import PairTensors
from gnnserve_worker.tasks.served import AskedItems, ScoredNodes, TaskItems, rounding_of

_DECODERS: Mapping[IdForm, msgspec.json.Decoder[Any]] = {
    IdForm.INTEGERS: decoding.decoder(PairsRequest[int]),
    IdForm.TEXTS: decoding.decoder(PairsRequest[str]),
    IdForm.WITH_TYPES: decoding.decoder(TypedPairsRequest),
}
_MEMBERS = {name: b'"%b":' % name.encode() for name in OUTPUTS}
"""Each output's name as JSON has it before its value."""
_PAIRS = IdList(b'"pairs"', (b",", b"]]"), (b",", b"]]"))


@dataclass(frozen=True, slots=True)
class PairScore:
    """Score of a pair as it is explained (`ExplainedScores`): by the probability of a link."""

    links: ServedLinks
    outputs: tuple[str, ...] = (EMBEDDINGS,)

    def column_of(self, answers: Sequence[ScoredNodes]) -> int:
        return 0

    def probability(self, answers: Sequence[ScoredNodes], column: int) -> float:
        return float(self.links.probabilities(answers[0].variant, self._score(answers))[0])

    def rounding(self, answers: Sequence[ScoredNodes]) -> float:
        return rounding_of(self._score(answers))

    def told(self, answers: Sequence[ScoredNodes], column: int) -> Mapping[str, Any]:
        return {"score": float(self._score(answers)[0])}

    def _score(self, answers: Sequence[ScoredNodes]) -> np.ndarray:
        """float32 [1]"""
        first, second = (answer.scores for answer in answers)
        return self.links.decoder.score(first, second)


@dataclass(frozen=True, slots=True)
class ScoreLinks:
    graph: ServedGraph
    provenance: Provenance
    links: ServedLinks
    ends: PairEnds
    live_labels: LinkLabels
    recommending: BestPairs
    nodes: EndNodes
    decoder: msgspec.json.Decoder[Any]
    form: BodyForm = FORM
    id_list: IdList = _PAIRS
    fields_of_others: frozenset[str] = frozenset({"nodes"})
    outputs: tuple[str, ...] = OUTPUTS
    request_schema: str = PairsRequest.__name__
    answer_schema: str = PairsAnswer.__name__
    classes: Classes = ()
    """What the graph has beside links, which nothing here answers."""
    multi_label: bool = False
    labels: NoNodeLabels = field(default_factory=NoNodeLabels)
    tensors: PairTensors = field(init=False)

    def __post_init__(self) -> None:
        # It does not refer to the task: a revision that is let go is gone at once, with its mapped files.
        ids = Datatype.BYTES if self.graph.naming.are_texts else Datatype.INT64
        object.__setattr__(self, "tensors", PairTensors(partial(_outputs, self.links), self.nodes, ids))

    # Asking

    def items_for(self, outputs: Sequence[str]) -> TaskItems:
        return self.nodes if EMBEDDINGS in outputs else self

    def ids_of(self, request: Any, max_nodes: int) -> Sequence[Any]:
        if not request.outputs:
            raise RequestError(
                ErrorCode.INVALID_VALUE, "return", "the list is empty", f"name at least one of {', '.join(OUTPUTS)}"
            )
        if request.nodes is not UNSET:
            raise self.wrong_task("nodes")
        if request.pairs is UNSET:
            raise RequestError(ErrorCode.MISSING_FIELD, "pairs", "it is missing", FORM.remedies["pairs"])
        check_pair_count(len(request.pairs), max_nodes)
        return tuple(chain.from_iterable(request.pairs))

    def check_count(self, ids: int, max_nodes: int) -> None:
        if ids % 2:
            raise RequestError(
                ErrorCode.INVALID_BINARY, "body", f"{ids:,} node ids are no whole number of pairs",
                "send int64 [pairs, 2], first and second node of each",
            )  # fmt: skip
        check_pair_count(ids // 2, max_nodes)

    def placed(self, error: RequestError) -> RequestError:
        return told_of_pair(error)

    def joined(self, found: np.ndarray, overlay: Overlay | None) -> tuple[np.ndarray, PairForm]:
        self.ends.check(found, overlay)
        return form_pairs(found)

    def example(self) -> str:
        return self.ends.example_body()

    def wrong_task(self, where: str) -> RequestError:
        return RequestError(
            ErrorCode.WRONG_TASK, where,
            "this service scores pairs of nodes, and does not classify nodes, of which it gives embeddings alone",
            f"send {self.example()} or {self.ends.example_nodes()}, or ask a service without task.links",
        )  # fmt: skip

    def most_lists(self, max_nodes: int) -> int:
        return max_nodes // 2

    def check_outputs(self, outputs: Sequence[str], fields: Sequence[str]) -> None:
        items = self.items_for(outputs)
        if items is not self:
            items.check_outputs(outputs, fields)

    def check_array(self, output: str) -> None:
        """All outputs are arrays."""

    # Answering

    @property
    def numbers_per_node(self) -> int:
        return self.links.manifest.dimensions

    def is_large(self, question: AskedItems, most_numbers: int) -> bool:
        return question.form is None and len(question.nodes) * self.numbers_per_node > most_numbers

    def as_json(self, answer: ScoredNodes, question: AskedItems) -> bytes:
        return b"".join(self.json_blocks(answer, question))

    def json_blocks(self, answer: ScoredNodes, question: AskedItems) -> Iterator[bytes]:
        for name, one in _outputs(self.links, answer, question).items():
            if one.ndim == 1:
                yield b"%b%b," % (_MEMBERS[name], orjson.dumps(one, option=ARRAYS))
            else:
                yield b"%b[" % _MEMBERS[name]
                yield from encode_rows(one)
                yield b"],"

    def array(self, answer: ScoredNodes, question: AskedItems) -> np.ndarray:
        return _outputs(self.links, answer, question)[question.outputs[0]].astype("<f4", copy=False)

    # Describing

    @property
    def description(self) -> TaskDescription:
        return describe_pairs(self.ends.example())

    @property
    def types(self) -> tuple[str, ...]:
        manifest = self.links.manifest
        return tuple(dict.fromkeys(end.type for end in (manifest.first, manifest.second) if end.type))

    def first_request(self) -> dict[str, Any]:
        return {"pairs": [self.ends.example()]}

    def told(self) -> dict[str, Any]:
        return {"classes": self.classes, "multi_label": self.multi_label, "links": self.links.manifest}

    # Recommending and explaining

    def explained(self, nodes: Sequence[int]) -> PairScore | str:
        if len(nodes) == 1:
            return "pairs of nodes are scored here, and a node alone has no answer: name a pair"
        self.ends.check(np.array(nodes, np.int64), None, "pair[{}]".format)
        return PairScore(self.links)

    # Cascades and canary

    @property
    def decides(self) -> Decides:
        return self.links.decides

    def is_like(self, other: Any) -> bool:
        return isinstance(other, ScoreLinks)


def _outputs(links: ServedLinks, answer: ScoredNodes, question: AskedItems) -> dict[str, np.ndarray]:
    """The arrays that are asked for, float32 [pairs] each, or [nodes, dimensions], C-contiguous."""
    outputs, form = question.outputs, question.form
    if form is None:
        return {EMBEDDINGS: np.ascontiguousarray(answer.scores)}
    scores = links.score_by(answer.variant, answer.scores, form.first, form.second)
    made = {"scores": scores}
    if "probabilities" in outputs:
        made["probabilities"] = links.probabilities(answer.variant, scores)
    return {name: made[name] for name in outputs}


def _open(parts: TaskParts) -> ScoreLinks:
    links = served_links(parts.manifest, parts.folder)
    numbered, stays = parts.graph.numbered, parts.graph.numbered is parts.graph.types
    # Types of a graph that stays may have been joined into one.
    standing = links.manifest if stays else links.manifest.over(numbered)
    is_folded = any(point_of(variant) is FOLDED for variant in parts.manifest.variants)
    missing = missing_embeddings(EndsOfLinks(links.manifest), parts.manifest)
    ends = PairEnds(standing, parts.graph, needs_links=is_folded)
    return ScoreLinks(
        graph=parts.graph,
        provenance=parts.provenance,
        links=links,
        ends=ends,
        live_labels=LinkLabels(parts.graph, links, standing, ends),
        recommending=_recommending(parts, links, standing, is_folded=is_folded),
        nodes=EndNodes(ends, links.manifest.dimensions, missing),
        decoder=_DECODERS[parts.graph.naming.form],
        classes=parts.classes,
        multi_label=parts.multi_label,
    )


def _recommending(parts: TaskParts, links: ServedLinks, standing: LinksManifest, *, is_folded: bool) -> BestPairs:
    decoder, graph = links.decoder, parts.graph
    rules = parts.manifest.edge_rules
    reads_one_way = rules is None or rules.direction is not Direction.UNDIRECTED
    indexed = tuple(part.standing(graph.types, graph.numbered) for part in link_parts(links.manifest))
    if not standing.first.type:
        return BestPairs(standing, decoder, links.probabilities, reads_one_way, indexed)
    folding = decoder.folding
    if folding is not None:
        folding = folding.over(graph.types, graph.numbered)
    # What requests bring is an overlay where the network can compute over one. Rows of embeddings are made of what the
    # node that asks is joined to at either end, also where lists go one way.
    folder = Folder(standing, graph, folding) if is_folded or not parts.overlays.takes_json else None
    return BestPairsOfTypes(
        standing, decoder, links.probabilities, reads_one_way, indexed, graph=graph, overlays=parts.overlays,
        folder=folder, model_weights=_weights_of_model(parts.manifest),
    )  # fmt: skip


def _weights_of_model(manifest: RevisionManifest) -> frozenset[str]:
    of_model = (variant.weights for variant in manifest.variants if point_of(variant).runs_whole_model)
    return frozenset(manifest.files[name].sha256 for name in of_model)


def _asked(manifest: RevisionManifest) -> AskedNodes:
    assert manifest.links is not None  # noqa: S101
    return ALL_NODES if manifest.links.first.type else TARGET_NODES


OPENER = TaskOpener(
    is_of=lambda manifest: manifest.links is not None, asked=_asked, open=_open, published=PublishedLinks
)
