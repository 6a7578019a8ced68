"""Networks over one list of neighbours: prepared, learnt, and what variants are made of them.

Dynamic GNN inference as-a-service, section 3.3, describes both ways: finished variants or a master. Which networks are
learnt is a list (`lessons.py`), which variants there are and what they are made of is `families/`. Given weights need
no torch, unless one-row variants are trained beside them. Training is `train.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gnnserve_api.domination import says_expected
from gnnserve_api.errors import InputError
from gnnserve_api.files.factors import ChosenFactors, ColumnsTrial
from gnnserve_api.files.given_weights import ComparedScores
from gnnserve_api.files.repository import NOT_RANKED, NetworkManifest, RankingManifest
from gnnserve_api.spec.made_variants import search_space
from gnnserve_api.spec.pruning import DEFAULT_FACTORS
from gnnserve_api.spec.searched import SearchSpace
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import Variants
from gnnserve_api.variants import Storage, check_factors
from gnnserve_worker.generation.cascades import check_cascades
from gnnserve_worker.generation.checkpoint import given_decoder_of, given_weights, one_decoder, wanted_of
from gnnserve_worker.generation.checkpoint_over_rows import WantedOverRows
from gnnserve_worker.generation.estimates import GraphSizes
from gnnserve_worker.generation.expected.listed import MODEL
from gnnserve_worker.generation.families.family import FamilyPlan, Ingredients, Outline
from gnnserve_worker.generation.families.registry import (
    bytes_of_tables,
    plan_families,
    with_factors,
    with_fitting_factors,
    with_searched_factors,
    written_factors,
)
from gnnserve_worker.generation.families.write import moments, write_row_source, write_type_row_source
from gnnserve_worker.generation.given_variants import GivenVariant, load_given
from gnnserve_worker.generation.learning import ResumedModels
from gnnserve_worker.generation.lessons import (
    LearntNetworks,
    Lesson,
    Models,
    OneRowModels,
    WeightSources,
    ranks_columns,
    steps_behind_choice,
    steps_of,
    take_lessons,
)
from gnnserve_worker.generation.profile import worth_keeping
from gnnserve_worker.generation.ranking import FirstLayerColumns, Ranking, ranking_of
from gnnserve_worker.generation.steps import (
    Networks,
    RequestedRevision,
    RevisionContents,
    VariantMeter,
    assumptions_of,
    import_graph,
    report_assumptions,
)
from gnnserve_worker.generation.training_set import ModelRows, TrainingSet, model_rows, normalization_of, training_set
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import Features, GraphData
from gnnserve_worker.models.registry import Tensors, first_layer, spec_of, without_decoder
from gnnserve_worker.progress import CHOOSE_FACTORS, Progress, ProgressListener
from gnnserve_worker.repository.revision_files import RowLayout, RowRecipe, StagedRevision
from gnnserve_worker.tasks.generated import GivenDecoder, LearningProblem

if TYPE_CHECKING:
    from gnnserve_worker.generation.learning import LearningContext

_FLOAT16_END = 65_520.0
"""Smallest number that float16 rounds to infinity."""
ModelsOf = Callable[[TrainingSet, Features], Models]
"""A source of weights, over what training sees of a graph. Features: what networks read."""
OneRowsOf = Callable[[TrainingSet, ModelRows], OneRowModels]
"""The same of one-row networks."""


def prepare(wanted: RequestedRevision) -> OneRelation:
    """Prepare networks over one list of neighbours."""
    identity, progress = wanted.identity, wanted.progress
    graph, problem = _import_graph(wanted)
    spec = wanted.task.settled(wanted.spec)
    columns = spec.model.row_columns(graph.features.shape[1])
    if spec.variants.is_searched:
        spec = with_searched_factors(spec, columns)
    spec = with_fitting_factors(spec, columns)
    spec = _without_wide_tables(wanted, spec, graph, problem)
    report_assumptions(spec, spec_of(spec.model.architecture), progress)
    wanted = replace(wanted, spec=spec)
    given = _load_given(wanted, graph)
    outline = Outline(spec, spec.network(len(graph.classes)), graph.graph.nodes, columns, given)
    tables_bytes = bytes_of_tables(outline)
    wanted.repository.require_free(tables_bytes)
    master, decoders = None, [one.decoder for one in given if one.decoder is not None]
    if spec.model.checkpoint is not None:
        network = WantedOverRows(spec.model, columns, spec.network(len(graph.classes)).classes)
        weights = given_weights(spec.model, identity.checkpoint, wanted_of(spec, network), progress)
        own = given_decoder_of("spec.model.checkpoint", spec.model.checkpoint, weights or {})
        master, decoders = without_decoder(weights or {})[0], [own, *decoders]
    decoder = one_decoder(wanted.task, decoders) if decoders else None
    compared = _compare(wanted, graph, problem, master, given, decoder)
    return OneRelation(wanted, graph, problem, given, master, tables_bytes, compared, given_decoder=decoder)


@dataclass(frozen=True, slots=True)
class OneRelation:
    """The `Preparation` of networks over one list of neighbours."""

    wanted: RequestedRevision
    graph: GraphData
    problem: LearningProblem
    given: Sequence[GivenVariant] = ()
    master: Tensors | None = None
    """Given weights of all columns; None: none are given."""
    tables_bytes: int = 0
    compared: Sequence[ComparedScores] = ()
    stored: GraphData | None = None
    """As of `EmbeddingCourse`."""
    given_decoder: GivenDecoder | None = None
    """What reads outputs of given weights in pairs; None: outputs are answers, or no weights are given."""

    def learn(self, lessons: Sequence[Lesson], learning: LearningContext | None) -> Networks:
        spec, progress = self.wanted.spec, self.wanted.progress
        giving = None if self.master is None else self._giving(self.master)
        if learning is None:
            return self.learn_by(lessons, giving, None)
        one_rows_of = _training_one_rows(spec, progress, learning)
        if spec.model.learns_embeddings:
            # Imported here: it needs torch.
            from gnnserve_worker.generation.light_gcn import learn_rows  # noqa: PLC0415

            course = self.problem.embedding_course()
            rows, network = learn_rows(spec, course, progress, learning.resumption)
            embedded = replace(self, graph=self.graph.with_features(rows), stored=course.stored)
            return embedded.learn_by(lessons, lambda data, features: network, one_rows_of)
        return self.learn_by(lessons, giving or _training(spec, progress, learning), one_rows_of)

    @property
    def _decoder(self) -> Mapping[str, np.ndarray]:
        return {} if self.given_decoder is None else self.given_decoder.weights

    def _giving(self, master: Tensors) -> ModelsOf:
        from gnnserve_worker.generation.given import GivenModels  # noqa: PLC0415

        model, progress = self.wanted.spec.model, self.wanted.progress
        return lambda data, features: GivenModels(master, self._decoder, data, features, model, progress)

    def learn_by(
        self, lessons: Sequence[Lesson], models_of: ModelsOf | None, one_rows_of: OneRowsOf | None
    ) -> Networks:
        """Take the lessons. `models_of` None: every variant is given. `one_rows_of` None: the spec asks for no one-row
        variants, and no search does."""
        wanted, spec, graph = self.wanted, self.wanted.spec, self.graph
        # Before training, since a metric may not fit the graph, and a variable may be no number.
        self.problem.check(spec.variants)
        if spec.variants.cascades:
            check_cascades(spec)
        network = spec.network(len(graph.classes))
        data = training_set(graph, self.problem, network.classes, spec.model.training.scope, normalization_of(spec))
        check_range(data.normalized.features, () if spec.variants.is_searched else spec.variants.storage)
        # Before training, since a damaged copy of it in the repository should not cost the time.
        stored = graph if self.stored is None else self.stored
        wanted.repository.put_graph(stored)
        rows = model_rows(spec.model, data, data.normalized)
        sizes = GraphSizes.of(graph, self.problem.items)
        sources = WeightSources(
            None if models_of is None else models_of(data, rows.trained),
            None if one_rows_of is None else one_rows_of(data, rows),
            partial(_rank, wanted, data, rows.trained), partial(_choose_factors, wanted, data, rows.trained, sizes),
        )  # fmt: skip
        started = time.monotonic()
        learnt = take_lessons(lessons, sources, LearntNetworks(spec, Ranking(np.arange(rows.served.shape[1]), {})))
        network_s = time.monotonic() - started
        made = RowNetworks(wanted, network, data, rows.served, self.given, sizes, sources, learnt, network_s)
        ranking = RankingManifest(
            method=spec.variants.pruning.method if ranks_columns(spec) else NOT_RANKED,
            settings=learnt.ranking.settings,
            columns=tuple(learnt.ranking.columns.tolist()),
            others=learnt.other_rankings,
            chosen=learnt.chosen,
        )
        # A decoder without weights is that of trained networks as well.
        decoder = self._decoder or sources.decoder
        write = partial(write_row_source, graph, data.normalized)
        if self.stored is not None:
            write = partial(write_type_row_source, self.stored, [None] * len(self.stored.types))
        return Networks(
            replace(data, data=stored), sources, ranking,
            RowRecipe(data.normalized.method, moments(data.normalized), learnt.ranking.columns),
            assumptions_of(spec, spec_of(spec.model.architecture)), decoder, made.plan, worth_keeping,
            write, made.search if spec.variants.is_searched else None,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RowNetworks:
    """Networks of a graph whose nodes have one list of neighbours: the `SearchSubject` of a search."""

    wanted: RequestedRevision
    network: NetworkManifest
    data: TrainingSet
    features: Features
    """What networks read of each node in serving."""
    given: Sequence[GivenVariant]
    sizes: GraphSizes
    sources: WeightSources
    learnt: LearntNetworks
    network_s: float
    """What the first networks took to be learnt, in seconds."""

    @property
    def space(self) -> SearchSpace:
        spec = self.wanted.spec
        return search_space(spec, spec.variants.pruning.factors)

    def plan(self, variants: Variants | None = None) -> list[FamilyPlan]:
        """`variants`: others than those of the spec, as of a round of a search."""
        learnt, spec = self.learnt, self.learnt.spec
        spec = spec if variants is None else spec.model_copy(update={"variants": variants})
        return plan_families(
            Ingredients(
                spec, self.network, self.data.graph, self.features, learnt.ranking, learnt.master, learnt.networks,
                self.given, learnt.one_rows,
            )
        )  # fmt: skip

    def after(self, lessons: Sequence[Lesson]) -> RowNetworks:
        """With networks of further lessons."""
        return replace(self, learnt=take_lessons(lessons, self.sources, self.learnt))

    def search(self, staged: StagedRevision, measure: VariantMeter) -> RevisionContents:
        # Imported here: few revisions are searched for.
        from gnnserve_worker.generation.search.search import search  # noqa: PLC0415

        return search(self, staged, measure)


def check_range(features: Features, storages: Sequence[Storage]) -> None:
    """Refuse features that float16 cannot hold, before training instead of when tables are written."""
    if Storage.FLOAT16 not in storages or min(features.shape) == 0:
        return
    largest = max(float(features.max()), -float(features.min()))
    if largest >= _FLOAT16_END:
        raise InputError(
            "spec.variants.storage",
            f"float16 ends at 65,504, and the graph's features reach {largest:,.6g}",
            "use bfloat16 or float32, or scale them (spec.graph.normalization)",
        )


# --- prepared


def _import_graph(wanted: RequestedRevision) -> tuple[GraphData, LearningProblem]:
    spec, progress = wanted.spec, wanted.progress
    graph, problem = import_graph(wanted, partial(_as_read, spec))
    columns = spec.model.row_columns(graph.features.shape[1])
    if (advice := says_expected(spec, columns, spec.network(len(graph.classes)).classes)) is not None:
        progress(Progress("expected", 1, 1, advice))
    return graph, problem


def _as_read(spec: GNNServiceSpec, graph: GraphData) -> GraphData:
    """The graph with what the model reads of its nodes."""
    if spec.model.learns_embeddings:
        # The embeddings, once they are learnt: as many columns are asked about before.
        columns = spec.network(len(graph.classes)).classes
        graph = graph.with_features(np.zeros((graph.graph.nodes, columns), np.float32))
    if not spec.variants.is_searched and spec.variants.pruning.factors != DEFAULT_FACTORS:
        check_factors(spec.variants.pruning.factors, spec.model.row_columns(graph.features.shape[1]))
    return graph


def _without_wide_tables(
    wanted: RequestedRevision, spec: GNNServiceSpec, graph: GraphData, problem: LearningProblem
) -> GNNServiceSpec:
    written = written_factors(spec, graph.features)
    if not written.left_out:
        return spec
    left = with_factors(spec, written.kept)
    steps = steps_of(left, GraphSizes.of(graph, problem.items), wanted.profile_budget_s)
    wanted.progress(Progress("variants left out", 1, 1, written.said(), steps))
    return left


def _load_given(wanted: RequestedRevision, graph: GraphData) -> tuple[GivenVariant, ...]:
    if not wanted.spec.variants.given:
        return ()
    wanted.progress(Progress("load given variants", 0, 1))
    found = load_given(wanted.spec, wanted.identity.given, graph)
    wanted.progress(Progress("load given variants", 1, 1))
    return found


def _compare(
    wanted: RequestedRevision, graph: GraphData, problem: LearningProblem, master: Tensors | None,
    given: Sequence[GivenVariant],
    decoder: GivenDecoder | None,
) -> Sequence[ComparedScores]:  # fmt: skip
    """Hold expected scores against the weights, over the source's graph."""
    expected, progress, downloads = wanted.identity.expected, wanted.progress, wanted.repository.downloads
    if not expected:
        return ()
    # Imported here: nothing else computes scores before training.
    from gnnserve_worker.generation.expected.one_relation import ComparedWeights, compare_scores  # noqa: PLC0415

    network = wanted.spec.network(len(graph.classes))
    weights = {one.name: ComparedWeights(one.network(network), one.tensors, one.columns) for one in given}
    if master is not None:
        weights[MODEL] = ComparedWeights(network, master, None)
    if wanted.graph_version is not None:
        graph, problem, _ = wanted.task.import_graph(downloads, progress)
    return compare_scores(
        wanted.spec, expected, problem.whole(graph), weights, lambda other: load_source(other, downloads), decoder,
        progress,
    )  # fmt: skip


