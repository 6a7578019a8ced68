"""Variants of layers that a manifest lists over rows that are made ahead of time, and the network that is left
(`layers/passes.py`); and those of networks with fewer hidden channels.

- *Stored*: rows of all nodes behind the first layers, each over all of its neighbours (`generation/listed_rows.py`).
  Rows behind each layer, up to the last one that is asked for, are written in float32.
- *Projected*: rows of each node alone, before the first aggregation: behind the products before the layers, or behind
  the first layer's, where these are narrower than features.
- *Fewer channels*: a network with weights of its own, over the columns that another variant reads, or either of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from gnnserve_api.families import (
    PROJECTED_LISTED,
    STORED_LISTED,
    STORED_LISTED_FOLLOWING,
    STORED_LISTED_OVERLAYS,
    ChannelAxis,
    FollowAxis,
    VariantPoint,
)
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import LayersManifest
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_api.files.repository import (
    FollowedManifest,
    LayerTables,
    StoredManifest,
    VariantManifest,
    program_network,
)
from gnnserve_api.spec.channels import Channels, ChannelsTable
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import Storage, projected_name, stored_layer_name
from gnnserve_worker.generation.families.family import (
    BlocksOf,
    DerivedTable,
    FamilyPlan,
    Ingredients,
    ListedColumns,
    Outline,
    PlacedProgram,
    PlannedTable,
    PlannedVariant,
    storages_of,
)
from gnnserve_worker.generation.families.given import plan_program, program_tables
from gnnserve_worker.generation.listed_rows import ListedRows
from gnnserve_worker.layers.contract import FILE, answered_types
from gnnserve_worker.layers.passes import over_narrow_rows, over_own_rows, projected_tensors, widest_row
from gnnserve_worker.layers.shapes import columns_of, reads_degrees
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.opening.loaded import CORRECTION
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.revision_files import stored_bytes
from gnnserve_worker.tables.table import Table

_COPIED_NODES = 4096
"""Rows that are brought into another storage at a time."""
_FIRST = 1
"""Layer that networks with fewer channels have stored."""


class StoredLayersPlanner:
    """One variant behind each of the layers in `spec.variants.stored`, from each storage."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return False

    def tables_bytes(self, outline: Outline) -> int:
        return _stored_bytes(outline, outline.stored_columns, outline.spec.variants.stored)

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        spec, program = made_from.spec, made_from.programs[0]
        listed = _Listed.of(made_from, program)
        return _plan_stored(
            made_from, program, {layer: listed.point_of(layer, spec) for layer in sorted(spec.variants.stored)}
        )


class ProjectedLayersPlanner:
    """One variant from each storage, unless `spec.variants.projection` is Disabled or no rows are narrower than
    features."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return False

    def tables_bytes(self, outline: Outline) -> int:
        return _projected_bytes(outline, outline.product_columns)

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        listed = _Listed.of(made_from, made_from.programs[0]).over(over_narrow_rows)
        return FamilyPlan() if listed is None else _plan_projected(made_from, listed, PROJECTED_LISTED)


class ListedChannelsPlanner:
    """One variant for each of `spec.variants.channels`, from each storage."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return False

    def tables_bytes(self, outline: Outline) -> int:
        return sum(_channels_bytes(outline, one) for one in outline.spec.variants.channels)

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        listed = made_from.spec.variants.canonical().channels
        plans = [_plan_channels(made_from, one.table, made_from.narrow_programs[one.network_name]) for one in listed]
        return FamilyPlan(
            tables=[table for plan in plans for table in plan.tables],
            variants=[variant for plan in plans for variant in plan.variants],
            over=lambda graph: self.plan(replace(made_from, graph=graph), earlier),
        )


def _plan_channels(made_from: Ingredients, table: ChannelsTable, program: PlacedProgram) -> FamilyPlan:
    match table:
        case ChannelsTable.FEATURES:
            # The table is that of the variant whose channels are pruned.
            labels, storages = program_tables(made_from.programs), storages_of(made_from.spec)
            return FamilyPlan(
                variants=[plan_program(program, labels, one, is_first=one is storages[0]) for one in storages]
            )
        case ChannelsTable.PROJECTED:
            listed = _Listed.of(made_from, program).over(over_own_rows)
            assert listed is not None  # noqa: S101 - checked before anything is trained
            return _plan_projected(made_from, listed, _fewer_channels(PROJECTED_LISTED))
        case ChannelsTable.STORED:
            point = _Listed.of(made_from, program).point_of(_FIRST, made_from.spec)
            return _plan_stored(made_from, program, {_FIRST: _fewer_channels(point)})
        case _:
            assert_never(table)


def _fewer_channels(point: VariantPoint) -> VariantPoint:
    return replace(point, channels=ChannelAxis.FEWER)


def _channels_bytes(outline: Outline, one: Channels) -> int:
    widths = outline.narrow_columns.get(one.network_name)
    if widths is None:
        return 0  # an architecture has them
    match one.table:
        case ChannelsTable.FEATURES:
            return 0  # that of another variant
        case ChannelsTable.PROJECTED:
            return _projected_bytes(outline, widths.products)
        case ChannelsTable.STORED:
            return _stored_bytes(outline, widths.behind, [_FIRST])
        case _:
            assert_never(one.table)


