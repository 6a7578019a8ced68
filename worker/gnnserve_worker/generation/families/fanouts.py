"""Smaller fan-outs: the same table and weights as another variant, with fewer neighbours sampled. Nothing is trained.

Weights that were learnt over sampled neighbours can be run over any number of them. What fewer cost in accuracy is
measured in the profile, as of every other variant; sums (GIN) lose more by it than means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gnnserve_api.families import FamilyName
from gnnserve_api.repository import VariantManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import Variants
from gnnserve_api.variants import fanouts_name
from gnnserve_worker.generation.families.family import FamilyPlan, Ingredients, Outline, PlannedVariant


@dataclass(frozen=True, slots=True)
class FanoutsFamily:
    """Every variant of one other family, with each of `spec.variants.fanouts`."""

    name: FamilyName
    base: FamilyName

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return False

    def tables_bytes(self, outline: Outline) -> int:
        return 0

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        variants = made_from.spec.variants.canonical()
        return FamilyPlan(
            variants=[
                PlannedVariant(
                    msgspec.structs.replace(
                        planned.manifest,
                        name=fanouts_name(planned.manifest.name, fanouts),
                        family=self.name,
                        fanouts=fanouts,
                    ),
                    planned.factor,
                    tensors=None,
                )
                for planned in earlier
                if planned.manifest.family is self.base
                for fanouts in _left_of(variants, planned.manifest)
            ]
        )


def _left_of(variants: Variants, manifest: VariantManifest) -> tuple[tuple[int, ...], ...]:
    """The smaller fan-outs, as far as the variant has hops left."""
    return variants.fanouts if manifest.stored is None else variants.fanouts_left(manifest.stored.layer)
