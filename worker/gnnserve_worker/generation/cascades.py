"""Cascades of one revision: refused where there can be none, and fitted on validation nodes once their stages run."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from gnnserve_api.cascades import CascadeManifest
from gnnserve_api.errors import InputError
from gnnserve_api.spec.cascade import unknown_stages
from gnnserve_api.spec.made_variants import made_variants
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import Variants
from gnnserve_worker.generation.families.family import PlannedCascade
from gnnserve_worker.generation.profile import FittedCascade, scores_of
from gnnserve_worker.inference.batch import confidences
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.tasks.generated import Judge


def check_cascades(spec: GNNServiceSpec) -> None:
    """Raises InputError where a stage is none of the variants that are made."""
    check_stages(spec.variants, made_variants(spec).stage_names())


def check_stages(variants: Variants, existing: Collection[str]) -> None:
    """`existing`: names of the variants that a stage may be."""
    for field, stage in unknown_stages(variants.cascades, existing):
        raise InputError(
            field,
            f"{stage} is none of the variants that are made, or is a cascade itself",
            f"choose from {', '.join(existing)}",
        )


def fit_cascades(revision: LoadedRevision, planned: Sequence[PlannedCascade], judge: Judge) -> list[FittedCascade]:
    """Each first stage is run over the validation nodes and calibrated once."""
    nodes = revision.labels.splits.validation
    firsts = dict.fromkeys(cascade.first for cascade in planned)
    scores = {first: scores_of(revision, first, nodes) for first in firsts}
    temperatures = {first: judge.temperature(found) for first, found in scores.items()}
    return [_fit(cascade, scores[cascade.first], temperatures[cascade.first]) for cascade in planned]


def _fit(planned: PlannedCascade, scores: np.ndarray, temperature: float) -> FittedCascade:
    threshold = threshold_for(scores, temperature, planned.percent)
    manifest = CascadeManifest(
        name=planned.name,
        family=planned.family,
        first=planned.first,
        then=planned.then,
        temperature=temperature,
        threshold=threshold,
    )
    return FittedCascade(manifest, float(np.mean(confidences(scores, temperature) < np.float32(threshold))))


def threshold_for(scores: np.ndarray, temperature: float, percent: float) -> float:
    """The confidence below which that percentage of the nodes lies; fewer where several have the same. Which nodes are
    the least sure barely depends on the temperature, so a threshold is chosen by this share, not as a probability."""
    ascending = np.sort(confidences(scores, temperature))
    return float(ascending[min(round(percent * len(ascending) / 100), len(ascending) - 1)])
