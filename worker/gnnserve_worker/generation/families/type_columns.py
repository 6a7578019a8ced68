"""Tables and variants over feature columns of several types: what `PrunedPlanner` plans over one type, and
`ChannelsPlanner` over the same tables.

All of one storage read one table, with a row of each node of any type: the columns of its type in rank order, and zeros
behind those of a type that has fewer. A network reads the first ones of each type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gnnserve_api.families import VariantPoint
from gnnserve_api.files.profile import Compute
from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import Storage, stored_name
from gnnserve_worker.columns.rows import columns_key
from gnnserve_worker.generation.families.family import FamilyPlan, MadeBy, PlannedTable, plan_variant, storages_of
from gnnserve_worker.generation.families.layered import features_table
from gnnserve_worker.generation.families.relation_tables import States
from gnnserve_worker.models.blas import preferred_compute
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.tables.table import feature_blocks


@dataclass(frozen=True, slots=True)
class ColumnNetwork:
    """A network over columns of each type."""

    name: str
    """Name of its variant in float32."""
    point: VariantPoint
    network: NetworkManifest
    factor: int
    """That of its columns."""
    columns: int
    """Columns that it reads of the type of which it reads most."""
    tensors: Tensors
    """As `layer_tensors` names them."""

    def compute(self, storage: Storage) -> Compute:
        """Precision of its products: those of attention are made in float32."""
        return preferred_compute(storage) if self.network.attention is None else "float32"


@dataclass(frozen=True, slots=True)
class ColumnNetworks:
    """Networks over columns of each type, and which columns these are."""

    kept: Sequence[np.ndarray]
    """Columns (ids) of each type that tables have, in rank order."""
    networks: Sequence[ColumnNetwork]


def plan_columns(spec: GNNServiceSpec, made_of: ColumnNetworks, states: States) -> FamilyPlan:
    """One variant of each network, from each storage. `states`: what networks read of each type."""
    storages = storages_of(spec)
    return FamilyPlan(
        [_features(storage, made_of, states) for storage in storages],
        [
            plan_variant(
                one.point, stored_name(one.name, storage), features_table(storage), one.columns, one.network, storage,
                one.tensors, one.factor, compute=one.compute(storage),
            )
            for one in made_of.networks
            for storage in storages
        ],
    )  # fmt: skip


def _features(storage: Storage, networks: ColumnNetworks, states: States) -> PlannedTable:
    columns = max(map(len, networks.kept))
    return PlannedTable(
        features_table(storage), "features", storage, columns, partial(_blocks, networks.kept, columns, states),
        made_by=MadeBy("", {columns_key(kind): kept for kind, kept in enumerate(networks.kept)}), types=len(states),
    )  # fmt: skip


def _blocks(kept: Sequence[np.ndarray], columns: int, states: States) -> Iterator[np.ndarray]:
    for own, state in zip(kept, states, strict=True):
        for block in feature_blocks(state, own.tolist()):
            yield np.pad(block, ((0, 0), (0, columns - len(own))))
