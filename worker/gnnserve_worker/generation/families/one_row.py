"""One-row variants: perceptrons that read one stored row per seed, the product of their first layer.

A row is as wide as the hidden layer, and what is left of the network is its last layer. Those over a node's own
features can answer about nodes that requests bring; those over propagated features cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gnnserve_api.families import FamilyName
from gnnserve_api.repository import VariantManifest
from gnnserve_api.spec.model import Architecture
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
    storages_of,
)
from gnnserve_worker.generation.tensors import without_first_product
from gnnserve_worker.models.build import compute_for
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.staged import stored_bytes


@dataclass(frozen=True, slots=True)
class OneRowFamily:
    """One variant for each of `spec.variants.oneRow`, from each storage: of those that propagate features, or of those
    that do not."""

    name: FamilyName
    propagates: bool

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return bool(self._hops(spec))

    def _hops(self, spec: GNNServiceSpec) -> list[int]:
        return [one.hops for one in spec.variants.canonical().one_row if bool(one.hops) is self.propagates]

    def tables_bytes(self, outline: Outline) -> int:
        return sum(
            stored_bytes(outline.nodes, outline.spec.model.one_row(hops).hidden, storage)
            for hops in self._hops(outline.spec)
            for storage in outline.spec.variants.storage
        )

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        every_hops, storages = self._hops(made_from.spec), storages_of(made_from.spec)
        if not every_hops or made_from.one_rows is None or made_from.teacher is None:
            return FamilyPlan()
        one_rows, teacher = made_from.one_rows, made_from.teacher
        trained = {hops: one_rows.one_row(hops, one_row_name(hops), teacher) for hops in every_hops}
        return FamilyPlan(
            tables=[self._table(hops, made, storage) for hops, made in trained.items() for storage in storages],
            variants=[self._variant(hops, made, storage) for hops, made in trained.items() for storage in storages],
        )

    def _table(self, hops: int, made: OneRowNetwork, storage: Storage) -> PlannedTable:
        left = without_first_product(made.tensors)
        stored = {key: tensor for key, tensor in made.tensors.items() if key not in left}
        return PlannedTable(
            _table_name(hops, storage),
            "projected",
            storage,
            made.product.shape[1],
            rows=partial(_as_one_block, made.product),
            made_by=None if self.propagates else MadeBy(f"{one_row_name(hops)}.", stored),
        )

    def _variant(self, hops: int, made: OneRowNetwork, storage: Storage) -> PlannedVariant:
        name = stored_name(one_row_name(hops), storage)
        return PlannedVariant(
            VariantManifest(
                name=name,
                family=self.name,
                table=_table_name(hops, storage),
                columns=made.product.shape[1],
                fanouts=made.network.fanouts,
                network=made.network,
                compute=compute_for(Architecture(made.network.architecture), storage),
                weights=paths.weights_of(name),
            ),
            factor=1,
            tensors=without_first_product(made.tensors),
        )


def _table_name(hops: int, storage: Storage) -> str:
    return f"{one_row_name(hops)}-{storage}"


def _as_one_block(rows: np.ndarray) -> list[np.ndarray]:
    return [rows]