# --- by what networks are learnt


def _rank(
    wanted: RequestedRevision, data: TrainingSet, features: Features, network: Tensors | None, seed: int
) -> Ranking:
    pruning, own_seed = wanted.spec.variants.pruning, wanted.spec.model.training.seed
    stage = f"rank by {pruning.method}" + (f", seed {seed}" if seed != own_seed else "")
    wanted.progress(Progress(stage, 0, 1))
    first = None if network is None else first_layer(network)
    found = ranking_of(pruning, FirstLayerColumns(first, features, data), seed)
    wanted.progress(Progress(stage, 1, 1))
    return found


def _choose_factors(
    wanted: RequestedRevision, data: TrainingSet, features: Features, sizes: GraphSizes, learnt: LearntNetworks
) -> ChosenFactors:
    # Imported here: it measures variants, which few revisions are made after.
    from gnnserve_worker.generation.search.candidates import Shapes  # noqa: PLC0415
    from gnnserve_worker.generation.search.factors import choose_factors  # noqa: PLC0415
    from gnnserve_worker.generation.search.made_up import SIZE_S, measure_made_up  # noqa: PLC0415

    spec, progress, columns = learnt.spec, wanted.progress, features.shape[1]
    progress(Progress(CHOOSE_FACTORS, 0, 1))
    shapes = Shapes(spec, data.graph, sizes.columns, data.classes, len(data.splits.validation))

    def try_factor(factor: int) -> ColumnsTrial | None:
        if spec.model.checkpoint is not None or not data.problem.compares_shortly:
            return None
        # Imported here: it trains, for which torch is needed.
        from gnnserve_worker.generation.trial import try_columns  # noqa: PLC0415

        return try_columns(data, features, spec.model, learnt.ranked(factor), factor, progress)

    model = measure_made_up(shapes, min(SIZE_S, wanted.profile_budget_s))
    chosen = choose_factors(shapes, model, columns, try_factor)
    left = with_factors(spec, tuple(one for one in spec.variants.pruning.factors if one not in chosen.left_out))
    progress(Progress(CHOOSE_FACTORS, 1, 1, chosen.why, steps_behind_choice(left, sizes, wanted.profile_budget_s)))
    return chosen


