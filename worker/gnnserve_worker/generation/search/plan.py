"""Plan of what generation would learn, write and take, before training, and the frontier as far as it is modelled.

Latencies are those of `made_up.py`; nothing of the real graph but its shape is used. They are modelled where classes of
nodes are told by networks over a graph of one type; of the others a plan has all but these, and guesses of the seconds
from sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from gnnserve_api.families import Family, cascade_of
from gnnserve_api.files.profile import LatencyCurve
from gnnserve_api.spec.cascade import Cascade
from gnnserve_api.spec.heterogeneous_rules import reads_products
from gnnserve_api.spec.made_variants import search_space
from gnnserve_api.spec.searched import Round
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import Storage, cascade_name, variant_name
from gnnserve_worker.generation.cascades import check_cascades
from gnnserve_worker.generation.epochs import expected_epochs
from gnnserve_worker.generation.estimates import GraphSizes
from gnnserve_worker.generation.families.registry import with_factors, with_searched_factors
from gnnserve_worker.generation.lessons import ONE_NETWORK, Lesson, is_learnt, lessons_of, searched_of, steps_of
from gnnserve_worker.generation.profile import BATCH_SEEDS, BUDGET_S
from gnnserve_worker.generation.relation_columns import with_narrow_factors
from gnnserve_worker.generation.search.candidates import Candidate, Shapes, all_candidates, candidates_of
from gnnserve_worker.generation.search.factors import slow_factors
from gnnserve_worker.generation.search.latency_model import Degrees, LatencyModel, Work, work_of
from gnnserve_worker.generation.search.made_up import measure_made_up
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.tasks.generation import task_of

_LEAST_ROUNDS = 5
"""Rounds that a profile measures each variant at least."""
_PASSES = 3
"""Forward passes that a training step is counted as: one forward, and two for the gradients and the update."""
_ONE_ROW_LESSONS = 3
"""Networks that are trained for a one-row variant."""
_LOADING_S = 5.0
"""Seconds that loading torch takes."""


class ModelledVariant(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    family: Family
    rows_per_seed: float
    """Rows that a seed reads, where no node is met twice."""
    p50_ms: dict[int, float]
    """Modelled medians, by seeds of a batch."""
    table: str
    """The table that it reads; both, of a cascade whose stages read two."""
    table_bytes: int
    """The rows that it reads, of all nodes."""
    trains: str
    """The network that must be trained for it, beside the first one; empty: none."""


class PlannedLesson(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    """The network; what is done where it is none."""
    needs: tuple[str, ...]
    """Lessons that come before it."""
    why: str


class SearchPlan(msgspec.Struct, frozen=True, rename="camel"):
    writes: tuple[str, ...]
    """Names of the variants that generation writes and measures, of which those that are worth it are published; a
    search looks at all of them."""
    learnt: tuple[PlannedLesson, ...]
    """Networks that generation learns, in their order; a search those of them that are promising."""
    first_network_s: float
    """Loading torch, and training the network of all columns. 0: its weights are given."""
    other_networks_s: float
    """Training all other networks; a search ends that by its budget, and trains what is promising only."""
    measuring_s: float
    """Writing tables, and measuring latencies and accuracies."""
    variants: tuple[ModelledVariant, ...] = ()
    """The fastest with the largest batches first; empty where latencies are not modelled."""
    model_error: float | None = None
    """Median relative error of the latency model on the made-up variants; None: latencies are not modelled."""
    not_modelled: str = ""
    """Why latencies are not modelled, and seconds are guessed from sizes; empty: they are."""

    @property
    def total_s(self) -> float:
        return self.first_network_s + self.other_networks_s + self.measuring_s


def plan(spec: GNNServiceSpec, data: GraphData) -> SearchPlan:
    """`data`: as the task loads it. Raises InputError for what generation refuses before it learns."""
    task = task_of(spec)
    data, problem, _ = task.pose(data)
    problem.check(spec.variants)
    check_cascades(spec)
    sizes = GraphSizes.of(data, problem.items)
    if spec.variants.is_searched:
        if reads_products(spec):
            spec = with_narrow_factors(spec, data.schema, spec.network(len(data.classes)).projected_columns)
        else:
            spec = with_searched_factors(spec, spec.model.row_columns(sizes.columns))
    of_model = "what a program takes is not known before it is run" if spec.model.is_program else ""
    why_not = of_model or spec.graph.source.kind.why_not_modelled or task.why_not_modelled
    return _guessed(spec, sizes, why_not) if why_not else _modelled(spec, data)


def _lessons(spec: GNNServiceSpec) -> tuple[PlannedLesson, ...]:
    return tuple(PlannedLesson(one.name, one.needs, one.why) for one in (*lessons_of(spec), *searched_of(spec)))


def _written(spec: GNNServiceSpec) -> tuple[str, ...]:
    if not spec.variants.is_searched:
        return spec.possible_variants()
    rounds = search_space(spec, spec.variants.pruning.factors).rounds
    return tuple(dict.fromkeys(name for one in rounds for name in one.names))


def _guessed(spec: GNNServiceSpec, sizes: GraphSizes, why_not: str) -> SearchPlan:
    """Without latencies."""

    def seconds_of(lessons: Iterable[Lesson]) -> float:
        return sum(step.seconds for one in lessons for step in one.steps(sizes))

    lessons = lessons_of(spec)
    first = [one for one in lessons if one.name in {ONE_NETWORK, variant_name(1)}]
    first_s = seconds_of(first) + (_LOADING_S if is_learnt(spec) else 0.0)
    # A search learns about half of what it may.
    searched_s = min(seconds_of(searched_of(spec)) / 2, float(spec.variants.budget.seconds))
    others_s = seconds_of(one for one in lessons if one not in first) + searched_s
    all_s = sum(step.seconds for step in steps_of(spec, sizes, BUDGET_S))
    measuring_s = all_s - first_s - others_s
    return SearchPlan(_written(spec), _lessons(spec), first_s, others_s, measuring_s, not_modelled=why_not)


def _modelled(spec: GNNServiceSpec, data: GraphData) -> SearchPlan:
    """Given variants are left out of those that are modelled, and cascades of them: their weights would have to be
    read."""
    source_columns, degrees = data.features.shape[1], Degrees.of(data.graph)
    shapes = Shapes(spec, data.graph, source_columns, len(data.classes))
    candidates = all_candidates(shapes) if spec.variants.is_searched else candidates_of(shapes, Round(spec.variants))
    model = measure_made_up(shapes)
    if spec.variants.optional_factors and not spec.variants.is_searched:
        slow = {variant_name(one.factor) for one in slow_factors(shapes, model, spec.model.row_columns(source_columns))}
        candidates = [one for one in candidates if one.trains not in slow]
        kept = tuple(one for one in spec.variants.pruning.factors if variant_name(one) not in slow)
        spec = with_factors(spec, kept)
    works = {
        one.manifest.name: work_of(one.manifest, one.storage, is_product=one.is_product, degrees=degrees)
        for one in candidates
    }
    found = [_planned(one, works[one.manifest.name], model) for one in candidates]
    found += planned_cascades(spec.variants.canonical().cascades, found)
    return SearchPlan(
        writes=_written(spec),
        learnt=_lessons(spec),
        variants=tuple(sorted(found, key=lambda one: one.p50_ms[BATCH_SEEDS[-1]])),
        model_error=model.error,
        not_modelled="",
        **_seconds(shapes, data, found, _reference_ms(shapes, degrees, model)),
    )


def _planned(candidate: Candidate, work: Work, model: LatencyModel) -> ModelledVariant:
    return ModelledVariant(
        name=candidate.manifest.name,
        family=candidate.manifest.family,
        rows_per_seed=work.rows,
        p50_ms=model.p50_ms(work),
        table=candidate.manifest.table,
        table_bytes=candidate.table_bytes,
        trains=candidate.trains,
    )


def planned_cascades(cascades: Sequence[Cascade], found: Sequence[ModelledVariant]) -> list[ModelledVariant]:
    """`found`: what is modelled of the variants that they consist of."""
    stages = {one.name: one for one in found}
    return [
        _planned_cascade(stages[cascade.first], stages[cascade.then], percent)
        for cascade in cascades
        if cascade.first in stages and cascade.then in stages
        for percent in cascade.pass_on_percents
    ]


def _planned_cascade(first: ModelledVariant, then: ModelledVariant, percent: int) -> ModelledVariant:
    share = percent / 100
    shared = first.table == then.table
    curve = LatencyCurve(tuple(then.p50_ms), tuple(then.p50_ms.values()))

    def passed_on_ms(seeds: float) -> float:
        # Of batches that pass on less than one node, as many pass on one.
        return min(1.0, seeds) * curve.at(max(1, round(seeds)))

    return ModelledVariant(
        name=cascade_name(first.name, then.name, percent),
        family=cascade_of(first, then).family,
        rows_per_seed=first.rows_per_seed + share * then.rows_per_seed,
        p50_ms={seeds: first_ms + passed_on_ms(share * seeds) for seeds, first_ms in first.p50_ms.items()},
        table=first.table if shared else f"{first.table}, {then.table}",
        table_bytes=max(first.table_bytes, then.table_bytes) if shared else first.table_bytes + then.table_bytes,
        trains="",
    )


# --- what generation takes


def _reference_ms(shapes: Shapes, degrees: Degrees, model: LatencyModel) -> float:
    """A batch of the largest size through the network of all columns, in float32."""
    spec = shapes.spec
    pruning = spec.variants.pruning.model_copy(update={"factors": (1,)})
    others = {"storage": (Storage.FLOAT32,), "one_row": (), "channels": ()}
    listed = spec.variants.model_copy(update={"pruning": pruning, **others})
    widest = candidates_of(replace(shapes, spec=spec), Round(listed))[0]
    work = work_of(widest.manifest, widest.storage, is_product=widest.is_product, degrees=degrees)
    return model.p50_ms(work)[BATCH_SEEDS[-1]]


def _seconds(
    shapes: Shapes, data: GraphData, found: Sequence[ModelledVariant], reference_ms: float
) -> dict[str, float]:
    variants, training = shapes.spec.variants, shapes.spec.model.training
    trained, judged = len(data.splits.train), len(data.splits.validation)
    epochs = expected_epochs(training.epochs, -(-trained // training.batch_size))
    largest = BATCH_SEEDS[-1]
    network_s = 1e-3 * reference_ms / largest * epochs * (_PASSES * trained + judged)
    by_network: dict[str, float] = {}
    for one in found:
        if one.trains:
            share = min(1.0, one.p50_ms[largest] / reference_ms)
            is_one_row = one.rows_per_seed == 1
            cost_s = network_s * share * (_ONE_ROW_LESSONS if is_one_row else 1)
            by_network[one.trains] = max(by_network.get(one.trains, 0.0), cost_s)
    others_s = 0.0 if shapes.spec.model.checkpoint is not None else sum(by_network.values())
    if variants.is_searched:
        others_s = min(others_s, float(variants.budget.seconds))
    is_trained = shapes.spec.trains_networks
    return {
        "first_network_s": _LOADING_S + network_s if is_trained and shapes.spec.model.checkpoint is None else 0.0,
        "other_networks_s": others_s,
        "measuring_s": _measuring_s(data, found) * (2 if variants.is_searched and others_s else 1),
    }


def _measuring_s(data: GraphData, found: Sequence[ModelledVariant]) -> float:
    largest, test = BATCH_SEEDS[-1], len(data.splits.test)
    sizes = (*BATCH_SEEDS, *([largest] if test else []))
    rounds_s = {seeds: 1e-3 * sum(one.p50_ms[seeds] for one in found) for seeds in BATCH_SEEDS}
    latencies_s = sum(max(BUDGET_S, _LEAST_ROUNDS * rounds_s[seeds]) for seeds in sizes)
    return latencies_s + rounds_s[largest] * (len(data.splits.validation) + test) / largest
