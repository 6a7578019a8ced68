"""Generation proper: every variant of one revision, from the imported graph to the commit.

Dynamic GNN inference as-a-service, section 3.3, describes both ways: finished variants or a master. Which variants
there are and what they are made of is `families/`; weights come from `trained.py` or `given.py`; nothing here needs
torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

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
    SourceColumn,
    VariantManifest,
)
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.training import TrainingRun
from gnnserve_api.variants import Storage, columns_of
from gnnserve_worker.generation.assumptions import assumptions_of
from gnnserve_worker.generation.attempts import training_of
from gnnserve_worker.generation.cascades import check_cascades, check_stages, fit_cascades
from gnnserve_worker.generation.families.family import (
    FamilyPlan,
    Ingredients,
    Models,
    OneRowModels,
    PlannedCascade,
    PlannedTable,
)
from gnnserve_worker.generation.families.registry import needs_master, plan_families
from gnnserve_worker.generation.families.write import write_plans
from gnnserve_worker.generation.features import Normalized, fit_normalization, normalization_of
from gnnserve_worker.generation.frontier import worth_keeping
from gnnserve_worker.generation.given_variants import GivenVariant
from gnnserve_worker.generation.identity import RevisionIdentity
from gnnserve_worker.generation.profile import GeneratedVariant, calibrated, measure_profile, profile_budget_s
from gnnserve_worker.generation.propagation import ModelRows, model_rows
from gnnserve_worker.generation.ranking.rank import Ranking, rank
from gnnserve_worker.generation.search.candidates import Shapes
from gnnserve_worker.generation.search.factors import choose_factors
from gnnserve_worker.generation.search.made_up import SIZE_S, measure_made_up
from gnnserve_worker.generation.search.search import Found, Measure, Measured, Subject, search
from gnnserve_worker.generation.steps import CHOOSE_FACTORS, GraphSizes, master_name, steps_behind_choice
from gnnserve_worker.generation.tensors import Tensors, first_layer
from gnnserve_worker.generation.training_set import TrainingSet, training_set, visible_nodes
from gnnserve_worker.generation.wide import with_factors
from gnnserve_worker.graph.store import Features, Graph, GraphData
from gnnserve_worker.models.registry import spec_of
from gnnserve_worker.opening.revision import open_revision
from gnnserve_worker.progress import PROFILE, Progress, ProgressListener
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.repository.revision_files import RowRecipe
from gnnserve_worker.repository.staged import StagedRevision
from gnnserve_worker.tasks.generated import Judge, LearningProblem, Verdict

_FLOAT16_END = 65_520.0
"""Smallest number that float16 rounds to infinity."""


def generate_revision(
    spec: GNNServiceSpec,
    identity: RevisionIdentity,
    graph: GraphData,
    problem: LearningProblem[Graph],
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
    training = spec.model.training
    # Before training, since a metric may not fit the graph, and a variable may be no number.
    problem.check(spec.variants)
    profile_budget = profile_budget_s()
    check_cascades(spec.variants)
    visible = visible_nodes(graph.graph.nodes, graph.splits, training.scope)
    normalized = fit_normalization(graph.features, normalization_of(spec), visible)
    _check_range(normalized.features, () if spec.variants.is_searched else spec.variants.storage)
    # Before training, since a damaged copy of it in the repository should not cost the time.
    repository.put_graph(graph)
    network = spec.network(len(graph.classes))
    data = training_set(graph.graph, problem, network.classes, graph.splits, training.scope)
    rows = model_rows(spec.model, data, normalized)
    models = None if models_of is None else models_of(data, rows.trained)
    one_rows = None if one_rows_of is None else one_rows_of(data, normalized, rows)
    started = time.monotonic()
    ingredients = _make_ingredients(spec, network, graph.graph, data, rows, models, one_rows, given, progress)
    network_s = time.monotonic() - started
    sizes = GraphSizes.of(graph)
    chosen: ChosenFactors | UnsetType = UNSET
    if spec.variants.optional_factors and not spec.variants.is_searched and models is not None:
        chosen = _choose_factors(ingredients, data, rows, sizes, profile_budget, progress)
        factors = tuple(factor for factor in spec.variants.pruning.factors if factor not in chosen.left_out)
        ingredients = replace(ingredients, spec=with_factors(spec, factors))
    other_rankings = () if models is None else _rank_again(spec, data, rows.trained, models, progress)
    with repository.stage(
        identity.recipe, identity.graph, identity.checkpoint, identity.given, identity.expected
    ) as staged:
        row_recipe = RowRecipe(normalized.method, _moments(normalized), ingredients.ranking.columns)
        judge = problem.judge({} if models is None else models.decoder)
        decoder = staged.write_decoder(judge.weights)
        verdicts: dict[str, Verdict] = {}
        measure = partial(_measure, spec, staged, row_recipe, profile_budget, progress, judge, verdicts)
        if spec.variants.is_searched:
            subject = Subject(ingredients, data, sizes, profile_budget, network_s)
            found = search(subject, staged, measure, progress)
        else:
            found = _make_listed(ingredients, staged, measure, progress)
        kept = {variant.name for variant in found.profile.variants}
        variants = [made.variant for made in found.generated if made.variant.name in kept]
        _discard_unused([made.variant for made in found.generated], variants, staged)
        answers = {name: one.validation.answers for name, one in verdicts.items() if one.validation.answers is not None}
        misfits = judge.misfits(spec, found.profile.variants, answers)
        return staged.commit(
            scope=training.scope,
            ranking=RankingManifest(
                method=NOT_RANKED if models is None else spec.variants.pruning.method,
                settings=ingredients.ranking.settings,
                columns=tuple(ingredients.ranking.columns.tolist()),
                others=other_rankings,
                chosen=chosen,
            ),
            variants=variants,
            profile=found.profile,
            generator=generator,
            created_at=datetime.now(UTC).isoformat(timespec="microseconds"),
            training=training_of(training, runs, problem.majority) if (runs := _runs_of(models, one_rows)) else None,
            row_source=_write_row_source(graph, normalized, found.plans, variants, staged),
            edge_rules=graph.edge_rules,
            cascades=found.cascades,
            links=judge.describe(decoder),
            assumptions=assumptions_of(spec, spec_of(spec.model.architecture)),
            compared=compared,
            label_misfits=misfits,
        )


def _make_listed(made_from: Ingredients, staged: StagedRevision, measure: Measure, progress: ProgressListener) -> Found:
    """The variants that the manifest lists, and those that families add unasked where they are worth keeping."""
    plans = plan_families(made_from)
    measured = measure(write_plans(plans, staged, progress), [cascade for plan in plans for cascade in plan.cascades])
    profile = msgspec.structs.replace(measured.profile, variants=worth_keeping(measured.profile.variants))
    return Found(plans, measured.generated, profile, measured.cascades)


def _measure(
    spec: GNNServiceSpec,
    staged: StagedRevision,
    rows: RowRecipe,
    budget_s: float,
    progress: ProgressListener,
    judge: Judge,
    verdicts: dict[str, Verdict],
    generated: Sequence[GeneratedVariant],
    planned: Sequence[PlannedCascade] = (),
) -> Measured:
    loaded = open_revision(staged.files_of([made.variant for made in generated], rows))
    generated = calibrated(loaded, generated, judge)
    if spec.variants.cascades:
        # Anew: a table of a stage may have been left out, whose storage cannot hold its numbers.
        check_stages(spec.variants, [*loaded.variants])
    cascades = fit_cascades(loaded, planned, judge)
    report = partial(_report_profile, progress)
    found: dict[str, Verdict] = {}
    profile = measure_profile(loaded, generated, report, judge, budget_s, cascades, found)
    verdicts.update(found)
    right = {name: one.validation.right for name, one in found.items() if one.validation.right is not None}
    return Measured(generated, profile, right, [cascade.manifest for cascade in cascades])


def _report_profile(progress: ProgressListener, done: int, total: int) -> None:
    progress(Progress(PROFILE, done, total))


def _runs_of(models: Models | None, one_rows: OneRowModels | None) -> tuple[TrainingRun, ...]:
    """How all networks were trained; empty: all weights are given."""
    return tuple(run for source in (models, one_rows) if source is not None for run in source.runs)


def _moments(normalized: Normalized) -> Tensors:
    if normalized.mean is None or normalized.deviation is None:
        return {}
    return {"mean": normalized.mean, "deviation": normalized.deviation}


def _write_row_source(
    graph: GraphData,
    normalized: Normalized,
    plans: Sequence[FamilyPlan],
    variants: Sequence[VariantManifest],
    staged: StagedRevision,
) -> RowSource:
    """Write what is needed to make rows of the kept tables from features of later nodes."""
    tensors = _moments(normalized)
    kept = {table for variant in variants for table in variant.tables}
    for table in (table for plan in plans for table in plan.tables if table.name in kept):
        if isinstance(table, PlannedTable) and table.made_by is not None:
            tensors |= {table.made_by.prefix + key: tensor for key, tensor in table.made_by.tensors.items()}
    return RowSource(
        columns=tuple(SourceColumn(column.name, column.width, column.fill) for column in graph.feature_columns),
        normalization=normalized.method,
        tensors=staged.write_row_source(tensors),
    )


def _check_range(features: Features, storages: Sequence[Storage]) -> None:
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
    return Ingredients(spec, network, graph, rows.served, ranking, master, models, given, one_rows)


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


def _discard_unused(made: Sequence[VariantManifest], kept: Sequence[VariantManifest], staged: StagedRevision) -> None:
    """Discard tables and weights that no kept variant reads. Variants may share both."""
    for weights in sorted({variant.weights for variant in made} - {variant.weights for variant in kept}):
        staged.discard_weights(weights)
    for table in sorted(staged.tables - {table for variant in kept for table in variant.tables}):
        staged.discard_table(table)
