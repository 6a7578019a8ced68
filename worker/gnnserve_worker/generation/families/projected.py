"""Projected variants: the first layer's product is made ahead of time, for every node.

Means and sums commute with linear maps, so the network of all columns answers as before, but for rounding, from rows as
wide as its first layer's output.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from gnnserve_api.families import PROJECTED, VariantPoint
from gnnserve_api.repository import NetworkManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import Projection as ProjectionChoice
from gnnserve_api.variants import Storage, projected_name
from gnnserve_worker.generation.families.family import (
    FamilyPlan,
    Ingredients,
    MadeBy,
    Outline,
    PlannedTable,
    PlannedVariant,
    plan_variant,
    storages_of,
)
from gnnserve_worker.generation.tensors import projection_of, without_first_product
from gnnserve_worker.models.registry import spec_of
from gnnserve_worker.repository.staged import stored_bytes
from gnnserve_worker.tables.table import projected_blocks


class ProjectedPlanner:
    """One variant from each storage, unless `spec.variants.projection` is Disabled."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return spec.variants.projection is ProjectionChoice.AUTO

    def tables_bytes(self, outline: Outline) -> int:
        return projected_bytes(outline, outline.network) if self.needs_master(outline.spec) else 0

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        if not self.needs_master(made_from.spec) or made_from.master is None:
            return FamilyPlan()
        return plan_projected(made_from, PROJECTED.propagated() if made_from.spec.model.propagates else PROJECTED)


def projected_bytes(outline: Outline, network: NetworkManifest) -> int:
    """What the tables of a network's products take in all storages."""
    matrices = 2 if spec_of(outline.spec.model.architecture).stores_own else 1
    return sum(
        matrices * stored_bytes(outline.nodes, network.projected_columns, storage)
        for storage in outline.spec.variants.storage
    )


def plan_projected(made_from: Ingredients, point: VariantPoint) -> FamilyPlan:
    """The network over its products, from each storage. There must be a master."""
    if made_from.master is None:
        raise ValueError("projected variants are made of a master's weights, and there is none")
    tensors, network = without_first_product(made_from.master), made_from.network
    storages = storages_of(made_from.spec)
    return FamilyPlan(
        tables=[plan_products(made_from, storage) for storage in storages],
        variants=[
            plan_variant(
                point, made_from.named(projected_name(storage)), _table(made_from, storage), network.projected_columns,
                network, storage, tensors,
            )
            for storage in storages
        ],
    )  # fmt: skip


def plan_products(made_from: Ingredients, storage: Storage) -> PlannedTable:
    """The table of the first layer's products. There must be a master."""
    if made_from.master is None:
        raise ValueError("products are made of a master's weights, and there is none")
    weights = made_from.master
    products = {key: weights[key] for key in weights.keys() - without_first_product(weights).keys()}
    features, projection = made_from.features, projection_of(made_from.master)
    return PlannedTable(
        _table(made_from, storage),
        "projected",
        storage,
        projection.rows.shape[1],
        rows=partial(projected_blocks, features, np.ascontiguousarray(projection.rows)),
        own=None
        if projection.own is None
        else partial(projected_blocks, features, np.ascontiguousarray(projection.own)),
        made_by=None if made_from.spec.model.propagates else MadeBy(made_from.weights_prefix, products),
    )


def _table(made_from: Ingredients, storage: Storage) -> str:
    return made_from.named(f"projected-{storage}")
