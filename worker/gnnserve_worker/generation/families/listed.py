"""Variants of layers that a manifest lists over rows that are made ahead of time, and the network that is left
(`layers/passes.py`).

- *Stored*: rows of all nodes behind the first layers, each over all of its neighbours, made layer after layer from the
  rows of the layer before by the same runner that serves. Rows behind each layer, up to the last one that is asked for,
  are written in float32.
- *Projected*: rows of each node alone, before the first aggregation: behind the products before the layers, or behind
  the first layer's, where these are narrower than features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from gnnserve_api.families import (
    PROJECTED_LISTED,
    STORED_LISTED,
    STORED_LISTED_FOLLOWING,
    STORED_LISTED_OVERLAYS,
    FollowAxis,
    VariantPoint,
)
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import LayersManifest, StoredRowsManifest
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_api.files.repository import (
    FollowedManifest,
    LayerTables,
    StoredManifest,
    VariantManifest,
    program_network,
)
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import Storage, projected_name, stored_layer_name
from gnnserve_worker.generation.families.family import (
    BlocksOf,
    ComputeAll,
    DerivedTable,
    FamilyPlan,
    Ingredients,
    Outline,
    PlannedTable,
    PlannedVariant,
    Written,
    storages_of,
)
from gnnserve_worker.generation.listed_layers import GivenLayers
from gnnserve_worker.graph.store import Features, Graph
from gnnserve_worker.layers.contract import FILE, answered_types, program_of
from gnnserve_worker.layers.passes import (
    one_layer,
    over_narrow_rows,
    projected_tensors,
    rows_behind,
    stored,
    tensors_behind,
    widest_row,
)
from gnnserve_worker.layers.shapes import columns_of, reads_degrees
from gnnserve_worker.layers.stored import NOTHING, RowParts, parts_of, stored_rows
from gnnserve_worker.opening.loaded import CORRECTION
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.revision_files import stored_bytes
from gnnserve_worker.tables.table import Table, feature_blocks

_COPIED_NODES = 4096
"""Rows that are brought into another storage at a time."""


class StoredLayersPlanner:
    """One variant behind each of the layers in `spec.variants.stored`, from each storage."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return False

    def tables_bytes(self, outline: Outline) -> int:
        asked, widths = outline.spec.variants.stored, outline.stored_columns
        if not widths:
            return 0
        written = [(Storage.FLOAT32, layer) for layer in range(max(asked) + 1)]
        written += [(storage, layer) for storage in outline.spec.variants.storage for layer in asked]
        return sum(stored_bytes(outline.nodes, widths[layer], storage) for storage, layer in dict.fromkeys(written))

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        asked, storages = sorted(made_from.spec.variants.stored), storages_of(made_from.spec)
        listed = _Listed.of(made_from)
        points = {layer: listed.point_of(layer, made_from.spec) for layer in asked}
        tables: list[PlannedTable | DerivedTable] = [listed.first_table(_first_table, Storage.FLOAT32)]
        variants: list[PlannedVariant] = []
        for layer in range(1, asked[-1] + 1):
            tables.append(listed.table(layer))
            if layer in asked:
                tables += [listed.copy(layer, storage) for storage in storages if storage is not Storage.FLOAT32]
                variants += [listed.stored(points[layer], layer, storage, storages[0]) for storage in storages]
        return FamilyPlan(tables, variants, over=lambda graph: self.plan(replace(made_from, graph=graph), earlier))


