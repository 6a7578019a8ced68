"""Variants of networks with fewer hidden channels (*Accelerating large scale real-time GNN inference using channel
pruning*).

Each network is made of another one, whose channels are pruned (`generation/channels.py`) and which is then trained
further. Over feature columns it has the model's hops and reads the table of pruned variants. Its products, and its
first layer over all neighbours, are stored as those of the model are, in narrower tables of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from gnnserve_api.families import FamilyName
from gnnserve_api.repository import NetworkManifest, VariantManifest
from gnnserve_api.spec.channels import Channels, ChannelsTable
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import columns_of, stored_name
from gnnserve_worker.generation.families.family import (
    FamilyPlan,
    Ingredients,
    Outline,
    PlannedVariant,
    storages_of,
)
from gnnserve_worker.generation.families.projected import plan_projected, projected_bytes
from gnnserve_worker.generation.families.pruned import features_table
from gnnserve_worker.generation.families.stored import plan_stored, stored_layers_bytes
from gnnserve_worker.generation.tensors import Tensors, keep_columns_of
from gnnserve_worker.models.build import compute_for
from gnnserve_worker.repository import paths

_FIRST_LAYER = (1,)


@dataclass(frozen=True, slots=True)
class ChannelsFamily:
    """One variant for each of `spec.variants.channels` over such a table, from each storage."""

    name: FamilyName
    table: ChannelsTable

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return any(one.column_factor == 1 for one in self._listed(spec))

    def _listed(self, spec: GNNServiceSpec) -> list[Channels]:
        return [one for one in spec.variants.canonical().channels if one.table is self.table]

    def tables_bytes(self, outline: Outline) -> int:
        spec = outline.spec
        networks = [_network_of(one, spec, outline.network.classes) for one in self._listed(spec)]
        match self.table:
            case ChannelsTable.FEATURES:
                return 0  # that of pruned variants
            case ChannelsTable.PROJECTED:
                return sum(projected_bytes(outline, network) for network in networks)
            case ChannelsTable.STORED:
                return sum(stored_layers_bytes(outline, network, _FIRST_LAYER) for network in networks)
            case _:
                assert_never(self.table)

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        plans = [self._plan_one(made_from, one, earlier) for one in self._listed(made_from.spec)]
        return FamilyPlan(
            tables=[table for plan in plans for table in plan.tables],
            variants=[variant for plan in plans for variant in plan.variants],
        )

    def _plan_one(self, made_from: Ingredients, one: Channels, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        network = _network_of(one, made_from.spec, made_from.network.classes)
        tensors = _weights(made_from, one, earlier)
        of_network = replace(made_from, network=network, master=tensors, network_name=one.network_name)
        match self.table:
            case ChannelsTable.FEATURES:
                return self._plan_features(of_network, one, tensors)
            case ChannelsTable.PROJECTED:
                return plan_projected(of_network, self.name)
            case ChannelsTable.STORED:
                return plan_stored(of_network, self.name, _FIRST_LAYER)
            case _:
                assert_never(self.table)

    def _plan_features(self, made_from: Ingredients, one: Channels, tensors: Tensors) -> FamilyPlan:
        ranked = keep_columns_of(tensors, made_from.ranking.columns) if one.column_factor == 1 else tensors
        spec, names = made_from.spec, [stored_name(one.name, storage) for storage in storages_of(made_from.spec)]
        return FamilyPlan(
            variants=[
                PlannedVariant(
                    VariantManifest(
                        name=name,
                        family=self.name,
                        table=features_table(storage),
                        columns=columns_of(made_from.features.shape[1], one.column_factor),
                        fanouts=made_from.network.fanouts,
                        network=made_from.network,
                        compute=compute_for(spec.model.architecture, storage),
                        weights=paths.weights_of(name),
                    ),
                    one.column_factor,
                    ranked,
                )
                for name, storage in zip(names, storages_of(spec), strict=True)
            ]
        )


def _network_of(one: Channels, spec: GNNServiceSpec, classes: int) -> NetworkManifest:
    return spec.model.with_fewer_channels(one.factor).network(classes)


def _weights(made_from: Ingredients, one: Channels, earlier: Sequence[PlannedVariant]) -> Tensors:
    """Weights of the network, for inputs in the order of the source; in rank order where it reads a part of them."""
    models, ranked = made_from.models, made_from.ranking.columns
    if one.column_factor == 1:
        wide, columns = made_from.master, None
    else:
        wide = next(
            made.tensors
            for made in earlier
            if made.manifest.family is FamilyName.PRUNED and made.factor == one.column_factor
        )
        columns = ranked[: columns_of(made_from.features.shape[1], one.column_factor)]
    if models is None or wide is None:
        raise ValueError(f"{one.network_name} is made of a network, and there is none")
    return models.narrowed(wide, columns, one.factor, one.network_name)
