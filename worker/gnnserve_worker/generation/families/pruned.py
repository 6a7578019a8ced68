"""Pruned variants: prefixes of the ranked feature columns, each with a network for just these (Yik et al., *Dynamic GNN
inference as-a-service*).

All of one storage read one table, whose columns are in rank order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gnnserve_api.families import PRUNED
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import Storage, columns_of, variant_name
from gnnserve_worker.generation.families.family import (
    FamilyPlan,
    Ingredients,
    Outline,
    PlannedTable,
    PlannedVariant,
    plan_variant,
    storages_of,
)
from gnnserve_worker.generation.tensors import Tensors, keep_columns_of
from gnnserve_worker.repository.staged import stored_bytes
from gnnserve_worker.tables.table import feature_blocks


class PrunedPlanner:
    """One variant for each of `spec.variants.pruning.factors`, from each storage."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return 1 in _factors(spec)

    def tables_bytes(self, outline: Outline) -> int:
        factors = _factors(outline.spec)
        if not factors:
            return 0
        width = columns_of(outline.features, factors[0])
        return sum(stored_bytes(outline.nodes, width, storage) for storage in outline.spec.variants.storage)

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        spec, features = made_from.spec, made_from.features
        factors, storages = _factors(spec), storages_of(spec)
        if not factors:
            return FamilyPlan()
        widths = {factor: columns_of(features.shape[1], factor) for factor in factors}
        kept = made_from.ranking.columns[: widths[factors[0]]].tolist()
        weights = {factor: _weights(made_from, factor) for factor in factors}
        point = PRUNED.propagated() if spec.model.propagates else PRUNED
        return FamilyPlan(
            tables=[
                PlannedTable(
                    features_table(storage), "features", storage, len(kept), partial(feature_blocks, features, kept)
                )
                for storage in storages
            ],
            variants=[
                plan_variant(
                    point, variant_name(factor, storage), features_table(storage), widths[factor], made_from.network,
                    storage, weights[factor], factor,
                )
                for factor in factors
                for storage in storages
            ],
        )  # fmt: skip


def _factors(spec: GNNServiceSpec) -> list[int]:
    """Ascending; none of a program, which reads all columns."""
    return sorted(spec.variants.pruning.factors) if spec.model.program is None else []


def _weights(made_from: Ingredients, factor: int) -> Tensors:
    """Weights for inputs in rank order."""
    if factor == 1 and made_from.master is not None:
        return keep_columns_of(made_from.master, made_from.ranking.columns)
    return made_from.learnt[variant_name(factor)]


def features_table(storage: Storage) -> str:
    """Name of the table of columns in rank order."""
    return f"features-{storage}"
