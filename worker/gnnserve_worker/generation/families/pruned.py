"""Pruned variants: prefixes of the ranked feature columns, each with a network for just these (Yik et al., *Dynamic GNN
inference as-a-service*).

All of one storage read one table, whose columns are in rank order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gnnserve_api.families import FamilyName
from gnnserve_api.repository import VariantManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import Storage, columns_of, variant_name
from gnnserve_worker.generation.families.family import (
    FamilyPlan,
    Ingredients,
    Outline,
    PlannedTable,
    PlannedVariant,
    storages_of,
)
from gnnserve_worker.generation.tensors import Tensors, keep_columns_of
from gnnserve_worker.models.build import compute_for
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.staged import stored_bytes
from gnnserve_worker.tables.table import feature_blocks


@dataclass(frozen=True, slots=True)
class PrunedFamily:
    """One variant for each of `spec.variants.pruning.factors`, from each storage, of models that propagate features
    ahead of time or of those that do not."""

    name: FamilyName
    propagates: bool

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return self._is_for(spec) and 1 in spec.variants.pruning.factors

    def _is_for(self, spec: GNNServiceSpec) -> bool:
        return spec.model.propagates is self.propagates and spec.model.program is None

    def tables_bytes(self, outline: Outline) -> int:
        factors = outline.spec.variants.pruning.factors
        if not factors or not self._is_for(outline.spec):
            return 0
        width = columns_of(outline.features, min(factors))
        return sum(stored_bytes(outline.nodes, width, storage) for storage in outline.spec.variants.storage)

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        spec, features = made_from.spec, made_from.features
        factors = sorted(spec.variants.pruning.factors)
        if not factors or not self._is_for(spec):
            return FamilyPlan()
        kept = made_from.ranking.columns[: columns_of(features.shape[1], factors[0])]
        weights = {factor: self._weights(made_from, factor) for factor in factors}
        return FamilyPlan(
            tables=[
                PlannedTable(
                    features_table(storage),
                    "features",
                    storage,
                    len(kept),
                    partial(feature_blocks, features, kept.tolist()),
                )
                for storage in storages_of(spec)
            ],
            variants=[
                self._variant(made_from, factor, storage, weights[factor])
                for factor in factors
                for storage in storages_of(spec)
            ],
        )

    def _weights(self, made_from: Ingredients, factor: int) -> Tensors:
        """Weights for inputs in rank order."""
        columns = made_from.ranking.columns
        if factor == 1 and made_from.master is not None:
            return keep_columns_of(made_from.master, columns)
        kept = columns[: columns_of(made_from.features.shape[1], factor)]
        if made_from.models is None:
            raise ValueError(f"{variant_name(factor)} is made of a model, and there is none")
        return made_from.models.pruned(kept, variant_name(factor))

    def _variant(self, made_from: Ingredients, factor: int, storage: Storage, tensors: Tensors) -> PlannedVariant:
        name = variant_name(factor, storage)
        return PlannedVariant(
            VariantManifest(
                name=name,
                family=self.name,
                table=features_table(storage),
                columns=columns_of(made_from.features.shape[1], factor),
                fanouts=made_from.network.fanouts,
                network=made_from.network,
                compute=compute_for(made_from.spec.model.architecture, storage),
                weights=paths.weights_of(name),
            ),
            factor,
            tensors,
        )


def features_table(storage: Storage) -> str:
    """Name of the table of columns in rank order."""
    return f"features-{storage}"
