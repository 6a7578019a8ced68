"""Networks over the relations of a graph: prepared, learnt, and what variants are made of them.

Every variant of them reads products of each relation; so one network is trained, whatever variants there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gnnserve_api.given_weights import ComparedScores
from gnnserve_api.repository import NOT_RANKED, RankingManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.checkpoint import given_weights
from gnnserve_worker.generation.checkpoint_over_relations import WantedOverRelations
from gnnserve_worker.generation.families.relations import as_arrays, fanouts_by_relation, plan_variants, states_of
from gnnserve_worker.generation.families.write import write_relation_row_source
from gnnserve_worker.generation.lessons import (
    LearntNetworks,
    Lesson,
    OneNetwork,
    TensorsAndRuns,
    WeightSources,
    take_lessons,
)
from gnnserve_worker.generation.ranking import Ranking
from gnnserve_worker.generation.steps import Networks, Wanted, assumptions_of, import_graph, report_assumptions
from gnnserve_worker.generation.training_set import TrainingSet, normalization_of, training_set
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.models.architecture import RelationalShape
from gnnserve_worker.models.registry import Tensors, relational_spec_of, with_decoder
from gnnserve_worker.tasks.generated import LearningProblem

if TYPE_CHECKING:
    from gnnserve_worker.generation.learning import Learning


def prepare(wanted: Wanted) -> Relations:
    """Prepare networks over the relations of a graph."""
    task, identity, progress = wanted.task, wanted.identity, wanted.progress
    data, problem = import_graph(wanted)
    spec, schema = task.settled(wanted.spec), data.schema
    # Before training, since a metric may not fit the graph, and a variable may be no number.
    problem.check(spec.variants)
    fanouts_by_relation(spec.model, schema)
    architecture = relational_spec_of(spec.model.architecture)
    report_assumptions(spec, architecture, progress)
    network = spec.network(len(data.classes))
    shape = RelationalShape(
        schema, spec.model.hidden, network.classes, network.layers, spec.model.bases, network.attention
    )
    given = given_weights(spec.model, identity.checkpoint, WantedOverRelations(architecture, shape), progress)
    prepared = Relations(replace(wanted, spec=spec), _training_set(spec, data, problem), shape, given)
    return replace(prepared, compared=prepared.compare())


@dataclass(frozen=True, slots=True)
class Relations:
    """The `Preparation` of networks over relations."""

    wanted: Wanted
    subject: TrainingSet
    shape: RelationalShape
    given: Tensors | None
    """Weights of the network; None: it is trained."""
    compared: Sequence[ComparedScores] = ()
    tables_bytes: int = 0

    def compare(self) -> Sequence[ComparedScores]:
        """Hold expected scores against given weights, over the source's graph."""
        wanted, spec, subject, shape = self.wanted, self.wanted.spec, self.subject, self.shape
        if self.given is None or not wanted.identity.expected:
            return ()
        # Imported here: few revisions have expected scores.
        from gnnserve_worker.generation.expected.relations import compare_scores_over_relations  # noqa: PLC0415

        if wanted.graph_version is not None:
            data, problem, _ = wanted.task.import_graph(wanted.repository.downloads, wanted.progress)
            subject, shape = _training_set(spec, data, problem), replace(shape, graph=data.schema)
        architecture = relational_spec_of(spec.model.architecture)
        return compare_scores_over_relations(
            spec, wanted.identity.expected, architecture, shape, subject, self.given, wanted.progress
        )

    def learn(self, lessons: Sequence[Lesson], learning: Learning | None) -> Networks:
        spec, subject = self.wanted.spec, self.subject
        self.wanted.repository.put_graph(subject.data)

        # The columns of the first type, as its source has them.
        as_they_are = Ranking(np.arange(subject.schema.target.features or 0), {})
        sources = WeightSources(OneNetwork(partial(self._weights, learning)))
        learnt = take_lessons(lessons, sources, LearntNetworks(spec, as_they_are))
        architecture, tensors = relational_spec_of(spec.model.architecture), learnt.master or {}
        layers = [as_arrays(layer) for layer in architecture.layers(tensors, self.shape)]
        states, problem = states_of(subject, tensors), subject.problem
        ends = problem.answered_types(subject.schema) if problem.keeps_outputs else ()
        ranking = RankingManifest(NOT_RANKED, settings={}, columns=tuple(as_they_are.columns.tolist()))
        network = spec.network(len(subject.data.classes))
        return Networks(
            subject, sources, ranking, None, assumptions_of(spec, architecture), sources.decoder,
            lambda: [plan_variants(spec, network, layers, subject, states, ends)],
            tuple,  # all are kept: none is added unasked beside others
            lambda plans, variants, staged: write_relation_row_source(subject, states, layers[0], staged),
        )  # fmt: skip

    def _weights(self, learning: Learning | None, name: str) -> TensorsAndRuns:
        """Weights of the network, and of a decoder beside it: given, those that an interrupted generation has learnt
        already, or else trained."""
        if self.given is not None:
            return self.given, ()
        if learning is None:
            raise ValueError(f"{name} is trained, for which torch is needed")
        # Imported here: it needs torch.
        from gnnserve_worker.generation.train import train_with_retries, trainee_over_relations  # noqa: PLC0415

        model, progress, subject = self.wanted.spec.model, self.wanted.progress, self.subject
        architecture = relational_spec_of(model.architecture)

        def train() -> TensorsAndRuns:
            device = learning.device
            trainee = trainee_over_relations(architecture, self.shape, model, subject, name, progress, device)
            trained, run = train_with_retries(name, trainee, subject, model.training, progress)
            return with_decoder(trained.tensors, trained.decoder), (run,)

        return learning.resumption.network(name, {"columns": "all"}, train)


def _training_set(spec: GNNServiceSpec, data: GraphData, problem: LearningProblem) -> TrainingSet:
    classes = spec.network(len(data.classes)).classes
    return training_set(data, problem, classes, spec.model.training.scope, normalization_of(spec))
