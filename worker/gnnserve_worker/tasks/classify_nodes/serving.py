"""Classification of nodes, as it is served: nodes are asked about by their ids, and answered by labels, by the score of
each class, and by embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import numpy as np
import orjson

from gnnserve_api import decoding
from gnnserve_api.files.graph_schema import Classes
from gnnserve_api.files.provenance import Provenance
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.http.protocol import PredictAnswer, PredictRequest, TypedPredictRequest
from gnnserve_worker.asking.asked_nodes import TARGET_NODES
from gnnserve_worker.asking.body_form import BodyForm
from gnnserve_worker.asking.json_arrays import ARRAYS, encode_rows
from gnnserve_worker.asking.naming import IdForm
from gnnserve_worker.asking.question import ErrorCode, RequestError, check_node_count, shown_value
from gnnserve_worker.asking.served_graph import ServedGraph
from gnnserve_worker.graph.store import Splits
from gnnserve_worker.models.network import decisive_scores
from gnnserve_worker.tasks.classify_nodes.description import FORM, OUTPUTS, describe_classes
from gnnserve_worker.tasks.classify_nodes.embeddings import HiddenLayer
from gnnserve_worker.tasks.classify_nodes.published import PublishedClasses, class_part
from gnnserve_worker.tasks.classify_nodes.recommending import NearestNodes
from gnnserve_worker.tasks.classify_nodes.served_labels import ClassLabels
from gnnserve_worker.tasks.classify_nodes.tensors import ClassTensors, class_columns
from gnnserve_worker.tasks.description import TaskDescription
from gnnserve_worker.tasks.embedded import MissingEmbeddings, missing_embeddings
from gnnserve_worker.tasks.node_items import NodeItems
from gnnserve_worker.tasks.opening import TaskOpener, TaskParts
from gnnserve_worker.tasks.served import AskedItems, ScoredNodes, rounding_of
from gnnserve_worker.tasks.served_labels import MEAN_OVER_NODES, NOTHING_HELD_OUT, HeldOutNodes

_DECODERS: Mapping[IdForm, msgspec.json.Decoder[Any]] = {
    IdForm.INTEGERS: decoding.decoder(PredictRequest[int]),
    IdForm.TEXTS: decoding.decoder(PredictRequest[str]),
    IdForm.WITH_TYPES: decoding.decoder(TypedPredictRequest),
}
_ALWAYS_POSSIBLE = frozenset((("labels",), ("scores",), ("labels", "scores")))
_MOST_HELD_OUT = 2000
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class ClassScores:
    """Scores of a node as they are explained (`ExplainedScores`): by the class that has the highest one."""

    classes: Classes
    multi_label: bool
    decisive_scores: Callable[[str, np.ndarray], np.ndarray]
    """Scores of a variant as labels are decided by them."""
    outputs: tuple[str, ...] = ()

    def column_of(self, answers: Sequence[ScoredNodes]) -> int:
        (answer,) = answers
        return int(self.decisive_scores(answer.variant, answer.scores)[0].argmax())

    def told(self, answers: Sequence[ScoredNodes], column: int) -> Mapping[str, Any]:
        return {"class_": self.classes[column]}

    def probability(self, answers: Sequence[ScoredNodes], column: int) -> float:
        (answer,) = answers
        scores = answer.scores[0].astype(np.float64)
        if self.multi_label:
            return float(1 / (1 + np.exp(-scores[column])))
        shifted = np.exp(scores - scores.max())
        return float(shifted[column] / shifted.sum())

    def rounding(self, answers: Sequence[ScoredNodes]) -> float:
        (answer,) = answers
        return rounding_of(answer.scores)


def _decisive_scores(thresholds: Mapping[str, np.ndarray], variant: str, scores: np.ndarray) -> np.ndarray:
    return decisive_scores(scores, thresholds.get(variant)) if thresholds else scores


@dataclass(frozen=True, slots=True)
class ClassifyNodes(NodeItems):
    graph: ServedGraph
    provenance: Provenance
    classes: Classes
    """The graph's own label of each score column."""
    multi_label: bool
    thresholds: Mapping[str, np.ndarray]
    """`VariantManifest.thresholds` as float32, by variant; empty where no variant has any."""
    missing_embeddings: MissingEmbeddings | None
    """None: a variant gives some."""
    most_embedding_columns: int
    tensors: ClassTensors
    decoder: msgspec.json.Decoder[Any]
    form: BodyForm = FORM
    fields_of_others: frozenset[str] = frozenset({"pairs"})
    outputs: tuple[str, ...] = OUTPUTS
    request_schema: str = PredictRequest.__name__
    answer_schema: str = PredictAnswer.__name__
    held_out: HeldOutNodes = NOTHING_HELD_OUT
    labels: ClassLabels = field(init=False)
    live_labels: ClassLabels = field(init=False)
    recommending: NearestNodes = field(init=False)
    numbers_per_node: int = field(init=False)
    class_ids: np.ndarray = field(init=False)
    """`classes` as int64; empty where they are texts."""
    class_texts: tuple[bytes, ...] = field(init=False)
    """`classes` as JSON; empty where they are integers."""
    class_lists: tuple[bytes, ...] = field(init=False)
    """For each class, the JSON list of it alone: the labels of one node, by far the most frequent answer."""

    def __post_init__(self) -> None:
        ids, texts = class_columns(self.classes)
        object.__setattr__(self, "class_ids", ids)
        object.__setattr__(self, "class_texts", texts)
        object.__setattr__(self, "class_lists", tuple(_encoder.encode([label]) for label in self.classes))
        # Of what a task makes, nothing refers to it: a revision that is let go is gone at once, with its mapped files.
        decisive = partial(_decisive_scores, self.thresholds)
        labels = ClassLabels(self.graph, self.classes, self.multi_label, decisive, self.held_out)
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "live_labels", labels)
        object.__setattr__(self, "numbers_per_node", 1 + len(self.classes) + self.most_embedding_columns)
        types = self.graph.types
        part = class_part(types.target.name, types.target.nodes).standing(types, self.graph.numbered)
        object.__setattr__(self, "recommending", NearestNodes(part, self.missing_embeddings))

    # Asking

    def ids_of(self, request: Any, max_nodes: int) -> Sequence[Any]:
        outputs: tuple[str, ...] = request.outputs
        if outputs not in _ALWAYS_POSSIBLE:
            self._check_listed(outputs)
        nodes: Sequence[Any] = request.nodes
        if not 0 < len(nodes) <= max_nodes:
            check_node_count(len(nodes), max_nodes)
        return nodes

    def items_for(self, outputs: Sequence[str]) -> ClassifyNodes:
        return self

    def example(self) -> str:
        return f'{{"nodes": [{shown_value(self.graph.naming.shown(0, 1)[0])}]}}'

    def wrong_task(self, where: str) -> RequestError:
        return RequestError(
            ErrorCode.WRONG_TASK, where, "this service classifies nodes, and does not score pairs of them",
            f"send {self.example()}, or ask a service with task.links",
        )  # fmt: skip

    def most_lists(self, max_nodes: int) -> int:
        return 0

    def check_outputs(self, outputs: Sequence[str], fields: Sequence[str]) -> None:
        if "embeddings" in outputs and self.missing_embeddings is not None:
            raise RequestError(
                ErrorCode.NO_EMBEDDINGS,
                fields[outputs.index("embeddings")],
                self.missing_embeddings.problem,
                f"leave embeddings out; for a service that has some, {self.missing_embeddings.remedy}",
            )

    def check_array(self, output: str) -> None:
        if output == "labels" and self.multi_label:
            raise RequestError(
                ErrorCode.NO_BINARY_LABELS,
                "return",
                "each node of this graph may have several labels, and lists of them are no array",
                "send JSON, or ask for scores, where one above "
                f"{'the threshold in `provenance` of GET /v1/variants' if self.thresholds else '0'} is a label",
            )
        if output == "labels" and self.class_texts:
            raise RequestError(
                ErrorCode.NO_BINARY_LABELS,
                "return",
                "the labels of this graph are texts, and lists of them are no array",
                "ask for scores, whose columns are `classes` of GET /v1/variants, or send JSON",
            )

    def _check_listed(self, outputs: tuple[str, ...]) -> None:
        if not outputs:
            raise RequestError(
                ErrorCode.INVALID_VALUE, "return", "the list is empty",
                "name at least one of labels, scores, embeddings",
            )  # fmt: skip
        self.check_outputs(outputs, [f"return[{i}]" for i in range(len(outputs))])

    # Answering

    def is_large(self, question: AskedItems, most_numbers: int) -> bool:
        widths = {"labels": 1, "scores": len(self.classes), "embeddings": self.most_embedding_columns}
        return len(question.nodes) * sum(widths[output] for output in question.outputs) > most_numbers

    def as_json(self, answer: ScoredNodes, question: AskedItems) -> bytes:
        outputs, body = question.outputs, b""
        if "labels" in outputs:
            body += b'"labels":' + self._labels(answer) + b","
        if "scores" in outputs:
            body += b'"scores":' + orjson.dumps(answer.scores, option=ARRAYS) + b","
        if "embeddings" in outputs:
            body += b'"embeddings":' + orjson.dumps(answer.embeddings, option=ARRAYS) + b","
        return body

    def json_blocks(self, answer: ScoredNodes, question: AskedItems) -> Iterator[bytes]:
        outputs = question.outputs
        if "labels" in outputs:
            yield b'"labels":' + self._labels(answer) + b","
        for name, matrix in (("scores", answer.scores), ("embeddings", answer.embeddings)):
            if name in outputs and matrix is not None:
                yield b'"%b":[' % name.encode()
                yield from encode_rows(matrix)
                yield b"],"

    def array(self, answer: ScoredNodes, question: AskedItems) -> np.ndarray:
        match question.outputs[0]:
            case "labels":
                deciding = self.decisive_scores(answer.variant, answer.scores)
                return np.ascontiguousarray(self.class_ids[deciding.argmax(axis=1)], "<i8")
            case "embeddings":
                return np.ascontiguousarray(answer.embeddings, "<f4")
            case _:
                return np.ascontiguousarray(answer.scores, "<f4")

    def decisive_scores(self, variant: str, scores: np.ndarray) -> np.ndarray:
        return _decisive_scores(self.thresholds, variant, scores)

    # Describing

    @property
    def description(self) -> TaskDescription:
        nodes = self.graph.naming.shown(0, 2)
        labels = (self.classes * 2)[: len(nodes)]
        return describe_classes(nodes, [[label] for label in labels] if self.multi_label else labels)

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(kind.name for kind in self.graph.described.types)

    def first_request(self) -> dict[str, Any]:
        return {"nodes": self.graph.naming.shown(0, 3)}

    def told(self) -> dict[str, Any]:
        return {"classes": self.classes, "multi_label": self.multi_label}

    # Recommending and explaining

    def explained(self, nodes: Sequence[int]) -> ClassScores | str:
        if len(nodes) > 1:
            raise self.wrong_task("pair")
        if nodes[0] >= self.graph.nodes:
            return f"answers are about nodes of type {self.graph.types.target.name}"
        return ClassScores(self.classes, self.multi_label, self.decisive_scores)

    # Labels and accuracy, canary

    def is_like(self, other: Any) -> bool:
        return isinstance(other, ClassifyNodes)

    def _labels(self, answer: ScoredNodes) -> bytes:
        scores, texts = answer.scores, self.class_texts
        if self.thresholds:
            scores = self.decisive_scores(answer.variant, scores)
        if not self.multi_label:
            if len(scores) == 1:
                return self.class_lists[scores.argmax()]
            best = scores.argmax(axis=1)
            if texts:
                return b"[" + b",".join([texts[column] for column in best.tolist()]) + b"]"
            return orjson.dumps(self.class_ids[best], option=ARRAYS)
        nodes, columns = np.nonzero(scores > 0)
        flat = [self.classes[column] for column in columns.tolist()] if texts else self.class_ids[columns].tolist()
        ends = np.searchsorted(nodes, np.arange(len(scores)), side="right").tolist()
        return _encoder.encode([flat[start:end] for start, end in zip([0, *ends], ends, strict=False)])


