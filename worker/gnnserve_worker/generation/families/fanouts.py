"""Smaller fan-outs: the same table and weights as another variant, with fewer neighbours sampled. Nothing is trained.

Weights that were learnt over sampled neighbours can be run over any number of them. What fewer cost in accuracy is
measured in the profile, as of every other variant; sums (GIN) lose more by it than means.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from gnnserve_api.families import HopAxis, point_of
from gnnserve_api.spec.variants import Variants
from gnnserve_api.variants import fanouts_name
from gnnserve_worker.generation.families.family import PlannedVariant


def with_fewer_neighbours(variants: Variants, planned: PlannedVariant) -> list[PlannedVariant]:
    """The planned variant with each of `variants.fanouts`, as far as it has hops left; none where it samples no
    neighbours."""
    manifest, point = planned.manifest, point_of(planned.manifest)
    if point.hops is not HopAxis.SAMPLED:
        return []
    family = replace(point, hops=HopAxis.FEWER).family
    left = variants.fanouts if manifest.stored is None else variants.fanouts_left(manifest.stored.layer)
    return [
        PlannedVariant(
            msgspec.structs.replace(
                manifest, name=fanouts_name(manifest.name, fanouts), family=family, fanouts=fanouts
            ),
            planned.factor,
            tensors=None,
        )
        for fanouts in left
    ]
