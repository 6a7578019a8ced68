"""A program, from a manifest to a published revision, over a graph of one type or of several.

It is read and checked, run twenty times over the same rows, and held against the scores that its model gave, before
anything is written. Then its table is written, one-row variants learn its scores, and all is measured as it will serve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.given_weights import ComparedScores
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_api.files.repository import NOT_RANKED, RankingManifest, program_network
from gnnserve_api.spec.made_variants import search_space, variants_of_program
from gnnserve_api.spec.program import Program
from gnnserve_api.spec.searched import SearchSpace
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import Variants
from gnnserve_worker.generation.cascades import check_cascades
from gnnserve_worker.generation.estimates import GraphSizes
from gnnserve_worker.generation.families.family import FamilyPlan, Ingredients, Outline, PlacedProgram
from gnnserve_worker.generation.families.given import kept_as
from gnnserve_worker.generation.families.registry import bytes_of_tables, plan_families
from gnnserve_worker.generation.families.write import moments, write_row_source, write_type_row_source
from gnnserve_worker.generation.given_program import GivenProgram, check_program, decoder_tensors, read_program
from gnnserve_worker.generation.lessons import LearntNetworks, Lesson, OneRowModels, WeightSources, take_lessons
from gnnserve_worker.generation.one_relation import check_range
from gnnserve_worker.generation.profile import worth_keeping
from gnnserve_worker.generation.programs.compared import ComparedProgram, compare_program
from gnnserve_worker.generation.programs.running import (
    CHECKED_LANES,
    ProgramScores,
    ProgramTeacher,
    called_by,
    read_graph,
    served_features,
)
from gnnserve_worker.generation.ranking import Ranking
from gnnserve_worker.generation.steps import (
    Networks,
    RequestedRevision,
    RevisionContents,
    VariantMeter,
    WriteRowSource,
    import_graph,
)
from gnnserve_worker.generation.training_set import TrainingSet, normalization_of, training_set
from gnnserve_worker.graph.relation_lists import joined_lists
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import Features, GraphData
from gnnserve_worker.programs.facts import FIELD
from gnnserve_worker.programs.runner import ProgramRunner
from gnnserve_worker.progress import CHECK, Progress, ProgressListener
from gnnserve_worker.repository.revision_files import RowLayout, RowRecipe, StagedRevision
from gnnserve_worker.tasks.generated import GivenDecoder, LearningProblem

if TYPE_CHECKING:
    from gnnserve_worker.generation.learning import LearningContext


def prepare(wanted: RequestedRevision) -> PreparedProgram:
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
    decoder = wanted.task.given_decoder(decoder_tensors(given.decoder))
    outline = Outline(spec, network, graph.nodes, widest)
    tables_bytes = bytes_of_tables(outline)
    wanted.repository.require_free(tables_bytes)
    source = graph
    if wanted.graph_version is not None:
        source = load_source(spec.graph.source, wanted.repository.downloads, progress)
    with closing(ProgramRunner(given.file, CHECKED_LANES, given.contract.limits)) as runner:
        compared = _check(wanted, spec, given, source, runner, decoder)
        _check_runs(spec, given, graph, asked, runner, progress)
    return PreparedProgram(replace(wanted, spec=spec), given, graph, problem, tables_bytes, compared, decoder)


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
    wanted: RequestedRevision, spec: GNNServiceSpec, given: GivenProgram, source: GraphData, runner: ProgramRunner,
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

    wanted: RequestedRevision
    given: GivenProgram
    graph: GraphData
    problem: LearningProblem
    tables_bytes: int
    compared: Sequence[ComparedScores]
    given_decoder: GivenDecoder | None
    """What reads its rows in pairs; None: its outputs are answers."""

    def learn(self, lessons: Sequence[Lesson], learning: LearningContext | None) -> Networks:
        spec, given, graph = self.wanted.spec, self.given, self.graph
        self.problem.check(spec.variants)
        check_cascades(spec)
        network = program_network(given.contract, _program_of(spec).fanouts)
        data = training_set(
            graph, self.problem, network.classes, spec.model.training.scope, normalization_of(spec)
        )  # fmt: skip
        features = served_features(data.features, graph)
        for one in features:
            check_range(one, () if spec.variants.is_searched else spec.variants.storage)
        # Before training, since a damaged copy of it in the repository should not cost the time.
        self.wanted.repository.put_graph(graph)
        sources = WeightSources(None)
        if learning is not None:
            sources = WeightSources(None, self._one_rows(data, self._teacher(data), learning))
        as_they_are = Ranking(np.arange(features[0].shape[1]), {})
        learnt = take_lessons(lessons, sources, LearntNetworks(spec, as_they_are))
        made = ProgramNetworks(
            self.wanted, given, data, features, GraphSizes.of(graph, self.problem.items), sources, learnt
        )
        ranking = RankingManifest(NOT_RANKED, settings={}, columns=tuple(as_they_are.columns.tolist()))
        rows, write = _NEW_NODES[RowLayout.of_nodes(graph.schema)](data)
        # Nothing is assumed: a program says all that it computes.
        return Networks(
            data, sources, ranking, rows, {}, self._decoder, made.plan, worth_keeping, write,
            made.search if spec.variants.is_searched else None,
        )  # fmt: skip

    @property
    def _decoder(self) -> Mapping[str, np.ndarray]:
        return {} if self.given_decoder is None else self.given_decoder.weights

    def _teacher(self, data: TrainingSet) -> ProgramTeacher:
        # Imported here: few programs have perceptrons beside them.
        from gnnserve_worker.generation.node_rows import taught_over  # noqa: PLC0415

        spec, given = self.wanted.spec, self.given
        read = read_graph(spec, self.graph, given.columns)
        seen = joined_lists(replace(self.graph, relations=tuple(taught_over(data, self._decoder))))
        fanouts = _program_of(spec).fanouts
        return ProgramTeacher(
            given.digest, given.contract, replace(read, lists=seen), given.file, fanouts, self._decoder
        )  # fmt: skip

    def _one_rows(self, data: TrainingSet, teacher: ProgramTeacher, learning: LearningContext) -> OneRowModels:
        # Imported here: it trains, for which torch is needed.
        from gnnserve_worker.generation.node_rows import node_rows  # noqa: PLC0415
        from gnnserve_worker.generation.one_row import TrainedOneRows  # noqa: PLC0415

        model = self.wanted.spec.model
        rows = node_rows(data, model.training.scope, RowLayout.of_nodes(self.graph.schema))
        return TrainedOneRows(model, rows, lambda master, decoder: teacher, self.wanted.progress, *learning)


@dataclass(frozen=True, slots=True)
class ProgramNetworks:
    """A program, and perceptrons that learn its scores: the `SearchSubject` of a search."""

    wanted: RequestedRevision
    given: GivenProgram
    data: TrainingSet
    features: Sequence[Features]
    """Those of each type as tables have them."""
    sizes: GraphSizes
    sources: WeightSources
    learnt: LearntNetworks
    network_s: float = 0.0
    """0: nothing is learnt before perceptrons are."""

    @property
    def space(self) -> SearchSpace:
        """With the fan-outs that the program's hops permit, which its folder may say."""
        contract, space = self.given.contract, search_space(self.wanted.spec)
        fanouts = (one for one in space.fanouts if len(one) == contract.hops and not contract.reads_degrees)
        return replace(space, fanouts=tuple(fanouts))

    def plan(self, variants: Variants | None = None) -> list[FamilyPlan]:
        """`variants`: others than those of the spec, as of a round of a search."""
        spec, given, learnt = self.wanted.spec, self.given, self.learnt
        spec = spec if variants is None else spec.model_copy(update={"variants": variants})
        kept = kept_as(given.contract, spec)
        placed = PlacedProgram(given.folder, given.contract, kept, self.features, given.columns)
        return plan_families(
            Ingredients(
                spec, program_network(kept, _program_of(spec).fanouts), joined_lists(self.data.data), self.features[0],
                learnt.ranking, None, one_rows=learnt.one_rows, program=placed,
            )
        )  # fmt: skip

    def after(self, lessons: Sequence[Lesson]) -> ProgramNetworks:
        """With networks of further lessons."""
        return replace(self, learnt=take_lessons(lessons, self.sources, self.learnt))

    def search(self, staged: StagedRevision, measure: VariantMeter) -> RevisionContents:
        # Imported here: few revisions are searched for.
        from gnnserve_worker.generation.search.search import search  # noqa: PLC0415

        return search(self, staged, measure)


def _rows_by_node(data: TrainingSet) -> tuple[RowRecipe, WriteRowSource]:
    scaled = data.normalized
    recipe = RowRecipe(scaled.method, moments(scaled), np.arange(scaled.features.shape[1]))
    return recipe, partial(write_row_source, data.data, scaled)


def _rows_by_type(data: TrainingSet) -> tuple[None, WriteRowSource]:
    return None, partial(write_type_row_source, data.data, data.features)


_NEW_NODES: Mapping[RowLayout, Callable[[TrainingSet], tuple[RowRecipe | None, WriteRowSource]]] = {
    RowLayout.BY_NODE: _rows_by_node,
    RowLayout.BY_TYPE: _rows_by_type,
}
"""What makes rows of new nodes while variants are measured, and what writes it."""
