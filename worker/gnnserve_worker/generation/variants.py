"""Networks over one list of neighbours, and every variant of one revision that is made of them.

Dynamic GNN inference as-a-service, section 3.3, describes both ways: finished variants or a master. Which variants
there are and what they are made of is `families/`; weights come from `trained.py` or `given.py`; nothing here needs
torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from gnnserve_api.errors import InputError
from gnnserve_api.factors import ChosenFactors, ColumnsTrial
from gnnserve_api.given_weights import ComparedScores
from gnnserve_api.repository import (
    NOT_RANKED,
    NetworkManifest,
    RankingManifest,
    RankingRun,
    RevisionManifest,
    RowSource,
    VariantManifest,
)
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.training import TrainingRun
from gnnserve_api.variants import Storage, columns_of
from gnnserve_worker.generation.assumptions import assumptions_of
from gnnserve_worker.generation.cascades import check_cascades
from gnnserve_worker.generation.families.family import (
    FamilyPlan,
    Ingredients,
    Models,
    OneRowModels,
)
from gnnserve_worker.generation.families.registry import needs_master, plan_families
from gnnserve_worker.generation.families.write import write_plans
from gnnserve_worker.generation.features import Normalized, normalization_of
from gnnserve_worker.generation.frontier import worth_keeping
from gnnserve_worker.generation.given_variants import GivenVariant
from gnnserve_worker.generation.identity import RevisionIdentity
from gnnserve_worker.generation.profile import profile_budget_s
from gnnserve_worker.generation.propagation import ModelRows, model_rows
from gnnserve_worker.generation.ranking.rank import Ranking, rank
from gnnserve_worker.generation.revision import publish_networks
from gnnserve_worker.generation.row_source import moments, write_row_source
from gnnserve_worker.generation.search.candidates import Shapes
from gnnserve_worker.generation.search.factors import choose_factors
from gnnserve_worker.generation.search.made_up import SIZE_S, measure_made_up
from gnnserve_worker.generation.search.search import Found, Measure, Subject, search
from gnnserve_worker.generation.steps import CHOOSE_FACTORS, GraphSizes, master_name, steps_behind_choice
from gnnserve_worker.generation.tensors import Tensors, first_layer
from gnnserve_worker.generation.training_set import TrainingSet, training_set
from gnnserve_worker.generation.wide import with_factors
from gnnserve_worker.graph.store import Features, Graph, GraphData
from gnnserve_worker.models.registry import spec_of
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.repository.revision_files import RowRecipe
from gnnserve_worker.repository.staged import StagedRevision
from gnnserve_worker.tasks.generated import LearningProblem

_FLOAT16_END = 65_520.0
"""Smallest number that float16 rounds to infinity."""


def generate_revision(
    spec: GNNServiceSpec,
    identity: RevisionIdentity,
    graph: GraphData,
    problem: LearningProblem,
    given: Sequence[GivenVariant],
    repository: Repository,
    progress: ProgressListener,
    models_of: Callable[[TrainingSet, Features], Models] | None,
    one_rows_of: Callable[[TrainingSet, Normalized, ModelRows], OneRowModels] | None,
    generator: str,
    compared: Sequence[ComparedScores] = (),
) -> RevisionManifest:
    """Rank, prune, project, profile, publish; nothing is visible before the last file is written. `problem`: the task
    over the graph. `models_of` None: every variant is given. `one_rows_of` None: the spec asks for no one-row variants,
    and no search does. `compared`: expected scores that given weights were held against."""
    # Before training, since a metric may not fit the graph, and a variable may be no number.
    problem.check(spec.variants)
    profile_budget = profile_budget_s()
    check_cascades(spec.variants)
    network = spec.network(len(graph.classes))
    data = training_set(graph, problem, network.classes, spec.model.training.scope, normalization_of(spec))
    normalized = data.normalized
    check_range(normalized.features, () if spec.variants.is_searched else spec.variants.storage)
    # Before training, since a damaged copy of it in the repository should not cost the time.
    repository.put_graph(graph)
    rows = model_rows(spec.model, data, normalized)
    models = None if models_of is None else models_of(data, rows.trained)
    one_rows = None if one_rows_of is None else one_rows_of(data, normalized, rows)
    started = time.monotonic()
    ingredients = _make_ingredients(spec, network, graph.graph, data, rows, models, one_rows, given, progress)
    network_s = time.monotonic() - started
    sizes = GraphSizes.of(graph, problem.items)
    chosen: ChosenFactors | UnsetType = UNSET
    if spec.variants.optional_factors and not spec.variants.is_searched and models is not None:
        chosen = _choose_factors(ingredients, data, rows, sizes, profile_budget, progress)
        factors = tuple(factor for factor in spec.variants.pruning.factors if factor not in chosen.left_out)
        ingredients = replace(ingredients, spec=with_factors(spec, factors))
    other_rankings = () if models is None else _rank_again(spec, data, rows.trained, models, progress)
    networks = _OneRelationNetworks(
        spec, graph, problem, normalized, data, ingredients, models, one_rows, sizes, profile_budget, network_s,
        RankingManifest(
            method=NOT_RANKED if models is None else spec.variants.pruning.method,
            settings=ingredients.ranking.settings,
            columns=tuple(ingredients.ranking.columns.tolist()),
            others=other_rankings,
            chosen=chosen,
        ),
    )  # fmt: skip
    return publish_networks(spec, networks, identity, repository, progress, generator, profile_budget, compared)


@dataclass(frozen=True, slots=True)
class _OneRelationNetworks:
    """The `revision.Networks` of a graph whose nodes have one list of neighbours."""

    spec: GNNServiceSpec
    graph: GraphData
    problem: LearningProblem
    normalized: Normalized
    data: TrainingSet
    ingredients: Ingredients
    models: Models | None
    one_rows: OneRowModels | None
    sizes: GraphSizes
    profile_budget_s: float
    network_s: float
    """What the first network took to be trained, in seconds."""
    ranking: RankingManifest

    @property
    def assumptions(self) -> Mapping[str, str] | UnsetType:
        return assumptions_of(self.spec, spec_of(self.spec.model.architecture))

    @property
    def decoder(self) -> Mapping[str, np.ndarray]:
        return {} if self.models is None else self.models.decoder

    @property
    def rows(self) -> RowRecipe:
        return RowRecipe(self.normalized.method, moments(self.normalized), self.ingredients.ranking.columns)

    def runs(self) -> Sequence[TrainingRun]:
        return [run for source in (self.models, self.one_rows) if source is not None for run in source.runs]

    def make(self, staged: StagedRevision, measure: Measure, progress: ProgressListener) -> Found:
        if not self.spec.variants.is_searched:
            return make_listed(self.ingredients, staged, measure, progress)
        subject = Subject(self.ingredients, self.data, self.sizes, self.profile_budget_s, self.network_s)
        return search(subject, staged, measure, progress)

    def write_row_source(
        self, plans: Sequence[FamilyPlan], variants: Sequence[VariantManifest], staged: StagedRevision
    ) -> RowSource:
        return write_row_source(self.graph, self.normalized, plans, variants, staged)


def make_listed(made_from: Ingredients, staged: StagedRevision, measure: Measure, progress: ProgressListener) -> Found:
    """The variants that the manifest lists, and those that families add unasked where they are worth keeping."""
    plans = plan_families(made_from)
    measured = measure(write_plans(plans, staged, progress), [cascade for plan in plans for cascade in plan.cascades])
    profile = msgspec.structs.replace(measured.profile, variants=worth_keeping(measured.profile.variants))
    return Found(plans, measured.generated, profile, measured.cascades)


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


# --- weights


def _make_ingredients(
    spec: GNNServiceSpec,
    network: NetworkManifest,
    graph: Graph,
    data: TrainingSet,
    rows: ModelRows,
    models: Models | None,
    one_rows: OneRowModels | None,
    given: Sequence[GivenVariant],
    progress: ProgressListener,
) -> Ingredients:
    pruning = spec.variants.pruning
    if models is None:
        as_it_is = Ranking(np.arange(rows.served.shape[1]), {})
        return Ingredients(spec, network, graph, rows.served, as_it_is, None, models, given)
    master: Tensors | None = None
    if needs_master(spec):
        master = models.master(master_name(spec))
    stage = f"rank by {pruning.method}"
    progress(Progress(stage, 0, 1))
    first = None if master is None else first_layer(master)
    ranking = rank(pruning, first, rows.trained, data, spec.model.training.seed)
    progress(Progress(stage, 1, 1))
    teacher = None if one_rows is None or master is None else one_rows.teacher_of(master)
    return Ingredients(spec, network, graph, rows.served, ranking, master, models, given, one_rows, teacher)


def _choose_factors(
    made_from: Ingredients, data: TrainingSet, rows: ModelRows, sizes: GraphSizes, budget_s: float,
    progress: ProgressListener,
) -> ChosenFactors:  # fmt: skip
    spec, columns = made_from.spec, rows.trained.shape[1]
    progress(Progress(CHOOSE_FACTORS, 0, 1))
    shapes = Shapes(spec, made_from.graph, sizes.columns, data.classes, len(data.splits.validation))

    def try_factor(factor: int) -> ColumnsTrial | None:
        if spec.model.checkpoint is not None or not data.problem.compares_shortly:
            return None
        # Imported here: it trains, for which torch is needed.
        from gnnserve_worker.generation.trial import try_columns  # noqa: PLC0415

        read = made_from.ranking.columns[: columns_of(columns, factor)]
        return try_columns(data, rows.trained, spec.model, read, factor, progress)

    model = measure_made_up(shapes, min(SIZE_S, budget_s))
    chosen = choose_factors(shapes, model, columns, try_factor)
    factors = tuple(factor for factor in spec.variants.pruning.factors if factor not in chosen.left_out)
    progress(
        Progress(CHOOSE_FACTORS, 1, 1, chosen.why, steps_behind_choice(with_factors(spec, factors), sizes, budget_s))
    )
    return chosen


def _rank_again(
    spec: GNNServiceSpec, data: TrainingSet, features: Features, models: Models, progress: ProgressListener
) -> tuple[RankingRun, ...]:
    """Rank by masters of other seeds, which are not kept, to record how far the order depends on the seed."""
    pruning, seed = spec.variants.pruning, spec.model.training.seed
    runs = []
    for other in range(seed + 1, seed + 1 + pruning.stability_seeds):
        first = first_layer(models.another_master(other, f"network of seed {other}"))
        stage = f"rank by {pruning.method}, seed {other}"
        progress(Progress(stage, 0, 1))
        columns = rank(pruning, first, features, data, other).columns
        progress(Progress(stage, 1, 1))
        runs.append(RankingRun(seed=other, columns=tuple(columns.tolist())))
    return tuple(runs)
