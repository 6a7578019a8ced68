"""A program, from a manifest to a published revision, over a graph of one type or of several.

It is read and checked, run twenty times over the same rows, and held against the scores that its model gave, before
anything is written. Then its table is written, one-row variants learn its scores, and all is measured as it will serve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.given_weights import ComparedScores
from gnnserve_api.programs import ProgramManifest
from gnnserve_api.repository import (
    NOT_RANKED,
    RankingManifest,
    RevisionManifest,
    RowSource,
    VariantManifest,
    program_network,
)
from gnnserve_api.spec.made_variants import variants_of_program
from gnnserve_api.spec.model import Model
from gnnserve_api.spec.program import Program
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.cascades import check_cascades
from gnnserve_worker.generation.families.family import FamilyPlan, Ingredients, OneRowModels, Outline, PlacedProgram
from gnnserve_worker.generation.families.program import kept_as
from gnnserve_worker.generation.families.registry import bytes_of_tables
from gnnserve_worker.generation.features import normalization_of
from gnnserve_worker.generation.given_program import FIELD, GivenProgram, check_program, read_program
from gnnserve_worker.generation.learning import begin_learning, generator_of
from gnnserve_worker.generation.preparation import Wanted, import_graph
from gnnserve_worker.generation.profile import profile_budget_s
from gnnserve_worker.generation.programs.compared import ComparedProgram, compare_program
from gnnserve_worker.generation.programs.running import (
    ProgramScores,
    ProgramTeacher,
    called_by,
    read_graph,
    served_features,
)
from gnnserve_worker.generation.propagation import ModelRows, model_rows, rows_over_types
from gnnserve_worker.generation.ranking.rank import Ranking
from gnnserve_worker.generation.revision import publish_networks
from gnnserve_worker.generation.row_source import moments, write_row_source, write_type_row_source
from gnnserve_worker.generation.search.search import Found, Measure
from gnnserve_worker.generation.steps import CHECK
from gnnserve_worker.generation.training_set import TrainingSet, of_target_alone, training_set
from gnnserve_worker.generation.variants import check_range, make_listed
from gnnserve_worker.graph.relation_lists import joined_lists
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.programs.failure import ProgramFailedError
from gnnserve_worker.programs.runner import ProgramRunner
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository.revision_files import RowLayout, RowRecipe
from gnnserve_worker.repository.staged import StagedRevision
from gnnserve_worker.tasks.generated import GivenDecoder, LearningProblem

_LANES = 2
"""Runs at once while it is checked."""


def prepare(wanted: Wanted) -> PreparedProgram:
    """Prepare a program."""
    spec, progress = wanted.spec, wanted.progress
    graph, problem = import_graph(wanted)
    spec = wanted.task.settled(spec)
    spec = spec.model_copy(update={"variants": variants_of_program(spec.variants)})
    program = _program_of(spec)
    given = read_program(program)
    given = replace(given, contract=spec.task.asked().program(given.contract))
    if given.digest != wanted.identity.checkpoint:
        raise InputError(f"{FIELD}.uri", f"{given.file} changed while it was read", "generate again")
    wanted.task.check_given(given.contract.scores.columns, graph)
    check_program(given, program, spec, graph.schema)
    asked = _asked_nodes(given.contract, graph, problem)
    network = program_network(given.contract, program.fanouts)
    widest = max(kind.features or 0 for kind in graph.schema.types)
    decoder = wanted.task.given_decoder(given.decoder)
    outline = Outline(spec, network, graph.nodes, widest)
    tables_bytes = bytes_of_tables(outline)
    wanted.repository.require_free(tables_bytes)
    source = graph
    if wanted.graph_version is not None:
        source = load_source(spec.graph.source, wanted.repository.downloads, progress)
    with closing(ProgramRunner(given.file, _LANES, given.contract.limits)) as runner:
        compared = _check(wanted, spec, given, source, runner, decoder)
        _check_runs(spec, given, graph, asked, runner, progress)
    return PreparedProgram(wanted, spec, given, graph, problem, tables_bytes, compared, decoder)


def _program_of(spec: GNNServiceSpec) -> Program:
    assert spec.model.program is not None  # noqa: S101 - the pipeline chose this module by it
    return spec.model.program


def _asked_nodes(contract: ProgramManifest, graph: GraphData, problem: LearningProblem) -> np.ndarray:
    """Numbers of the nodes that may be asked about, int64. InputError: the program gives nothing for a type of
    them."""
    schema, found = graph.schema, []
    if graph.names is not None and not contract.scores.type:
        raise InputError(
            f"{FIELD}.scores.type", "is absent, and links join types", "name the type of the nodes whose rows it has"
        )
    for place in problem.answered_types(schema):
        kind, first = schema.types[place], schema.first_nodes[place]
        if contract.scores_of(kind.name, schema) is None:
            raise InputError(
                f"{FIELD}.otherScores",
                f"has no output for nodes of type {kind.name}, which are asked about, and scores are of type "
                f"{contract.scored_type(schema)}",
                "export the model with rows of each type, and give each output its type",
            )  # fmt: skip
        found.append(np.arange(first, first + kind.nodes, dtype=np.int64))
    return np.concatenate(found)


def _check(
    wanted: Wanted, spec: GNNServiceSpec, given: GivenProgram, source: GraphData, runner: ProgramRunner,
    decoder: GivenDecoder | None,
) -> Sequence[ComparedScores]:  # fmt: skip
    """Hold its scores against those that its model gave of the source's graph."""
    compared = ComparedProgram(
        spec, given.contract, source, given.columns, runner,
        lambda other: load_source(other, wanted.repository.downloads),
    )  # fmt: skip
    return compare_program(compared, wanted.identity.expected, decoder, wanted.progress)


