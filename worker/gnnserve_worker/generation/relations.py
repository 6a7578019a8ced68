"""Networks over the relations of a graph, prepared, trained and made into variants.

Every variant of them reads products of each relation; so one network is trained, whatever variants there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import UnsetType

from gnnserve_api.given_weights import ComparedScores
from gnnserve_api.repository import NOT_RANKED, RankingManifest, RevisionManifest, RowSource, VariantManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.assumptions import assumptions_of, report_assumptions
from gnnserve_worker.generation.checkpoint import given_weights
from gnnserve_worker.generation.checkpoint_over_relations import WantedOverRelations
from gnnserve_worker.generation.families.family import FamilyPlan
from gnnserve_worker.generation.families.relation_tables import States
from gnnserve_worker.generation.families.relations import as_arrays, fanouts_by_relation, plan_variants, states_of
from gnnserve_worker.generation.families.write import write_plans
from gnnserve_worker.generation.features import normalization_of
from gnnserve_worker.generation.learning import begin_learning, generator_of
from gnnserve_worker.generation.preparation import Wanted, import_graph
from gnnserve_worker.generation.profile import profile_budget_s
from gnnserve_worker.generation.revision import publish_networks
from gnnserve_worker.generation.row_source import write_relation_row_source
from gnnserve_worker.generation.search.search import Found, Measure
from gnnserve_worker.generation.steps import ONE_NETWORK
from gnnserve_worker.generation.tensors import Tensors, with_decoder, without_decoder
from gnnserve_worker.generation.training_set import TrainingSet, training_set
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.models.registry import relational_spec_of
from gnnserve_worker.models.relational import RelationalLayer, RelationalShape, RelationalSpec
from gnnserve_worker.progress import ProgressListener
from gnnserve_worker.repository.staged import StagedRevision
from gnnserve_worker.tasks.generated import LearningProblem


def prepare(wanted: Wanted) -> Relations:
    """Prepare networks over the relations of a graph."""
    task, identity, progress = wanted.task, wanted.identity, wanted.progress
    data, problem = import_graph(wanted)
    spec, schema = task.settled(wanted.spec), data.schema
    # Before training, since a metric may not fit the graph, and a variable may be no number.
    problem.check(spec.variants)
    profile_budget = profile_budget_s()
    fanouts_by_relation(spec.model, schema)
    architecture = relational_spec_of(spec.model.architecture)
    report_assumptions(spec, architecture, progress)
    network = spec.network(len(data.classes))
    shape = RelationalShape(
        schema, spec.model.hidden, network.classes, network.layers, spec.model.bases, network.attention
    )
    given = given_weights(spec.model, identity.checkpoint, WantedOverRelations(architecture, shape), progress)
    return Relations(replace(wanted, spec=spec), data, problem, shape, given, profile_budget)


@dataclass(frozen=True, slots=True)
class Relations:
    """The `Preparation` of networks over relations."""

    wanted: Wanted
    data: GraphData
    problem: LearningProblem
    shape: RelationalShape
    given: Tensors | None
    """Weights of the network; None: it is trained."""
    profile_budget_s: float

    def generate(self, *, use_gpu: bool) -> RevisionManifest:
        spec, repository = self.wanted.spec, self.wanted.repository
        repository.put_graph(self.data)
        subject = _training_set(spec, self.data, self.problem)
        compared = self._compare(subject)
        learnt, runs = (self.given, ()) if self.given is not None else self._train(subject, use_gpu=use_gpu)
        tensors, decoder = without_decoder(learnt)
        architecture = relational_spec_of(spec.model.architecture)
        layers = [as_arrays(layer) for layer in architecture.layers(tensors, self.shape)]
        networks = _RelationNetworks(spec, architecture, subject, layers, states_of(subject, tensors), decoder, runs)
        return publish_networks(
            spec, networks, self.wanted.identity, repository, self.wanted.progress,
            generator_of(trains=self.given is None), self.profile_budget_s, compared,
        )  # fmt: skip

    def _compare(self, subject: TrainingSet) -> Sequence[ComparedScores]:
        """Hold expected scores against given weights, over the source's graph. `subject`: of the graph that is
        generated, which a version of it is not."""
        wanted, spec, shape = self.wanted, self.wanted.spec, self.shape
        if self.given is None or not wanted.identity.expected:
            return ()
        # Imported here: few revisions have expected scores.
        from gnnserve_worker.generation.expected.relations import compare_scores_over_relations  # noqa: PLC0415

        if wanted.graph_version is not None:
            data, problem, _ = wanted.task.import_graph(wanted.repository.downloads, wanted.progress)
            subject = _training_set(spec, data, problem)
            shape = replace(shape, graph=data.schema)
        architecture = relational_spec_of(spec.model.architecture)
        return compare_scores_over_relations(
            spec, wanted.identity.expected, architecture, shape, subject, self.given, wanted.progress
        )

    def _train(self, subject: TrainingSet, *, use_gpu: bool) -> tuple[Tensors, Sequence[TrainingRun]]:
        """Weights of the network, and of a decoder beside it: those that an interrupted generation has learnt
        already, or else trained."""
        spec, progress = self.wanted.spec, self.wanted.progress
        learning = begin_learning(self.wanted, 0, use_gpu=use_gpu)

        def train() -> tuple[Tensors, Sequence[TrainingRun]]:
            # Imported here: it needs torch.
            from gnnserve_worker.generation.train import train_with_retries  # noqa: PLC0415
            from gnnserve_worker.generation.trainees import TraineeOverRelations  # noqa: PLC0415

            architecture = relational_spec_of(spec.model.architecture)
            trainee = TraineeOverRelations.of(
                architecture, self.shape, spec.model, subject, ONE_NETWORK, progress, learning.device
            )
            trained, run = train_with_retries(ONE_NETWORK, trainee, subject, spec.model.training, progress)
            return with_decoder(trained.tensors, trained.decoder), (run,)

        return learning.resumption.network(ONE_NETWORK, {"columns": "all"}, train)


@dataclass(frozen=True, slots=True)
class _RelationNetworks:
    """The `revision.Networks` of a graph of relations. All variants share one network, and the decoder that reads it
    where there is one."""

    spec: GNNServiceSpec
    architecture: RelationalSpec
    subject: TrainingSet
    layers: Sequence[RelationalLayer]
    states: States
    decoder: Mapping[str, np.ndarray]
    trained: Sequence[TrainingRun]
    rows: None = None

    @property
    def assumptions(self) -> Mapping[str, str] | UnsetType:
        return assumptions_of(self.spec, self.architecture)

    @property
    def graph(self) -> GraphData:
        return self.subject.data

    @property
    def problem(self) -> LearningProblem:
        return self.subject.problem

    @property
    def ranking(self) -> RankingManifest:
        # The columns of the first type, as its source has them.
        columns = tuple(range(self.subject.schema.target.features or 0))
        return RankingManifest(NOT_RANKED, settings={}, columns=columns)

    def runs(self) -> Sequence[TrainingRun]:
        return self.trained

    def make(self, staged: StagedRevision, measure: Measure, progress: ProgressListener) -> Found:
        subject, problem = self.subject, self.problem
        network = self.spec.network(len(subject.data.classes))
        ends = problem.answered_types(subject.schema) if problem.keeps_outputs else ()
        plans = [plan_variants(self.spec, network, self.layers, subject, self.states, ends)]
        measured = measure(write_plans(plans, staged, progress))
        return Found(plans, measured.generated, measured.profile)

    def write_row_source(
        self, plans: Sequence[FamilyPlan], variants: Sequence[VariantManifest], staged: StagedRevision
    ) -> RowSource:
        return write_relation_row_source(self.subject, self.states, self.layers[0], staged)


def _training_set(spec: GNNServiceSpec, data: GraphData, problem: LearningProblem) -> TrainingSet:
    classes = spec.network(len(data.classes)).classes
    return training_set(data, problem, classes, spec.model.training.scope, normalization_of(spec))