def _projected_bytes(outline: Outline, columns: int) -> int:
    return sum(stored_bytes(outline.nodes, columns, storage) for storage in outline.spec.variants.storage if columns)


def _stored_bytes(outline: Outline, widths: Sequence[int], asked: Sequence[int]) -> int:
    """`widths`: as of `Outline.stored_columns`; `asked`: layers behind which rows are stored."""
    if not widths:
        return 0
    written = [(Storage.FLOAT32, layer) for layer in range(max(asked) + 1)]
    written += [(storage, layer) for storage in outline.spec.variants.storage for layer in asked]
    return sum(stored_bytes(outline.nodes, widths[layer], storage) for storage, layer in dict.fromkeys(written))


def _plan_stored(made_from: Ingredients, program: PlacedProgram, points: Mapping[int, VariantPoint]) -> FamilyPlan:
    """What is left of the program's layers behind each of these, at its point."""
    listed, storages = _Listed.of(made_from, program), storages_of(made_from.spec)
    tables: list[PlannedTable | DerivedTable] = [listed.first_table(listed.table_name(0), Storage.FLOAT32)]
    variants: list[PlannedVariant] = []
    for layer in range(1, max(points) + 1):
        tables.append(listed.table(layer))
        if layer in points:
            tables += [listed.copy(layer, storage) for storage in storages if storage is not Storage.FLOAT32]
            variants += [listed.stored(points[layer], layer, storage, storages[0]) for storage in storages]
    return FamilyPlan(
        tables, variants, over=lambda graph: _plan_stored(replace(made_from, graph=graph), program, points)
    )


def _plan_projected(made_from: Ingredients, listed: _Listed, point: VariantPoint) -> FamilyPlan:
    """`listed`: over rows of each node alone."""
    storages = storages_of(made_from.spec)
    tables = [listed.first_table(listed.named(projected_name(storage)), storage) for storage in storages]
    return FamilyPlan(tables, [listed.projected(point, storage, storages[0]) for storage in storages])


def product_columns(contract: ProgramManifest, layers: LayersManifest, schema: GraphSchema) -> int:
    """Columns of a row of projected variants, of the widest type; 0: none is made."""
    return _own_columns(over_narrow_rows, contract, layers, schema)


def _own_columns(find: FindOwnRows, contract: ProgramManifest, layers: LayersManifest, schema: GraphSchema) -> int:
    answered, columns = answered_types(contract, schema), columns_of(schema)
    found = find(layers, schema, columns, answered)
    return 0 if found is None else widest_row(found, schema, columns, 0, answered)


def columns_of_rows(contract: ProgramManifest, layers: LayersManifest, schema: GraphSchema) -> ListedColumns:
    """Columns of the rows that variants of a network with fewer channels read."""
    return ListedColumns(
        _own_columns(over_own_rows, contract, layers, schema), columns_behind(contract, layers, schema)
    )


def columns_behind(contract: ProgramManifest, layers: LayersManifest, schema: GraphSchema) -> tuple[int, ...]:
    """Columns of a row behind each layer of a network, of the widest type: before the first one, behind it, …"""
    answered, counts = answered_types(contract, schema), range(len(layers.layers) + 1)
    return tuple(widest_row(layers, schema, columns_of(schema), count, answered) for count in counts)


FindOwnRows = Callable[[LayersManifest, GraphSchema, Sequence[int], Sequence[int]], LayersManifest | None]
"""Finds the equal network over rows of each node alone; None: there is none."""
NamedByStorage = Callable[[Storage], str]
"""Name of a variant in a storage."""