class ProjectedLayersPlanner:
    """One variant from each storage, unless `spec.variants.projection` is Disabled or no rows are narrower than
    features."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return False

    def tables_bytes(self, outline: Outline) -> int:
        columns, storages = outline.product_columns, outline.spec.variants.storage
        return sum(stored_bytes(outline.nodes, columns, storage) for storage in storages if columns)

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        listed, storages = _Listed.of(made_from).over_narrow_rows(), storages_of(made_from.spec)
        if listed is None:
            return FamilyPlan()
        tables = [listed.first_table(projected_name, storage) for storage in storages]
        made = [listed.projected(storage, storages[0]) for storage in storages]
        return FamilyPlan(tables, made)


def product_columns(contract: ProgramManifest, layers: LayersManifest, schema: GraphSchema) -> int:
    """Columns of a row of projected variants, of the widest type; 0: none is made."""
    answered, columns = answered_types(contract, schema), columns_of(schema)
    narrow = over_narrow_rows(layers, schema, columns, answered)
    return 0 if narrow is None else widest_row(narrow, schema, columns, 0, answered)


def columns_behind(contract: ProgramManifest, layers: LayersManifest, schema: GraphSchema) -> tuple[int, ...]:
    """Columns of a row behind each layer of a network, of the widest type: before the first one, behind it, …"""
    answered, counts = answered_types(contract, schema), range(len(layers.layers) + 1)
    return tuple(widest_row(layers, schema, columns_of(schema), count, answered) for count in counts)


NamedByStorage = Callable[[Storage], str]
"""Name of a variant or table in a storage."""
PartsOf = Callable[[int, slice], RowParts]
"""Parts of the rows that a layer reads, of a type and some of its nodes."""


@dataclass(frozen=True, slots=True, eq=False)
class _Listed:
    """The listed layers of a spec, over the graph that their rows are made of."""

    given: GivenLayers
    contract: ProgramManifest
    """Contract of the whole network."""
    layers: LayersManifest
    fanouts: tuple[int, ...] | None
    """Neighbours that the whole network samples per hop; None: all of them."""
    lists: Graph
    features: Sequence[Features]
    """Features of each type."""
    compute: ComputeAll

    @staticmethod
    def of(made_from: Ingredients) -> _Listed:
        program, network = made_from.programs[0], made_from.programs[0].network
        if program.layers is None or program.compute is None or program.given.layers is UNSET:
            raise ValueError("variants of listed layers are made of a program that has none")
        fanouts = network.fanouts if min(network.fanouts) > 0 else None
        return _Listed(
            program.layers, program.given, program.given.layers, fanouts, made_from.graph, program.features,
            program.compute,
        )  # fmt: skip

    def over_narrow_rows(self) -> _Listed | None:
        """The equal network of which projected variants are made; None: none are."""
        columns = columns_of(self._schema)
        narrow = over_narrow_rows(self.layers, self._schema, columns, self._answered)
        if narrow is None or narrow is self.layers:
            return None if narrow is None else self
        tensors = projected_tensors(self.given.tensors or {}, self.layers, self._schema, columns)
        contract = msgspec.structs.replace(self.contract, layers=narrow)
        return replace(self, contract=contract, layers=narrow, given=self.given.learnt(tensors))

    def point_of(self, layer: int, spec: GNNServiceSpec) -> VariantPoint:
        """Rows of the first layer are made anew where requests reach, unless that reads whole lists of several hops."""
        if layer > 1:
            return STORED_LISTED_FOLLOWING if spec.variants.stored_follow_changes else STORED_LISTED
        first = one_layer(self.layers, self._schema, columns_of(self._schema), layer, self._answered)
        reads_one_hop = first.hops == 1 and not reads_degrees(first, self._schema)
        return STORED_LISTED_OVERLAYS if reads_one_hop else STORED_LISTED_FOLLOWING

    def first_table(self, named: NamedByStorage, storage: Storage) -> PlannedTable:
        """Rows before the first layer."""
        rows = partial(self._made_rows, 0, self.features, self._features_of)
        return PlannedTable(named(storage), "projected", storage, self._columns(0), rows, types=self._types)

    def table(self, layer: int) -> DerivedTable:
        """Rows behind a layer, made of those before it."""
        return self._derived(layer, Storage.FLOAT32, lambda written: self._behind(layer, written))

    def copy(self, layer: int, storage: Storage) -> DerivedTable:
        """The same rows in another storage."""
        return self._derived(layer, storage, lambda written: _blocks_of(written(_table_name(layer))))

    def stored(self, point: VariantPoint, layer: int, storage: Storage, first: Storage) -> PlannedVariant:
        """`first`: of the storages, whose variant brings the weights that all of them share."""
        named = partial(stored_layer_name, layer)
        return self._variant(point, layer, named, _table_name(layer, storage), storage, first)

    def projected(self, storage: Storage, first: Storage) -> PlannedVariant:
        """As `stored`, of rows before the first layer."""
        return self._variant(PROJECTED_LISTED, 0, projected_name, projected_name(storage), storage, first)

    def _variant(
        self, point: VariantPoint, layer: int, named: NamedByStorage, table: str, storage: Storage, first: Storage
    ) -> PlannedVariant:
        rest = self._rest(layer)
        given = self._with_weights(rest)
        if point.follows is not FollowAxis.NOTHING:
            made_by = {f"{CORRECTION}{key}": tensor for key, tensor in (self.given.tensors or {}).items()}
            given = given.learnt({**(given.tensors or {}), **made_by})
        file = paths.program_file_of(named(first), FILE)
        program = msgspec.structs.replace(given.like(self.contract, rest), file=file, sha256=given.digest)
        if self.contract.embeddings is None:
            program = msgspec.structs.replace(program, embeddings=None)
        sampled = None if self.fanouts is None or not program.hops else self.fanouts[: program.hops]
        network = program_network(program, sampled)
        manifest = VariantManifest(
            name=named(storage),
            family=point.family,
            table=table,
            columns=self._columns(layer),
            fanouts=network.fanouts,
            network=network,
            compute="float32",
            weights=file,
            stored=StoredManifest(layer=layer, followed=self._followed(point, layer, file, given.digest)),
        )
        return PlannedVariant(manifest, factor=1, tensors=given.tensors if storage is first else None)

    @property
    def _schema(self) -> GraphSchema:
        return self.lists.schema

    @property
    def _types(self) -> int | UnsetType:
        """As in the manifests of the tables."""
        return UNSET if len(self._schema.types) == 1 else len(self._schema.types)

    def _followed(self, point: VariantPoint, layer: int, file: str, digest: str) -> FollowedManifest | None:
        """`file`, `digest`: of the weights."""
        if point.follows is FollowAxis.NOTHING:
            return None
        whole = program_network(msgspec.structs.replace(self.contract, file=file, sha256=digest), self.fanouts)
        return FollowedManifest(whole, tuple(LayerTables(_table_name(below)) for below in range(layer)))

    def _derived(self, layer: int, storage: Storage, rows: BlocksOf) -> DerivedTable:
        name = _table_name(layer, storage)
        return DerivedTable(name, "projected", storage, self._columns(layer), rows, types=self._types)

    def _columns(self, layer: int) -> int:
        """Columns of a row behind a layer."""
        return widest_row(self.layers, self._schema, columns_of(self._schema), layer, self._answered)

    def _rest(self, layer: int) -> LayersManifest:
        return stored(self.layers, self._schema, columns_of(self._schema), layer, self._answered)

    def _rows(self, layer: int) -> dict[int, StoredRowsManifest]:
        return rows_behind(self.layers, self._schema, columns_of(self._schema), layer, self._answered)

    @property
    def _answered(self) -> tuple[int, ...]:
        return answered_types(self.contract, self._schema)

    def _with_weights(self, part: LayersManifest) -> GivenLayers:
        return self.given.learnt(tensors_behind(self.given.tensors or {}, part, self._schema, columns_of(self._schema)))

    def _features_of(self, type_: int, nodes: slice) -> RowParts:
        features = self.features[type_]
        (dense,) = feature_blocks(features[nodes], range(features.shape[1]))
        return NOTHING._replace(features=dense)

    def _behind(self, layer: int, written: Written) -> Iterator[np.ndarray]:
        table, before, schema = written(_table_name(layer - 1)), self._rows(layer - 1), self._schema
        own = [
            table.rows.values[first : first + kind.nodes, : before[place].columns if place in before else 0]
            for place, (first, kind) in enumerate(zip(schema.first_nodes, schema.types, strict=False))
        ]

        def parts(type_: int, nodes: slice) -> RowParts:
            return parts_of(before[type_], own[type_][nodes]) if type_ in before else NOTHING

        return self._made_rows(layer, own, parts)

    def _made_rows(self, layer: int, features: Sequence[Features], parts: PartsOf) -> Iterator[np.ndarray]:
        """Rows behind a layer of all nodes, type after type, some at a time. `features`, `parts`: of what it reads."""
        rows, columns = self._rows(layer), self._columns(layer)
        for place, kind in enumerate(self._schema.types):
            done, row = 0, rows.get(place)
            for output in self._outputs(layer, place, row, features):
                nodes = slice(done, done + len(output))
                made = output if row is None else stored_rows(row, output, parts(place, nodes))
                yield np.pad(made, ((0, 0), (0, columns - made.shape[1])))
                done += len(output)
            assert done == kind.nodes  # noqa: S101

    def _outputs(
        self, layer: int, type_: int, row: StoredRowsManifest | None, features: Sequence[Features]
    ) -> Iterator[np.ndarray]:
        """What the layer gives of all nodes of a type, part after part; without columns, where it is not read."""
        if row is None or not row.output:
            left = self._schema.types[type_].nodes
            return (np.zeros((min(_COPIED_NODES, left - at), 0), np.float32) for at in range(0, left, _COPIED_NODES))
        columns = columns_of(self._schema)
        alone = one_layer(self.layers, self._schema, columns, layer, self._answered)
        program = program_of(alone, self._schema, columns, (type_,))
        return self.compute(self._with_weights(alone).runner(program), program, self.lists, features)


def _blocks_of(table: Table) -> Iterator[np.ndarray]:
    """Rows of a table in float32, some at a time."""
    for start in range(0, table.nodes, _COPIED_NODES):
        yield table.rows.values[start : start + _COPIED_NODES, : table.columns]


def _first_table(storage: Storage) -> str:
    return _table_name(0, storage)


def _table_name(layer: int, storage: Storage = Storage.FLOAT32) -> str:
    return f"stored{layer}-{storage}"
