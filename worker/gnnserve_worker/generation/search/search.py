"""The search for variants: what can be made of the model is measured, and what no other beats is kept.

What needs no training is all made and measured. What needs networks of its own is `training.py`'s to choose; which of
all is kept is decided in `selection.py`. Every variant is made by its planner, as if the manifest had listed it
(`gnnserve_api/spec/searched.py`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from gnnserve_api.cascades import CascadeManifest
from gnnserve_api.families import POINTS
from gnnserve_api.profile import Profile
from gnnserve_api.search import SearchRecord
from gnnserve_api.spec.searched import Round, derived_rounds, trained_rounds
from gnnserve_worker.generation.families.family import FamilyPlan, Ingredients, PlannedCascade
from gnnserve_worker.generation.families.registry import plan_families
from gnnserve_worker.generation.families.write import write_plans
from gnnserve_worker.generation.profile import GeneratedVariant
from gnnserve_worker.generation.search.candidates import Shapes, candidates_of
from gnnserve_worker.generation.search.latency_model import Degrees, LatencyModel
from gnnserve_worker.generation.search.selection import RightLabels, select
from gnnserve_worker.generation.search.training import Promise, model_of, predicted, promises
from gnnserve_worker.generation.steps import GraphSizes, steps_of_search
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository.staged import StagedRevision


@dataclass(frozen=True, slots=True)
class Measured:
    generated: Sequence[GeneratedVariant]
    """With the thresholds that suit them."""
    profile: Profile
    right_labels: RightLabels
    """By variant, as `selection.select` compares them."""
    cascades: Sequence[CascadeManifest] = ()
    """With the thresholds that suit the shares to be passed on."""


class Measure(Protocol):
    def __call__(self, generated: Sequence[GeneratedVariant], planned: Sequence[PlannedCascade] = ()) -> Measured:
        """Measure written variants, and the cascades that consist of them."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    plans: Sequence[FamilyPlan]
    generated: Sequence[GeneratedVariant]
    """All that were made, in the order of the profile."""
    profile: Profile
    """Those that are kept, and why."""
    cascades: Sequence[CascadeManifest] = ()


@dataclass(frozen=True, slots=True)
class Subject:
    """What is searched for variants."""

    made_from: Ingredients
    """The spec in it is with the factors that are searched."""
    data: TrainingSet
    sizes: GraphSizes
    profile_budget_s: float
    """Seconds of measuring one batch size."""
    network_s: float
    """What the first network took to be trained, in seconds."""


def search(subject: Subject, staged: StagedRevision, measure: Measure, progress: ProgressListener) -> Found:
    """Writes variants; what is not kept stays written."""
    started = time.monotonic()
    made_from = subject.made_from
    majority = subject.data.problem.majority
    least = 0.0 if majority is None else majority.score
    variants, model = made_from.spec.variants, made_from.spec.model
    plans = [
        plan
        for each in derived_rounds(variants, model, variants.pruning.factors)
        for plan in plan_round(made_from, each)
    ]
    measured = measure(_write(plans, staged, progress))
    ends = started + variants.budget.seconds
    trained = _train_promising(subject, measured.generated, measured.profile, least, ends, progress)
    if trained:
        plans += trained
        # All once more: what is compared is measured at the same time.
        measured = measure(_in_order([*measured.generated, *_write(trained, staged, progress)]))
    profile = measured.profile
    verdicts = select(profile.variants, least, variants.budget.variants, measured.right_labels)
    record = SearchRecord(seconds=round(time.monotonic() - started, 1), variants=verdicts)
    kept = {verdict.name for verdict in verdicts if verdict.is_kept}
    progress(Progress("search", 1, 1, f"{len(kept)} of {len(verdicts)} variants are kept"))
    kept_profile = tuple(variant for variant in profile.variants if variant.name in kept)
    return Found(plans, measured.generated, msgspec.structs.replace(profile, variants=kept_profile, search=record))


def _write(plans: Sequence[FamilyPlan], staged: StagedRevision, progress: ProgressListener) -> list[GeneratedVariant]:
    return _in_order(write_plans(plans, staged, progress, are_asked_for=False))


def _train_promising(
    subject: Subject,
    generated: Sequence[GeneratedVariant],
    profile: Profile,
    least: float,
    ends: float,
    progress: ProgressListener,
) -> list[FamilyPlan]:
    """Plans of the rounds whose networks were trained, in the order of the rounds: the widest table is written first,
    of which others read a part."""
    made_from = subject.made_from
    variants, degrees = made_from.spec.variants, Degrees.of(made_from.graph)
    rounds = {each.trains: each for each in trained_rounds(variants, variants.pruning.factors)}
    if made_from.one_rows is None:
        rounds = {name: each for name, each in rounds.items() if not each.variants.one_row}
    shapes = Shapes(made_from.spec, made_from.graph, subject.sizes.columns, subject.data.classes)
    candidates = {name: candidates_of(shapes, each) for name, each in rounds.items()}
    model = model_of(degrees, generated, profile)
    predicted_ms = {
        candidate.manifest.name: predicted(candidate, model, degrees)
        for of_network in candidates.values()
        for candidate in of_network
    }
    worth = promises(candidates, predicted_ms, profile, least)
    names = [promise.trains for promise in worth]
    steps = steps_of_search(made_from.spec, subject.sizes, names, subject.profile_budget_s)
    progress(Progress("predict latencies", 1, 1, _says_worth(worth, rounds, model), steps))
    planned: dict[str, list[FamilyPlan]] = {}
    longest_s = subject.network_s
    for promise in worth:
        begun = time.monotonic()
        if begun + longest_s > ends:
            progress(Progress(f"train {promise.trains}", 1, 1, "left out: budget.seconds would not suffice"))
            continue
        planned[promise.trains] = plan_round(made_from, rounds[promise.trains])
        longest_s = max(longest_s, time.monotonic() - begun)
    return [plan for name in rounds for plan in planned.get(name, [])]


def _says_worth(worth: Sequence[Promise], rounds: Collection[str], model: LatencyModel) -> str:
    names = ", ".join(promise.trains for promise in worth) or "none"
    return f"within {100 * model.error:.0f} %, mostly; of {', '.join(rounds) or 'none'} worth training: {names}"


def plan_round(made_from: Ingredients, searched: Round) -> list[FamilyPlan]:
    spec = made_from.spec.model_copy(update={"variants": searched.variants})
    return plan_families(replace(made_from, spec=spec))


def _in_order(generated: Sequence[GeneratedVariant]) -> list[GeneratedVariant]:
    """In the order of profiles."""
    families = list(POINTS)
    return sorted(generated, key=lambda made: families.index(made.variant.family))
