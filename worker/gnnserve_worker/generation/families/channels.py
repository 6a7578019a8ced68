"""Variants of networks with fewer hidden channels (*Accelerating large scale real-time GNN inference using channel
pruning*).

Each network is made of another one, whose channels are pruned (`generation/channels.py`) and which is then trained
further. Over feature columns it has the model's hops and reads the table of pruned variants. Its products, and its
first layer over all neighbours, are stored as those of the model are, in narrower tables of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from gnnserve_api.families import PROJECTED, PRUNED, STORED, ChannelAxis
from gnnserve_api.repository import NetworkManifest
from gnnserve_api.spec.channels import Channels, ChannelsTable
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import columns_of, stored_name
from gnnserve_worker.generation.families.family import (
    FamilyPlan,
    Ingredients,
    Outline,
    PlannedVariant,
    plan_variant,
    storages_of,
)
from gnnserve_worker.generation.families.projected import plan_projected, projected_bytes
from gnnserve_worker.generation.families.pruned import features_table
from gnnserve_worker.generation.families.stored import plan_stored, stored_layers_bytes
from gnnserve_worker.generation.tensors import Tensors, keep_columns_of

_FEATURES, _PROJECTED, _STORED = (replace(point, channels=ChannelAxis.FEWER) for point in (PRUNED, PROJECTED, STORED))


class ChannelsPlanner:
    """One variant for each of `spec.variants.channels`, from each storage."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return any(one.column_factor == 1 for one in spec.variants.channels)

    def tables_bytes(self, outline: Outline) -> int:
        return sum(_table_bytes(outline, one) for one in outline.spec.variants.channels)

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        plans = [_plan_one(made_from, one) for one in made_from.spec.variants.canonical().channels]
        return FamilyPlan(
            tables=[table for plan in plans for table in plan.tables],
            variants=[variant for plan in plans for variant in plan.variants],
        )


def _table_bytes(outline: Outline, one: Channels) -> int:
    network = _network_of(one, outline.spec, outline.network.classes)
    match one.table:
        case ChannelsTable.FEATURES:
            return 0  # that of pruned variants
        case ChannelsTable.PROJECTED:
            return projected_bytes(outline, network)
        case ChannelsTable.STORED:
            return stored_layers_bytes(outline, network, [1])
        case _:
            assert_never(one.table)


def _plan_one(made_from: Ingredients, one: Channels) -> FamilyPlan:
    network = _network_of(one, made_from.spec, made_from.network.classes)
    tensors = made_from.learnt[one.network_name]
    of_network = replace(made_from, network=network, master=tensors, network_name=one.network_name)
    match one.table:
        case ChannelsTable.FEATURES:
            return _plan_features(of_network, one, tensors)
        case ChannelsTable.PROJECTED:
            return plan_projected(of_network, _PROJECTED)
        case ChannelsTable.STORED:
            return plan_stored(of_network, {1: _STORED})
        case _:
            assert_never(one.table)


def _plan_features(made_from: Ingredients, one: Channels, tensors: Tensors) -> FamilyPlan:
    ranked = keep_columns_of(tensors, made_from.ranking.columns) if one.column_factor == 1 else tensors
    columns = columns_of(made_from.features.shape[1], one.column_factor)
    return FamilyPlan(
        variants=[
            plan_variant(
                _FEATURES, stored_name(one.name, storage), features_table(storage), columns, made_from.network,
                storage, ranked, one.column_factor,
            )
            for storage in storages_of(made_from.spec)
        ]
    )  # fmt: skip


def _network_of(one: Channels, spec: GNNServiceSpec, classes: int) -> NetworkManifest:
    return spec.model.with_fewer_channels(one.factor).network(classes)
