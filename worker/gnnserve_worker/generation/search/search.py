"""The search for variants: what families make of the model is measured, and what no other beats is kept.

What needs no training is all made and measured. What needs networks of its own is `training.py`'s to choose; which of
all is kept is decided in `selection.py`. Every variant is made by its family, as if the manifest had listed it
(`gnnserve_api/spec/searched.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gnnserve_api.profile import Metric, Profile
from gnnserve_api.search import SearchRecord
from gnnserve_api.spec.searched import Round, derived_rounds
from gnnserve_worker.generation.families.family import FamilyPlan, Ingredients
from gnnserve_worker.generation.families.registry import FAMILIES, plan_families
from gnnserve_worker.generation.families.write import write_plans
from gnnserve_worker.generation.profile import GeneratedVariant
from gnnserve_worker.generation.scores import evaluate
from gnnserve_worker.generation.search.selection import select
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository.staged import StagedRevision

Measure = Callable[[Sequence[GeneratedVariant]], tuple[Sequence[GeneratedVariant], Profile]]
"""Measures written variants, and gives them the thresholds that suit them."""


@dataclass(frozen=True, slots=True)
class Found:
    plans: Sequence[FamilyPlan]
    generated: Sequence[GeneratedVariant]
    """All that were made, in the order of the profile."""
    profile: Profile
    """Those that are kept, and why."""


def search(
    made_from: Ingredients,
    data: TrainingSet,
    metric: Metric,
    staged: StagedRevision,
    measure: Measure,
    progress: ProgressListener,
) -> Found:
    """`made_from.spec`: with the factors that are searched. Writes variants; what is not kept stays written."""
    started = time.monotonic()
    variants, model = made_from.spec.variants, made_from.spec.model
    plans: list[FamilyPlan] = []
    for each in derived_rounds(variants, model, variants.pruning.factors):
        plans += plan_round(made_from, each)
    generated, profile = measure(_in_order(write_plans(plans, staged, progress, are_asked_for=False)))
    verdicts = select(profile.variants, least_accuracy(data, metric), variants.budget.variants)
    record = SearchRecord(seconds=round(time.monotonic() - started, 1), variants=verdicts)
    kept = {verdict.name for verdict in verdicts if verdict.is_kept}
    progress(Progress("search", 1, 1, f"{len(kept)} of {len(verdicts)} variants are kept"))
    kept_profile = tuple(variant for variant in profile.variants if variant.name in kept)
    return Found(plans, generated, msgspec.structs.replace(profile, variants=kept_profile, search=record))


def plan_round(made_from: Ingredients, searched: Round) -> list[FamilyPlan]:
    spec = made_from.spec.model_copy(update={"variants": searched.variants})
    return plan_families(replace(made_from, spec=spec))


def _in_order(generated: Sequence[GeneratedVariant]) -> list[GeneratedVariant]:
    """In the order of the families, as profiles are."""
    families = [family.name for family in FAMILIES]
    return sorted(generated, key=lambda made: families.index(made.variant.family))


def least_accuracy(data: TrainingSet, metric: Metric) -> float:
    """The metric on validation nodes of the same scores for all: the classes' shares of the training nodes."""
    trained, nodes = data.labels[data.splits.train], data.splits.validation
    if trained.ndim == 2:
        shares = trained.mean(axis=0) - 0.5
    else:
        shares = np.bincount(trained, minlength=data.classes) / len(trained)
    scores = np.broadcast_to(shares.astype(np.float32), (len(nodes), data.classes))
    return evaluate(scores, data.labels[nodes], metric)