def _training(spec: GNNServiceSpec, progress: ProgressListener, learning: LearningContext) -> ModelsOf:
    from gnnserve_worker.generation.train import TrainedModels  # noqa: PLC0415

    def models_of(data: TrainingSet, features: Features) -> Models:
        if data.sees_few_edges:
            _advise_scope(spec, data, progress)
        trained = TrainedModels(spec.model, data, features, progress, learning.device)
        return ResumedModels(trained, learning.resumption)

    return models_of


def _training_one_rows(spec: GNNServiceSpec, progress: ProgressListener, learning: LearningContext) -> OneRowsOf | None:
    if not spec.variants.one_row and not spec.variants.is_searched:
        return None
    from gnnserve_worker.generation.node_rows import node_rows, taught_over  # noqa: PLC0415
    from gnnserve_worker.generation.one_row import MasterTeacher, TrainedOneRows, given_master  # noqa: PLC0415

    model = spec.model

    def one_rows(data: TrainingSet, rows: ModelRows) -> OneRowModels:
        return TrainedOneRows(
            model,
            node_rows(data, model.training.scope, RowLayout.BY_NODE),
            lambda master, decoder: MasterTeacher(
                model,
                rows.trained,
                taught_over(data, decoder)[0].lists,
                data.classes,
                learning.device,
                given_master(master),
                decoder,
            ),
            progress,
            *learning,
        )

    return one_rows


def _advise_scope(spec: GNNServiceSpec, data: TrainingSet, progress: ProgressListener) -> None:
    # Imported here: it trains, which few graphs ask for.
    from gnnserve_worker.generation.trial import advise_scope  # noqa: PLC0415

    if (advice := advise_scope(data, spec, progress)) is not None:
        progress(Progress("advice", 1, 1, advice))
