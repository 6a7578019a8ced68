"""Cascades of one revision: refused where there can be none, fitted on the validation split once their stages run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_api.files.repository import VariantManifest
from gnnserve_api.spec.cascade import unknown_stages
from gnnserve_api.spec.made_variants import made_variants
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import Variants
from gnnserve_worker.generation.families.family import PlannedCascade
from gnnserve_worker.generation.profile import FittedCascade, scores_of
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.tasks.deciding import threshold_for
from gnnserve_worker.tasks.generated import Confidences, Judge


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


def fit_cascades(
    revision: LoadedRevision, variants: Mapping[str, VariantManifest], planned: Sequence[PlannedCascade], judge: Judge
) -> list[FittedCascade]:
    """Each first stage is run over the validation split once. `variants`: as they were calibrated, by name."""
    firsts = dict.fromkeys(cascade.first for cascade in planned)
    found = {first: judge.confidences(variants[first], partial(scores_of, revision, first)) for first in firsts}
    return [_fit(cascade, found[cascade.first]) for cascade in planned]


def _fit(planned: PlannedCascade, found: Confidences) -> FittedCascade:
    threshold = threshold_for(found.of_items, planned.percent)
    manifest = CascadeManifest(
        name=planned.name,
        family=planned.family,
        first=planned.first,
        then=planned.then,
        temperature=found.temperature,
        threshold=threshold,
    )
    return FittedCascade(manifest, float(np.mean(found.of_items < np.float32(threshold))))