def _check_runs(
    spec: GNNServiceSpec, given: GivenProgram, graph: GraphData, asked: np.ndarray, runner: ProgramRunner,
    progress: ProgressListener,
) -> None:  # fmt: skip
    """Refuse a program whose runs differ, and one whose largest neighbourhood is beyond its limits."""
    progress(Progress(CHECK, 0, 1))
    read = read_graph(spec, graph, given.columns)
    scores = ProgramScores(given.contract, read, runner, called_by(graph), _program_of(spec).fanouts)
    scores.check_repeats(np.random.default_rng(0).permutation(asked))
    scores.check_largest(asked)
    progress(Progress(CHECK, 1, 1))


@dataclass(frozen=True, slots=True)
class PreparedProgram:
    """The `Preparation` of a program."""

    wanted: Wanted
    spec: GNNServiceSpec
    given: GivenProgram
    graph: GraphData
    problem: LearningProblem
    tables_bytes: int
    """What tables would take on the disk at most."""
    compared: Sequence[ComparedScores]
    decoder: GivenDecoder | None
    """What reads its rows in pairs; None: its outputs are answers."""

    def generate(self, *, use_gpu: bool) -> RevisionManifest:
        spec, given, graph, progress = self.spec, self.given, self.graph, self.wanted.progress
        self.problem.check(spec.variants)
        check_cascades(spec.variants)
        scope = spec.model.training.scope
        kept = kept_as(given.contract, spec)
        network = program_network(kept, _program_of(spec).fanouts)
        data = training_set(graph, self.problem, network.classes, scope, normalization_of(spec))
        features = served_features(data.features, graph)
        for one in features:
            check_range(one, spec.variants.storage)
        # Before training, since a damaged copy of it in the repository should not cost the time.
        self.wanted.repository.put_graph(graph)
        with closing(ProgramRunner(given.file, _LANES, given.contract.limits)) as runner:
            one_rows = self._one_rows(data, use_gpu=use_gpu)
            ingredients = Ingredients(
                spec, network, joined_lists(graph), features[0], Ranking(np.arange(features[0].shape[1]), {}), None,
                None, one_rows=one_rows,
                teacher=self._teacher(runner, data) if one_rows is not None else None,
                program=PlacedProgram(given.folder, given.contract, kept, features, given.columns),
            )  # fmt: skip
            weights = {} if self.decoder is None else self.decoder.weights
            made = _NETWORKS[RowLayout.of_nodes(graph.schema)](data, ingredients, one_rows, weights)
            generator = generator_of(trains=one_rows is not None)
            try:
                return publish_networks(
                    spec, made, self.wanted.identity, self.wanted.repository, progress, generator, profile_budget_s(),
                    self.compared,
                )  # fmt: skip
            except ProgramFailedError as error:
                remedy = "give spec.model.program.limits more, or sample neighbours by spec.model.program.fanouts"
                raise InputError(
                    f"{FIELD}.limits", f"while variants were measured the program {error.problem}", remedy
                ) from error

    def _teacher(self, runner: ProgramRunner, data: TrainingSet) -> ProgramTeacher:
        read = read_graph(self.spec, self.graph, self.given.columns)
        read = replace(read, lists=joined_lists(replace(self.graph, relations=tuple(data.visible))))
        fanouts = _program_of(self.spec).fanouts
        return ProgramTeacher(self.given.digest, self.given.contract, read, runner, fanouts)

    def _one_rows(self, data: TrainingSet, *, use_gpu: bool) -> OneRowModels | None:
        if not self.spec.trains_networks:
            return None
        learning = begin_learning(self.wanted, self.tables_bytes, use_gpu=use_gpu)
        # Imported here: it trains, for which torch is needed.
        from gnnserve_worker.generation.one_row import TrainedOneRows  # noqa: PLC0415

        subject, rows_of = _LEARNT[RowLayout.of_nodes(self.graph.schema)](data)
        return TrainedOneRows(self.spec.model, subject, rows_of, None, self.wanted.progress, *learning)