def _open(parts: TaskParts) -> ClassifyNodes:
    manifest, hidden = parts.manifest, HiddenLayer()
    thresholds = {
        variant.name: np.array(variant.thresholds, np.float32)
        for variant in manifest.variants
        if variant.thresholds is not None
    }
    return ClassifyNodes(
        graph=parts.graph,
        provenance=parts.provenance,
        classes=parts.classes,
        multi_label=parts.multi_label,
        held_out=_held_out(manifest, parts.splits, parts.graph.labels),
        thresholds=thresholds,
        missing_embeddings=missing_embeddings(hidden, manifest),
        most_embedding_columns=max(map(hidden.columns, manifest.variants)),
        tensors=ClassTensors(manifest, parts.classes, thresholds, multi_label=parts.multi_label),
        decoder=_DECODERS[parts.graph.naming.form],
    )


def _held_out(manifest: RevisionManifest, splits: Splits, labels: np.ndarray | None) -> HeldOutNodes:
    """Evenly spread test nodes, or validation nodes where there are none."""
    if manifest.profile.metric == MEAN_OVER_NODES or labels is None:
        return NOTHING_HELD_OUT
    nodes = splits.test if len(splits.test) else splits.validation
    if not len(nodes):
        return NOTHING_HELD_OUT
    places = np.linspace(0, len(nodes) - 1, min(len(nodes), _MOST_HELD_OUT)).astype(np.int64)
    spread = np.asarray(nodes[places], np.int64)
    truths = np.array(labels[spread])
    is_known = np.ones(len(spread), bool) if truths.ndim == 2 else truths >= 0
    return HeldOutNodes(spread[is_known], truths[is_known])


OPENER = TaskOpener(
    is_of=lambda manifest: manifest.links is None, asked=lambda _: TARGET_NODES, open=_open, published=PublishedClasses
)
