"""One-row variants: perceptrons that read one stored row per seed, the product of their first layer.

A row is as wide as the hidden layer, and what is left of the network is its last layer. Those over a node's own
features can answer about nodes that requests bring; those over propagated features cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from gnnserve_api.families import ONE_ROW
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import Storage, one_row_name, stored_name
from gnnserve_worker.generation.families.family import (
    FamilyPlan,
    Ingredients,
    MadeBy,
    OneRowNetwork,
    Outline,
    PlannedTable,
    PlannedVariant,
    plan_variant,
    storages_of,
)
from gnnserve_worker.generation.tensors import without_first_product
from gnnserve_worker.repository.staged import stored_bytes


class OneRowPlanner:
    """One variant for each of `spec.variants.oneRow`, from each storage."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return bool(spec.variants.one_row)

    def tables_bytes(self, outline: Outline) -> int:
        return sum(
            stored_bytes(outline.nodes, outline.spec.model.one_row(one.hops).hidden, storage)
            for one in outline.spec.variants.one_row
            for storage in outline.spec.variants.storage
        )

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        storages = storages_of(made_from.spec)
        every_hops = [one.hops for one in made_from.spec.variants.canonical().one_row]
        trained = {hops: made_from.one_rows[one_row_name(hops)] for hops in every_hops}
        return FamilyPlan(
            tables=[_plan_table(hops, made, storage) for hops, made in trained.items() for storage in storages],
            variants=[_plan_one_row(hops, made, storage) for hops, made in trained.items() for storage in storages],
        )


def _plan_table(hops: int, made: OneRowNetwork, storage: Storage) -> PlannedTable:
    left = without_first_product(made.tensors)
    stored = {key: tensor for key, tensor in made.tensors.items() if key not in left}
    return PlannedTable(
        _table_name(hops, storage),
        "projected",
        storage,
        made.product.shape[1],
        rows=partial(_as_one_block, made.product),
        made_by=None if hops else MadeBy(f"{one_row_name(hops)}.", stored),
    )


def _plan_one_row(hops: int, made: OneRowNetwork, storage: Storage) -> PlannedVariant:
    return plan_variant(
        ONE_ROW.propagated() if hops else ONE_ROW, stored_name(one_row_name(hops), storage), _table_name(hops, storage),
        made.product.shape[1], made.network, storage, without_first_product(made.tensors),
    )  # fmt: skip


def _table_name(hops: int, storage: Storage) -> str:
    return f"{one_row_name(hops)}-{storage}"


def _as_one_block(rows: np.ndarray) -> list[np.ndarray]:
    return [rows]