def _learnt_of_one_type(data: TrainingSet) -> tuple[TrainingSet, Callable[[Model], ModelRows]]:
    return data, lambda model: model_rows(model, data, data.normalized)


def learnt_of_lists(data: TrainingSet) -> tuple[TrainingSet, Callable[[Model], ModelRows]]:
    """Where nodes have lists by relation: networks over one row are trained on nodes of the first type alone, and what
    they read was made of all relations before."""

    def rows_of(model: Model) -> ModelRows:
        rows = rows_over_types(model, data)
        if not rows.served.shape[1]:
            raise InputError(
                "spec.variants.oneRow",
                f"nodes of type {data.data.target.name!r} have no features, nor have those that they read within "
                f"{model.hops} hops",
                "leave it out, or give more hops",
            )
        return rows

    return of_target_alone(data), rows_of


_LEARNT: Mapping[RowLayout, Callable[[TrainingSet], tuple[TrainingSet, Callable[[Model], ModelRows]]]] = {
    RowLayout.BY_NODE: _learnt_of_one_type,
    RowLayout.BY_TYPE: learnt_of_lists,
}
"""What one-row networks are trained on, and what makes the rows that they read."""


@dataclass(frozen=True, slots=True)
class _ProgramNetworks:
    """The `revision.Networks` of a program, and of one-row networks beside it, over a graph of one type."""

    subject: TrainingSet
    ingredients: Ingredients
    one_rows: OneRowModels | None
    decoder: Mapping[str, np.ndarray]

    @property
    def problem(self) -> LearningProblem:
        return self.subject.problem

    @property
    def assumptions(self) -> Mapping[str, str]:
        """Nothing: a program says all that it computes."""
        return {}

    @property
    def graph(self) -> GraphData:
        return self.subject.data

    @property
    def rows(self) -> RowRecipe | None:
        scaled = self.subject.normalized
        return RowRecipe(scaled.method, moments(scaled), self.ingredients.ranking.columns)

    @property
    def ranking(self) -> RankingManifest:
        return RankingManifest(NOT_RANKED, settings={}, columns=tuple(self.ingredients.ranking.columns.tolist()))

    def runs(self) -> Sequence[TrainingRun]:
        return () if self.one_rows is None else self.one_rows.runs

    def make(self, staged: StagedRevision, measure: Measure, progress: ProgressListener) -> Found:
        return make_listed(self.ingredients, staged, measure, progress)

    def write_row_source(
        self, plans: Sequence[FamilyPlan], variants: Sequence[VariantManifest], staged: StagedRevision
    ) -> RowSource:
        return write_row_source(self.subject.data, self.subject.normalized, plans, variants, staged)


@dataclass(frozen=True, slots=True)
class _ProgramOverTypes(_ProgramNetworks):
    """Over lists by relation."""

    @property
    def rows(self) -> None:
        return None

    def write_row_source(
        self, plans: Sequence[FamilyPlan], variants: Sequence[VariantManifest], staged: StagedRevision
    ) -> RowSource:
        return write_type_row_source(self.subject.data, self.subject.features, plans, variants, staged)


_NETWORKS: Mapping[RowLayout, type[_ProgramNetworks]] = {
    RowLayout.BY_NODE: _ProgramNetworks,
    RowLayout.BY_TYPE: _ProgramOverTypes,
}
