"""Interface of a task to generation: its graph, what networks learn, how variants are judged, what a revision records.

A task is a folder beside this file. Its object is made of a spec (`GenerationTask`), poses a problem over an imported
graph (`LearningProblem`), and judges variants once networks are trained (`Judge`). Networks are trained by its courses:
what an epoch goes through, its loss, and how it is judged; how training samples and steps is generation's. No pipeline
asks which task it has before it: what differs by task is a method here. Nothing here needs torch to be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_api.files.given_weights import LabelMisfit
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.profile import Metric, TaskFigures, VariantProfile
from gnnserve_api.files.repository import TaskSection, VariantManifest
from gnnserve_api.files.training import Majority, Source
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import ComparedWith
from gnnserve_api.spec.variants import Variants
from gnnserve_worker.graph.links import LinkSet, Pairs
from gnnserve_worker.graph.store import Finding, Graph, GraphData, Relation
from gnnserve_worker.models.decoder import LinkDecoder
from gnnserve_worker.progress import ProgressListener
from gnnserve_worker.tasks.deciding import Decides

if TYPE_CHECKING:
    import torch
    from torch import nn


# --- what networks learn


Visible = Sequence[Relation]
"""A graph's relations, with the lists that are aggregated in training."""
SHORTEST = 1e-8
"""Length below which an embedding is not scaled to length 1."""


class TrainingBatch(NamedTuple):
    seeds: np.ndarray
    """Ids of the nodes whose outputs are needed; over several types their numbers."""
    loss: Callable[[torch.Tensor], torch.Tensor]
    """Loss of these outputs, float32 [seeds, outputs]."""


class EpochPart(NamedTuple):
    """A part of an epoch."""

    items: np.ndarray
    """Integers that training goes through, in batches: ids of nodes, or numbers of links."""
    visible: Visible
    """Lists that are aggregated meanwhile."""


@dataclass(frozen=True, slots=True)
class EmbeddingRates:
    """How embeddings of nodes without features are learnt beside a network's weights."""

    bound: float
    """Largest initial number of an embedding."""
    rate_share: float
    """Share of the weights' learning rate."""
    is_decayed: bool
    """Whether weight decay shrinks embeddings too."""


class Course(Protocol):
    """Course that a network is trained on, and how an epoch is judged."""

    @property
    def learnt_from(self) -> Source:
        """Word for it in the record of a training."""

    @property
    def items(self) -> int:
        """How many an epoch goes through."""

    @property
    def parts_per_epoch(self) -> int:
        """Parts of an epoch at most."""

    @property
    def embeddings(self) -> EmbeddingRates: ...

    @property
    def decoder(self) -> nn.Module | None:
        """Module that is trained beside the network and reads its outputs; None: nothing is."""

    @property
    def examined(self) -> np.ndarray:
        """Ids of nodes whose outputs an epoch is judged by."""

    def parts(self, epoch: int) -> Iterator[EpochPart]:
        """The parts of that epoch, from 1."""

    def batch(self, items: np.ndarray) -> TrainingBatch: ...

    def judge(self, outputs: np.ndarray) -> tuple[float, float]:
        """The validation score, higher is better, and the validation loss, of outputs of `examined`."""

    def says(self, score: float) -> str:
        """The validation score in words."""

    @property
    def says_each_epoch(self) -> bool:
        """Whether each epoch is worth a line, however few steps it has."""


@dataclass(frozen=True, slots=True)
class TeacherOutputs:
    """Outputs of a teacher that a network over one row of a node learns from."""

    nodes: np.ndarray
    """Ids of the nodes whose outputs it may learn, int64."""
    outputs: np.ndarray
    """The other's outputs of all nodes, float32 [nodes, outputs]; 0 of those that it may not learn."""
    decoder: Mapping[str, np.ndarray]
    """Weights of what reads the outputs of both; empty: they have none."""
    seed: int
    holds_neighbours: bool
    """Whether its rows hold what neighbours have, and so tell which nodes are joined."""


