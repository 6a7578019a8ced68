"""A task that this file alone knows: whether the class of a node is odd, told by one output.

Generation and serving know it within `known_odd_classes`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal

import msgspec
import numpy as np
import pytest
import torch

from gnnserve_api import decoding
from gnnserve_api.errors import InputError
from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_api.files.given_weights import LabelMisfit
from gnnserve_api.files.graph_schema import Classes, GraphSchema
from gnnserve_api.files.profile import Metric, Profile, VariantProfile
from gnnserve_api.files.repository import TaskSection, VariantManifest
from gnnserve_api.files.training import Source
from gnnserve_api.http.live_accuracy import LabelsRequest
from gnnserve_api.http.protocol import Id, Output, PredictAnswer, PredictRequest, TypedOverlay
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import ComparedWith, NodeClasses
from gnnserve_api.spec.variants import Variants
from gnnserve_worker.asking.asked_nodes import TARGET_NODES
from gnnserve_worker.asking.body_form import FIELDS, IDS, MEMBERS, REMEDIES, BodyForm
from gnnserve_worker.asking.naming import IdForm
from gnnserve_worker.asking.question import ErrorCode, RequestError, check_node_count
from gnnserve_worker.asking.tensors import ANY_LENGTH, Datatype, TensorKind
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import GraphData, Splits
from gnnserve_worker.nearest.parts import IndexPart
from gnnserve_worker.progress import ProgressListener
from gnnserve_worker.tasks import generation, serving
from gnnserve_worker.tasks.deciding import BY_CLASS, Decides
from gnnserve_worker.tasks.description import TaskDescription
from gnnserve_worker.tasks.generated import (
    Confidences,
    Course,
    DecoderTensors,
    EmbeddingCourse,
    EmbeddingRates,
    EpochPart,
    ImportedGraph,
    Judgement,
    OutputsOf,
    SplitJudgements,
    TeacherOutputs,
    TrainingBatch,
    Visible,
)
from gnnserve_worker.tasks.node_items import NodeItems
from gnnserve_worker.tasks.opening import TaskOpener, TaskParts
from gnnserve_worker.tasks.published import ExportedScores, NodeRange
from gnnserve_worker.tasks.served import NOTHING_OWN, AskedItems, ScoredNodes


@contextmanager
def known_odd_classes() -> Iterator[None]:
    """The task in place of the one that a spec without `task` asks for, and before those that revisions are opened
    by."""
    opener = TaskOpener(
        lambda manifest: {one.network.classes for one in manifest.variants} == {1},
        asked=lambda _: TARGET_NODES,
        open=ServedOdd,
        published=lambda _: PublishedOdd(),
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(generation.TASKS, NodeClasses, TellOddClasses)
        patched.setattr(serving, "OPENERS", [lambda: opener, *serving.OPENERS])
        yield


# --- as it is generated


class TellOddClasses:
    """A `GenerationTask`."""

    needs_master = False
    why_not_modelled = "those of odd classes are not"

    def __init__(self, spec: GNNServiceSpec) -> None:
        self._source = spec.graph.source

    @property
    def compared_with(self) -> ComparedWith:
        raise ValueError("no embeddings are learnt")

    def one_row_sources(self, hops: int) -> tuple[Source, ...]:
        return ()

    def graph_digest(self, source: str) -> str:
        return f"{source[:14]}0d"

    def earlier_digest(self, source: str) -> str | None:
        return None

    def settled(self, spec: GNNServiceSpec) -> GNNServiceSpec:
        return spec

    def check_given(self, columns: int, graph: GraphData) -> None:
        pass

    def given_decoder(self, weights: DecoderTensors) -> None:
        pass

    def load(self, downloads: Path, progress: ProgressListener) -> GraphData:
        return load_source(self._source, downloads, progress)

    def says_unlabelled(self) -> tuple[str, str]:
        return "odd", "no type has classes"

    def import_graph(self, downloads: Path, progress: ProgressListener) -> ImportedGraph:
        return self.pose(self.load(downloads, progress))

    def pose(self, graph: GraphData) -> ImportedGraph:
        posed = self._told(graph)
        return ImportedGraph(posed, OddClasses(posed.labels[:, 0] == 1, posed.splits), posed.findings)

    def pose_version(self, version: GraphData, downloads: Path, progress: ProgressListener) -> ImportedGraph:
        return self.pose(version)

    def _told(self, graph: GraphData) -> GraphData:
        if graph.made_of is not None:  # a version of a graph that was posed already
            return graph
        odd = (graph.labels % 2 == 1).astype(np.uint8)[:, None]
        return replace(graph, digest=self.graph_digest(graph.digest), classes=("odd",), labels=odd)


@dataclass(frozen=True, slots=True)
class OddClasses:
    """A `LearningProblem`."""

    is_odd: np.ndarray
    splits: Splits
    metric: Metric = "oddness"
    majority: None = None
    least_score: float = 0.0
    compares_shortly: bool = True
    keeps_outputs: bool = False

    @property
    def items(self) -> int:
        return len(self.splits.train)

    def whole(self, graph: GraphData) -> GraphData:
        return graph

    learnt_graph = whole

    def answered_types(self, graph: GraphSchema) -> tuple[int, ...]:
        return (0,)

    def check(self, variants: Variants) -> None:
        if variants.cascades:
            raise InputError("spec.variants.cascades", "needs classes", "leave it out")

    def course(self, visible: Visible, seed: int, decoder: Mapping[str, np.ndarray] | None = None) -> Course:
        return OddCourse(self, visible)

    def one_row_courses(self, visible: Visible, taught: TeacherOutputs) -> Iterator[Course]:
        return iter(())

    def embedding_course(self) -> EmbeddingCourse:
        raise ValueError("no embeddings are learnt")

    def judge(self, decoder: Mapping[str, np.ndarray]) -> OddJudge:
        return OddJudge(self)


class OddJudge:
    """A `Judge`."""

    metric: Metric = "oddness"
    weights: Mapping[str, np.ndarray] = {}
    graph: None = None

    def __init__(self, problem: OddClasses) -> None:
        self._problem = problem

    def judge(self, outputs_of: OutputsOf) -> SplitJudgements:
        splits = self._problem.splits
        return SplitJudgements(
            *(Judgement(self._share(nodes, outputs_of)) for nodes in (splits.validation, splits.test))
        )

    def _share(self, nodes: np.ndarray, outputs_of: OutputsOf) -> float:
        return float(np.mean((outputs_of(nodes)[:, 0] > 0) == self._problem.is_odd[nodes]))

    def calibrate(self, variant: VariantManifest, outputs_of: OutputsOf) -> VariantManifest:
        return variant

    def confidences(self, first: VariantManifest, outputs_of: OutputsOf) -> Confidences:
        raise ValueError("there are no classes to be sure of")

    def decides(self, variants: Mapping[str, VariantManifest], cascades: Sequence[CascadeManifest]) -> Decides:
        return BY_CLASS

    def over(self, cascade: CascadeManifest, decides: Decides) -> OddJudge:
        return self

    def misfits(
        self, spec: GNNServiceSpec, profiles: Iterable[VariantProfile], answers: Mapping[str, np.ndarray]
    ) -> Sequence[LabelMisfit]:
        return ()

    def sections(self, weights: str | None) -> Mapping[str, TaskSection]:
        return {}


_EMBEDDINGS = EmbeddingRates(bound=0.1, rate_share=1.0, is_decayed=False)


@dataclass(frozen=True, slots=True)
class OddCourse:
    """A `Course`."""

    problem: OddClasses
    visible: Visible
    learnt_from: Source = "odd classes"
    parts_per_epoch: int = 1
    embeddings: EmbeddingRates = _EMBEDDINGS
    decoder: None = None
    says_each_epoch: bool = True

    @property
    def items(self) -> int:
        return len(self.problem.splits.train)

    @property
    def examined(self) -> np.ndarray:
        return self.problem.splits.validation

    def parts(self, epoch: int) -> Iterator[EpochPart]:
        yield EpochPart(self.problem.splits.train, self.visible)

    def batch(self, items: np.ndarray) -> TrainingBatch:
        return TrainingBatch(items, lambda outputs: self._loss(outputs, items))

    def judge(self, outputs: np.ndarray) -> tuple[float, float]:
        loss = self._loss(torch.from_numpy(outputs), self.examined)
        return float(np.mean((outputs[:, 0] > 0) == self.problem.is_odd[self.examined])), float(loss)

    def says(self, score: float) -> str:
        return f"{score:.0%} odd or not"

    def _loss(self, outputs: torch.Tensor, nodes: np.ndarray) -> torch.Tensor:
        wanted = torch.from_numpy(self.problem.is_odd[nodes].astype(np.float32))
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], wanted)


# --- as it is served


class OddRequest(
    PredictRequest[Id], Generic[Id], frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    outputs: tuple[Literal["odd"], ...] = msgspec.field(name="return", default=("odd",))  # type: ignore[assignment]


class OddTypedRequest(OddRequest[Any], frozen=True, rename="camel", forbid_unknown_fields=True):
    overlay: TypedOverlay | None = None  # type: ignore[assignment]


class OddAnswer(PredictAnswer, frozen=True, rename="camel"):
    odd: list[bool] | msgspec.UnsetType = msgspec.UNSET


class OddTensors:
    """A `TaskTensors`."""

    items, item_ids, missing = "nodes", 1, "name nodes in it"
    names = default_outputs = ("odd",)
    shape, own = (ANY_LENGTH,), NOTHING_OWN

    def check_count(self, items: int, max_nodes: int) -> None:
        check_node_count(items, max_nodes)

    def outputs(self, version: str | None = None) -> tuple[TensorKind, ...]:
        return (TensorKind("odd", Datatype.BOOL, (ANY_LENGTH,)),)

    def form_of(self, name: str, answer: ScoredNodes, question: AskedItems) -> tuple[Datatype, list[int]]:
        return Datatype.BOOL, [len(answer.scores)]

    def are_texts(self, name: str) -> bool:
        return False

    def numbers_of(self, name: str, answer: ScoredNodes, question: AskedItems) -> np.ndarray:
        return np.ascontiguousarray(answer.scores[:, 0] > 0)

    def texts_of(self, name: str, answer: ScoredNodes) -> list[bytes]:
        raise AssertionError(name)

    def json_texts(self, name: str, answer: ScoredNodes) -> bytes:
        raise AssertionError(name)


class NothingElse:
    """A `Recommender` and the `SourceLabels` of a service that has neither."""

    output: Output = "embeddings"
    example = 0
    parts = ()

    def __getattr__(self, name: str) -> Any:
        def refuse(*_: object) -> Any:
            raise RequestError(ErrorCode.WRONG_TASK, "node", "it is told of nodes whether they are odd", "ask that")

        return refuse

    def of_node(self, node: int) -> Any:
        return None


class NothingSaid:
    """The `LiveLabels` of a service that takes none, and their `Measure`."""

    decoder: msgspec.json.Decoder[Any] = decoding.decoder(LabelsRequest)
    form = BodyForm({"": ("nodes", "labels", "times")}, frozenset({"nodes[]"}), {}, lambda _: "{}")
    metric: Metric = "oddness"
    nodes, compares_by_nodes = np.zeros(0, np.int64), False

    def items(self, request: Any) -> Sequence[Sequence[Any]]:
        raise RequestError(ErrorCode.WRONG_TASK, "labels", "it is told of nodes whether they are odd", "ask that")

    def measure(self) -> NothingSaid:
        return self

    def promise(self, profile: Profile, variant: VariantProfile) -> None:
        return None

    def keep(self, *_: Any) -> None:
        return None


_DECODERS: Mapping[IdForm, msgspec.json.Decoder[Any]] = {
    IdForm.INTEGERS: decoding.decoder(OddRequest[int]),
    IdForm.WITH_TYPES: decoding.decoder(OddTypedRequest),
}


class ServedOdd(NodeItems):
    """A `ServedTask`."""

    form = BodyForm(
        MEMBERS | {"": ("nodes", *FIELDS)},
        IDS,
        REMEDIES | {"return": "give a list of odd", "return[]": "give odd"},
        lambda _: '{"nodes": [0]}',
        lambda _: dict.fromkeys(("nodes", "nodes[]"), "give a list of positions"),
    )
    fields_of_others: frozenset[str] = frozenset()
    outputs = ("odd",)
    tensors = OddTensors()
    description = TaskDescription(
        "Tell odd classes",
        "node",
        OddRequest,
        OddAnswer,
        ("nodes",),
        ("odd",),
        {"nodes": [0, 1]},
        {"odd": [True, False]},
    )
    request_schema, answer_schema = OddRequest.__name__, OddAnswer.__name__
    recommending = labels = NothingElse()
    live_labels = NothingSaid()
    classes: Classes = ()
    multi_label = False
    numbers_per_node = 1

    def __init__(self, parts: TaskParts) -> None:
        self.provenance = parts.provenance
        self.decoder = _DECODERS[parts.graph.naming.form]
        self.types = tuple(kind.name for kind in parts.graph.described.types)

    def items_for(self, outputs: Sequence[str]) -> ServedOdd:
        return self

    def example(self) -> str:
        return '{"nodes": [0]}'

    def wrong_task(self, where: str) -> RequestError:
        return RequestError(ErrorCode.WRONG_TASK, where, "it is told of nodes whether they are odd", "ask that")

    def most_lists(self, max_nodes: int) -> int:
        return 0

    def check_outputs(self, outputs: Sequence[str], fields: Sequence[str]) -> None:
        """The one output is always possible."""

    def check_array(self, output: str) -> None:
        """It is an array."""

    def is_large(self, question: AskedItems, most_numbers: int) -> bool:
        return len(question.nodes) > most_numbers

    def as_json(self, answer: ScoredNodes, question: AskedItems) -> bytes:
        return b'"odd":' + json.dumps((answer.scores[:, 0] > 0).tolist()).encode() + b","

    def json_blocks(self, answer: ScoredNodes, question: AskedItems) -> Iterator[bytes]:
        yield self.as_json(answer, question)

    def array(self, answer: ScoredNodes, question: AskedItems) -> np.ndarray:
        return self.tensors.numbers_of("odd", answer, question)

    def decisive_scores(self, variant: str, scores: np.ndarray) -> np.ndarray:
        return scores

    def first_request(self) -> dict[str, Any]:
        return {"nodes": [0, 1, 2]}

    def told(self) -> dict[str, Any]:
        return {"classes": (), "multi_label": False}

    def explained(self, nodes: Sequence[int]) -> str:
        return "what is odd is not explained"

    def is_like(self, other: Any) -> bool:
        return isinstance(other, ServedOdd)


class PublishedOdd:
    """A `PublishedTask`."""

    def index_parts(self, type_: str, nodes: int) -> tuple[IndexPart, ...]:
        return ()

    def ranges(self) -> tuple[NodeRange, ...]:
        return ()

    def exported_scores(self, variant: VariantManifest) -> ExportedScores:
        return ExportedScores("Above 0: the class of the node is odd.", ())