@dataclass(frozen=True, slots=True, eq=False)
class _Listed:
    """The listed layers of a spec, or those with fewer channels, over the graph that their rows are made of."""

    contract: ProgramManifest
    """Contract of the whole network."""
    rows: ListedRows
    """Rows of the network, or of the equal one that reads rows of each node alone."""
    fanouts: tuple[int, ...] | None
    """Neighbours that the whole network samples per hop; None: all of them."""
    network_name: str
    """As `Ingredients.network_name`."""

    @staticmethod
    def of(made_from: Ingredients, program: PlacedProgram) -> _Listed:
        network, contract = program.network, program.given
        if program.layers is None or program.compute is None or contract.layers is UNSET:
            raise ValueError("variants of listed layers are made of a program that has none")
        fanouts = network.fanouts if min(network.fanouts) > 0 else None
        rows = ListedRows(
            program.layers, contract.layers, answered_types(contract, made_from.graph.schema), made_from.graph,
            program.features, program.compute,
        )  # fmt: skip
        name = "" if program is made_from.programs[0] else program.name
        return _Listed(contract, rows, fanouts, name)

    def over(self, find: FindOwnRows) -> _Listed | None:
        """The equal network of which projected variants are made; None: none are."""
        rows, schema = self.rows, self.rows.schema
        narrow = find(rows.layers, schema, columns_of(schema), rows.answered)
        if narrow is None or narrow is rows.layers:
            return None if narrow is None else self
        tensors = projected_tensors(self._tensors, rows.layers, schema, columns_of(schema))
        contract = msgspec.structs.replace(self.contract, layers=narrow)
        return replace(self, contract=contract, rows=replace(rows, layers=narrow, given=rows.given.learnt(tensors)))

    def point_of(self, layer: int, spec: GNNServiceSpec) -> VariantPoint:
        """Rows are made anew where requests reach, unless a layer reads whole lists of several hops, or no rows are
        kept that those of later layers are made of."""
        if layer > 1 and not spec.variants.stored_follow_changes:
            return STORED_LISTED
        alone = [self.rows.one_layer(number) for number in range(1, layer + 1)]
        read_one_hop = all(one.hops == 1 and not reads_degrees(one, self.rows.schema) for one in alone)
        return STORED_LISTED_OVERLAYS if read_one_hop else STORED_LISTED_FOLLOWING

    def named(self, name: str) -> str:
        """The name of a variant or table of this network, from that of the model's."""
        return f"{self.network_name}-{name}" if self.network_name else name

    def table_name(self, layer: int, storage: Storage = Storage.FLOAT32) -> str:
        return self.named(f"stored{layer}-{storage}")

    def first_table(self, name: str, storage: Storage) -> PlannedTable:
        """Rows before the first layer."""
        return PlannedTable(name, "projected", storage, self.rows.columns(0), self.rows.first, types=self._types)

    def table(self, layer: int) -> DerivedTable:
        """Rows behind a layer, made of those before it."""
        before = self.table_name(layer - 1)
        return self._derived(
            layer, Storage.FLOAT32, lambda written: self.rows.behind(layer, written(before).rows.values)
        )

    def copy(self, layer: int, storage: Storage) -> DerivedTable:
        """The same rows in another storage."""
        return self._derived(layer, storage, lambda written: _blocks_of(written(self.table_name(layer))))

    def stored(self, point: VariantPoint, layer: int, storage: Storage, first: Storage) -> PlannedVariant:
        """`first`: of the storages, whose variant brings the weights that all of them share."""
        named = partial(stored_layer_name, layer)
        return self._variant(point, layer, named, self.table_name(layer, storage), storage, first)

    def projected(self, point: VariantPoint, storage: Storage, first: Storage) -> PlannedVariant:
        """As `stored`, of rows before the first layer."""
        return self._variant(point, 0, projected_name, self.named(projected_name(storage)), storage, first)

    def _variant(
        self, point: VariantPoint, layer: int, named: NamedByStorage, table: str, storage: Storage, first: Storage
    ) -> PlannedVariant:
        rest = self.rows.rest(layer)
        given = self.rows.with_weights(rest)
        if point.follows is not FollowAxis.NOTHING:
            made_by = {f"{CORRECTION}{key}": tensor for key, tensor in self._tensors.items()}
            given = given.learnt({**(given.tensors or {}), **made_by})
        file = paths.program_file_of(self.named(named(first)), FILE)
        program = msgspec.structs.replace(given.like(self.contract, rest), file=file, sha256=given.digest)
        if self.contract.embeddings is None:
            program = msgspec.structs.replace(program, embeddings=None)
        sampled = None if self.fanouts is None or not program.hops else self.fanouts[: program.hops]
        network = program_network(program, sampled)
        manifest = VariantManifest(
            name=self.named(named(storage)),
            family=point.family,
            table=table,
            columns=self.rows.columns(layer),
            fanouts=network.fanouts,
            network=network,
            compute="float32",
            weights=file,
            stored=StoredManifest(layer=layer, followed=self._followed(point, layer, file, given.digest)),
        )
        return PlannedVariant(manifest, factor=1, tensors=given.tensors if storage is first else None)

    @property
    def _tensors(self) -> Tensors:
        return self.rows.given.tensors or {}

    @property
    def _types(self) -> int | UnsetType:
        """As in the manifests of the tables."""
        schema = self.rows.schema
        return UNSET if len(schema.types) == 1 else len(schema.types)

    def _followed(self, point: VariantPoint, layer: int, file: str, digest: str) -> FollowedManifest | None:
        """`file`, `digest`: of the weights."""
        if point.follows is FollowAxis.NOTHING:
            return None
        whole = program_network(msgspec.structs.replace(self.contract, file=file, sha256=digest), self.fanouts)
        return FollowedManifest(whole, tuple(LayerTables(self.table_name(below)) for below in range(layer)))

    def _derived(self, layer: int, storage: Storage, rows: BlocksOf) -> DerivedTable:
        name = self.table_name(layer, storage)
        return DerivedTable(name, "projected", storage, self.rows.columns(layer), rows, types=self._types)


def _blocks_of(table: Table) -> Iterator[np.ndarray]:
    """Rows of a table in float32, some at a time."""
    for start in range(0, table.nodes, _COPIED_NODES):
        yield table.rows.values[start : start + _COPIED_NODES, : table.columns]