class EmbeddingCourse(Protocol):
    """Course on which embeddings of all nodes are learnt that are served as they are."""

    @property
    def learnt_from(self) -> Source:
        """Word for it in the record of a training."""

    @property
    def links(self) -> LinkSet: ...

    @property
    def stored(self) -> GraphData | None:
        """The graph that a revision stores, over its relations; None: the one that embeddings are learnt over."""

    @property
    def dimensions(self) -> int: ...

    @property
    def compared_with(self) -> ComparedWith: ...

    @property
    def learning_rate(self) -> float:
        """Rate where the manifest gives none."""

    def steps(self, batch_size: int) -> int:
        """How many steps an epoch has."""

    def batches(self, batch_size: int, random: np.random.Generator) -> Iterator[Pairs]:
        """The links of an epoch, in a random order."""

    def loss(self, final: torch.Tensor, batch: Pairs, random: np.random.Generator) -> torch.Tensor:
        """Mean over the batch's links. `final`: float32 [nodes, dimensions] of any length."""

    def judge(self, embeddings: np.ndarray) -> tuple[float, float]:
        """The validation score, higher is better, and the validation loss."""

    def says(self, score: float) -> str:
        """The validation score in words."""


# --- what is asked of a task


OutputsOf = Callable[[np.ndarray], np.ndarray]
"""Outputs float32 [nodes, outputs] of a variant for nodes (int64), with its thresholds taken off."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """How good a variant is on one split, and what a revision records of it."""

    accuracy: float
    """Fraction of 1 by the problem's metric."""
    figures: TaskFigures | None = None
    """Figures of the task beside it; None: it says all."""
    right: np.ndarray | None = None
    """How right each item is that was judged, to compare variants item by item: labels of a node, int64 [nodes], or a
    share of 1 whose mean is the accuracy, float64 [items]. None: the metric judges no item by itself."""
    answers: np.ndarray | None = None
    """Column of the highest output of each node, where that is its answer; None: it is not."""


class SplitJudgements(NamedTuple):
    validation: Judgement
    test: Judgement | None
    """None: there is no test split."""


class Confidences(NamedTuple):
    """How sure a variant is of each item of a split."""

    temperature: float
    """As of `CascadeManifest`."""
    of_items: np.ndarray
    """float32 [items]"""


class Judge(Protocol):
    """Judges variants of networks that are trained."""

    @property
    def metric(self) -> Metric: ...

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        """Weights that outputs are read by, which all variants share; empty: there are none."""

    @property
    def graph(self) -> Graph | None:
        """Lists that outputs are computed over while variants are judged; None: those that are served."""

    def judge(self, outputs_of: OutputsOf) -> SplitJudgements: ...

    def calibrate(self, variant: VariantManifest, outputs_of: OutputsOf) -> VariantManifest:
        """The variant with what makes answers of its outputs, fitted on the validation split."""

    def confidences(self, first: VariantManifest, outputs_of: OutputsOf) -> Confidences:
        """How sure a variant is of the validation split, as the first stage of cascades."""

    def decides(self, variants: Mapping[str, VariantManifest], cascades: Sequence[CascadeManifest]) -> Decides:
        """What decides between the stages of cascades. `variants`: as they were calibrated, by name."""

    def over(self, cascade: CascadeManifest, decides: Decides) -> Judge:
        """The judge of outputs of a cascade."""

    def misfits(
        self, spec: GNNServiceSpec, profiles: Iterable[VariantProfile], answers: Mapping[str, np.ndarray]
    ) -> Sequence[LabelMisfit]:
        """Variants of given weights that do not fit the validation split. `answers`: `Judgement.answers`
        by variant."""

    def sections(self, weights: str | None) -> Mapping[str, TaskSection]:
        """Sections of the manifest that are the task's alone, by their fields; empty: it needs none. `weights`: path of
        `weights`; None: there are none."""


