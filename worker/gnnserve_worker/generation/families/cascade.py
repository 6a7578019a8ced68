"""Cascades: two variants that exist anyway, and what decides between them. Nothing is trained, and no file is written.

What is planned is which variants and which shares; temperature and threshold are fitted once the stages can be run
(`generation/cascades.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from gnnserve_api.families import CASCADE, cascade_of
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import cascade_name
from gnnserve_worker.generation.families.family import (
    FamilyPlan,
    Ingredients,
    Outline,
    PlannedCascade,
    PlannedVariant,
)


class CascadePlanner:
    """Those of `spec.variants.cascades` whose stages are there: in the order of their points."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return False

    def tables_bytes(self, outline: Outline) -> int:
        return 0

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        stages = {planned.manifest.name: planned.manifest for planned in earlier}
        found = [
            PlannedCascade(
                cascade_name(cascade.first, cascade.then, percent),
                cascade_of(stages[cascade.first], stages[cascade.then]).family,
                cascade.first,
                cascade.then,
                percent,
            )
            for cascade in made_from.spec.variants.canonical().cascades
            if cascade.first in stages and cascade.then in stages
            for percent in cascade.pass_on_percents
        ]
        return FamilyPlan(cascades=sorted(found, key=lambda planned: planned.family != CASCADE.family))
