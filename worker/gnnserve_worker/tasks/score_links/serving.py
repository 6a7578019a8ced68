"""Scores of links, as they are served: pairs of nodes are asked about, and answered by what the decoder makes of their
embeddings, and by probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import orjson

from gnnserve_api import decoding
from gnnserve_api.classes import Classes
from gnnserve_api.pairs import PairsAnswer, PairsRequest, TypedPairsRequest
from gnnserve_api.provenance import Provenance
from gnnserve_api.repository import RevisionManifest
from gnnserve_worker.asking.body_form import BodyForm
from gnnserve_worker.asking.json_arrays import ARRAYS
from gnnserve_worker.asking.naming import IdForm
from gnnserve_worker.asking.question import ErrorCode, Question, RequestError
from gnnserve_worker.asking.served_graph import ServedGraph
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.tasks.opening import TaskOpener, TaskParts
from gnnserve_worker.tasks.score_links.ends import PairEnds
from gnnserve_worker.tasks.score_links.form import FORM
from gnnserve_worker.tasks.score_links.links import ServedLinks, served_links
from gnnserve_worker.tasks.score_links.pairs import PairForm, check_pair_count, form_pairs, told_of_pair
from gnnserve_worker.tasks.score_links.tensors import NoTensors
from gnnserve_worker.tasks.served import HeldOut, ScoredNodes

_DECODERS: Mapping[IdForm, msgspec.json.Decoder[Any]] = {
    IdForm.INTEGERS: decoding.decoder(PairsRequest[int]),
    IdForm.TEXTS: decoding.decoder(PairsRequest[str]),
    IdForm.WITH_TYPES: decoding.decoder(TypedPairsRequest),
}
OUTPUTS = ("scores", "probabilities")


@dataclass(frozen=True, slots=True)
class ScoreLinks:
    graph: ServedGraph
    provenance: Provenance
    links: ServedLinks
    ends: PairEnds
    tensors: NoTensors
    decoder: msgspec.json.Decoder[Any]
    form: BodyForm = FORM
    fields_of_others: frozenset[str] = frozenset({"nodes"})
    outputs: tuple[str, ...] = OUTPUTS
    # What the spec refuses is not advised.
    how_to_change: str = (
        "generate the service again from the changed graph: spec.updates is not possible with task.links"
    )
    request_schema: str = PairsRequest.__name__
    answer_schema: str = PairsAnswer.__name__
    held_out: HeldOut | None = None
    classes: Classes = ()
    multi_label: bool = False

    # Asking

    def ids_of(self, request: Any, max_nodes: int) -> Sequence[Any]:
        if not request.outputs:
            raise RequestError(
                ErrorCode.INVALID_VALUE, "return", "the list is empty", f"name at least one of {', '.join(OUTPUTS)}"
            )
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
            ErrorCode.WRONG_TASK, where, "this service scores pairs of nodes, and does not classify nodes",
            f"send {self.example()}, or ask a service without task.links",
        )  # fmt: skip

    def most_lists(self, max_nodes: int) -> int:
        return max_nodes // 2

    def check_outputs(self, outputs: Sequence[str], fields: Sequence[str]) -> None:
        """All outputs can be given."""

    def check_array(self, output: str) -> None:
        """All outputs are arrays."""

    # Answering

    def is_large(self, question: Question, most_numbers: int) -> bool:
        return False  # a number or two for each pair

    def as_json(self, answer: ScoredNodes, question: Question) -> bytes:
        return b"".join(self.json_blocks(answer, question))

    def json_blocks(self, answer: ScoredNodes, question: Question) -> Iterator[bytes]:
        for name, one in self._outputs(answer, question).items():
            yield b'"%b":%b,' % (name.encode(), orjson.dumps(one, option=ARRAYS))

    def array(self, answer: ScoredNodes, question: Question) -> np.ndarray:
        return self._outputs(answer, question)[question.outputs[0]].astype("<f4", copy=False)

    def decisive_scores(self, variant: str, scores: np.ndarray) -> np.ndarray:
        return scores

    def _outputs(self, answer: ScoredNodes, question: Question) -> dict[str, np.ndarray]:
        """The arrays that are asked for, float32 [pairs] each, C-contiguous."""
        outputs, form = question.outputs, question.form
        scores = self.links.score(answer.scores, form.first, form.second)
        made = {"scores": scores}
        if "probabilities" in outputs:
            made["probabilities"] = self.links.probabilities(answer.variant, scores)
        return {name: np.ascontiguousarray(made[name], np.float32) for name in outputs}


def _open(parts: TaskParts) -> ScoreLinks:
    links = served_links(parts.manifest, parts.decoder)
    ends = PairEnds(links.manifest, parts.graph)
    return ScoreLinks(
        graph=parts.graph,
        provenance=parts.provenance,
        links=links,
        ends=ends,
        tensors=NoTensors(ends),
        decoder=_DECODERS[parts.graph.naming.form],
    )


def _joins_types(manifest: RevisionManifest) -> bool:
    return manifest.links is not None and bool(manifest.links.first.type)


OPENER = TaskOpener(is_of=lambda manifest: manifest.links is not None, joins_types=_joins_types, open=_open)