class LearningProblem(Protocol):
    """A task over an imported graph."""

    @property
    def metric(self) -> Metric:
        """Raises InputError where the one that the spec chooses does not fit the graph."""

    @property
    def items(self) -> int:
        """How many training goes through in an epoch: labelled nodes, or pairs of them."""

    @property
    def majority(self) -> Majority | None:
        """Score that networks must be better than to have learnt anything; None: there is no such score."""

    def whole(self, graph: GraphData) -> GraphData:
        """The source's graph, with what is held out of `graph`, over which the problem was posed."""

    def learnt_graph(self, graph: GraphData) -> GraphData:
        """The graph that networks learn from and are served over: `graph`, over which the problem was posed, without
        what is held out; `graph` itself where that is not in it."""

    @property
    def least_score(self) -> float:
        """Score of what knows nothing, by the metric."""

    @property
    def compares_shortly(self) -> bool:
        """Whether short trainings are compared: where validation scores are shares of nodes."""

    @property
    def keeps_outputs(self) -> bool:
        """Whether outputs of networks over relations are stored unasked, a row for each node."""

    def answered_types(self, graph: GraphSchema) -> tuple[int, ...]:
        """Places of the types whose nodes have outputs, ascending."""

    def check(self, variants: Variants) -> None:
        """Raises InputError for a metric or variants that the graph has no use for."""

    def course(self, visible: Visible, seed: int, decoder: Mapping[str, np.ndarray] | None = None) -> Course:
        """What networks are trained on. `decoder`: weights that stay as they
        are; None: they are learnt."""

    def one_row_courses(self, visible: Visible, taught: TeacherOutputs) -> Iterator[Course]:
        """Courses by which a network over one row of a node learns to stand in for another, of which the best is kept:
        those of `GenerationTask.one_row_sources`, in their order."""

    def embedding_course(self) -> EmbeddingCourse:
        """What embeddings of the nodes are learnt on. Raises ValueError where there is nothing."""

    def judge(self, decoder: Mapping[str, np.ndarray]) -> Judge:
        """`decoder`: weights that were learnt beside networks."""


class DecoderTensors(NamedTuple):
    """Weights that a user gives of what reads outputs in pairs, as a file has them."""

    field: str
    """Field that names them, for messages."""
    tensors: Mapping[str, np.ndarray]
    """float32, under whatever keys; empty: there are none."""
    named: str
    """Name of the file or of the tensors."""
    within: str
    """Where else they may be, as `the folder of the program`."""
    without: str
    """What to do where outputs are compared by their product, and so have no such weights."""


class GivenDecoder(NamedTuple):
    """Decoder that makes a score of two outputs of a given model, and the weights that it is made of."""

    weights: Mapping[str, np.ndarray]
    decoder: LinkDecoder


class ImportedGraph(NamedTuple):
    """A graph as generation uses it."""

    graph: GraphData
    """Without what is held out."""
    problem: LearningProblem
    findings: Sequence[Finding]


class GenerationTask(Protocol):
    """A task as a spec asks for it."""

    @property
    def needs_master(self) -> bool:
        """Whether the network of all columns is trained in any case."""

    @property
    def why_not_modelled(self) -> str:
        """Why latencies are not modelled before training; empty: they are."""

    @property
    def compared_with(self) -> ComparedWith:
        """What embeddings are learnt by. Raises ValueError where none are."""

    def one_row_sources(self, hops: int) -> tuple[Source, ...]:
        """Words for what networks over one row of features within so many hops learn from, each in turn."""

    def graph_digest(self, source: str) -> str:
        """Identity of the graph without what is held out, by that of the source's graph."""

    def earlier_digest(self, source: str) -> str | None:
        """`graph_digest` as an earlier gnnserve made it; None: it is the same."""

    def settled(self, spec: GNNServiceSpec) -> GNNServiceSpec:
        """The spec with what the task leaves no choice about."""

    def check_given(self, columns: int, graph: GraphData) -> None:
        """Raises InputError where a given model has so many outputs for a node and the task reads others."""

    def given_decoder(self, weights: DecoderTensors) -> GivenDecoder | None:
        """What reads outputs of a given model in pairs; None: outputs are answers. Raises InputError where the weights
        are not the decoder's."""

    def load(self, downloads: Path, progress: ProgressListener) -> GraphData:
        """The source's graph as it is. `downloads`: the folder of fetched files. Raises InputError and
        ResourceError as `load_source` does."""

    def says_unlabelled(self) -> tuple[str, str]:
        """Row of an inspected graph of which no type has labels: what stands in their place."""

    def import_graph(self, downloads: Path, progress: ProgressListener) -> ImportedGraph:
        """The source's graph and the problem over it."""

    def pose(self, graph: GraphData) -> ImportedGraph:
        """The problem over a graph that was loaded; of one type then, where the model reads no types."""

    def pose_version(self, version: GraphData, downloads: Path, progress: ProgressListener) -> ImportedGraph:
        """The problem over a graph that was posed already, as changes have made it since. `downloads`, `progress`: as
        of `load`, where the source still says what is held out. Raises InputError where it has changed."""
